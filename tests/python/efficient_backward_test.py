"""Gradients of masked calls on a GPU, by PyTorch's memory-efficient kernel, on a CPU: a stand-in for the kernel reads what it is given as the kernel does.

The kernel is aten/src/ATen/native/transformers/cuda/attention_backward.cu of PyTorch, with mem_eff_attention/kernel_backward.h. What it does not check is read
here as it reads it: O as (batch, len_q, heads, dim) without gaps, rows of the log-sum-exp at a multiple of 32, and probabilities exp(score - log-sum-exp), so that
rows that see no key have a log-sum-exp of infinity.
"""

import itertools
import math
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
from attention_cases import TOLERANCES, require_programs, tensors
from masked_gradient_test import exact, leaf, masks, weighted

# Groups of query heads, one row, keys that 16 do not divide, head dims that 8 divides and no power of two does, and dims of V unlike that of K.
SIZES = [(2, 2, 2, 33, 33, 64, 64), (1, 4, 2, 17, 65, 64, 64), (3, 2, 2, 50, 7, 64, 64), (1, 4, 1, 1, 40, 72, 72), (1, 4, 2, 17, 65, 96, 32)]


def setUpModule():
    require_programs()
    global heed, gradients
    import heed
    import masked_gradient_test
    from heed import gradients

    masked_gradient_test.heed, masked_gradient_test.gradients = heed, gradients


def require(condition, what):
    if not condition:
        raise AssertionError(f"PyTorch's kernel does not take this: {what}")


class Kernel:
    """aten::_scaled_dot_product_efficient_attention_backward of CUDA, in float64."""

    def __init__(self):
        self.calls = 0

    def __call__(self, grad_out, query, key, value, bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal, *, scale):
        self.calls += 1
        batch, heads, len_q, dim = query.shape
        len_k, dim_v = key.shape[2], value.shape[3]
        require(tuple(key.shape) == (batch, heads, len_k, dim) and tuple(value.shape) == (batch, heads, len_k, dim_v), "heads are repeated, one for each of Q")
        require(tuple(grad_out.shape) == (batch, heads, len_q, dim_v) and dropout_p == 0, "sizes of the gradient")
        for tensor in (query, key, value):
            require(tensor.stride(-1) == 1 and all(stride % 8 == 0 for stride in tensor.stride()[:3]) and tensor.data_ptr() % 16 == 0, "dense rows at multiples of 16 bytes")
        require(logsumexp.dtype == torch.float32 and logsumexp.shape[2] % 32 == 0 and logsumexp.shape[2] >= len_q and logsumexp.stride(2) == 1, "a log-sum-exp in float32, rows of a multiple of 32")
        q, k, v, grad = (tensor.double() for tensor in (query, key, value, grad_out))
        scale = 1 / math.sqrt(dim) if scale is None else scale
        scores = scale * q @ k.transpose(2, 3)
        if bias is not None:
            require(bias.dtype == query.dtype, "a bias of Q's type")
            require(tuple(bias.shape) == (batch, heads, len_q, len_k) and bias.stride(3) == 1, "a bias of all sizes, with dense rows")
            require(all(stride % 8 == 0 for stride in bias.stride()[:3]) and bias.data_ptr() % 16 == 0, "rows of the bias at multiples of 16 bytes")
            scores = scores + bias.double()
        if is_causal:
            scores = scores.masked_fill(~torch.ones(len_q, len_k, dtype=torch.bool).tril(), -math.inf)
        # By the strides that the kernel has; rows of O by the one that it takes for granted.
        o = out.as_strided((batch, heads, len_q, dim_v), (out.stride(0), out.stride(1), heads * dim_v, 1)).double()
        p = (scores - logsumexp[:, :, :len_q, None].double()).exp()
        ds = p * (grad @ v.transpose(2, 3) - (grad * o).sum(-1, keepdim=True))
        of_bias = None
        if grad_input_mask[3]:
            padded = torch.empty(*bias.shape[:3], -(-len_k // 16) * 16, dtype=bias.dtype)
            of_bias = padded[..., :len_k].copy_(ds)
        return (scale * ds @ k).to(query.dtype), (scale * ds.transpose(2, 3) @ q).to(key.dtype), (p.transpose(2, 3) @ grad).to(value.dtype), of_bias


class OfTheKernel(unittest.TestCase):
    def served(self, inputs, mask, learns, **named):
        """O and gradients of the drop-in on a CPU, whose backward is that of a GPU."""
        kernel = Kernel()
        inputs = [leaf(tensor) for tensor in inputs]
        mask = leaf(mask) if learns else mask
        with heed.sdpa(strict=True):
            o = F.scaled_dot_product_attention(*inputs, mask, **named)
        with mock.patch.object(gradients, "_efficient_backward", kernel), mock.patch.object(gradients, "_is_on_gpu", lambda tensor: True):
            weighted(o).backward()
        return kernel.calls, [o.detach(), *(tensor.grad for tensor in inputs), *([mask.grad] if learns else [])]

    def assert_same(self, actual, wanted, dtype):
        absolute, relative = TOLERANCES[dtype]
        for one, two in zip(actual, wanted, strict=True):
            self.assertEqual(one.shape, two.shape)
            torch.testing.assert_close(one.double(), two, atol=absolute * max(1, two.abs().max().item()), rtol=relative)

    def test_gradients_are_those_of_math(self):
        # Every mask makes a plan: other sizes and types have two.
        few = ("booleans", "a transposed bias")
        for at, dtype in ((0, torch.float32), (1, torch.float16), *itertools.product((2, 3, 4), (torch.float32, torch.float16))):
            sizes = SIZES[at]
            inputs = tensors(sizes, dtype, "cpu")
            named = {"enable_gqa": True} if sizes[1] != sizes[2] else {}
            for name, mask in masks(sizes, dtype).items():
                if at > 1 and name not in few:
                    continue
                # Gradients of one number that all scores share add up to 0: in float16 to what is rounded.
                for learns in (False, True) if mask.is_floating_point() and (mask.numel() > 1 or dtype == torch.float32) else (False,):
                    with self.subTest(sizes=sizes, dtype=dtype, mask=name, learns=learns):
                        calls, actual = self.served(inputs, mask, learns, **named)
                        # The kernel takes a bias of Q's type alone.
                        self.assertEqual(calls, int(mask.dtype in (torch.bool, dtype)))
                        self.assert_same(actual, exact(inputs, mask, learns, **named), dtype)

    def test_rows_that_see_no_key(self):
        inputs = tensors(SIZES[0], torch.float32, "cpu")
        seen = torch.ones(33, 33, dtype=torch.bool)
        seen[4] = seen[31] = False
        for mask in (seen, torch.where(seen, 0.0, -math.inf), torch.where(seen, 0.0, torch.finfo(torch.float32).min)):
            for learns in (False, True) if mask.is_floating_point() else (False,):
                calls, (o, of_q, *rest) = self.served(inputs, mask, learns)
                self.assertEqual((calls, o[:, :, 4].abs().max().item(), of_q[:, :, 31].abs().max().item()), (1, 0, 0))
                self.assert_same([o, of_q, *rest], exact(inputs, torch.where(seen, 0.0, -math.inf) if learns else seen, learns), torch.float32)

    def test_beside_a_causal_mask(self):
        inputs = tensors((1, 2, 2, 40, 40, 64, 64), torch.float32, "cpu")
        bias = torch.randn(40, 40, generator=torch.Generator().manual_seed(5))
        calls, actual = self.served(inputs, bias, False, is_causal=True)
        self.assertEqual(calls, 1)
        both = torch.where(torch.ones(40, 40, dtype=torch.bool).tril(), bias, -math.inf)
        self.assert_same(actual, exact(inputs, both, False), torch.float32)

    def test_tensors_that_lie_badly(self):
        # Slices that begin between multiples of 16 bytes, lengths before heads, and gradients of O that are expanded.
        sizes = SIZES[1]
        q, k, v = tensors(sizes, torch.float16, "cpu")
        apart = [torch.empty(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape).copy_(tensor) for tensor in (q, k, v)]
        outer = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
        mask = masks(sizes, torch.float16)["a transposed bias"]
        for inputs in (apart, outer):
            calls, actual = self.served(inputs, mask, True, enable_gqa=True)
            self.assertEqual(calls, 1)
            self.assert_same(actual, exact((q, k, v), mask, True, enable_gqa=True), torch.float16)

    def test_what_the_kernel_has_no_gradient_of_is_computed_otherwise(self):
        for sizes, words in (((1, 2, 2, 9, 9, 60, 60), "a head dim that 8 does not divide"), ((1, 2, 2, 9, 9, 64, 36), "one of V")):
            inputs, mask = tensors(sizes, torch.float32, "cpu"), masks(sizes, torch.float32)["booleans"]
            with self.subTest(words):
                calls, actual = self.served(inputs, mask, False)
                self.assertEqual(calls, 0)
                self.assert_same(actual, exact(inputs, mask, False), torch.float32)
        # PyTorch's own division of a batch gives no gradient of a bias.
        sizes = (3, 2, 2, 9, 9, 64, 64)
        inputs, mask = tensors(sizes, torch.float32, "cpu"), masks(sizes, torch.float32)["a bias of float32"]
        with mock.patch.object(gradients, "MOST_ENTRIES", 2):
            calls, actual = self.served(inputs, mask, True)
            self.assertEqual(calls, 0)
            self.assert_same(actual, exact(inputs, mask, True), torch.float32)
            self.assertEqual(self.served(inputs, mask, False)[0], 1)

    def test_a_stand_in_sees_a_wrong_call(self):
        q, k, v = tensors((1, 2, 2, 33, 33, 64, 64), torch.float32, "cpu")
        o, lse, seed = torch.zeros(1, 33, 2, 64).transpose(1, 2), torch.zeros(1, 2, 64), torch.zeros((), dtype=torch.int64)
        bias = torch.zeros(1, 2, 33, 48)[..., :33]
        kernel = Kernel()
        good = [o, q, k, v, bias, o, lse, seed, seed, 0.0, [True] * 4, False]
        kernel(*good, scale=0.1)
        for place, wrong in ((4, bias.contiguous()), (4, bias.half()), (4, bias[:, :1]), (5, torch.zeros_like(q)), (6, lse[..., :33]), (2, k[:, :1]), (1, q.transpose(2, 3)[:, :, :33, :33])):
            given = list(good)
            given[place] = wrong
            with self.assertRaises((AssertionError, RuntimeError)):
                kernel(*given, scale=0.1)

    def test_pytorch_takes_the_arguments(self):
        # PyTorch's own rule of shapes, on tensors without memory.
        for learns in (False, True):
            q, k, v = (torch.empty(2, heads, length, 64, device="meta", dtype=torch.float16) for heads, length in ((4, 33), (2, 65), (2, 65)))
            bias = torch.empty(1, 4, 33, 65, device="meta", dtype=torch.float16)
            found = gradients.backward_by_efficient_attention(torch.empty_like(q), q, k, v, torch.empty_like(q), torch.empty(2, 4, 33, device="meta"), bias, False, 0.1, learns)
            self.assertEqual([tuple(grad.shape) for grad in found[:3]], [tuple(tensor.shape) for tensor in (q, k, v)])
            self.assertEqual(found[3] is not None and tuple(found[3].shape), learns and (2, 4, 33, 65))


if __name__ == "__main__":
    unittest.main()

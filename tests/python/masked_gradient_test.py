"""Calls with a mask tensor, and calls of unusual forms, that gradients are wanted of: beside PyTorch's unfused computation in float64."""

import contextlib
import itertools
import math
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, TOLERANCES, require_programs, tensors
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = [(2, 2, 2, 33, 33, 64, 64), (1, 4, 2, 17, 65, 64, 64), (3, 2, 2, 50, 7, 64, 64), (1, 4, 2, 17, 65, 96, 32)]


def setUpModule():
    require_programs()
    global heed, gradients
    import heed
    from heed import gradients


def masks(sizes, dtype):
    """{name: a mask tensor for these sizes}. Each row sees a key."""
    batch, heads, _, len_q, len_k = sizes[:5]
    generator = torch.Generator().manual_seed(8)
    numbers = torch.randn(batch, heads, len_q, len_k, generator=generator)
    seen = numbers > -0.3
    seen[..., 1] = True
    lengths = torch.arange(1, batch + 1).view(-1, 1, 1, 1)
    return {
        "padding": torch.arange(len_k) < len_k - lengths,
        "booleans": seen,
        "booleans of rows": seen[0, 0],
        "hidden by infinity": numbers.masked_fill(~seen, -math.inf).to(dtype),
        "hidden by the least number": numbers[:, :1].masked_fill(~seen[:, :1], torch.finfo(dtype).min).to(dtype),
        "a bias of float32": numbers,
        "a transposed bias": numbers[0].transpose(1, 2).contiguous().transpose(1, 2).to(dtype),
        "an expanded bias": numbers[:, :1, :1].expand(batch, heads, len_q, len_k).to(dtype),
        "one number": numbers[0, 0, :1, :1].to(dtype),
    }


def weighted(o):
    return (o.double() * torch.linspace(-1, 1, o.numel(), dtype=torch.float64, device=o.device).reshape(o.shape)).sum()


def leaf(tensor, dtype=None):
    return tensor.detach().to(dtype or tensor.dtype).requires_grad_()


def exact(inputs, mask, learns_mask, **named):
    """O and gradients by PyTorch's unfused computation of float64."""
    inputs = [leaf(tensor, torch.float64) for tensor in inputs]
    if mask.dtype != torch.bool:
        mask = torch.where(mask == torch.finfo(mask.dtype).min, -math.inf, mask.double())
        mask = leaf(mask) if learns_mask else mask
    with sdpa_kernel(SDPBackend.MATH):
        o = F.scaled_dot_product_attention(*inputs, mask, **named)
    weighted(o).backward()
    return [o.detach(), *(tensor.grad for tensor in inputs), *([mask.grad] if learns_mask else [])]


class OfMasks(unittest.TestCase):
    def served(self, inputs, mask, learns_mask, **named):
        inputs = [leaf(tensor) for tensor in inputs]
        mask = leaf(mask) if learns_mask else mask
        with heed.sdpa(strict=True):
            o = F.scaled_dot_product_attention(*inputs, mask, **named)
        weighted(o).backward()
        return [o.detach(), *(tensor.grad for tensor in inputs), *([mask.grad] if learns_mask else [])]

    def assert_same(self, actual, wanted, dtype, scores=1):
        absolute, relative = TOLERANCES[dtype]
        for one, two in zip(actual, wanted, strict=True):
            # The gradient of one number that is added to all scores is the sum of all of theirs, which is zero: what is left is their rounding.
            summed = math.sqrt(scores) / 16 if two.numel() == 1 else 1.0
            bound = 2 * absolute * max(1.0, two.abs().max().item(), summed)
            torch.testing.assert_close(one.double().cpu(), two.cpu(), atol=bound, rtol=relative)

    def test_every_mask_type_and_size(self):
        # Every mask makes a plan: other sizes and types have two.
        few = ("padding", "a transposed bias")
        others = [(torch.float32, sizes) for sizes in SIZES[1:]] + [(torch.bfloat16, SIZES[1]), (torch.float16, SIZES[1])]
        for dtype, sizes, names in ((torch.float32, SIZES[0], None), *((*other, few) for other in others)):
            inputs = tensors(sizes, dtype, "cpu")
            shared = {"enable_gqa": sizes[1] != sizes[2]}
            for name, mask in masks(sizes, dtype).items():
                if names is not None and name not in names:
                    continue
                for learns_mask in (False, True) if mask.is_floating_point() else (False,):
                    with self.subTest(dtype=dtype, sizes=sizes, mask=name, learned=learns_mask):
                        self.assert_same(self.served(inputs, mask, learns_mask, **shared), exact(inputs, mask, learns_mask, **shared), dtype)

    def test_every_mask_on_a_gpu(self):
        if "cuda" not in DEVICES:
            self.skipTest("it needs a GPU")
        sizes_of_all = [(2, 4, 4, 33, 33, 64, 64), (2, 8, 2, 130, 257, 128, 128), (1, 2, 2, 300, 64, 64, 64), (2, 4, 2, 1, 77, 64, 64)]
        for sizes, dtype in itertools.product(sizes_of_all, (torch.bfloat16, torch.float16, torch.float32)):
            inputs = tensors(sizes, dtype, "cuda")
            shared = {"enable_gqa": sizes[1] != sizes[2]}
            for name, mask in masks(sizes, dtype).items():
                # What lies expanded must stay so.
                mask = mask.to("cuda") if name != "an expanded bias" else mask[:, :1, :1].to("cuda").expand(mask.shape)
                for learns_mask in (False, True) if mask.is_floating_point() else (False,):
                    with (
                        self.subTest(dtype=dtype, sizes=sizes, mask=name, learned=learns_mask),
                        mock.patch.object(gradients, "backward_by_efficient_attention", wraps=gradients.backward_by_efficient_attention) as kernel,
                    ):
                        scores = math.prod(sizes[:2]) * sizes[3] * sizes[4]
                        self.assert_same(self.served(inputs, mask, learns_mask, **shared), exact(inputs, mask, learns_mask, **shared), dtype, scores)
                        self.assertEqual(kernel.call_count, int(mask.dtype in (torch.bool, dtype)))

    def test_hidden_rows_and_a_causal_mask_on_a_gpu(self):
        if "cuda" not in DEVICES:
            self.skipTest("it needs a GPU")
        inputs = tensors((1, 2, 2, 100, 100, 64, 64), torch.float16, "cuda")
        seen = torch.rand(100, 100, generator=torch.Generator().manual_seed(1)).to("cuda") > 0.3
        seen[:, 0] = True
        before = torch.ones_like(seen).tril()
        self.assert_same(self.served(inputs, seen, False, is_causal=True), exact(inputs, seen & before, False), torch.float16)
        for hidden in (-math.inf, torch.finfo(torch.float16).min):
            mask = torch.zeros(100, 100, dtype=torch.float16, device="cuda")
            mask[4] = hidden
            o, of_q, of_k, of_v, of_mask = self.served(inputs, mask, True)
            self.assertEqual([tensor[..., 4, :].abs().max().item() for tensor in (o, of_q, of_mask)], [0, 0, 0])
            wanted = exact(inputs, torch.where(mask == 0, mask, -math.inf), False)
            self.assert_same([o, of_q, of_k, of_v], wanted, torch.float16)

    def test_one_input_alone(self):
        sizes = SIZES[0]
        mask = masks(sizes, torch.float32)["a bias of float32"]
        wanted = exact(tensors(sizes, torch.float32, "cpu"), mask, True)
        for which in range(4):
            inputs = [*tensors(sizes, torch.float32, "cpu"), mask.clone()]
            inputs[which].requires_grad_()
            with heed.sdpa(strict=True):
                weighted(F.scaled_dot_product_attention(*inputs)).backward()
            self.assertEqual([tensor.grad is not None for tensor in inputs], [place == which for place in range(4)])
            self.assert_same([inputs[which].grad], [wanted[1 + which]], torch.float32)

    def test_the_kernel_is_taken_where_it_has_the_gradient(self):
        sizes = SIZES[0]
        for name, taken, dims, learns in (("padding", True, 64, False), ("a bias of float32", True, 64, False), ("a bias of float32", False, 64, True), ("padding", False, 32, False)):
            inputs = tensors((*sizes[:6], dims), torch.float32, "cpu")
            mask = masks(sizes, torch.float32)[name]
            for call in (self.served, self.by_attention):
                with self.subTest(mask=name, dim_v=dims, learned=learns), mock.patch.object(gradients, "backward_on_cpu", wraps=gradients.backward_on_cpu) as kernel:
                    self.assert_same(call(inputs, mask, learns), exact(inputs, mask, learns), torch.float32)
                    self.assertEqual(kernel.call_count, int(taken))

    def by_attention(self, inputs, mask, learns_mask):
        inputs = [leaf(tensor) for tensor in inputs]
        mask = leaf(mask) if learns_mask else mask
        o = heed.attention(*inputs, bias=mask)
        weighted(o).backward()
        return [o.detach(), *(tensor.grad for tensor in inputs), *([mask.grad] if learns_mask else [])]

    def test_rows_that_see_no_key(self):
        inputs = tensors(SIZES[0], torch.float32, "cpu")
        seen = torch.ones(33, 33, dtype=torch.bool)
        seen[4] = False
        for mask in (seen, torch.where(seen, 0.0, -math.inf), torch.where(seen, 0.0, torch.finfo(torch.float32).min)):
            for learns in (False, True) if mask.is_floating_point() else (False,):
                o, of_q, *rest = self.served(inputs, mask, learns)
                self.assertEqual((o[:, :, 4].abs().max().item(), of_q[:, :, 4].abs().max().item()), (0, 0))
                self.assert_same([o, of_q, *rest], exact(inputs, torch.where(seen, 0.0, -math.inf) if learns else seen, learns), torch.float32)

    def test_rows_whose_keys_are_all_far_below(self):
        # The log-sum-exp of such a row is rounded to 64 nats: no gradient can be had from it.
        inputs = tensors(SIZES[0], torch.float32, "cpu")
        for number in (-1e9, 1e9):
            mask = torch.zeros(33, 33)
            mask[4] = number
            actual = self.served(inputs, mask, False)
            self.assertTrue(all(tensor.isfinite().all() for tensor in actual))
            mask = mask.index_fill(0, torch.tensor([4]), 0.0)
            # Numbers that are added to 1e9 vanish in float32: the weights of that row are equal.
            q = inputs[0].clone()
            q[:, :, 4] = 0
            wanted = exact((q, *inputs[1:]), mask, False)
            self.assert_same([actual[0], actual[3]], [wanted[0], wanted[3]], torch.float32)

    def test_gradients_of_gradients(self):
        results = []
        for mode in (lambda: sdpa_kernel(SDPBackend.MATH), lambda: heed.sdpa(strict=True)):
            q, k, v = (leaf(tensor) for tensor in tensors((1, 2, 2, 6, 9, 64, 64), torch.float32, "cpu"))
            bias = leaf(torch.randn(6, 9, generator=torch.Generator().manual_seed(1)))
            with mode():
                o = F.scaled_dot_product_attention(q, k, v, bias)
            first = torch.autograd.grad(o.sin().sum(), (q, k, v, bias), create_graph=True)
            results.append(torch.autograd.grad(sum(tensor.square().sum() for tensor in first), (q, k, v, bias)))
        for one, two in zip(*results):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)

    def test_many_gradients_at_once(self):
        q, k, v = (leaf(tensor) for tensor in tensors((1, 2, 2, 6, 9, 64, 64), torch.float32, "cpu"))
        mask = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) > 0.3
        grads = torch.randn(3, 1, 2, 6, 64, generator=torch.Generator().manual_seed(2))
        with heed.sdpa(strict=True):
            o = F.scaled_dot_product_attention(q, k, v, mask)
        together = torch.autograd.grad(o, (q, k, v), grads, is_grads_batched=True, retain_graph=True)
        for at, grad in enumerate(grads):
            for one, two in zip(together, torch.autograd.grad(o, (q, k, v), grad, retain_graph=True)):
                torch.testing.assert_close(one[at], two, atol=1e-5, rtol=1e-4)

    def test_a_module_in_training(self):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(128, 2, batch_first=True, dropout=0.0).train()
        tokens, padding = torch.randn(2, 9, 128), torch.arange(9) >= torch.tensor([[7], [9]])
        results = []
        for mode in (contextlib.nullcontext, lambda: heed.sdpa(strict=True)):
            layer.zero_grad()
            with mode():
                layer(tokens, src_key_padding_mask=padding).square().mean().backward()
            results.append([parameter.grad.clone() for parameter in layer.parameters()])
        for one, two in zip(*results):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        sizes = SIZES[0]
        inputs, mask = tensors(sizes, torch.float32, "cpu"), masks(sizes, torch.float32)["padding"]
        q, k, v = (leaf(tensor) for tensor in inputs)
        with heed.sdpa(strict=True):
            weighted(checkpoint(F.scaled_dot_product_attention, q, k, v, mask, use_reentrant=False)).backward()
        self.assert_same([q.grad, k.grad, v.grad], exact(inputs, mask, False)[1:], torch.float32)


class OfForms(unittest.TestCase):
    """Calls that are other calls (heed.forms): values and gradients."""

    def check(self, inputs, mask=None, combined=None, **named):
        """combined: the mask of the reference, where it is another one."""
        for needs_gradient in (False, True):
            leaves = [leaf(tensor) if needs_gradient else tensor for tensor in inputs]
            heed.reset_report()
            with heed.sdpa(strict=True):
                o = F.scaled_dot_product_attention(*leaves, mask, **named)
            self.assertEqual((heed.report().served, heed.report().handed_back), (1, 0), str(heed.report()))
            wanted_leaves = [leaf(tensor, torch.float64) for tensor in inputs]
            of_math = combined if combined is not None else mask
            of_math = of_math if of_math is None or of_math.dtype == torch.bool else of_math.double()
            others = {key: given for key, given in named.items() if combined is None or key != "is_causal"}
            with sdpa_kernel(SDPBackend.MATH):
                wanted = F.scaled_dot_product_attention(*wanted_leaves, of_math, **others)
            pairs = [(o, wanted)]
            if needs_gradient:
                weighted(o).backward()
                weighted(wanted).backward()
                pairs += [(one.grad, two.grad) for one, two in zip(leaves, wanted_leaves)]
            for one, two in pairs:
                self.assertEqual(one.shape, two.shape)
                torch.testing.assert_close(one.double(), two, atol=1e-4, rtol=1e-4)

    def test_more_than_four_dimensions(self):
        q, k, v = tensors((6, 4, 4, 7, 9, 64, 64), torch.float32, "cpu")
        q, k, v = (tensor.unflatten(0, (2, 3)) for tensor in (q, k, v))
        seen = torch.rand(2, 3, 4, 7, 9, generator=torch.Generator().manual_seed(3)) > 0.3
        seen[..., 0] = True
        self.check((q, k, v))
        self.check((q, k, v), is_causal=True)
        self.check((q, k[:, :, :2], v[:, :, :2]), enable_gqa=True)
        self.check((q, k[:1, :1], v[:1, :1]))
        self.check((q, k[:, :1], v[:1]))
        self.check((q[None], k[None], v[None]), scale=0.3)
        self.check((q.transpose(2, 3).contiguous().transpose(2, 3), k.transpose(0, 1).contiguous().transpose(0, 1), v))
        for mask in (seen, seen[:, :1], seen[:1, :1], seen[0, 0], seen[0, 0, 0], torch.where(seen, 0.5, -math.inf)):
            self.check((q, k, v), mask)
            self.check((q, k[:, :1, :1], v[:, :1, :1]), mask)

    def test_tensors_of_different_numbers_of_dimensions(self):
        q, k, v = tensors((2, 4, 4, 7, 9, 64, 64), torch.float32, "cpu")
        self.check((q, k[0], v[0]))
        self.check((q[0], k, v), torch.rand(2, 1, 7, 9, generator=torch.Generator().manual_seed(3)) > 0.1)
        self.check((q, k[0, 0], v[0, :1]))

    def test_scales_of_zero_and_less(self):
        q, k, v = tensors((2, 4, 2, 7, 9, 64, 64), torch.float32, "cpu")
        bias = torch.randn(7, 9, generator=torch.Generator().manual_seed(3))
        for scale in (-0.2, 0.0, -0.0, -1e-8):
            self.check((q, k, v), scale=scale, enable_gqa=True)
            self.check((q, k, v), bias, scale=scale, enable_gqa=True)
            self.check((q[0], k[0], v[0]), is_causal=True, scale=scale, enable_gqa=True)

    def test_key_heads_unlike_value_heads(self):
        q, k, v = tensors((2, 4, 4, 7, 9, 64, 64), torch.float32, "cpu")
        self.check((q, k[:, :2], v), enable_gqa=True)
        self.check((q, k[:, :2], v[:, :1]), enable_gqa=True)

    def test_a_mask_beside_is_causal(self):
        # The mask by both, as PyTorch's fused kernels have it.
        for sizes in ((2, 4, 4, 7, 9, 64, 64), (2, 4, 4, 9, 7, 64, 64), (1, 2, 2, 40, 40, 64, 64)):
            len_q, len_k = sizes[3:5]
            q, k, v = tensors(sizes, torch.float32, "cpu")
            bias = torch.randn(len_q, len_k, generator=torch.Generator().manual_seed(3))
            before = torch.ones(len_q, len_k, dtype=torch.bool).tril()
            seen = bias > -0.5
            seen[:, 0] = True
            for mask, both in ((bias, torch.where(before, bias, -math.inf)), (seen, seen & before)):
                self.check((q, k, v), mask, both, is_causal=True)
                # PyTorch's kernel gives NaN for this one.
                self.check((q, k, v), mask, both, is_causal=True, scale=-0.3)
                with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    by_kernel = F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
                with torch.inference_mode(), heed.sdpa(strict=True):
                    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, mask, is_causal=True), by_kernel, atol=1e-5, rtol=1e-4)

    def test_tensors_without_elements(self):
        q, k, v = tensors((2, 4, 4, 7, 9, 64, 64), torch.float32, "cpu")
        mask = torch.zeros(7, 9)
        self.check((q[:0], k[:0], v[:0]))
        self.check((q[:, :, :0], k, v), mask[:0], scale=-1.0)
        self.check((q, k[:, :, :0], v[:, :, :0]), mask[:, :0])
        self.check((q[..., :0], k[..., :0], v), mask)
        self.check((q[None, :, :, :0], k[None], v[None]))
        self.check((q[0], k[0], v[0, ..., :0]))
        self.check((q, k[:, :2, :0], v[:, :2, :0]), enable_gqa=True)
        self.assertEqual([(row.variant, row.reason) for row in heed.report().rows], [("none", "tensors without elements")])

    def test_calls_that_stay_pytorchs(self):
        q, k, v = tensors((2, 4, 4, 7, 9, 64, 64), torch.float32, "cpu")
        five = [tensor[None] for tensor in (q, k, v)]
        cases = {
            "element type": (*(tensor.double() for tensor in five),),
            "scale": (q, k, v, None, 0.0, False, math.inf),
            "selection of backends": (*five,),
        }
        for (words, arguments), needs_gradient in itertools.product(cases.items(), (False, True)):
            arguments = [leaf(one) if isinstance(one, torch.Tensor) and needs_gradient else one for one in arguments]
            named = {"scale": arguments.pop(6)} if len(arguments) > 6 else {}
            chosen = sdpa_kernel(SDPBackend.MATH) if "selection" in words else contextlib.nullcontext()
            heed.reset_report()
            with self.subTest(words, gradient=needs_gradient), heed.sdpa():
                with chosen:
                    F.scaled_dot_product_attention(*arguments, **named)
                self.assertEqual([(row.served, row.calls) for row in heed.report().rows], [(False, 1)])
                self.assertIn(words, heed.report().rows[0].reason)


if __name__ == "__main__":
    unittest.main()

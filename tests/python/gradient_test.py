"""Gradients of heed.attention and heed.scaled_dot_product_attention."""

import itertools
import unittest

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, SIZES, TOLERANCES, require_programs, tensors
from torch._subclasses.fake_tensor import FakeTensorMode

MASKS = [
    {},
    {"causal": True, "alignment": "top_left"},
    {"causal": True, "alignment": "bottom_right"},
    {"window": (5, 3), "alignment": "bottom_right"},
    {"causal": True, "window": (4, None), "alignment": "top_left"},
]


def setUpModule():
    require_programs()
    global heed, gradients, unfused
    import heed
    from heed import gradients, unfused


def exact(q, k, v, **mask):
    """O, and gradients of Q, K and V for the sum of O * (1, 2, 3, ...), in float64 by autograd over separate operators."""
    q, k, v = (tensor.detach().double().cpu().requires_grad_() for tensor in (q, k, v))
    from heed.masks import masking

    len_q, len_k = q.shape[2], k.shape[2]
    codes = masking("exact", len_q, len_k, len_q == len_k, mask.get("causal", False), mask.get("window"), mask.get("alignment"), None)
    o, lse = unfused.forward(q, k, v, *codes)
    weighted(o).backward()
    return o, q.grad, k.grad, v.grad


def weighted(o):
    steps = torch.linspace(0, 1, o.numel(), dtype=torch.float32).reshape(o.shape).to(o.device)
    return (o.float() * steps).sum() if o.dtype != torch.float64 else (o * steps.double()).sum()


def leaves(*given):
    return [tensor.detach().clone().requires_grad_() for tensor in given]


class Kernels(unittest.TestCase):
    """Which kernel of PyTorch computes a gradient: causal masks of two are aligned to the top left, those of the third to the bottom right."""

    def test_every_mask_and_device(self):
        masks = {name: getattr(unfused, name) for name in ("NONE", "CAUSAL_TOP_LEFT", "CAUSAL_BOTTOM_RIGHT", "WINDOW_TOP_LEFT", "WINDOW_BOTTOM_RIGHT")}
        whole, window = (-1, -1), (5, 3)
        # Mask, bounds, as many queries as keys: on a CPU, in fp32 and in half types on a GPU.
        expected = [
            ("NONE", whole, False, "cpu", "efficient", "flash"),
            ("CAUSAL_TOP_LEFT", whole, False, "cpu", "efficient", None),
            ("CAUSAL_TOP_LEFT", whole, True, "cpu", "efficient", "flash"),
            ("CAUSAL_BOTTOM_RIGHT", whole, False, None, None, "flash"),
            ("CAUSAL_BOTTOM_RIGHT", whole, True, None, "efficient", "flash"),
            ("CAUSAL_TOP_LEFT", (5, -1), False, None, None, None),
            ("CAUSAL_TOP_LEFT", (5, -1), True, None, None, "flash"),
            ("CAUSAL_BOTTOM_RIGHT", (5, -1), False, None, None, "flash"),
            ("WINDOW_TOP_LEFT", window, False, None, None, None),
            ("WINDOW_TOP_LEFT", window, True, None, None, "flash"),
            ("WINDOW_BOTTOM_RIGHT", window, False, None, None, "flash"),
        ]
        for mask, bounds, is_square, *kernels in expected:
            lengths = (80, 80) if is_square else (64, 80)
            found = [gradients.kernel_for(device, dtype, 64, *lengths, masks[mask], *bounds) for device, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.float16))]
            self.assertEqual(found, kernels, f"{mask} {bounds} {lengths}")
        for dim in (36, 264):
            self.assertIsNone(gradients.kernel_for("cuda", torch.bfloat16, dim, 64, 64, unfused.NONE, -1, -1))


class TracesOfGpus(unittest.TestCase):
    def test_one_after_the_other(self):
        # Each trace of torch.compile has tensors of its own, and eager calls come between.
        for window in (-1, 5):
            for _ in range(2):
                with FakeTensorMode():
                    q, k = (torch.empty(1, 4, length, 64, dtype=torch.float16, device="cuda") for length in (32, 48))
                    lse = torch.empty(1, 4, 32, device="cuda")
                    found = gradients.backward_by_flash_attention(q, q, k, k, q, lse, False, window, window, 0.125)
                    self.assertEqual([one.shape for one in found], [q.shape, k.shape, k.shape])


class Gradients(unittest.TestCase):
    def test_every_mask_type_and_size(self):
        for device in DEVICES:
            for dtype, sizes, mask in itertools.product((torch.float32, torch.bfloat16), SIZES, MASKS):
                with self.subTest(device=device, dtype=dtype, sizes=sizes, **mask):
                    q, k, v = leaves(*tensors(sizes, dtype, device))
                    weighted(heed.attention(q, k, v, **mask)).backward()
                    absolute, relative = TOLERANCES[dtype]
                    for actual, wanted in zip((q.grad, k.grad, v.grad), exact(q, k, v, **mask)[1:]):
                        bound = wanted.abs().max().clamp(min=1).item()
                        torch.testing.assert_close(actual.double().cpu(), wanted, atol=2 * absolute * bound, rtol=relative)

    def test_every_layout(self):
        for device, layout in itertools.product(DEVICES, ("bhld", "blhd", "packed", "strided")):
            with self.subTest(device=device, layout=layout):
                q, k, v = tensors((2, 4, 2, 24, 24, 64, 64), torch.bfloat16, device, layout)
                q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
                weighted(heed.attention(q, k, v, causal=True)).backward()
                for actual, wanted in zip((q.grad, k.grad, v.grad), exact(q, k, v, causal=True, alignment="top_left")[1:]):
                    torch.testing.assert_close(actual.double().cpu(), wanted, atol=0.06 * max(1.0, wanted.abs().max().item()), rtol=0.03)

    def test_the_log_sum_exp_has_a_gradient(self):
        q, k, v = leaves(*tensors((1, 4, 2, 9, 12, 64, 64), torch.float32, "cpu"))
        o, lse = heed.attention(q, k, v, return_lse=True)
        (weighted(o) + weighted(lse)).backward()
        other = leaves(q, k, v)
        o, lse = unfused.forward(*other)
        (weighted(o) + weighted(lse)).backward()
        for one, two in zip((q, k, v), other):
            torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4)

    def test_one_input_alone(self):
        for which in range(3):
            inputs = list(tensors((1, 2, 2, 9, 9, 64, 64), torch.float32, "cpu"))
            inputs[which].requires_grad_()
            weighted(heed.attention(*inputs)).backward()
            torch.testing.assert_close(inputs[which].grad, exact(*inputs)[1 + which].float(), atol=1e-4, rtol=1e-4)

    def test_rows_that_see_no_key_give_and_get_zeros(self):
        # 40 queries of 8 keys, aligned to the bottom right: 32 rows see none.
        for device in DEVICES:
            dtype = torch.float32 if device == "cpu" else torch.float16
            q, k, v = leaves(*tensors((1, 2, 2, 40, 8, 64, 64), dtype, device))
            o = heed.attention(q, k, v, causal=True, alignment="bottom_right")
            self.assertEqual(o[:, :, :32].abs().max().item(), 0)
            weighted(o).backward()
            self.assertEqual(q.grad[:, :, :32].abs().max().item(), 0)
            self.assertTrue(all(tensor.grad.isfinite().all() for tensor in (q, k, v)))

    def test_the_formula_by_differences(self):
        # The formula in float64, through autograd of the operators that it is made of.
        q, k, v = leaves(*(tensor.double() for tensor in tensors((1, 2, 1, 5, 6, 8, 8), torch.float32, "cpu")))
        for mask in ((0, -1, -1), (1, -1, -1), (4, 2, 1)):
            o, lse = unfused.forward(q, k, v, *mask)
            grad_o, grad_lse = torch.randn_like(o), torch.randn_like(lse)
            wanted = torch.autograd.grad((o, lse), (q, k, v), (grad_o, grad_lse))
            # The log-sum-exp is kept in float32.
            lse = lse.double() if lse.dtype != torch.float64 else lse
            for one, two in zip(unfused.backward(grad_o, grad_lse, q, k, v, o, lse, *mask), wanted):
                torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)

    def test_gradients_of_gradients(self):
        q, k, v = leaves(*tensors((1, 2, 2, 6, 6, 64, 64), torch.float32, "cpu"))
        results = []
        for function in (heed.scaled_dot_product_attention, F.scaled_dot_product_attention):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                first = torch.autograd.grad(function(q, k, v).sin().sum(), (q, k, v), create_graph=True)
                results.append(torch.autograd.grad(sum(tensor.square().sum() for tensor in first), (q, k, v)))
        for one, two in zip(*results):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)

    def test_no_gradient_is_no_work(self):
        q, k, v = tensors((1, 2, 2, 9, 9, 64, 64), torch.float32, "cpu")
        self.assertIsNone(heed.attention(q, k, v).grad_fn)
        q.requires_grad_()
        self.assertIsNotNone(heed.attention(q, k, v).grad_fn)
        self.assertIsNotNone(heed.scaled_dot_product_attention(q, k, v).grad_fn)
        with torch.no_grad():
            self.assertIsNone(heed.attention(q, k, v).grad_fn)
            self.assertIsNone(heed.scaled_dot_product_attention(q, k, v).grad_fn)

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        q, k, v = leaves(*tensors((1, 2, 2, 9, 9, 64, 64), torch.float32, "cpu"))
        weighted(checkpoint(heed.scaled_dot_product_attention, q, k, v, use_reentrant=False)).backward()
        torch.testing.assert_close(q.grad, exact(q, k, v)[1].float(), atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    unittest.main()

"""Norms of output rows and gates of heed.attention, against modules of PyTorch that follow attention in float64."""

import math
import unittest

import torch
from attention_cases import DEVICES, DTYPES, TOLERANCES, expected, require_programs, tensors

HEADS, DIM = 4, 64
GROWTH = 12  # a norm multiplies rows, and what they are off by, by some ten


def setUpModule():
    require_programs()
    global heed
    import heed


def drawn(*sizes, dtype=torch.float32, device="cpu", seed=3):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(device=device, dtype=dtype)


def finished(o, gate=None, weight=None, eps=1e-5):
    """In the dtype of `o`."""
    if weight is not None:
        weight = weight.to(o.dtype)
        o = torch.nn.functional.rms_norm(o, o.shape[-1:], eps=eps) * (weight if weight.dim() == 1 else weight.unsqueeze(1))
    return o if gate is None else o * torch.sigmoid(gate.to(o.dtype))


def assert_close(actual, wanted, dtype):
    absolute, relative = TOLERANCES[dtype]
    torch.testing.assert_close(actual.detach().double().cpu(), wanted.cpu(), atol=GROWTH * absolute, rtol=GROWTH * relative)


class Attention(unittest.TestCase):
    def each(self, dim_v=DIM):
        for device in DEVICES:
            for dtype in DTYPES[device]:
                of_o = 2, HEADS, 33, dim_v
                for name, gate in (
                    ("none", None),
                    ("dense", drawn(*of_o, dtype=dtype, device=device)),
                    ("lengths first", drawn(2, 33, HEADS, dim_v, dtype=dtype, device=device).transpose(1, 2)),
                    ("columns apart", drawn(2, HEADS, dim_v, 33, dtype=dtype, device=device).transpose(2, 3)),
                    ("of rows", drawn(2, HEADS, 33, 1, dtype=dtype, device=device)),
                    ("expanded", drawn(2, HEADS, 33, 1, dtype=dtype, device=device).expand(of_o)),
                    ("of entries", drawn(2, 1, 1, dim_v, dtype=dtype, device=device)),
                ):
                    for weight in (None, drawn(dim_v, device=device) + 1, drawn(HEADS, dim_v, dtype=dtype, device=device)):
                        case = self.subTest(device=device, dtype=dtype, gate=name, weight=None if weight is None else weight.dim())
                        yield case, device, dtype, gate, weight

    def test_is_a_norm_and_a_gate_behind_attention(self):
        for case, device, dtype, gate, weight in self.each():
            with case:
                q, k, v = tensors((2, HEADS, 2, 33, 60, DIM, DIM), dtype, device)
                o, lse = expected(q, k, v, causal=True)
                got = heed.attention(q, k, v, causal=True, alignment="top_left", out_gate=gate, out_norm_weight=weight, return_lse=True)
                wanted = finished(o, None if gate is None else gate.cpu(), None if weight is None else weight.cpu())
                assert_close(got[0], wanted, dtype)
                torch.testing.assert_close(got[1].double().cpu(), lse, atol=2e-3, rtol=1e-3)

    def test_of_rows_whose_head_dim_is_padded(self):
        for case, device, dtype, gate, weight in self.each(dim_v=40):
            with case:
                q, k, v = tensors((2, HEADS, 2, 33, 60, DIM, 40), dtype, device)
                wanted = finished(expected(q, k, v)[0], None if gate is None else gate.cpu(), None if weight is None else weight.cpu())
                assert_close(heed.attention(q, k, v, out_gate=gate, out_norm_weight=weight), wanted, dtype)

    def test_rows_that_see_nothing_are_zeros(self):
        for device in DEVICES:
            q, k, v = tensors((1, HEADS, 2, 30, 20, DIM, DIM), DTYPES[device][0], device)
            o = heed.attention(q, k, v, causal=True, alignment="bottom_right", out_norm_weight=torch.ones(DIM, device=device), out_norm_eps=1e-20)
            self.assertTrue(bool((o[:, :, :10] == 0).all()))
            self.assertTrue(bool((o[:, :, 10:].float().square().mean(-1) > 0.9).all()))

    def test_nan_and_infinity_are_those_of_modules(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            q, k, v = tensors((1, HEADS, HEADS, 9, 20, DIM, DIM), dtype, device)
            v[0, 0, 3, 5], v[0, 1, 3, 5] = math.nan, math.inf
            gate = drawn(1, HEADS, 9, DIM, dtype=dtype, device=device)
            gate[0, 2, 4, 7], gate[0, 3, 4, 7], gate[0, 3, 4, 8] = math.nan, math.inf, -math.inf
            weight = torch.ones(DIM, device=device)
            for given in ({"out_gate": gate}, {"out_norm_weight": weight}, {"out_gate": gate, "out_norm_weight": weight}):
                o = heed.attention(q, k, v, **given).double().cpu()
                plain = heed.attention(q, k, v).double().cpu()
                wanted = finished(plain, *(given[name].cpu() if name in given else None for name in ("out_gate", "out_norm_weight")))
                self.assertTrue(torch.equal(o.isnan(), wanted.isnan()), list(given))
                self.assertTrue(torch.equal(o == 0, wanted == 0), list(given))

    def test_of_ragged_batches(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            rows = drawn(200, HEADS, DIM, dtype=dtype, device=device)
            begins = torch.tensor([0, 70, 200], device=device)
            for gate in (drawn(200, HEADS, DIM, dtype=dtype, device=device, seed=5), drawn(200, HEADS, 1, dtype=dtype, device=device, seed=5)):
                for weight in (drawn(DIM, device=device), drawn(HEADS, DIM, device=device)):
                    o = heed.attention_varlen(rows, rows, rows, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=130, max_len_k=130, out_gate=gate, out_norm_weight=weight)
                    for begin, end in ((0, 70), (70, 200)):
                        one = rows[begin:end].transpose(0, 1).unsqueeze(0)
                        wanted = finished(expected(one, one, one)[0], gate[begin:end].transpose(0, 1).unsqueeze(0).cpu(), weight.cpu())
                        assert_close(o[begin:end], wanted[0].transpose(0, 1), dtype)

    def test_gradients_are_those_of_modules(self):
        for device in DEVICES:
            q, k, v = (tensor.float() for tensor in tensors((1, HEADS, 2, 9, 14, 16, 16), torch.float32, device))
            gate, weight = drawn(1, HEADS, 9, 16, device=device), drawn(HEADS, 16, device=device) + 1
            inputs = [tensor.requires_grad_() for tensor in (q, k, v, gate, weight)]
            o = heed.attention(q, k, v, out_gate=gate, out_norm_weight=weight, out_norm_eps=0.1)
            given = torch.randn_like(o)
            got = torch.autograd.grad((o * given).sum(), inputs)
            exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
            shared = [tensor.repeat_interleave(2, 1) for tensor in exact[1:3]]
            wanted = finished(torch.softmax(exact[0] @ shared[0].transpose(-1, -2) / 4, -1) @ shared[1], *exact[3:], eps=0.1)
            for one, other in zip(got, torch.autograd.grad((wanted * given.double()).sum(), exact)):
                torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-4)

    def test_traced(self):
        for device in DEVICES:
            q, k, v = tensors((2, HEADS, 2, 16, 40, DIM, DIM), DTYPES[device][0], device)
            gate, weight = drawn(2, HEADS, 16, DIM, dtype=q.dtype, device=device), drawn(DIM, device=device)

            def call(q, k, v, gate, weight):
                return heed.attention(q, k, v, out_gate=gate, out_norm_weight=weight) * 2

            with torch.no_grad():
                given = q, k, v, gate, weight
                torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(*given), call(*given))

    def test_plans_are_told_apart(self):
        # Calls that differ in nothing but the eps, or the strides of the gate.
        q, k, v = tensors((2, HEADS, 2, 9, 20, DIM, DIM), torch.float32, "cpu")
        weight = torch.ones(DIM)
        gate = drawn(2, HEADS, 9, DIM)
        for eps in (1e-5, 1.0):
            for one in (gate, gate[:, :, :1], gate[..., :1]):
                wanted = finished(expected(q, k, v)[0], one, weight, eps)
                assert_close(heed.attention(q, k, v, out_gate=one, out_norm_weight=weight, out_norm_eps=eps), wanted, torch.float32)


class Refusals(unittest.TestCase):
    def test_arguments_that_cannot_be_are_named(self):
        q, k, v = tensors((2, HEADS, 2, 9, 11, DIM, DIM), torch.float32, "cpu")
        ones = torch.ones(DIM)
        for error, words, given in (
            (TypeError, "out_gate must be a Tensor, not list", {"out_gate": [1.0]}),
            (ValueError, r"out_gate is \(2, 4, 9\); it must be \(2, 4, 9, 64\)", {"out_gate": torch.zeros(2, HEADS, 9)}),
            (ValueError, r"out_gate is \(2, 4, 9, 32\)", {"out_gate": torch.zeros(2, HEADS, 9, 32)}),
            (ValueError, r"out_gate is \(2, 4, 11, 64\)", {"out_gate": torch.zeros(2, HEADS, 11, DIM)}),
            (ValueError, "out_gate is of torch.float16; it must be of torch.float32", {"out_gate": torch.zeros(2, HEADS, 9, DIM).half()}),
            (ValueError, "out_gate is on meta", {"out_gate": torch.zeros(2, HEADS, 9, DIM, device="meta")}),
            (TypeError, "out_norm_weight must be a Tensor, not float", {"out_norm_weight": 1.0}),
            (ValueError, r"out_norm_weight is \(32,\); it must be \(64,\) or \(4, 64\)", {"out_norm_weight": torch.ones(32)}),
            (ValueError, r"out_norm_weight is \(2, 64\)", {"out_norm_weight": torch.ones(2, DIM)}),
            (ValueError, "out_norm_weight is of torch.int64", {"out_norm_weight": torch.ones(DIM, dtype=torch.int64)}),
            (ValueError, "out_norm_eps is 1e-05 and there is no norm; give out_norm_weight too", {"out_norm_eps": 1e-5}),
            (ValueError, "out_norm_eps is 0; it must be positive, from 1e-30 to 1e", {"out_norm_weight": ones, "out_norm_eps": 0}),
            (ValueError, "out_norm_eps is -1e-05", {"out_norm_weight": ones, "out_norm_eps": -1e-5}),
            (ValueError, "out_norm_eps is nan", {"out_norm_weight": ones, "out_norm_eps": math.nan}),
            (ValueError, "out_norm_eps is inf", {"out_norm_weight": ones, "out_norm_eps": math.inf}),
        ):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                heed.attention(q, k, v, **given)

    def test_explain_spells_it(self):
        q, k, v = tensors((2, HEADS, 2, 9, 11, DIM, DIM), torch.float32, "cpu")
        text = heed.explain(q, k, v, out_gate=torch.zeros(2, HEADS, 9, 1), out_norm_weight=torch.ones(HEADS, DIM), out_norm_eps=1e-3)
        self.assertRegex(text, ":out_norm=0.001/h:out_gate=head\n(.*\n)*runs      fwd_cpu")


if __name__ == "__main__":
    unittest.main()

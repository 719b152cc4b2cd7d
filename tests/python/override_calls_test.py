"""Calls of every form, well-formed or not, with Heed in the place of scaled_dot_product_attention and without: results, gradients, errors."""

import unittest
import warnings

import torch
import torch.nn.functional as F
from attention_cases import require_programs, tensors

SIZES = (2, 4, 4, 6, 9, 64, 64)  # batch, heads, heads_kv, len_q, len_k, dim, dim_v


def setUpModule():
    require_programs()
    global heed, routing
    import heed
    from heed import routing


def outcome(call, inputs, needs_gradient):
    """The output and the gradients of the inputs' tensors, or the exception."""
    leaves = []

    def leaf(value):
        if needs_gradient and isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.detach().requires_grad_()
            leaves.append(value)
        return value

    arguments = [leaf(value) for value in inputs[0]]
    named = {name: leaf(value) for name, value in inputs[1].items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            o = call(*arguments, **named)
            if needs_gradient and o.requires_grad:
                o.float().square().sum().backward()
    except Exception as error:
        return error
    return [o.detach(), *(tensor.grad for tensor in leaves)]


class Calls(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = tensors(SIZES, torch.float32, "cpu")

    def compare(self, cases, served):
        """cases: name -> arguments, or (arguments, named arguments). served: whether Heed computes them; None to leave that open"""
        for name, case in cases.items():
            case = case if isinstance(case[-1], dict) else (case, {})
            for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                with self.subTest(name, mode=mode.__name__), mode():
                    needs_gradient = mode is torch.enable_grad
                    wanted = outcome(F.scaled_dot_product_attention, case, needs_gradient)
                    heed.reset_report()
                    with heed.sdpa():
                        got = outcome(F.scaled_dot_product_attention, case, needs_gradient)
                    if served is not None:
                        self.assertEqual(heed.report().served, int(served), str(heed.report()))
                    if isinstance(wanted, Exception):
                        # An exception that passes through LibTorch's C functions loses its type.
                        kind = type(wanted) if routing.HAS_SYMBOLS else (type(wanted), RuntimeError)
                        self.assertIsInstance(got, kind, f"{got!r} beside {wanted!r}")
                        self.assertEqual(str(got).split("\n")[0], str(wanted).split("\n")[0])
                        continue
                    self.assertNotIsInstance(got, Exception, repr(got))
                    for one, two in zip(got, wanted, strict=True):
                        self.assertEqual(one is None, two is None)
                        if two is not None:
                            self.assertEqual(one.dtype, two.dtype)
                            bound = 2e-2 if one.dtype == torch.float16 else 2e-4
                            torch.testing.assert_close(one, two, atol=bound, rtol=bound, equal_nan=True)

    def test_calls_that_pytorch_refuses(self):
        q, k, v = self.q, self.k, self.v
        three = torch.zeros(2, 3, 9, 64)
        self.compare(
            {
                "types": (q, k.half(), v),
                "types of values": (q, k, v.double()),
                "whole numbers": (q.long(), k.long(), v.long()),
                "device of keys": (q, k.to("meta"), v),
                "head dims": (q, k[..., :32], v),
                "lengths of keys and values": (q, k, v[:, :, :4]),
                "batch sizes": (q, torch.zeros(3, 4, 9, 64), torch.zeros(3, 4, 9, 64)),
                "head counts": (q, k[:, :2], v[:, :2]),
                "head counts that do not divide": ((q, three, three), {"enable_gqa": True}),
                "grouped rows without heads": ((q[0, 0], k[0, 0], v[0, 0]), {"enable_gqa": True}),
                "one dimension": (q.flatten(), k.flatten(), v.flatten()),
                "one dimension of queries": (q[0, 0, 0], k, v),
                "a mask of other lengths": (q, k, v, torch.zeros(6, 8)),
                "a mask of other heads": (q, k, v, torch.zeros(3, 6, 9)),
                "a mask of five dimensions": (q, k, v, torch.zeros(1, 2, 4, 6, 9)),
                "a mask with more dimensions than queries": (q[0], k[0], v[0], torch.zeros(1, 1, 6, 9)),
                "a mask of whole numbers": (q, k, v, torch.zeros(6, 9, dtype=torch.int32)),
                "a mask of float64": (q, k, v, torch.zeros(6, 9).double()),
                "a mask of float16 beside float32": (q, k, v, torch.zeros(6, 9).half()),
                "a mask of one dimension beside is_causal": ((q, k, v, torch.zeros(9)), {"is_causal": True}),
                "a mask beside is_causal": ((q[0], k[0], v[0], torch.zeros(6, 9)), {"is_causal": True}),
                "a mask beside is_causal, of five dimensions": ((q[None], k[None], v[None], torch.zeros(6, 9)), {"is_causal": True}),
                "five dimensions that do not broadcast": (q[None], torch.zeros(2, 2, 4, 9, 64), torch.zeros(3, 2, 4, 9, 64)),
                "a mask of five dimensions that does not broadcast": (q[None], k[None], v[None], torch.zeros(2, 1, 1, 6, 9)),
                "five dimensions, head dims": (q[None], k[None, ..., :32], v[None]),
                "no key and head dims": (q, k[:, :, :0, :32], v[:, :, :0]),
                "no key and a value": (q, k[:, :, :0], v),
                "no head that is shared": ((q, k[:, :0], v[:, :0]), {"enable_gqa": True}),
                "value heads that do not divide": ((q, k[:, :2], three), {"enable_gqa": True}),
                "a mask of float16 beside no key": (q, k[:, :, :0], v[:, :, :0], torch.zeros(6, 1).half()),
                "a dropout above 1": ((q, k, v), {"dropout_p": 1.5}),
                "a dropout below 0": ((q, k, v), {"dropout_p": -0.5}),
                "queries that are no tensor": (1, k, v),
                "no keys": (q, None, v),
                "a mask that is no tensor": (q, k, v, "mask"),
                "a scale that is no number": ((q, k, v), {"scale": "one"}),
            },
            None,
        )

    def test_calls_of_fewer_dimensions(self):
        q, k, v = self.q, self.k, self.v
        seen = torch.rand(4, 6, 9, generator=torch.Generator().manual_seed(1)) > 0.3
        self.compare(
            {
                "three": (q[0], k[0], v[0]),
                "three, causal": ((q[1], k[1], v[1]), {"is_causal": True}),
                "three, scaled": ((q[1], k[1], v[1]), {"scale": 0.3}),
                "two": (q[0, 0], k[0, 0], v[0, 0]),
                "three with a mask": (q[0], k[0], v[0], seen),
                "three with a mask of two": (q[0], k[0], v[0], seen[0]),
                "two with a mask": (q[0, 0], k[0, 0], v[0, 0], seen[0]),
                "heads that share keys": ((q[0], k[0, :2], v[0, :2]), {"enable_gqa": True}),
                "other strides": (*(tensor[0].transpose(0, 1).contiguous().transpose(0, 1) for tensor in (q, k)), v[0, ..., ::2]),
                "one dim": (q[0, ..., :1], k[0, ..., :1], v[0]),
            },
            True,
        )

    def test_calls_that_broadcast(self):
        q, k, v = self.q, self.k, self.v
        self.compare(
            {
                "one entry of keys": (q, k[:1], v[:1]),
                "one entry of queries": (q[:1], k, v),
                "one entry of values": (q, k, v[:1]),
                "one head of keys": (q, k[:, :1], v[:, :1]),
                "one head of values": (q, k, v[:, :1]),
                "one head of keys beside values of all": (q, k[:, :1], v),
                "one head of queries": (q[:, :1], k, v),
                "one head and entry": (q, k[:1, :1], v[:1, :1]),
                "three dimensions": (q[0], k[0, :1], v[0, :1]),
                "with a mask": (q, k[:1], v[:1], torch.zeros(6, 9)),
                "causal": ((q, k[:1, :1], v[:1]), {"is_causal": True}),
                "shared heads": ((q, k[:1, :2], v[:1, :2]), {"enable_gqa": True}),
                "half": (q.half(), k[:1].half(), v[:1].half()),
            },
            True,
        )

    def test_elements_that_lie_in_one_place(self):
        q, k, v = self.q, self.k, self.v
        self.compare(
            {
                "one query": (q[:1, :1, :1, :1].expand_as(q), k, v),
                "one key": (q, k[:1, :1, :1, :1].expand_as(k), v),
                "one value of three dimensions": (q[0], k[0], v[:1, 0, :1, :1].expand_as(v[0])),
                "one entry": (q[:1].expand_as(q), k[:1].expand_as(k), v[:1].expand_as(v)),
                "a repeated mask": (q, k, v, torch.zeros(1, 1).expand(6, 9)),
            },
            True,
        )

    def test_numbers_of_the_other_sign_than_in_memory(self):
        q, k, v = self.q, self.k, self.v
        mask = torch.linspace(-1, 1, 54).reshape(6, 9)
        self.compare(
            {
                "queries": (torch._neg_view(q), k, v),
                "keys and values": (q, torch._neg_view(k), torch._neg_view(v)),
                "a mask": (q, k, v, torch._neg_view(mask)),
                "the imaginary part of a conjugate": (torch.complex(q, -q).conj().imag, k, v),
                "three dimensions": (torch._neg_view(q[0]), k[0], v[0]),
            },
            True,
        )

    def test_calls_without_elements(self):
        q, k, v = self.q, self.k, self.v
        self.compare(
            {
                "no entry": (q[:0], k[:0], v[:0]),
                "no head": (q[:, :0], k[:, :0], v[:, :0]),
                "no query": (q[:, :, :0], k, v),
                "no key": (q, k[:, :, :0], v[:, :, :0]),
                "no dim": (q[..., :0], k[..., :0], v),
                "no dim of values": (q, k, v[..., :0]),
                "no query of three dimensions": (q[0, :, :0], k[0], v[0]),
                "one entry beside none": (q[:0], k[:1], v[:1]),
            },
            True,
        )

    def test_calls_that_are_other_calls(self):
        q, k, v = self.q, self.k, self.v
        five = tuple(tensor[None] for tensor in (q, k, v))
        self.compare(
            {
                "five dimensions": five,
                "five dimensions, causal": (five, {"is_causal": True}),
                "five dimensions with a mask": (*five, torch.zeros(2, 1, 6, 9)),
                "five dimensions, half": tuple(tensor.half() for tensor in five),
                "ranks that differ": (q, k[0], v[0]),
                "a negative scale": ((q, k, v), {"scale": -0.2}),
                "a scale of zero": ((q, k, v), {"scale": 0.0}),
                "key heads unlike value heads": ((q, k[:, :2], v), {"enable_gqa": True}),
            },
            True,
        )

    def test_other_calls_that_are_handed_back(self):
        q, k, v = self.q, self.k, self.v
        self.compare({"an infinite scale": ((q[..., :1].abs(), k[..., :1].abs(), v), {"scale": float("inf")})}, False)

    def test_traces_of_lifted_calls(self):
        q, k, v = self.q, self.k, self.v
        five = tuple(tensor[None] for tensor in (q, k, v))
        for case in ((q[0], k[0], v[0]), (q, k[:1, :1], v[:1, :1]), (q[0, 0], k[0, 0], v[0, 0], torch.zeros(6, 9)), five, (*five, torch.zeros(2, 1, 6, 9)), (q, k[0], v[0])):
            for mode in (torch.no_grad, torch.enable_grad):
                torch._dynamo.reset()
                with mode(), heed.sdpa():
                    leaves = [tensor.detach().requires_grad_(mode is torch.enable_grad) for tensor in case]
                    heed.reset_report()
                    got = torch.compile(lambda *rest: F.scaled_dot_product_attention(*rest), backend="aot_eager", fullgraph=True)(*leaves)
                    self.assertEqual((heed.report().served, heed.report().handed_back), (1, 0), str(heed.report()))
                torch.testing.assert_close(got, F.scaled_dot_product_attention(*leaves), atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
    unittest.main()

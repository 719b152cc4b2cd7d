"""Which calls of scaled_dot_product_attention go back to PyTorch: a sweep over its arguments, of which the table below names every reason."""

import contextlib
import math
import unittest
import warnings

import torch
import torch.nn.functional as F
from attention_cases import require_programs
from torch.nn.attention import SDPBackend, sdpa_kernel

# Reason -> the cases, by words of their names, that it alone is for. docs/pytorch.md says why of each.
TYPE = "an element type other than float16, bfloat16 or float32"
SCALE = "a scale that is not finite"
SIZE = "no family runs"
WITHOUT_FUSED = "a tensor without elements"  # beside a mask and is_causal: PyTorch refuses both, but where it returns zeros before
SELECTION = "a selection of backends (torch.nn.attention.sdpa_kernel)"
TRANSFORM = "a transform of torch.func, or forward-mode differentiation"
SUBCLASS = "a subclass of torch.Tensor"
IN_TRACES = "arguments that a trace does not serve"
MASK = "a mask tensor of fewer than 2 dimensions"


def setUpModule():
    require_programs()
    global heed
    import heed


def numbers(*sizes, seed=1):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def forms():
    """Name -> Q, K and V, and whether they share heads."""
    q, k, v = numbers(2, 4, 6, 64), numbers(2, 4, 9, 64, seed=2), numbers(2, 4, 9, 64, seed=3)
    return {
        "dense": (q, k, v, False),
        "half": (q.half(), k.half(), v.half(), False),
        "bfloat16": (q.bfloat16(), k.bfloat16(), v.bfloat16(), False),
        "float64": (q.double(), k.double(), v.double(), False),
        "length outer": (*(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)), False),
        "strided": (q[..., ::2], k[..., ::2], v[..., ::2], False),
        "three dimensions": (q[0], k[0], v[0], False),
        "two dimensions": (q[0, 0], k[0, 0], v[0, 0], False),
        "five dimensions": (q[None], k[None], v[None], False),
        "ranks that differ": (q, k[0], v[0], False),
        "shared heads": (q, k[:, :2], v[:, :2], True),
        "shared heads of two numbers": (q, k[:, :2], v, True),
        "one entry of keys": (q, k[:1], v[:1], False),
        "one head of keys": (q, k[:, :1], v[:, :1], False),
        "in one place": (q[:1].expand_as(q), k[:1].expand_as(k), v[:1].expand_as(v), False),
        "other dims of values": (q, k, v[..., :24], False),
        "a dim of 1": (q[..., :1], k[..., :1], v, False),
        "a dim of 80": (numbers(1, 2, 6, 80), numbers(1, 2, 9, 80), numbers(1, 2, 9, 80), False),
        "a dim of 300": (numbers(1, 2, 6, 300), numbers(1, 2, 9, 300), numbers(1, 2, 9, 300), False),
        "a dim of 512": (numbers(1, 1, 6, 512), numbers(1, 1, 9, 512), numbers(1, 1, 9, 512), False),
        "a dim of 513": (numbers(1, 1, 6, 513), numbers(1, 1, 9, 513), numbers(1, 1, 9, 513), False),
        "no key": (q, k[:, :, :0], v[:, :, :0], False),
        "no query": (q[:, :, :0], k, v, False),
        "no entry": (q[:0], k[:0], v[:0], False),
        "no dim": (q[..., :0], k[..., :0], v, False),
        "negated": (torch._neg_view(q), k, v, False),
    }


def arguments(q, k):
    """Name -> the other arguments, for tensors of these sizes."""
    batch, scores = max(q.shape[0], k.shape[0]), (q.shape[-2], k.shape[-2])
    seen = numbers(*scores, seed=4) > -0.5
    return {
        "": {},
        "causal": {"is_causal": True},
        "booleans": {"attn_mask": seen},
        "padding": {"attn_mask": (numbers(batch if 0 not in q.shape else 1, 1, 1, scores[1], seed=5) > -0.5) if q.dim() == 4 else seen[:1]},
        "bias": {"attn_mask": numbers(*scores, seed=6)},
        "keys of one dimension": {"attn_mask": numbers(scores[1], seed=4) > -0.5},
        "a number": {"attn_mask": torch.tensor(0.5, dtype=q.dtype), "dropout_p": 0.4},
        "mask and causal": {"attn_mask": seen, "is_causal": True},
        "scale": {"scale": 0.3},
        "scale of zero": {"scale": 0.0},
        "scale below zero": {"scale": -0.3, "is_causal": True},
        "infinite scale": {"scale": float("inf")},
        "scale of NaN": {"scale": float("nan")},
        "dropout": {"dropout_p": 0.4},
        "dropout of all": {"dropout_p": 1.0, "is_causal": True},
        "dropout and mask": {"dropout_p": 0.4, "attn_mask": seen, "scale": -0.3},
    }


def run(function, tensors, named, needs_gradient):
    if needs_gradient:
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        o = function(*tensors, **named)
        if needs_gradient:
            o.float().sum().backward()


class Sweep(unittest.TestCase):
    def found(self, cases, wrap=lambda function: function):
        """Reason -> names of the cases that PyTorch computes and Heed handed back. cases: (name, tensors, named arguments)"""
        reasons, served = {}, 0
        for name, tensors, named in cases:
            for needs_gradient in (False, True):
                try:
                    run(F.scaled_dot_product_attention, tensors, named, needs_gradient)
                except (RuntimeError, IndexError):
                    continue  # PyTorch refuses it, with or without Heed
                heed.reset_report()
                with heed.sdpa():
                    run(wrap(F.scaled_dot_product_attention), tensors, named, needs_gradient)
                report = heed.report()
                served += report.served
                self.assertGreater(report.served + report.handed_back, 0, name)
                for row in report.rows:
                    if not row.served:
                        reasons.setdefault(row.reason, set()).add(name)
        return reasons, served

    def expect(self, reasons, wanted):
        """wanted: what a reason begins with -> words that the names of its cases have, and those of no other case."""
        unknown = {reason: names for reason, names in reasons.items() if not any(reason.startswith(known) or known in reason for known in wanted)}
        self.assertEqual(unknown, {})
        for known, words in wanted.items():
            names = set().union(*(names for reason, names in reasons.items() if known in reason))
            self.assertTrue(names, f"nothing is handed back because of {known}: leave it out of the table")
            self.assertEqual({name for name in names if not any(word in name for word in words)}, set(), known)

    def test_tensors_and_arguments(self):
        cases = [
            (f"{form}, {name}", (q, k, v), {**named, "enable_gqa": shares})
            for form, (q, k, v, shares) in forms().items()
            for name, named in arguments(q, k).items()
        ]  # fmt: skip
        reasons, served = self.found(cases)
        wanted = {TYPE: ["float64"], SCALE: ["infinite scale", "scale of NaN"], SIZE: ["a dim of 513"], MASK: ["one dimension", "a number"], WITHOUT_FUSED: ["mask and causal"]}
        if not any(WITHOUT_FUSED in reason for reason in reasons):
            del wanted[WITHOUT_FUSED]  # versions of PyTorch differ: 2.11 refuses both without elements, too
        self.expect(reasons, wanted)
        self.assertGreater(served, 500)

    def test_traces(self):
        of_forms = {name: forms()[name] for name in ("dense", "five dimensions", "shared heads", "a dim of 300", "float64", "a dim of 513")}
        chosen = ("", "mask and causal", "keys of one dimension", "scale below zero", "infinite scale", "dropout and mask")
        cases = [
            (f"{form}, {name}", (q, k, v), {**arguments(q, k)[name], "enable_gqa": shares})
            for form, (q, k, v, shares) in of_forms.items()
            for name in (chosen if form == "dense" else chosen[:1])
        ]  # fmt: skip

        def compiled(function):
            torch._dynamo.reset()
            return torch.compile(lambda *rest, **named: function(*rest, **named), fullgraph=True, backend="aot_eager")

        reasons, _ = self.found(cases, compiled)
        self.expect(reasons, {IN_TRACES: ["float64", "infinite scale", "a dim of 513", "one dimension"]})

    def test_contexts(self):
        q, k, v, _ = forms()["dense"]

        class Wrapped(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride())

            def __init__(self, inner):
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                return function(*(one.inner if isinstance(one, cls) else one for one in args), **(kwargs or {}))

        class Marked(torch.Tensor):
            pass

        def attention(q):
            return F.scaled_dot_product_attention(q, k, v)

        def below_a_level(call):
            def with_tangents():
                with torch.autograd.forward_ad.dual_level():
                    return call()

            return with_tangents

        for reason, call in (
            (SELECTION, lambda: attention(q)),
            (TRANSFORM, lambda: torch.func.grad(lambda q: attention(q).sum())(q)),
            (TRANSFORM, lambda: torch.func.jvp(attention, (q,), (k[:, :, :6],))),
            (TRANSFORM, below_a_level(lambda: attention(q))),
            (SUBCLASS, lambda: attention(Wrapped(q))),
            (None, lambda: attention(q.as_subclass(Marked))),
            (None, lambda: attention(torch.nn.Parameter(q))),
            (None, lambda: torch.func.vmap(lambda q: F.scaled_dot_product_attention(q[None], k, v))(q)),
        ):
            heed.reset_report()
            # PyTorch's formulas for forward mode are those of its unfused computation.
            with self.subTest(reason=reason), heed.sdpa(), sdpa_kernel(SDPBackend.MATH) if reason in (SELECTION, TRANSFORM) else contextlib.nullcontext():
                call()
            self.assertEqual({row.reason for row in heed.report().rows if not row.served}, set() if reason is None else {reason})


class OwnFunction(unittest.TestCase):
    """heed.scaled_dot_product_attention, whose arguments and errors are those of PyTorch's function."""

    def test_reasons_beside_dropout(self):
        q, k, v = numbers(2, 4, 6, 64), numbers(2, 4, 9, 64, seed=2), numbers(2, 4, 9, 64, seed=3)
        for words, tensors, given in (
            ("a scale that is not finite", (q, k, v), {"scale": float("inf")}),
            ("head counts", (q, k[:, :3], v[:, :3]), {}),
            ("dtypes|types", (q.half(), k, v), {}),
            ("mask", (q, k, v, numbers(3, 9)), {}),
            ("outside 0 to 1", (q, k, v), {"dropout_p": 1.5}),
        ):
            heed.reset_report()
            with heed.sdpa(), contextlib.suppress(RuntimeError, ValueError):
                F.scaled_dot_product_attention(*tensors, **{"dropout_p": 0.3, **given})
            rows = [row for row in heed.report().rows if not row.served]
            with self.subTest(words=words):
                self.assertEqual([row.calls for row in rows], [1])
                self.assertRegex(rows[0].reason, words)

    def test_more_calls_than_are_told_apart_are_all_counted(self):
        q = numbers(1, 1, 1, 8)
        heed.reset_report()
        with heed.sdpa():
            with sdpa_kernel(SDPBackend.MATH):
                for length in range(1, 4200):
                    k = q.expand(1, 1, length, 8)
                    F.scaled_dot_product_attention(q, k, k)
            self.assertEqual(heed.report().handed_back, 4199)
            others = [row for row in heed.report().rows if row.workload == "others"]
            self.assertEqual([(row.calls, row.reason) for row in others], [(4199 - 4096, SELECTION)])

    def test_classes_with_rules_of_their_own_are_asked(self):
        class Own(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return "own" if function is F.scaled_dot_product_attention else super().__torch_function__(function, types, args, kwargs or {})

        q = numbers(2, 4, 6, 64)
        self.assertEqual(heed.scaled_dot_product_attention(q.as_subclass(Own), q, q), "own")
        self.assertEqual(heed.scaled_dot_product_attention(q, q, q, q.as_subclass(Own)), "own")

    def test_masks_of_torch_bias(self):
        from torch.nn.attention.bias import causal_lower_right, causal_upper_left

        k, v = numbers(2, 4, 9, 64), numbers(2, 4, 9, 64, seed=2)
        for len_q, mask in ((9, causal_upper_left(9, 9)), (5, causal_upper_left(5, 9)), (5, causal_lower_right(5, 9))):
            q = numbers(2, 4, len_q, 64, seed=3)
            torch.testing.assert_close(heed.scaled_dot_product_attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask))

    def test_jagged_tensors(self):
        jagged = torch.nested.nested_tensor([numbers(5, 4, 32), numbers(9, 4, 32)], layout=torch.jagged).transpose(1, 2)
        o, wanted = (f(jagged, jagged, jagged) for f in (heed.scaled_dot_product_attention, F.scaled_dot_product_attention))
        torch.testing.assert_close(o.transpose(1, 2).values(), wanted.transpose(1, 2).values())

    def test_other_classes_and_modes_are_served(self):
        class Marked(torch.Tensor):
            pass

        q = numbers(2, 4, 6, 64)
        heed.reset_report()
        self.assertIs(type(heed.scaled_dot_product_attention(q.as_subclass(Marked), q, q)), Marked)
        with torch.device("cpu"):  # a mode whose __torch_function__ sees every call
            heed.scaled_dot_product_attention(q, q, q)
            torch.compile(lambda q: heed.scaled_dot_product_attention(q, q, q), backend="aot_eager", fullgraph=True)(q)
        self.assertEqual([(row.served, row.calls) for row in heed.report().rows], [(True, 3)])

    def test_sizes_without_elements_are_those_of_the_queries(self):
        for q, k, v in (((1, 4, 9, 8), (0, 4, 7, 8), (0, 4, 7, 8)), ((1, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 3)), ((4, 9, 8), (1, 4, 0, 8), (1, 4, 0, 8)), ((1, 1, 9, 8), (1, 1, 7, 8), (1, 0, 7, 5)),
                        ((4, 9, 8), (0, 4, 7, 8), (1, 4, 7, 8))):  # fmt: skip
            tensors = [torch.zeros(sizes, requires_grad=True) for sizes in (q, k, v)]
            with self.subTest(q=q, k=k, v=v), torch.no_grad():
                self.assertEqual(heed.scaled_dot_product_attention(*tensors).shape, F.scaled_dot_product_attention(*tensors).shape)
            o = heed.scaled_dot_product_attention(*tensors)
            self.assertEqual([grad.shape for grad in torch.autograd.grad(o.sum(), tensors)], [tensor.shape for tensor in tensors])

    def test_masks_of_fewer_than_two_dimensions(self):
        """Either gives what PyTorch gives: an error for some tensors, and a result for others."""
        q, k, v = numbers(2, 4, 6, 64), numbers(2, 4, 9, 64, seed=2), numbers(2, 4, 9, 64, seed=3)

        def outcome(function, *tensors):
            try:
                return None, function(*tensors)
            except (RuntimeError, IndexError) as error:
                return (type(error), str(error).split("\n")[0]), None

        def overridden(*tensors):
            with heed.sdpa():
                return F.scaled_dot_product_attention(*tensors)

        errors = 0
        for mask in (torch.rand(9) > 0.5, torch.randn(9), torch.tensor(True), torch.tensor(0.25), torch.randn(9, requires_grad=True)):
            for tensors in ((q, k, v), (q[0], k[0], v[0]), (q[None], k[None], v[None]), (q.clone().requires_grad_(), k, v), (q[:, :, :0], k, v)):
                wanted_error, wanted = outcome(F.scaled_dot_product_attention, *tensors, mask)
                errors += wanted_error is not None
                for function in (heed.scaled_dot_product_attention, overridden):
                    with self.subTest(mask=mask, q=tensors[0].shape, function=function.__name__):
                        error, o = outcome(function, *tensors, mask)
                        self.assertEqual(error, wanted_error)
                        if wanted is not None:
                            torch.testing.assert_close(o, wanted)
        self.assertGreater(errors, 0)

    def test_biases_that_powers_of_two_cannot_hold_hide(self):
        q, k, v = numbers(2, 4, 6, 64), numbers(2, 4, 9, 64, seed=2), numbers(2, 4, 9, 64, seed=3)
        for dtype in (torch.float32, torch.bfloat16):
            for number in (-2.4e38, -3e38):  # at the first the masks of Gemma in JAX end: -2.3819763e38
                mask = torch.zeros(6, 9).masked_fill(torch.ones(6, 9, dtype=torch.bool).triu(2), number)
                mask[3] = number
                mask = mask.to(dtype)
                given = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v)]
                o, lse = heed.attention(*given, bias=mask, return_lse=True)
                with self.subTest(dtype=dtype, number=number):
                    rest = [0, 1, 2, 4, 5]
                    wanted = F.scaled_dot_product_attention(*given, mask)
                    near = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
                    torch.testing.assert_close(o[:, :, rest], wanted[:, :, rest], **near)
                    self.assertTrue((o[:, :, 3] == 0).all() and (lse[:, :, 3] == -math.inf).all())
                    of_unfused = heed.unfused.forward_features(*given, bias=mask)
                    torch.testing.assert_close((o, lse), of_unfused, **near)
                    grads = torch.autograd.grad(heed.scaled_dot_product_attention(*given, mask).float().square().sum(), given)
                    self.assertTrue(all(grad.isfinite().all() for grad in grads))
                    self.assertTrue((grads[0][:, :, 3] == 0).all())

    def test_a_mask_of_one_dimension_beside_is_causal(self):
        q, k, v = numbers(2, 4, 6, 64), numbers(2, 4, 9, 64, seed=2), numbers(2, 4, 9, 64, seed=3)
        for mask in (torch.ones(9, dtype=torch.float64), torch.ones(9, dtype=torch.bool)):
            for query in (q, q.clone().requires_grad_()):
                errors = []
                for function in (F.scaled_dot_product_attention, heed.scaled_dot_product_attention):
                    with self.assertRaises((RuntimeError, IndexError)) as raised:
                        function(query, k, v, mask, is_causal=True)
                    errors.append((type(raised.exception), str(raised.exception).split("\n")[0]))
                self.assertEqual(*errors)

    def test_arguments_of_wrong_types(self):
        q = numbers(1, 2, 6, 64)
        for given, message in (
            ({"is_causal": 1}, "argument 'is_causal'.* must be bool, not int"),
            ({"is_causal": None}, "argument 'is_causal'.* must be bool, not NoneType"),
            ({"enable_gqa": 1}, "argument 'enable_gqa' must be bool, not int"),
            ({"dropout_p": "x"}, "argument 'dropout_p'.* must be float, not str"),
        ):
            with self.subTest(**given), self.assertRaisesRegex(TypeError, message):
                heed.scaled_dot_product_attention(q, q, q, **given)
        with self.assertRaisesRegex(TypeError, "takes from 3 to 6 positional arguments but 7 were given"):
            heed.scaled_dot_product_attention(q, q, q, None, 0.0, False, 0.1)


if __name__ == "__main__":
    unittest.main()

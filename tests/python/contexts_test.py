"""heed.attention where forward-mode differentiation or autocast is around it."""

import itertools
import unittest

import torch
from attention_cases import expected, require_programs


def setUpModule():
    require_programs()
    global heed
    import heed


def randn(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def ragged(rows):
    return heed.attention_varlen(rows, rows, rows, cu_seqlens_q=torch.tensor([0, 4]), cu_seqlens_k=torch.tensor([0, 4]), max_len_q=4, max_len_k=4)


class Tangents(unittest.TestCase):
    def test_every_way_to_have_one_is_refused(self):
        q, rows = randn(2, 4, 9, 8), randn(4, 2, 8)
        jvp, vmap, jacfwd, hessian = torch.func.jvp, torch.vmap, torch.func.jacfwd, torch.func.hessian

        def dual(f, x):
            with torch.autograd.forward_ad.dual_level():
                return f(torch.autograd.forward_ad.make_dual(x, x))

        def attention(x, **given):
            return heed.attention(x, q, q, **given)

        for name, call in {
            "jvp": lambda: jvp(attention, (q,), (q,)),
            "of the bias": lambda: jvp(lambda bias: attention(q, bias=bias), (torch.eye(9),), (torch.eye(9),)),
            "of sinks": lambda: jvp(lambda sinks: attention(q, sinks=sinks), (torch.ones(4),), (torch.ones(4),)),
            "of a gate": lambda: jvp(lambda gate: attention(q, out_gate=gate), (q,), (q,)),
            "beside a log-sum-exp": lambda: jvp(lambda x: attention(x, return_lse=True)[0], (q,), (q,)),
            "softcap": lambda: jvp(lambda x: attention(x, softcap=3.0), (q,), (q,)),
            "batched below": lambda: jvp(vmap(lambda x: heed.attention(x, x, x)), (q[None],), (q[None],)),
            "batched above": lambda: vmap(lambda x: jvp(lambda x: heed.attention(x, x, x), (x,), (x,)))(q[None]),
            "of an outer level": lambda: jvp(lambda x: jvp(lambda y: attention(x) + y, (q,), (q,))[1], (q,), (q,)),
            "jacfwd": lambda: jacfwd(attention)(q),
            "hessian": lambda: hessian(lambda x: attention(x).sum())(q),
            "forward_ad": lambda: dual(attention, q),
            "ragged": lambda: dual(ragged, rows),
        }.items():
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, r"heed.attention(_varlen)?\(\) has no forward-mode derivative"):
                call()

    def test_tensors_without_one_are_served(self):
        q = randn(2, 4, 9, 8)
        with torch.autograd.forward_ad.dual_level():
            torch.testing.assert_close(heed.attention(q, q, q), expected(q, q, q)[0].float(), atol=1e-5, rtol=1e-5)


class Transforms(unittest.TestCase):
    CALLS = {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (2, 0)},
        "softcap": {"softcap": 2.0},
        "log-sum-exp": {"return_lse": True},
    }

    @staticmethod
    def loss(o):
        return sum(part.sin().sum() for part in o) if isinstance(o, tuple) else o.sin().sum()

    def test_gradients_through_batches(self):
        tensors = [randn(3, 1, 4, 9, 8, seed=seed) for seed in range(3)]
        for (name, given), which in itertools.product(self.CALLS.items(), ((0, 1, 2), (1,))):
            with self.subTest(name, which=which):

                def gradients(batched):
                    leaves = [tensor.clone().requires_grad_(place in which) for place, tensor in enumerate(tensors)]
                    self.loss(batched(*leaves)).backward()
                    return [leaf.grad for leaf in leaves if leaf.requires_grad]

                def one(q, k, v):
                    return heed.attention(q, k, v, **given)

                def each(*tensors):
                    results = [one(*parts) for parts in zip(*tensors)]
                    return tuple(map(torch.stack, zip(*results))) if isinstance(results[0], tuple) else torch.stack(results)

                torch.testing.assert_close(gradients(torch.vmap(one)), gradients(each), atol=1e-5, rtol=1e-4)
                nested = torch.vmap(torch.vmap(lambda q, k, v: one(q[None], k[None], v[None])))
                torch.testing.assert_close(gradients(nested), gradients(each), atol=1e-5, rtol=1e-4)

    def test_gradients_through_a_compiled_batch(self):
        x = randn(3, 1, 4, 9, 8)
        batched = torch.vmap(lambda x: heed.attention(x, x, x))
        found = []
        for function in (batched, torch.compile(batched, backend="aot_eager", fullgraph=True)):
            leaf = x.clone().requires_grad_()
            found += torch.autograd.grad(function(leaf).sin().sum(), leaf)
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)

    def test_a_tensor_from_outside_the_batch(self):
        k, queries = randn(1, 4, 9, 8).requires_grad_(), randn(3, 1, 4, 9, 8)
        found = [torch.autograd.grad(o.sin().sum(), k)[0] for o in (torch.vmap(lambda q: heed.attention(q, k, k))(queries), torch.stack([heed.attention(q, k, k) for q in queries]))]
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)

    def test_a_batch_of_low_precision_has_no_gradient(self):
        x = randn(3, 1, 4, 9, 8).requires_grad_()
        with self.assertRaisesRegex(NotImplementedError, "has no gradient"):
            torch.vmap(lambda x: heed.attention(x, x, x, precision="int8"))(x)

    def test_gradients_of_transforms_are_refused(self):
        q, func = randn(2, 4, 9, 8), torch.func
        for name, given in self.CALLS.items():

            def loss(x):
                return self.loss(heed.attention(x, x, x, **given))

            for way, call in {
                "grad": lambda: func.grad(loss)(q),
                "vjp": lambda: func.vjp(loss, q),
                "jacrev": lambda: func.jacrev(loss)(q),
                "below a batch": lambda: torch.vmap(func.grad(lambda x: loss(x[None])))(q),
                "around a batch": lambda: func.grad(lambda x: torch.vmap(lambda x: loss(x[None]))(x).sum())(q),
            }.items():
                with self.subTest(name, way=way), self.assertRaisesRegex(NotImplementedError, r"heed.attention\(\) has no gradient for transforms"):
                    call()

    def test_constants_beside_a_transform_are_served(self):
        q = randn(2, 4, 9, 8)
        found = torch.func.grad(lambda x: (x * heed.attention(q, q, q)).sum())(q)
        torch.testing.assert_close(found, expected(q, q, q)[0].float(), atol=1e-5, rtol=1e-5)


class Autocast(unittest.TestCase):
    def test_tensors_and_gates_of_several_types(self):
        q, k, v, rows = randn(2, 4, 9, 32), randn(2, 4, 9, 32, seed=1), randn(2, 4, 9, 32, seed=2), randn(4, 2, 32)
        wanted = expected(q, k, v)[0].float()
        for name, tensors, gate in (
            ("all float32", (q, k, v), None),
            ("rotated in float32", (q, k, v.bfloat16()), None),
            ("three types", (q.half(), k, v.bfloat16()), None),
            ("a gate", (q, k, v), randn(2, 4, 9, 32, seed=3)),
            ("a gate in its type", (q, k, v), randn(2, 4, 9, 32, seed=3).bfloat16()),
        ):
            with self.subTest(name):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    o = heed.attention(*tensors, out_gate=gate)
                self.assertEqual(o.dtype, torch.bfloat16)
                torch.testing.assert_close(o.float(), wanted if gate is None else wanted * gate.float().sigmoid(), atol=0.03, rtol=0.03)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = heed.attention_varlen(rows, rows, rows.bfloat16(), cu_seqlens_q=torch.tensor([0, 4]), cu_seqlens_k=torch.tensor([0, 4]), max_len_q=4, max_len_k=4, out_gate=rows)
            self.assertEqual(o.dtype, torch.bfloat16)
            self.assertIn(":bf16", heed.explain(q, k, v.bfloat16()))

    def test_gradients_have_the_types_of_the_tensors(self):
        q, v = randn(2, 4, 9, 32).requires_grad_(), randn(2, 4, 9, 32, seed=2).bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o = heed.attention(q, q, v, softcap=2.0)
        self.assertEqual([grad.dtype for grad in torch.autograd.grad(o.float().sum(), (q, v))], [torch.float32, torch.bfloat16])

    def test_compiled(self):
        q, v = randn(2, 4, 9, 32), randn(2, 4, 9, 32, seed=2).bfloat16()
        compiled = torch.compile(lambda q, v: heed.attention(q, q, v, out_gate=q), backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(compiled(q, v), heed.attention(q, q, v, out_gate=q))

    def test_without_it_types_must_be_one(self):
        q = randn(2, 4, 9, 32)
        with self.assertRaisesRegex(ValueError, "must have one dtype"):
            heed.attention(q, q, q.bfloat16())
        with self.assertRaisesRegex(ValueError, "out_gate is of torch.bfloat16"), torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            heed.attention(q, q, q, out_gate=q.bfloat16())


if __name__ == "__main__":
    unittest.main()

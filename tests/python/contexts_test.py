"""heed.attention where forward-mode differentiation or autocast is around it."""

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

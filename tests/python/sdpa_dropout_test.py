"""dropout_p of scaled_dot_product_attention with Heed in its place: on a CPU, in traces, and what of it a GPU has."""

import contextlib
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
from attention_cases import require_programs


def setUpModule():
    require_programs()
    global heed, dropout_calls, unfused
    import heed
    from heed import dropout_calls, unfused


class Calls(unittest.TestCase):
    """Seeded by torch.manual_seed; what is dropped is that of heed.attention with the numbers that were drawn."""

    def setUp(self):
        self.q, self.k, self.v = (torch.randn(2, 4, length, 16, generator=torch.Generator().manual_seed(seed)) for seed, length in ((1, 6), (2, 9), (3, 9)))
        heed.reset_report()

    def served(self, *tensors, seed=5, **named):
        torch.manual_seed(seed)
        with heed.sdpa():
            o = F.scaled_dot_product_attention(*tensors, **named)
        self.assertEqual((heed.report().served, heed.report().handed_back), (1, 0), str(heed.report()))
        heed.reset_report()
        return o

    def definition(self, q, k, v, p, seed=5, mask=None):
        torch.manual_seed(seed)
        kept = heed.dropout_mask(p, int(torch.randint(2**62, ())), 0, (*q.shape[:3], k.shape[2]))
        scores = q.double() @ k.double().transpose(-1, -2) / 4 + (0 if mask is None else mask)
        return ((scores.softmax(-1) * kept / (1 - p)) @ v.double()).to(q.dtype)

    def test_what_is_dropped(self):
        q, k, v = self.q, self.k, self.v
        for p in (0.1, 0.7):
            torch.testing.assert_close(self.served(q, k, v, dropout_p=p), self.definition(q, k, v, p), atol=1e-5, rtol=1e-4)
        mask = torch.randn(6, 9, generator=torch.Generator().manual_seed(4))
        torch.testing.assert_close(self.served(q, k, v, mask, dropout_p=0.3), self.definition(q, k, v, 0.3, mask=mask), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(self.served(q[0], k[0], v[0], dropout_p=0.3), self.definition(q[:1], k[:1], v[:1], 0.3)[0], atol=1e-5, rtol=1e-4)
        self.assertFalse(self.served(q, k, v, dropout_p=1.0).any())

    def test_one_seed_is_one_result_and_another_another(self):
        q, k, v = self.q, self.k, self.v
        one = self.served(q, k, v, is_causal=True, dropout_p=0.5)
        self.assertTrue(torch.equal(one, self.served(q, k, v, is_causal=True, dropout_p=0.5)))
        self.assertFalse(torch.equal(one, self.served(q, k, v, is_causal=True, dropout_p=0.5, seed=6)))
        torch.manual_seed(5)
        with heed.sdpa():
            both = [F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.5) for _ in range(2)]
        self.assertTrue(torch.equal(one, both[0]) and not torch.equal(*both))

    def test_gradients_drop_the_same(self):
        leaves = [tensor.clone().requires_grad_() for tensor in (self.q, self.k, self.v)]
        wanted = torch.autograd.grad(self.definition(*leaves, 0.4).sin().sum(), leaves)
        for call in (F.scaled_dot_product_attention, lambda *rest, **named: torch.utils.checkpoint.checkpoint(F.scaled_dot_product_attention, *rest, use_reentrant=False, **named)):
            torch.manual_seed(5)
            with heed.sdpa():
                got = torch.autograd.grad(call(*leaves, dropout_p=0.4).sin().sum(), leaves)
            self.assertEqual(heed.report().handed_back, 0, str(heed.report()))
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)

    def test_what_is_no_probability_is_refused_by_pytorch(self):
        for p in (-0.1, 1.5):
            with heed.sdpa(), self.assertRaises(RuntimeError):
                F.scaled_dot_product_attention(self.q, self.k, self.v, dropout_p=p)
        with heed.sdpa(), self.assertRaises(RuntimeError):  # as without dropout, where PyTorch has no fused kernel
            F.scaled_dot_product_attention(self.q, self.k, self.v, torch.zeros(6, 9), dropout_p=0.1, is_causal=True)

    def test_gradients_in_blocks_of_rows(self):
        q, k, v = self.q, self.k[:, :2], self.v[:, :2, :, :8]
        q, k, v = (tensor.repeat(1, 1, 9, 1) for tensor in (q, k, v))
        seen = torch.rand(2, 1, 54, 81, generator=torch.Generator().manual_seed(6)) > 0.4
        seen[0, 0, 3] = False  # a row that sees no key
        for causal, mask in ((False, None), (True, None), (False, seen), (False, torch.randn(4, 54, 1)), (False, torch.randn(1, 1, 1, 81))):
            learned = [tensor.clone().requires_grad_() for tensor in (q, k, v, *([mask] if mask is not None and mask.is_floating_point() else []))]
            found = []
            for most in (dropout_calls.MOST_SCORES, 4 * 81 * 16, 1):  # all at once, 16 rows of each entry, and no more than one block of one
                with mock.patch.object(dropout_calls, "MOST_SCORES", most):
                    torch.manual_seed(5)
                    o, _, numbers = torch.ops.heed.forward_dropout(*learned[:3], int(causal), None, learned[3] if len(learned) > 3 else mask, 0.3)
                    found.append(torch.autograd.grad(o.sin().sum(), learned))
            seed, offset = numbers.tolist()
            wanted, _ = unfused.forward_features(*learned[:3], int(causal), bias=learned[3] if len(learned) > 3 else mask, dropout_p=0.3, dropout_seed=seed, dropout_offset=offset)
            torch.testing.assert_close(o, wanted, atol=1e-5, rtol=1e-4)
            for one in found:
                torch.testing.assert_close(one, torch.autograd.grad(wanted.sin().sum(), learned, retain_graph=True), atol=1e-5, rtol=1e-4)

    def test_gradients_of_gradients(self):
        learned = [tensor[:1, :2, :5].clone().requires_grad_() for tensor in (self.q, self.k, self.v)]
        wanted = self.definition(*learned, 0.4)
        torch.manual_seed(5)
        with heed.sdpa():
            o = F.scaled_dot_product_attention(*learned, dropout_p=0.4)
        found = []
        for one in (o, wanted):
            first = torch.autograd.grad(one.sin().sum(), learned, create_graph=True)
            found.append(torch.autograd.grad(first[0].sin().sum(), learned))
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


class Traces(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        heed.reset_report()
        self.inputs = [torch.randn(2, 4, length, 16, generator=torch.Generator().manual_seed(length)) for length in (6, 9, 9)]

    def test_a_compiled_function_draws_when_it_runs(self):
        for dynamic, named in ((False, {}), (True, {"is_causal": True}), (False, {"attn_mask": torch.randn(6, 9)})):
            torch._dynamo.reset()
            with self.subTest(dynamic=dynamic, **named), heed.sdpa(strict=True):

                def call(q, k, v, named=named):
                    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, **named) * 2

                compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                found = []
                for function in (call, compiled):
                    leaves = [tensor.clone().requires_grad_() for tensor in self.inputs]
                    torch.manual_seed(5)
                    outputs = [function(*leaves) for _ in range(2)]
                    self.assertFalse(torch.equal(*outputs))
                    found.append([*outputs, *torch.autograd.grad(sum(o.sin().sum() for o in outputs), leaves)])
                torch.testing.assert_close(*found)
                self.assertEqual(heed.report().handed_back, 0, str(heed.report()))

    def test_two_calls_in_one_trace_are_two(self):
        def call(q, k, v):
            return [F.scaled_dot_product_attention(q, k, v, dropout_p=0.4) for _ in range(2)]

        with heed.sdpa(strict=True), torch.no_grad():
            for backend in ("aot_eager", "inductor"):
                torch.manual_seed(5)
                wanted = call(*self.inputs)
                torch.manual_seed(5)
                got = torch.compile(call, fullgraph=True, backend=backend)(*self.inputs)
                torch.testing.assert_close(got, wanted)
                self.assertFalse(torch.equal(*got))

    def test_what_a_checkpoint_computes_again_drops_the_same(self):
        def call(q, k, v):
            return torch.utils.checkpoint.checkpoint(lambda *rest: F.scaled_dot_product_attention(*rest, dropout_p=0.4).sin(), q, k, v, use_reentrant=False)

        found = []
        with heed.sdpa(strict=True):
            for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
                leaves = [tensor.clone().requires_grad_() for tensor in self.inputs]
                torch.manual_seed(5)
                found.append(torch.autograd.grad(function(*leaves).sum(), leaves))
        torch.testing.assert_close(*found)

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return heed.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

        program = torch.export.export(Model(), tuple(self.inputs)).run_decompositions()
        torch.manual_seed(5)
        wanted = Model()(*self.inputs)
        self.assertIn("heed.", str(program.graph))
        torch.manual_seed(5)
        torch.testing.assert_close(program.module()(*self.inputs), wanted)

    def test_the_operator_is_sound(self):
        for needs_gradient in (False, True):
            learned = [tensor.clone().requires_grad_(needs_gradient) for tensor in self.inputs]
            for bias in (None, torch.randn(6, 9).requires_grad_(needs_gradient)):
                # Two calls drop other things, so that results of a trace are not compared with them.
                torch.library.opcheck(torch.ops.heed.forward_dropout.default, (*learned, 0, None, bias, 0.5), test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))
        self.assertIn(torch.Tag.nondeterministic_seeded, torch.ops.heed.forward_dropout.default.tags)


class Generator:
    """That of a GPU, as PyTorch's kernels use it."""

    def __init__(self, seed):
        self.seed, self.offset = seed, 8

    initial_seed = property(lambda self: lambda: self.seed)

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


class OfAGpu(unittest.TestCase):
    """With a stand-in for PyTorch's device: no GPU runs here."""

    def setUp(self):
        self.capturing = False
        generators = [Generator(11), Generator((1 << 64) - 3)]
        for name, stand_in in {
            "default_generators": tuple(generators),
            "current_device": lambda: 1,
            "init": lambda: None,
            "device": lambda device: contextlib.nullcontext(),
            "is_current_stream_capturing": lambda: self.capturing,
        }.items():
            patch = mock.patch.object(torch.cuda, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        self.generators = generators

    def test_numbers_come_from_the_generator_of_the_device(self):
        first, other, same = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cuda")
        self.assertEqual([dropout_calls.drawn(device, 2) for device in (first, first, other, same)], [(11, 8), (11, 72), (-3, 8), (-3, 72)])
        self.assertEqual([generator.offset for generator in self.generators], [136, 136])

    def test_without_a_gradient_by_flash_attention_it_is_left_to_torch(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        def is_left(dtype=torch.float16, dim=64, dim_v=None, len_k=6, mask=None, is_causal=False, device="cuda"):
            q, k, v = (torch.empty(2, 4, length, width, dtype=dtype, device=device) for length, width in ((6, dim), (len_k, dim), (len_k, dim_v or dim)))
            return dropout_calls.is_left_to_torch(q, k, v, mask, is_causal)

        with FakeTensorMode(), mock.patch.object(torch.cuda, "get_device_capability", lambda device: (8, 9)):
            mask = torch.ones(6, 6, dtype=torch.bool)
            for given in ({}, {"dtype": torch.bfloat16}, {"len_k": 9}, {"is_causal": True}, {"dim": 192}):
                self.assertFalse(is_left(**given), given)
            for given in ({"dtype": torch.float32}, {"dim": 36}, {"dim_v": 32}, {"len_k": 9, "is_causal": True}, {"mask": mask}, {"dim": 256}):
                self.assertTrue(is_left(**given), given)
                self.assertFalse(is_left(**given, device="cpu"), given)
            with mock.patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)):
                self.assertFalse(is_left(dim=256))
        q, k, v = (torch.randn(2, 4, 6, 16) for _ in range(3))
        heed.reset_report()
        with mock.patch.object(dropout_calls, "is_left_to_torch", lambda *call: True), heed.sdpa():
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
            F.scaled_dot_product_attention(q.requires_grad_(), k, v, dropout_p=0.4).sum().backward()
        self.assertEqual({row.reason for row in heed.report().rows}, {dropout_calls.ON_A_GPU})

    def test_a_capture_is_handed_back_and_not_frozen(self):
        self.capturing = True
        with self.assertRaisesRegex(RuntimeError, "dropout while a CUDA graph is captured, which would drop the same in each of its replays"):
            dropout_calls.drawn(torch.device("cuda", 0), 1)
        self.assertEqual(self.generators[0].offset, 8)
        self.assertFalse(dropout_calls.is_capturing(torch.device("cpu")))
        self.assertTrue(dropout_calls.is_capturing(torch.device("cuda", 0)))
        q, k, v = (torch.randn(2, 4, 6, 16) for _ in range(3))
        heed.reset_report()
        for needs_gradient in (False, True):
            q.requires_grad_(needs_gradient)
            with mock.patch.object(dropout_calls, "is_capturing", lambda device: True):
                torch.manual_seed(5)
                with heed.sdpa():
                    o = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
                torch.manual_seed(5)
                self.assertTrue(torch.equal(o, F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)))
                with heed.sdpa(strict=True), self.assertRaisesRegex(RuntimeError, dropout_calls.IN_A_CAPTURE):
                    F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        self.assertEqual({row.reason for row in heed.report().rows}, {dropout_calls.IN_A_CAPTURE})

    def test_tensors_without_memory(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            q, k, v = (torch.empty(2, heads, length, 16, dtype=torch.float16, device="cuda") for heads, length in ((4, 6), (2, 9), (2, 9)))
            o, lse, numbers = torch.ops.heed.forward_dropout(q, k, v, 0, None, None, 0.5)
            self.assertEqual((o.shape, o.device.type, lse.dtype, tuple(lse.shape)), (q.shape, "cuda", torch.float32, (2, 4, 6)))
            # On a CPU: torch.compile makes no CUDA graph of a part with such a tensor.
            self.assertEqual((numbers.device.type, numbers.dtype, tuple(numbers.shape)), ("cpu", torch.int64, (2,)))


if __name__ == "__main__":
    unittest.main()

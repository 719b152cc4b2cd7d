"""Heed under torch.compile, torch.export, opcheck and FLOP counters."""

import itertools
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, require_programs, tensors

SMALL = (2, 4, 4, 16, 16, 64, 64)


def setUpModule():
    require_programs()
    global heed
    import heed


def setting(device):
    return tensors(SMALL, torch.float32 if device == "cpu" else torch.float16, device)


class Compiled(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        heed.reset_report()

    def test_without_a_graph_break(self):
        functions = {
            "attention": lambda q, k, v: heed.attention(q, k, v, causal=True) * 2,
            "window": lambda q, k, v: heed.attention(q, k, v, window=(3, 0)) * 2,
            "lse": lambda q, k, v: heed.attention(q, k, v, return_lse=True)[1] * 2,
            "features": lambda q, k, v: heed.attention(q, k, v, causal=True, softcap=3.0, sinks=torch.ones(4, device=q.device)) * 2,
            "sdpa": lambda q, k, v: heed.scaled_dot_product_attention(q, k, v, is_causal=True) * 2,
        }
        for device, (name, function), dynamic in itertools.product(DEVICES, functions.items(), (False, True)):
            with self.subTest(device=device, function=name, dynamic=dynamic):
                q, k, v = setting(device)
                compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                for length in (16, 9):
                    arguments = q[:, :, :length], k[:, :, :length], v[:, :, :length]
                    torch.testing.assert_close(compiled(*arguments), function(*arguments))

    def test_a_selection_of_backends_is_kept(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = setting("cpu")

        def attention(q):
            return F.scaled_dot_product_attention(q, k, v) * 2

        def selecting(q):
            with sdpa_kernel(SDPBackend.MATH):
                return attention(q)

        def compiled(function, q):
            return torch.compile(function, fullgraph=True, backend="aot_eager")(q)

        def below(q):
            with sdpa_kernel(SDPBackend.MATH):
                return compiled(attention, q)

        def without_math(q):
            torch.backends.cuda.enable_math_sdp(False)
            try:
                return compiled(attention, q)
            finally:
                torch.backends.cuda.enable_math_sdp(True)

        for name, call in {"inside": lambda q: compiled(selecting, q), "outside": below, "flags": without_math}.items():
            for needs_gradient in (False, True):
                with self.subTest(name, needs_gradient=needs_gradient), heed.sdpa():
                    torch._dynamo.reset()
                    heed.reset_report()
                    torch.testing.assert_close(call(q.clone().requires_grad_(needs_gradient)), attention(q), atol=1e-5, rtol=1e-4)
                    # The last one is the eager call that is compared with.
                    self.assertEqual([row.calls for row in heed.report().rows if row.served], [1])
                    self.assertEqual({row.reason for row in heed.report().rows if not row.served}, {"a selection of backends (torch.nn.attention.sdpa_kernel)"})

    def test_the_override(self):
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with self.subTest(mode.__name__), mode(), heed.sdpa(strict=True):
                for mask in (None, torch.rand(16, 16, generator=torch.Generator().manual_seed(3)) > 0.3):
                    q, k, v = setting("cpu")
                    wanted = F.scaled_dot_product_attention(q, k, v, mask) + 1
                    heed.reset_report()
                    compiled = torch.compile(lambda *arguments: F.scaled_dot_product_attention(*arguments) + 1, fullgraph=True, backend="aot_eager")
                    torch.testing.assert_close(compiled(q, k, v, mask), wanted)
                    self.assertEqual(heed.report().served, 1)

    def test_mask_tensors(self):
        def call(q, k, v, mask):
            return heed.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True) * 2

        def masks(length):
            bias = torch.randn(2, 4, length, length, generator=torch.Generator().manual_seed(length))
            return {"all": bias, "rows": bias[0, 0], "padding": (bias > -0.5)[:, :1, :1], "expanded": bias[:1].expand(2, -1, -1, -1), "hidden": bias > 9}

        for device, name, dynamic in itertools.product(DEVICES, masks(1), (False, True)):
            with self.subTest(device=device, mask=name, dynamic=dynamic), torch.no_grad():
                torch._dynamo.reset()
                q, k, v = tensors((2, 4, 2, 16, 16, 64, 64), torch.float16, device)
                compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                for length in (16, 9, 12):
                    arguments = *(tensor[:, :, :length] for tensor in (q, k, v)), masks(length)[name].to(device, torch.bool if name in ("padding", "hidden") else q.dtype)
                    wanted = call(*arguments)
                    heed.reset_report()
                    torch.testing.assert_close(compiled(*arguments), wanted)
                    self.assertEqual((heed.report().served, heed.report().handed_back), (1, 0), str(heed.report()))

    def test_mask_tensors_in_training_and_beside_is_causal(self):
        q, k, v = setting("cpu")
        bias = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
        for name, mask, learned, named, served in (
            ("of queries", bias, q.clone().requires_grad_(), {}, 1),
            ("of the mask", bias.clone().requires_grad_(), q, {}, 1),
            ("beside is_causal", bias, q, {"is_causal": True}, 1),
            ("of the queries beside is_causal", bias, q.clone().requires_grad_(), {"is_causal": True}, 1),
        ):
            with self.subTest(name):
                torch._dynamo.reset()
                wanted = F.scaled_dot_product_attention(learned, k, v, mask, **named)
                compiled = torch.compile(lambda *arguments: heed.scaled_dot_product_attention(*arguments, **named), fullgraph=True, backend="aot_eager")
                heed.reset_report()
                o = compiled(learned, k, v, mask)
                self.assertEqual(heed.report().served, served)
                torch.testing.assert_close(o, wanted, atol=1e-5, rtol=1e-4)
                self.assertEqual(o.requires_grad, wanted.requires_grad)
                if o.requires_grad:
                    tensor = mask if mask.requires_grad else learned
                    torch.testing.assert_close(*(torch.autograd.grad(each.sin().sum(), tensor)[0] for each in (o, wanted)), atol=1e-5, rtol=1e-4)

    def test_features_in_training(self):
        bias = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))

        def call(q, k, v, bias):
            return heed.attention(q, k, v, bias=bias, softcap=3.0).sin()

        for device, dynamic in itertools.product(DEVICES, (False, True)):
            results = []
            for function in (torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager"), call):
                leaves = [tensor.clone().requires_grad_() for tensor in (*setting(device), bias.to(device))]
                function(*leaves).sum().backward()
                results.append([tensor.grad for tensor in leaves])
            for one, two in zip(*results):
                torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)

    def test_training(self):
        for device, dynamic in itertools.product(DEVICES, (False, True)):
            results = []
            compiled = torch.compile(lambda q, k, v: heed.scaled_dot_product_attention(q, k, v, is_causal=True).sin(), fullgraph=True, dynamic=dynamic)
            for function in (compiled, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True).sin()):
                q, k, v = (tensor.clone().requires_grad_() for tensor in setting(device))
                function(q, k, v).sum().backward()
                results.append((q.grad, k.grad, v.grad))
            for one, two in zip(*results):
                torch.testing.assert_close(one, two, atol=1e-2 if device == "cuda" else 1e-5, rtol=1e-2)
        self.assertGreater(heed.report().served, 0)

    def test_sizes_that_no_program_has_when_a_trace_runs(self):
        # The trace saw head dims that Heed serves; symbols hide what a run brings. heed::unfused computes it.
        q, k, v = (torch.randn(1, 1, 8, 600) for _ in range(3))
        o = torch.ops.heed.forward(q, k, v)
        torch.testing.assert_close(o, F.scaled_dot_product_attention(q, k, v), atol=1e-5, rtol=1e-4)

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return heed.scaled_dot_product_attention(q, k, v) + heed.attention(q, k, v, causal=True)

        q, k, v = setting("cpu")
        length = torch.export.Dim("length", min=2, max=64)
        dims = {name: {2: length} for name in ("q", "k", "v")}
        program = torch.export.export(Model(), (q, k, v), dynamic_shapes=dims).run_decompositions()
        self.assertIn("heed.forward", str(program.graph))
        shorter = q[:, :, :7], k[:, :, :7], v[:, :, :7]
        torch.testing.assert_close(program.module()(*shorter), Model()(*shorter))

    def test_a_saved_program_is_loaded_by_another_process(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return heed.scaled_dot_product_attention(q, k, v, is_causal=True) + heed.attention(q, k, v, causal=True)

        q, k, v = setting("cpu")
        length = torch.export.Dim("length", min=2, max=64)
        program = torch.export.export(Model(), (q, k, v), dynamic_shapes={name: {2: length} for name in ("q", "k", "v")})
        shorter = q[:, :, :7], k[:, :, :7], v[:, :, :7]
        with tempfile.TemporaryDirectory() as folder:
            torch.export.save(program, os.path.join(folder, "model.pt2"))
            torch.save((shorter, Model()(*shorter)), os.path.join(folder, "calls.pt"))
            code = (
                "import torch, heed.operators\n"
                "inputs, wanted = torch.load('calls.pt')\n"
                "torch.testing.assert_close(torch.export.load('model.pt2').module()(*inputs), wanted)\n"
                "assert heed.report().served == 2, heed.report()\n"
            )
            done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_export_of_a_mask(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v, mask):
                return heed.scaled_dot_product_attention(q, k, v, mask)

        q, k, v = setting("cpu")
        mask = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(3)) > 0.3
        length = torch.export.Dim("length", min=2, max=64)
        dims = {**{name: {2: length} for name in ("q", "k", "v")}, "mask": {2: length, 3: length}}
        with torch.no_grad():
            program = torch.export.export(Model(), (q, k, v, mask), dynamic_shapes=dims).run_decompositions()
        # The operator stays, and its call is routed when the program runs.
        self.assertIn("heed.scaled_dot_product_attention", str(program.graph))
        shorter = q[:, :, :7], k[:, :, :7], v[:, :, :7], mask[:, :, :7, :7]
        wanted = Model()(*shorter)
        heed.reset_report()
        torch.testing.assert_close(program.module()(*shorter), wanted)
        self.assertEqual((heed.report().served, heed.report().handed_back), (1, 0), str(heed.report()))

    def test_opcheck_of_features(self):
        q, k, v = tensors((2, 4, 2, 9, 11, 64, 64), torch.float32, "cpu")
        given = {"softcap": 2.0, "bias": torch.randn(2, 1, 9, 11), "sinks": torch.randn(4), "alibi_slopes": torch.rand(4)}
        lengths = torch.tensor([5, 11], dtype=torch.int32)
        for needs_gradient, masking in itertools.product((False, True), ((), (2, 3, -1))):
            with self.subTest(gradient=needs_gradient, masking=masking):
                learned = [tensor.clone().requires_grad_(needs_gradient) for tensor in (q, k, v)]
                features = {name: one.clone().requires_grad_(needs_gradient) if name != "softcap" else one for name, one in given.items()}
                torch.library.opcheck(torch.ops.heed.forward_features.default, (*learned, *masking), {**features, "key_lengths": lengths})

    def test_opcheck(self):
        for needs_gradient, operator in itertools.product((False, True), ("forward", "forward_lse", "scaled_dot_product_attention", "unfused")):
            if needs_gradient and operator in ("forward", "unfused"):
                continue
            for layout in ("bhld", "blhd"):
                with self.subTest(operator=operator, gradient=needs_gradient, layout=layout):
                    arguments = [tensor.requires_grad_(needs_gradient) for tensor in tensors((2, 4, 2, 9, 11, 64, 64), torch.float32, "cpu", layout)]
                    named = {"enable_gqa": True} if operator == "scaled_dot_product_attention" else {}
                    torch.library.opcheck(getattr(torch.ops.heed, operator).default, arguments, named)

    def test_flops_are_counted(self):
        from torch.utils.flop_counter import FlopCounterMode

        q, k, v = setting("cpu")
        for call in (lambda: heed.attention(q, k, v), lambda: heed.attention(q, k, v, return_lse=True), lambda: heed.scaled_dot_product_attention(q, k, v)):
            with FlopCounterMode(display=False) as counter:
                call()
            self.assertEqual(counter.get_total_flops(), 4 * 2 * 4 * 16 * 16 * 64)
        with FlopCounterMode(display=False) as counter:
            heed.scaled_dot_product_attention(q.clone().requires_grad_(), k, v, dropout_p=0.1).sum().backward()
        self.assertEqual(counter.get_total_flops(), 3 * 4 * 2 * 4 * 16 * 16 * 64)


if __name__ == "__main__":
    unittest.main()

"""Heed in the place of aten::scaled_dot_product_attention: who is served, what is handed back, what the report says."""

import contextlib
import threading
import unittest

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, DTYPES, require_programs, tensors
from torch.nn.attention import SDPBackend, sdpa_kernel

SMALL = (2, 4, 4, 16, 16, 64, 64)


def setUpModule():
    require_programs()
    global heed
    import heed


class Overrides(unittest.TestCase):
    def setUp(self):
        heed.reset_report()
        self.q, self.k, self.v = tensors(SMALL, torch.float32, "cpu")

    def counted(self):
        report = heed.report()
        heed.reset_report()
        return report.served, report.handed_back

    def reason(self):
        rows = [row for row in heed.report().rows if not row.served]
        heed.reset_report()
        self.assertEqual(len(rows), 1)
        return rows[0].reason

    def test_code_that_is_kept_on_disk_is_named_by_what_traced_it(self):
        config = torch.compiler.config

        def name():
            return config.cache_key_tag  # Inductor's FxGraphHashDetails takes it

        before = config.cache_key_tag
        try:
            config.cache_key_tag = "mine"
            names = [name()]
            with heed.sdpa():
                names.append(name())
                with heed.sdpa(strict=True):
                    names.append(name())
                with heed.sdpa(precision="fp8"):
                    names.append(name())
                self.assertEqual(name(), names[1])
            with heed.record(by="heed"):
                names.append(name())
            self.assertEqual(len(set(names)), 5, names)
            self.assertTrue(all(one.startswith("mine") for one in names))
            self.assertEqual(config.cache_key_tag, "mine")
            with heed.sdpa():
                config.cache_key_tag = "another"  # while it holds
            self.assertEqual(config.cache_key_tag, "another")
        finally:
            config.cache_key_tag = before

    def test_every_way_to_call(self):
        q, k, v = self.q, self.k, self.v
        scripted = torch.jit.script(lambda_of_script)
        ways = {
            "functional": lambda: F.scaled_dot_product_attention(q, k, v),
            "aten": lambda: torch.ops.aten.scaled_dot_product_attention(q, k, v),
            "script": lambda: scripted(q, k, v),
            "named": lambda: F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True),
        }
        for name, call in ways.items():
            for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
                with self.subTest(way=name, mode=mode.__name__):
                    with mode():
                        wanted = call()
                        self.assertEqual(self.counted(), (0, 0))
                        with heed.sdpa():
                            got = call()
                    self.assertEqual(self.counted(), (1, 0))
                    torch.testing.assert_close(got, wanted)

    def test_modules(self):
        for causal in (False, True):
            layer = torch.nn.TransformerEncoderLayer(128, 2, batch_first=True, dropout=0.0)
            x = torch.randn(2, 9, 128)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(9) if causal else None
            for training in (True, False):
                layer.train(training)
                wanted = layer(x, src_mask=mask, is_causal=causal)
                with heed.sdpa():
                    got = layer(x, src_mask=mask, is_causal=causal)
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
                self.assertEqual(self.counted(), (1, 0), f"causal {causal}, training {training}")
        self.assertTrue(torch.backends.mha.get_fastpath_enabled())

    def test_training(self):
        results = []
        for override in (False, True):
            q, k, v = (tensor.clone().requires_grad_() for tensor in (self.q, self.k, self.v))
            if override:
                with heed.sdpa(strict=True):
                    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()
            else:
                F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()
            results.append((q.grad, k.grad, v.grad))
        for one, two in zip(*results):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
        self.assertEqual(self.counted(), (1, 0))

    def test_causal_bias(self):
        from torch.nn.attention.bias import causal_lower_right, causal_upper_left

        for bias in (causal_lower_right(5, 16), causal_upper_left(5, 16)):
            wanted = F.scaled_dot_product_attention(self.q[:, :, :5], self.k, self.v, attn_mask=bias)
            with heed.sdpa():
                got = F.scaled_dot_product_attention(self.q[:, :, :5], self.k, self.v, attn_mask=bias)
            torch.testing.assert_close(got, wanted)

    def test_what_is_handed_back_is_said(self):
        q, k, v = self.q, self.k, self.v
        learned, seen = q.clone().requires_grad_(), torch.rand(16, 16, generator=generator()) > 0.3
        cases = {
            "element type": lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double()),
            "not finite": lambda: F.scaled_dot_product_attention(q[..., :1].abs(), k[..., :1].abs(), v, scale=torch.inf),
            "scale that is not finite": lambda: F.scaled_dot_product_attention(learned[..., :1].abs(), k[..., :1].abs(), v, scale=torch.inf),
            "selection of backends": lambda: with_math(q, k, v),
            "d600": lambda: F.scaled_dot_product_attention(*(torch.zeros(1, 1, 8, 600) for _ in range(3))),
            "no family runs b1h1l8d600:fp32": lambda: F.scaled_dot_product_attention(*(torch.zeros(1, 1, 1, 8, 600) for _ in range(3))),
            "runs b1h1l8d600:fp32": lambda: F.scaled_dot_product_attention(*(torch.zeros(8, 600) for _ in range(3))),
            "head dim 600 is not supported": lambda: F.scaled_dot_product_attention(*(torch.zeros(1, 1, 8, 600) for _ in range(3)), seen[:8, :8]),
        }
        for words, call in cases.items():
            with self.subTest(words):
                torch.manual_seed(0)
                wanted = call()
                with heed.sdpa():
                    torch.manual_seed(0)
                    got = call()
                torch.testing.assert_close(got, wanted, equal_nan=True)
                self.assertIn(words, self.reason())
                for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
                    with mode(), heed.sdpa(strict=True), self.assertRaisesRegex(heed.NotServed, words):
                        call()
                heed.reset_report()

    def test_mask_tensors_are_served(self):
        bias = torch.randn(2, 4, 16, 16, generator=generator())
        masks = {
            **{"all": bias, "one head": bias[:, :1], "rows": bias[0, 0], "keys": bias[0, 0, :1], "one": bias[:1, :1, :1, :1]},
            **{"booleans": bias > -0.5, "padding": (bias > -0.5)[:, :1, :1], "columns": bias[0, 0].T, "expanded": bias[:, :1].expand(2, 4, 16, 16)},
            **{"infinite": bias.masked_fill(bias > 1, -torch.inf), "learned": bias.clone().requires_grad_()},
        }
        for name, mask in masks.items():
            for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
                with self.subTest(mask=name, mode=mode.__name__), mode():
                    wanted = F.scaled_dot_product_attention(self.q, self.k, self.v, mask)
                    with heed.sdpa(strict=True):
                        got = F.scaled_dot_product_attention(self.q, self.k, self.v, mask)
                    self.assertEqual(self.counted(), (1, 0))
                    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)

    def test_a_mask_of_heads_that_share_keys(self):
        q, k, v = tensors((2, 4, 2, 5, 16, 64, 64), torch.float32, "cpu")
        mask = torch.rand(2, 4, 5, 16, generator=generator()) > 0.3
        wanted = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        with heed.sdpa(strict=True):
            torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), wanted, atol=1e-5, rtol=1e-4)

    def test_a_learned_mask(self):
        for learned in ("mask", "query"):
            results = []
            for override in (False, True):
                mask = torch.randn(16, 16, generator=generator()).requires_grad_(learned == "mask")
                q = self.q.clone().requires_grad_(learned == "query")
                with heed.sdpa() if override else contextlib.nullcontext():
                    o = F.scaled_dot_product_attention(q, self.k, self.v, mask)
                o.square().sum().backward()
                results.append((o.detach(), mask.grad if learned == "mask" else q.grad))
            for one, two in zip(*results):
                torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
            self.assertEqual(self.counted(), (1, 0))

    def test_rows_that_see_no_key_are_zeros(self):
        seen = torch.ones(16, 16, dtype=torch.bool)
        seen[3] = False
        for dtype in DTYPES["cpu"]:
            q, k, v = tensors(SMALL, dtype, "cpu")
            for mask in (seen, torch.where(seen, 0.0, -torch.inf).to(dtype), torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)):
                with heed.sdpa(strict=True):
                    o = F.scaled_dot_product_attention(q, k, v, mask)
                self.assertEqual(o[:, :, 3].abs().max(), 0)
                torch.testing.assert_close(o[:, :, 4:], F.scaled_dot_product_attention(q, k, v)[:, :, 4:], atol=2e-2, rtol=2e-2)

    def test_strict_ends_with_its_statement(self):
        with heed.sdpa():
            with heed.sdpa(strict=True):
                with self.assertRaisesRegex(heed.NotServed, "element type"):
                    F.scaled_dot_product_attention(self.q.double(), self.k.double(), self.v.double())
            F.scaled_dot_product_attention(self.q.double(), self.k.double(), self.v.double())

    def test_errors_of_pytorch_keep_their_sentence(self):
        bad = torch.zeros(3, 16)
        for mask, named in ((bad, {}), (torch.zeros(16, 16, dtype=torch.float64), {}), (torch.zeros(1, 2, 4, 16, 16), {})):
            with self.assertRaises(RuntimeError) as wanted:
                F.scaled_dot_product_attention(self.q, self.k, self.v, mask, **named)
            with heed.sdpa(), self.assertRaises(RuntimeError) as got:
                F.scaled_dot_product_attention(self.q, self.k, self.v, mask, **named)
            self.assertEqual(str(got.exception).split("\n")[0], str(wanted.exception).split("\n")[0])

    def test_a_selection_that_was_there_before_is_no_selection(self):
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            with heed.sdpa():
                F.scaled_dot_product_attention(self.q, self.k, self.v)
            self.assertEqual(self.counted(), (1, 0))
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)

    def test_an_override_that_was_installed_under_a_selection_outlives_it(self):
        with sdpa_kernel(SDPBackend.MATH):
            heed.install()
        try:
            F.scaled_dot_product_attention(self.q, self.k, self.v)
            F.scaled_dot_product_attention(self.q.clone().requires_grad_(), self.k, self.v)
            torch.compile(F.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")(self.q, self.k, self.v)
            self.assertEqual(self.counted(), (3, 0))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(self.q, self.k, self.v)
            self.assertEqual(self.counted(), (0, 1))
        finally:
            heed.uninstall()

    def test_pytorchs_own_registry(self):
        attention = torch.nn.attention
        if not hasattr(attention, "activate_flash_attention_impl"):
            self.skipTest("this PyTorch has no registry of implementations")
        import heed.override

        self.assertIn("Heed", attention.list_flash_attention_impls())
        attention.activate_flash_attention_impl("Heed")
        try:
            F.scaled_dot_product_attention(self.q, self.k, self.v)
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                F.scaled_dot_product_attention(self.q, self.k, self.v)
            self.assertEqual(self.counted(), (2, 0))
            with sdpa_kernel(SDPBackend.MATH):
                F.scaled_dot_product_attention(self.q, self.k, self.v)
            self.assertEqual(self.counted(), (0, 1))
        finally:
            attention.restore_flash_attention_impl()
        F.scaled_dot_product_attention(self.q, self.k, self.v)
        self.assertEqual(self.counted(), (0, 0))

    def test_nesting_and_threads(self):
        with heed.sdpa(), heed.sdpa():
            pass
        heed.install()
        heed.install()
        heed.uninstall()
        thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(self.q, self.k, self.v))
        thread.start()
        thread.join()
        self.assertEqual(self.counted(), (1, 0))
        heed.uninstall()
        with self.assertRaisesRegex(RuntimeError, "without a heed.install"):
            heed.uninstall()
        F.scaled_dot_product_attention(self.q, self.k, self.v)
        self.assertEqual(self.counted(), (0, 0))

    def test_transforms_of_functions(self):
        def loss(q):
            return F.scaled_dot_product_attention(q, self.k, self.v).square().sum()

        def one(q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

        def per_example(q, k, v):
            return torch.vmap(one)(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))

        for name, call in {
            "grad": lambda: torch.func.grad(loss)(self.q),
            "vmap": lambda: per_example(self.q, self.k, self.v),
            "vmap of grad": lambda: torch.vmap(torch.func.grad(lambda q, k, v: one(q[None], k[None], v[None]).square().sum()))(self.q, self.k, self.v),
            "jvp": lambda: torch.func.jvp(loss, (self.q,), (self.k,))[1],
        }.items():
            with self.subTest(name):
                with sdpa_kernel(SDPBackend.MATH):
                    wanted = call()
                with heed.sdpa(), sdpa_kernel(SDPBackend.MATH):
                    got = call()
                torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
                if "vmap" not in name:
                    self.assertIn("transform", self.reason())

    def test_modes_see_the_operator(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Record(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))

        with heed.sdpa(), Record():
            F.scaled_dot_product_attention(self.q, self.k, self.v)
        self.assertIn("heed.forward.default", seen)

    def test_nested_tensors_and_subclasses(self):
        nested = torch.nested.nested_tensor([torch.randn(3, 2, 64), torch.randn(5, 2, 64)], layout=torch.jagged).transpose(1, 2)
        wanted = F.scaled_dot_product_attention(nested, nested, nested)
        with heed.sdpa():
            got = F.scaled_dot_product_attention(nested, nested, nested)
        torch.testing.assert_close(got.values(), wanted.values())

        class Marked(torch.Tensor):
            pass

        with heed.sdpa():
            self.assertIsInstance(F.scaled_dot_product_attention(self.q.as_subclass(Marked), self.k, self.v), Marked)

    def test_every_device_and_type(self):
        for device in DEVICES:
            for dtype in DTYPES[device]:
                q, k, v = tensors(SMALL, dtype, device)
                wanted = F.scaled_dot_product_attention(q, k, v)
                with heed.sdpa(strict=True):
                    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v), wanted, atol=2e-2, rtol=2e-2)

    def test_autocast(self):
        with heed.sdpa(), torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(F.scaled_dot_product_attention(self.q, self.k, self.v).dtype, torch.bfloat16)
        self.assertEqual(self.counted(), (1, 0))
        with torch.autocast("cpu", torch.bfloat16):
            for function in (heed.scaled_dot_product_attention, heed.attention):
                self.assertEqual(function(self.q, self.k, self.v).dtype, torch.bfloat16)


class Reports(unittest.TestCase):
    def test_the_table_and_the_dictionary(self):
        import json

        heed.reset_report()
        self.assertEqual(str(heed.report()), "0 calls served by Heed, 0 handed back to PyTorch")
        q, k, v = tensors(SMALL, torch.float32, "cpu")
        with heed.sdpa():
            for _ in range(3):
                F.scaled_dot_product_attention(q, k, v, is_causal=True)
            with_math(q, k, v)
        report = heed.report()
        self.assertEqual((report.served, report.handed_back), (3, 1))
        served, handed = report.rows
        self.assertEqual((served.workload, served.calls), ("b2h4l16d64:fp32:causal_top_left", 3))
        self.assertTrue(served.variant.startswith("fwd_cpu:") and served.origin and served.reason)
        self.assertGreater(served.seconds, 0)
        # Without PyTorch's C++ symbols Python sees the selection, and names no workload.
        self.assertIn(handed.workload, ("b2h4l16d64:fp32", ""))
        self.assertEqual(handed.reason, "a selection of backends (torch.nn.attention.sdpa_kernel)")
        self.assertIn("b2h4l16d64:fp32:causal_top_left", str(report))
        self.assertEqual(json.loads(json.dumps(report.as_dict()))["served"], 3)


def generator():
    return torch.Generator().manual_seed(4)


def with_math(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


def lambda_of_script(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


if __name__ == "__main__":
    unittest.main()

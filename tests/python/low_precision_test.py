"""precision= of heed.attention, heed.sdpa and heed.install: what is served in low precision, how exact it is, and that nothing else is."""

import copy
import io
import json
import os
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from attention_cases import require_programs, tensors

SIZES = (2, 4, 2, 70, 150, 64, 64)
# Twice the error on N(0, 1) of evidence/cpu/calibration.json, where keys are many more.
MOST = {"fp8": 0.1, "fp8_smooth": 0.1, "fp8_rotated": 0.1, "fp8_smooth_rotated": 0.1, "int8": 0.03, "int8_smooth": 0.03, "int8_token_smooth": 0.03}


def setUpModule():
    require_programs()
    global heed
    import heed
    import heed.precision


def relative(o, exact):
    return ((o.double() - exact.double()).square().mean() / exact.double().square().mean()).sqrt().item()


class Calls(unittest.TestCase):
    def setUp(self):
        heed.reset_report()
        self.q, self.k, self.v = tensors(SIZES, torch.float32, "cpu")

    def test_results_are_as_exact_as_the_mode(self):
        exact, lse = heed.attention(self.q, self.k, self.v, return_lse=True)
        for mode, most in MOST.items():
            with self.subTest(mode=mode):
                o, low = heed.attention(self.q, self.k, self.v, precision=mode, return_lse=True)
                self.assertLess(relative(o, exact), most)
                self.assertGreater(relative(o, exact), 1e-3)
                torch.testing.assert_close(low, lse, atol=0.1, rtol=0)

    def test_the_log_sum_exp_has_the_mean_of_the_keys(self):
        k = self.k + 3 * torch.randn(1, 2, 1, 64)
        _, lse = heed.attention(self.q, k, self.v, return_lse=True)
        _, low = heed.attention(self.q, k, self.v, return_lse=True, precision="fp8_smooth")
        torch.testing.assert_close(low, lse, atol=0.1, rtol=0)

    def test_types_layouts_and_masks(self):
        for dtype in (torch.bfloat16, torch.float32):
            for layout in ("bhld", "blhd", "packed", "strided"):
                q, k, v = tensors((2, 4, 2, 70, 70, 64, 64), dtype, "cpu", layout)
                with self.subTest(dtype=dtype, layout=layout):
                    o = heed.attention(q, k, v, causal=True, precision="int8_smooth")
                    self.assertEqual(o.dtype, dtype)
                    self.assertLess(relative(o, heed.attention(q.float(), k.float(), v.float(), causal=True)), 0.03)

    def test_windows(self):
        for window, causal in (((20, 7), False), ((31, None), True)):
            arguments = {"window": window, "causal": causal, "alignment": "bottom_right"}
            for mode in ("fp8_smooth", "int8_token_smooth"):
                with self.subTest(window=window, mode=mode):
                    o, lse = heed.attention(self.q, self.k, self.v, **arguments, precision=mode, return_lse=True)
                    exact, wanted = heed.attention(self.q, self.k, self.v, **arguments, return_lse=True)
                    self.assertTrue(1e-3 < relative(o, exact) < MOST[mode])
                    torch.testing.assert_close(lse, wanted, atol=0.15, rtol=0)
        self.assertEqual({row.precision for row in heed.report().rows}, {"", "fp8_smooth", "int8_token_smooth"})

    def test_debug_says_what_is_lost(self):
        q = self.q[:, :, :33].clone()  # of lengths that no other test makes plans of
        q[1, 2, 3, 4] = float("inf")
        with mock.patch.dict(os.environ, {"HEED_DEBUG": "1"}):
            words = "fp8_smooth lost 1 value of Q, the first in batch entry 1, head 2, row 3, column 4"
            with self.assertRaisesRegex(RuntimeError, words):
                heed.attention(q, self.k, self.v, precision="fp8_smooth")
            with heed.sdpa(precision="fp8_smooth"), self.assertRaisesRegex(RuntimeError, words):
                F.scaled_dot_product_attention(q, self.k, self.v, enable_gqa=True)
            heed.attention(self.q[:, :, :33], self.k, self.v, precision="fp8_smooth")

    def test_ragged_batches(self):
        rows = [torch.randn(100, heads, 64) for heads in (4, 2, 2)]
        starts = torch.tensor([0, 30, 100])
        arguments = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_len_q": 70, "max_len_k": 70}
        o = heed.attention_varlen(*rows, **arguments, precision="fp8_smooth")
        self.assertLess(relative(o, heed.attention_varlen(*rows, **arguments)), 0.1)

    def test_blocks_of_ragged_batches_begin_with_each_entry(self):
        rows = [torch.randn(100, heads, 64) for heads in (4, 2, 2)]
        starts = torch.tensor([0, 30, 30, 100])  # the second entry is empty
        bias, slopes = torch.randn(3, 1, 1, 70), torch.rand(3, 4)
        gate, weight = torch.randn(100, 4, 64), torch.rand(64)
        o, lse = heed.attention_varlen(*rows, cu_seqlens_q=starts, cu_seqlens_k=starts, max_len_q=70, max_len_k=70, causal=True, bias=bias, alibi_slopes=slopes,
                                       out_gate=gate, out_norm_weight=weight, return_lse=True, precision="int8_smooth")  # fmt: skip
        for entry, (begin, end) in enumerate(((0, 30), (30, 30), (30, 100))):
            if begin == end:
                continue
            one = [tensor[begin:end].transpose(0, 1)[None] for tensor in rows]
            wanted, of_row = heed.attention(*one, causal=True, bias=bias[entry, ..., : end - begin], alibi_slopes=slopes[entry], out_gate=gate[begin:end].transpose(0, 1)[None], out_norm_weight=weight,
                                            return_lse=True, precision="int8_smooth")  # fmt: skip
            torch.testing.assert_close(o[begin:end], wanted[0].transpose(0, 1), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(lse[:, begin:end], of_row[0])
        with self.assertRaisesRegex(NotImplementedError, "entries of a ragged batch begin within blocks; take a mode by heads or by rows; the modes that are served here: int8_token_smooth, fp8"):
            heed.attention_varlen(*rows, cu_seqlens_q=starts, cu_seqlens_k=starts, max_len_q=70, max_len_k=70, dropout_p=0.1, precision="int8_smooth")

    def test_keys_in_pages_are_copied_out_of_them(self):
        q, k, v = tensors((3, 4, 2, 5, 48, 64, 64), torch.float32, "cpu")
        lengths = torch.tensor([48, 0, 33])
        table = torch.randperm(9, generator=torch.Generator().manual_seed(1)).reshape(3, 3)
        k_pages, v_pages = torch.zeros(9, 16, 2, 64), torch.zeros(9, 16, 2, 64)
        for pages, dense in ((k_pages, k), (v_pages, v)):
            pages[table.flatten()] = dense.transpose(1, 2).reshape(9, 16, 2, 64)
        for mode in ("fp8_smooth", "int8_smooth"):
            o, lse = heed.attention(q, k_pages, v_pages, page_table=table, key_lengths=lengths, causal=True, alignment="bottom_right", return_lse=True, precision=mode)
            for entry, length in enumerate(lengths.tolist()):
                if length == 0:
                    self.assertEqual((o[entry].abs().max(), lse[entry].max()), (0, -torch.inf))
                    continue
                one = q[entry : entry + 1], k[entry : entry + 1, :, :length], v[entry : entry + 1, :, :length]
                wanted, of_row = heed.attention(*one, causal=True, alignment="bottom_right", return_lse=True, precision=mode)
                torch.testing.assert_close(o[entry], wanted[0], atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(lse[entry], of_row[0])
        text = heed.explain(q, k_pages, v_pages, page_table=table, key_lengths=lengths, precision="fp8_smooth")
        self.assertRegex(text, "entries   3 dense calls, one after the other; that of most keys:\n(.*\n)*runs      fwd_cpu")
        with self.assertRaisesRegex(NotImplementedError, "a softcap that is another"):
            heed.attention(q, k_pages, v_pages, page_table=table, softcap=3.0, precision="fp8_smooth")

    def test_explain_says_what_a_mode_costs(self):
        text = heed.explain(self.q, self.k, self.v, precision="fp8_smooth")
        self.assertIn("precision fp8_smooth: ", text)
        self.assertIn("error     relative RMS error of O on b1h4l1024d128:fp16: 4.7e-02 normal", text)
        self.assertNotIn("precision fp8", heed.explain(self.q, self.k, self.v))

    def test_the_report_names_the_mode(self):
        heed.attention(self.q, self.k, self.v)
        heed.attention(self.q, self.k, self.v, precision="fp8")
        self.assertEqual(sorted(row.precision for row in heed.report().rows), ["", "fp8"])
        self.assertIn(", fp8\n", str(heed.report()) + "\n")

    def test_what_is_refused(self):
        q, k, v = self.q, self.k, self.v
        for error, words, call in [
            (ValueError, "there is no precision 'int4'; there are int8, int8_smooth", lambda: heed.attention(q, k, v, precision="int4")),
            (TypeError, "precision must be the name of a mode, not int", lambda: heed.attention(q, k, v, precision=8)),
            (NotImplementedError, "has no gradient", lambda: heed.attention(q.clone().requires_grad_(), k, v, precision="fp8")),
            (NotImplementedError, "a softcap that is another", lambda: heed.attention(q, k, v, softcap=20.0, precision="fp8_smooth")),
            (NotImplementedError, "attention sinks that is another", lambda: heed.attention(q, k, v, sinks=torch.zeros(4), precision="fp8_smooth")),
            (NotImplementedError, "the head dim is 40", lambda: heed.attention(q[..., :40], k[..., :40], v, precision="fp8_rotated")),
            (NotImplementedError, "torch.float64", lambda: heed.attention(q.double(), k.double(), v.double(), precision="fp8")),
            (ValueError, "there is no precision", lambda: heed.explain(q, k, v, precision="fp4")),
        ]:  # fmt: skip
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                call()
        with torch.no_grad():
            heed.attention(q.clone().requires_grad_(), k, v, precision="fp8")

    def test_a_trace_keeps_the_mode(self):
        compiled = torch.compile(lambda q, k, v: heed.attention(q, k, v, precision="fp8"), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(self.q, self.k, self.v), heed.attention(self.q, self.k, self.v, precision="fp8"), atol=0, rtol=0)

    def test_not_a_number_shows(self):
        q = self.q.clone()
        q[1, 2, 3, 4] = float("nan")
        o = heed.attention(q, self.k, self.v, precision="fp8_smooth")
        self.assertTrue(o[1, 2, 3].isnan().all())
        self.assertEqual(int(o.isnan().any(-1).sum()), 1)


class InThePlaceOfPyTorch(unittest.TestCase):
    def setUp(self):
        heed.reset_report()
        self.q, self.k, self.v = tensors((2, 4, 4, 70, 70, 64, 64), torch.float32, "cpu")

    def modes(self):
        """Of the calls since the last time, in the order of modes."""
        report = heed.report()
        heed.reset_report()
        return sorted((row.precision, row.calls) for row in report.rows if row.served)

    def call(self, **arguments):
        return F.scaled_dot_product_attention(self.q, self.k, self.v, **arguments)

    def test_only_where_it_is_asked_for(self):
        with heed.sdpa():
            exact = self.call()
        self.assertEqual(self.modes(), [("", 1)])
        with heed.sdpa(precision="fp8_smooth"):
            low = self.call()
            with heed.sdpa():
                self.call()  # what is outside still holds
            with heed.sdpa(precision="int8_smooth"):
                lower = self.call(is_causal=True)
            self.call(attn_mask=torch.ones(70, 70, dtype=torch.bool).tril())
        self.assertEqual(self.modes(), [("fp8_smooth", 1), ("fp8_smooth", 2), ("int8_smooth", 1)])
        self.assertTrue(1e-3 < relative(low, exact) < 0.1)
        self.assertLess(relative(lower, self.call(is_causal=True)), 0.03)
        with heed.sdpa():
            self.call()
        self.assertEqual(self.modes(), [("", 1)])

    def test_gradients_are_those_of_the_tensors_as_they_are(self):
        self.q.requires_grad_()
        with heed.sdpa(precision="fp8"):
            self.call().sum().backward()
        self.assertEqual(self.modes(), [("", 1)])
        wanted = self.q.grad
        self.q.grad = None
        self.call().sum().backward()
        torch.testing.assert_close(self.q.grad, wanted)

    def test_calls_that_a_mode_does_not_serve_are_served_as_they_are(self):
        with heed.sdpa(precision="fp8_smooth_rotated"):
            F.scaled_dot_product_attention(*(x[..., :40] for x in (self.q, self.k, self.v)))
        self.assertEqual(self.modes(), [("", 1)])

    def test_traces_keep_the_mode(self):
        def call(q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, mask) * 1.0

        mask = torch.ones(70, 70, dtype=torch.bool).tril()
        for dynamic, arguments in ((False, ()), (True, ()), (False, (mask,))):
            torch._dynamo.reset()
            heed.reset_report()
            with self.subTest(dynamic=dynamic, arguments=len(arguments)), heed.sdpa(precision="fp8_smooth"), torch.no_grad():
                compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                for length in (70, 40) if dynamic else (70,):
                    tensors = [x[:, :, :length] for x in (self.q, self.k, self.v)]
                    torch.testing.assert_close(compiled(*tensors, *arguments), call(*tensors, *arguments), atol=0, rtol=0)
                self.assertEqual({mode for mode, _ in self.modes()}, {"fp8_smooth"})
        with torch.no_grad(), heed.sdpa():
            low = compiled(self.q, self.k, self.v, mask)  # what was compiled keeps its mode, and the report names it
            self.assertEqual(self.modes(), [("fp8_smooth", 1)])
            self.assertGreater(relative(low, call(self.q, self.k, self.v, mask)), 1e-3)

    def test_traces_of_what_a_mode_does_not_serve(self):
        call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * 1.0  # noqa: E731
        layer = torch.nn.Identity()
        learned = self.q.clone().requires_grad_()
        for name, precision, tensors, model in (
            ("a head dim", "fp8_smooth_rotated", [x[..., :40] for x in (self.q, self.k, self.v)], None),
            ("gradients", "fp8_smooth", [learned, self.k, self.v], None),
            ("modes of modules", heed.Precision({"": "fp8_smooth", "*": "fp8_smooth"}), [self.q, self.k, self.v], layer),
        ):
            torch._dynamo.reset()
            wanted = call(*tensors)
            heed.reset_report()
            with self.subTest(name), heed.sdpa(precision=precision, model=model):
                o = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
                torch.testing.assert_close(o, wanted, atol=1e-5, rtol=1e-4)
                self.assertEqual(self.modes(), [("", 1)])

    def test_the_operator_of_traces(self):
        arguments = *(x[:, :, :9] for x in (self.q, self.k, self.v)), 1
        number = heed.precision.number_of("test", "fp8_smooth")
        for or_plain in (False, True):
            torch.library.opcheck(torch.ops.heed.forward_precision.default, arguments, {"precision": number, "or_plain": or_plain})
        rotated = heed.precision.number_of("test", "fp8_rotated")
        short = [x[..., :40] for x in (self.q, self.k, self.v)]
        with self.assertRaisesRegex(RuntimeError, "the head dim is 40"):
            torch.ops.heed.forward_precision(*short, precision=rotated)
        o, _ = torch.ops.heed.forward_precision(*short, precision=rotated, or_plain=True)
        torch.testing.assert_close(o, F.scaled_dot_product_attention(*short), atol=1e-5, rtol=1e-4)
        # Where no program has the sizes at all, PyTorch's operators compute it.
        long = [torch.randn(1, 1, 8, 600) for _ in range(3)]
        o, _ = torch.ops.heed.forward_precision(*long, precision=number, or_plain=True)
        torch.testing.assert_close(o, F.scaled_dot_product_attention(*long), atol=1e-5, rtol=1e-4)

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return heed.attention(q, k, v, precision="fp8_smooth")

        program = torch.export.export(Model(), (self.q, self.k, self.v)).run_decompositions()
        self.assertIn("heed.forward_precision", str(program.graph))
        torch.testing.assert_close(program.module()(self.q, self.k, self.v), Model()(self.q, self.k, self.v), atol=0, rtol=0)

    def test_install_and_uninstall(self):
        heed.install(precision="fp8")
        heed.install(precision="fp8_smooth")
        self.call()
        with self.assertRaisesRegex(RuntimeError, "precision='int8'"):
            heed.uninstall(precision="int8")
        heed.uninstall(precision="fp8_smooth")
        self.call()
        heed.uninstall(precision="fp8")
        self.assertEqual(self.modes(), [("fp8", 1), ("fp8_smooth", 1)])
        for error, words, arguments in [
            (ValueError, "there is no precision 'int4'", {"precision": "int4"}),
            (TypeError, "must be the name of a mode, not float", {"precision": 8.0}),
            (FileNotFoundError, "nowhere.json", {"precision": "nowhere.json"}),
            (ValueError, "model is given without precision", {"model": torch.nn.Identity()}),
            (ValueError, "precision names the layers a", {"precision": heed.Precision({"a": "fp8"})}),
            (ValueError, "has no module 'a'", {"precision": heed.Precision({"a": "fp8"}), "model": torch.nn.Identity()}),
        ]:  # fmt: skip
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                heed.install(**arguments)
        for error, words, arguments in [
            (ValueError, r"heed.sdpa\(\): there is no precision 'fp9'", {"precision": "fp9"}),
            (ValueError, r"heed.sdpa\(\): model is given", {"model": torch.nn.Identity()}),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(error, words), heed.sdpa(**arguments):
                pass
        with self.assertRaisesRegex(RuntimeError, "without a heed.install"):
            heed.uninstall()

    def test_every_thread(self):
        found = []
        with heed.sdpa(precision="fp8"):
            thread = threading.Thread(target=lambda: found.append(self.call()))
            thread.start()
            thread.join()
        self.assertEqual(self.modes(), [("fp8", 1)])

    def test_layers_of_a_model(self):
        class Layer(torch.nn.Module):
            def forward(self, q, k, v):
                return F.scaled_dot_product_attention(q, k, v)

        class Failing(torch.nn.Module):
            def forward(self, q, k, v):
                raise OSError("a layer that fails")

        model = torch.nn.ModuleDict({"first": Layer(), "second": Layer(), "third": Layer(), "fourth": Failing()})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "choices.json"
            layers = {"first": {"mode": "fp8_smooth", "rel_rms": 0.01}, "second": {"mode": None}, "fourth": {"mode": "int8"}, "*": {"mode": "fp8"}}
            path.write_text(json.dumps({"layers": layers}))
            self.assertEqual(heed.Precision.load(path), heed.Precision({"first": "fp8_smooth", "second": None, "fourth": "int8", "*": "fp8"}))
            with heed.sdpa(precision=str(path), model=model):
                for layer in ("first", "second", "third"):
                    model[layer](self.q, self.k, self.v)
                with self.assertRaises(OSError):
                    model["fourth"](self.q, self.k, self.v)
                model["third"](self.q, self.k, self.v)
            self.assertEqual(self.modes(), [("", 1), ("fp8", 2), ("fp8_smooth", 1)])
            model["first"](self.q, self.k, self.v)
            with heed.sdpa():
                model["first"](self.q, self.k, self.v)
            self.assertEqual(self.modes(), [("", 1)])
            for text, words in [("[]", "is no file of"), ('{"layers": {"a": {"mode": "fp8", "colour": 1}}}', "does not know: colour"), ('{"layers": {"a": {"mode": "fp9"}}}', "there is no precision 'fp9'")]:
                path.write_text(text)
                with self.assertRaisesRegex(ValueError, words):
                    heed.Precision.load(path)

    def test_copies_of_a_model_do_not_keep_the_mode(self):
        model = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(128, 2, batch_first=True, dropout=0.0)).eval()
        x = torch.randn(2, 9, 128)
        file = io.BytesIO()
        with heed.sdpa(precision=heed.Precision({"0.self_attn": "fp8_smooth"}), model=model):
            copies = [copy.deepcopy(model), copy.copy(model[0].self_attn)]
            torch.save(model, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        with torch.no_grad(), heed.sdpa():
            for one in copies:
                one(x) if isinstance(one, torch.nn.Sequential) else one(x, x, x, need_weights=False)
        self.assertEqual(self.modes(), [("", 3)])
        with torch.no_grad(), heed.sdpa(precision=heed.Precision({"0.self_attn": "fp8_smooth"}), model=model):
            copy.deepcopy(model)(x)
        self.assertEqual(self.modes(), [("", 1)])

    def test_modules_of_pytorch(self):
        layer = torch.nn.TransformerEncoderLayer(128, 2, batch_first=True, dropout=0.0).eval()
        x = torch.randn(2, 9, 128)
        with torch.no_grad(), heed.sdpa(precision="fp8_smooth"):
            layer(x)
        self.assertEqual(self.modes(), [("fp8_smooth", 1)])


if __name__ == "__main__":
    unittest.main()

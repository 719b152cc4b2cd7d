"""Quantised calls of the arena: points, quantising, errors, contenders and the plane of speed and error, on a CPU."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path
from unittest import mock

from heed import arena, measure, plane, precision_suites, suites, tables

try:
    import torch
except ImportError:
    torch = None

HEED = os.environ.get("HEED_BINARY", str(Path(arena.ROOT) / "build/release/heed"))
FACTS = {"cache_bytes": 1 << 18, "memory_bytes": 1 << 30}
CALL = precision_suites.QuantisedCall(2, 4, 4, 200, 200, 64, "fp16", "causal_top_left", mode="fp8")
INT8 = replace(CALL, mode="int8_smooth", mask="none")


class Points(unittest.TestCase):
    def test_are_16384_tokens_of_2048(self):
        for name in ("fp8", "int8"):
            suite = precision_suites.suites()[name]
            self.assertEqual(len(suite.workloads), 36)
            self.assertEqual(len({call.name for call in suite.workloads}), 36)
            self.assertEqual({call.dim for call in suite.workloads}, {64, 128, 256})
            self.assertEqual({call.len_k for call in suite.workloads}, {512, 1024, 2048, 4096, 8192, 16384})
            self.assertEqual(sum(call.masked for call in suite.workloads), 18)
            for call in suite.workloads:
                self.assertEqual((call.batch * call.len_q, call.heads * call.dim), (suites.TOKENS, suites.HIDDEN), name)
                self.assertEqual(str(suites.parse_workload(str(call.dense()))), str(call.dense()))
        self.assertIn("fp8", arena.SUITES)
        self.assertIn("int8", arena.SUITES)
        self.assertNotIn("fp8", arena.GPU_SUITES, "all does not take an hour more")

    def test_modes_are_those_of_heed_calibrate(self):
        done = subprocess.run([HEED, "calibrate", "--shape", "b1h1l40d64", "--seed", "1", "--json", "--modes", ",".join(precision_suites.MODES)], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout)["rows"]:
            self.assertEqual(precision_suites.parse_quantised(row["quantised"]), precision_suites.parse_quantised(precision_suites.MODES[row["mode"]][0]))

    def test_caches_are_keys_and_values_of_few_queries(self):
        calls = precision_suites.suites()["caches"].workloads
        self.assertEqual(len({call.name for call in calls}), 2 * len(precision_suites.FEW_QUERIES))
        for call in calls:
            self.assertEqual(call.formats.keys(), {"k", "v"})
            self.assertLessEqual(call.len_q, 16)
            of_keys = call.batch * call.heads_kv * call.len_k * call.dim
            self.assertEqual(call.input_bytes, 2 * of_keys + 2 * call.batch * call.heads * call.len_q * call.dim)
        self.assertIn("caches", arena.SUITES)

    def test_what_is_quantised_is_read(self):
        form = precision_suites.TensorFormat
        self.assertEqual(CALL.formats, dict.fromkeys("qkv", form("e4m3", "head")))
        self.assertEqual(INT8.formats, {"q": form("int8", "block", 32), "k": form("int8", "block", 64)})
        self.assertEqual(CALL.text, "b2h4l200d64:fp16:causal_top_left:quantised=qkv/e4m3/head")
        self.assertEqual(CALL.input_bytes, 3 * 2 * 4 * 200 * 64)
        self.assertEqual(INT8.input_bytes, 4 * 2 * 4 * 200 * 64)
        for text, words in {
            "": "says nothing",
            "qkv/fp4/head": "says nothing",
            "qkv/e4m3/block": "no granularity",
            "qkv/e4m3/block1": "no granularity",
            "qkv/e4m3/head64": "no granularity",
            "qkv/e4m3/row": "no granularity",
            "k/e4m3/channel": "of V alone",
            "qk/e4m3/head+k/int8/head": "names k twice",
        }.items():
            with self.assertRaisesRegex(suites.BadWorkload, words, msg=text):
                precision_suites.parse_quantised(text)


@unittest.skipUnless(torch, "PyTorch is not installed")
class Quantising(unittest.TestCase):
    def test_every_granularity_is_within_half_a_step(self):
        from heed import precision_calls

        x = torch.randn(2, 3, 50, 16, generator=torch.Generator().manual_seed(1))
        x[0, 1, 7] *= 100
        shapes = {"tensor": (1,), "head": (2, 3), "token": (2, 3, 50), "channel": (2, 3, 16), "block": (2, 3, 4)}
        for granularity, shape in shapes.items():
            for dtype, step in (("int8", 0.5 / 127), ("e4m3", 2.0**-4), ("e5m2", 2.0**-3)):
                form = precision_suites.TensorFormat(dtype, granularity, 16 if granularity == "block" else 0)
                made = precision_calls.quantise(x, form)
                self.assertEqual(tuple(made.factors.shape), shape)
                self.assertEqual(made.elements.dtype, precision_calls.TORCH[dtype])
                factor = precision_calls.Quantised(torch.ones_like(x), made.factors, granularity, form.rows).values()
                # Of e4m3 and e5m2 half a step is a share of the number, or of the least subnormal.
                allowed = step * factor * 127 if dtype == "int8" else step * x.abs() + factor * 2.0**-9
                self.assertTrue(((made.values() - x).abs() <= allowed * (1 + 1e-5)).all(), (granularity, dtype))

    def test_zeros_have_the_factor_1(self):
        from heed import precision_calls

        made = precision_calls.quantise(torch.zeros(1, 1, 4, 8), precision_suites.TensorFormat("e4m3", "token"))
        self.assertTrue((made.factors == 1).all() and (made.values() == 0).all())

    def test_smoothing_takes_the_mean_of_keys_out(self):
        from heed import precision_calls

        q, k, v = (torch.randn(2, 4, 200, 64) for _ in range(3))
        k += 50
        _, smooth, plain = precision_calls.given(INT8, q, k, v)
        self.assertLess(smooth.values().mean(2).abs().max().item(), 0.01)
        self.assertIs(plain.dtype, torch.float32)
        _, kept, _ = precision_calls.given(CALL, q, k, v)
        self.assertGreater(kept.values().mean().item(), 40)

    def test_outliers_are_one_in_1000(self):
        from heed import precision_calls

        q, k, v = precision_calls.outlier_set(replace(CALL, batch=8), "cpu", 3)
        self.assertEqual((q.dtype, tuple(k.shape)), (torch.float16, (8, 4, 200, 64)))
        self.assertAlmostEqual((v.abs() > 6).double().mean().item(), 0.001 * math.erfc(6 / math.sqrt(202)), delta=2e-4)
        self.assertTrue(torch.equal(q, precision_calls.outlier_set(replace(CALL, batch=8), "cpu", 3)[0]))

    def test_wrong_outputs_fail(self):
        from heed import precision_calls, reference

        q, k, v = reference.make_sets(CALL, 1, "cpu", 3)[0]
        judge = precision_calls.Reference(CALL, q, k, v, 1e12, 1)
        right = judge.expected.reshape(2, 4, 200, 64)
        near = judge.judge_total(right * 1.1)
        self.assertTrue(near["pass"])
        self.assertAlmostEqual(near["rel_rms"], 0.1, places=6)
        hole = right.clone()
        hole[0, 0, 3, 3] = math.inf
        for wrong in (right * 1.3, torch.zeros_like(right), hole, right[:, :1]):
            self.assertFalse(judge.judge_total(wrong)["pass"])
        json.dumps(judge.judge_total(hole), allow_nan=False)


class Fake:
    """A contender made of a function of (q, k, v), maybe with `given` and `values`."""

    def __init__(self, name, function, **attributes):
        self.name, self.function = name, function
        for key, value in attributes.items():
            setattr(function, key, value)

    def prepare(self, call):
        return self.function


class FakeTimer:
    """As heed.measure.CpuTimer, of calls that all take 10 us."""

    def __init__(self, torch_, call, sets, mode, block_us, context, fill):
        self.call, self.sets, self.calls, self.output = call, sets, 2, None

    def block(self):
        return 10.0

    def replay(self):
        self.output = self.call(*measure.arguments_of(self.sets, self.calls - 1))
        return 20.0

    def poison(self):
        self.output = None


@unittest.skipUnless(torch, "PyTorch is not installed")
class Contenders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from heed import launch

        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        texts = [CALL.text, INT8.text, str(CALL.dense()), str(INT8.dense())]
        built = launch.build(HEED, [(text, "auto") for text in texts], cls.folder.name, "cpu")
        cls.facts = dict(zip(texts, built["builds"]))

    def contest(self, *others):
        from heed import contest, precision_contenders, precision_contest

        settings = contest.Settings(quick=True)
        run = precision_contest.PrecisionContest(precision_contenders.HeedQuantised(self.facts), others, "cpu", FACTS, settings)
        run.timer = FakeTimer
        return run

    def row(self, call, *others, facts=None):
        suite = suites.Suite("fp8", "", (call,), ("graph_cold",), "TFLOP/s")
        return next(self.contest(*others).rows(suite, call, facts or self.facts[call.text]))

    def test_heed_beside_itself_in_fp16(self):
        from heed import precision_contenders

        for call, low, high in ((CALL, 0.02, 0.1), (INT8, 0.003, 0.05)):
            suite, of_sm80 = ("int8", {"heed_fp16_sm80"}) if call is INT8 else ("fp8", set())
            row = self.row(call, *precision_contenders.contenders(suite, self.facts, {}))
            self.assertEqual(row["refused"].keys(), {"heed_counted", "flash_attn_3_fp8", "sage_attention_2", "cudnn_fp8", *of_sm80} - row["errors"].keys())
            for name in ("flash_attn_3_fp8", "sage_attention_2", "cudnn_fp8"):
                self.assertRegex(row["refused"][name], "not importable: No module named")
            error = row["errors"]["heed"]
            self.assertTrue(error["pass"], error)
            self.assertTrue(low < error["rel_rms"] < high, error)
            self.assertGreater(error["rel_rms_outliers"], error["rel_rms"])
            self.assertLess(row["errors"]["heed_fp16"]["rel_rms"], 1e-3)
            self.assertGreater(row["over_fp16"], 0)
            self.assertNotIn("ratio", row, "Heed in fp16 is no opponent")
            self.assertEqual((row["dim"], row["length"]), (64, 200))
            text = tables.summary([row])
            self.assertIn("over fp16", text)
            self.assertIn(f"{error['rel_rms']:.1e}", text)
            self.assertIn("- not importable", tables.details([row]))

    def test_a_cache_beside_itself_in_16_bits(self):
        from heed import launch, precision_contenders

        call = precision_suites.QuantisedCall(2, 4, 2, 1, 200, 64, "bf16", "none", mode="cache_e4m3")
        with tempfile.TemporaryDirectory() as folder:
            texts = [call.text, str(call.dense())]
            facts = dict(zip(texts, launch.build(HEED, [(text, "auto") for text in texts], folder, "cpu")["builds"]))
            contest = self.contest(*precision_contenders.contenders("caches", facts, {}))
            contest.heed = precision_contenders.HeedQuantised(facts)
            row = next(contest.rows(suites.Suite("caches", "", (call,), ("graph_cold",), "us"), call, facts[call.text]))
        self.assertTrue(row["errors"]["heed"]["pass"], row["errors"])
        self.assertTrue(0.01 < row["errors"]["heed"]["rel_rms"] < 0.1, row["errors"])
        self.assertGreater(row["over_fp16"], 0)
        self.assertNotIn("counted", tables.summary([row]))

    def test_fwd_sm80_in_16_bits_stands_beside_int8(self):
        from heed import precision_contenders

        dense = str(INT8.dense())
        row = self.row(INT8, *precision_contenders.contenders("int8", self.facts, {dense: self.facts[dense]}))
        self.assertGreater(row["over_fp16_sm80"], 0)
        self.assertNotIn("ratio", row)
        self.assertIn("over sm80", tables.summary([row]))

    def test_a_peer_is_timed_on_what_it_is_given(self):
        seen = []

        def given(q, k, v):
            seen.append("given")
            return q * 2, k, v

        def run(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q / 2, k, v, is_causal=True) * 4

        row = self.row(CALL, Fake("peer", run, given=given, values=lambda o, v: o / 4))
        self.assertEqual(row["best_peer"], "peer")
        self.assertGreater(row["ratio"], 0)
        self.assertTrue(row["errors"]["peer"]["pass"])
        self.assertLess(row["errors"]["peer"]["rel_rms"], 1e-3)
        self.assertEqual(len(seen), 2 + 1 + row["sets"], "the two that are judged, for the kernel's name, and one for each timed set: no more")

    def test_a_peer_whose_inputs_cannot_be_made_leaves_the_row(self):
        seen = []

        def given(q, k, v):
            seen.append(1)
            if len(seen) > 3:
                raise RuntimeError("out of memory")
            return q, k, v

        row = self.row(CALL, Fake("peer", lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), given=given))
        self.assertEqual(row["refused"]["peer"], "not timed: out of memory")
        self.assertGreater(row["heed_us"], 0)

    def test_a_peer_of_other_numbers_fails(self):
        row = self.row(CALL, Fake("liar", lambda q, k, v: v.clone()))
        self.assertFalse(row["errors"]["liar"]["pass"])
        self.assertIn("FAIL", next(line for line in tables.details([row]).splitlines() if "liar" in line))

    def test_fp16_is_judged_as_fp16(self):
        near = Fake("heed_fp16", lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) * 1.05)
        near.is_exact = True
        self.assertFalse(self.row(CALL, near)["errors"]["heed_fp16"]["pass"])

    def test_quantising_is_counted(self):
        import heed
        from heed import precision_contenders

        asked = {}

        def served(q, k, v, causal=False, scale=None, precision=None):
            asked.update(causal=causal, scale=scale, precision=precision)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        with mock.patch.dict(vars(heed), attention=served):
            row = self.row(CALL, precision_contenders.HeedCounted(), precision_contenders.HeedHalf(self.facts))
        self.assertEqual(asked, {"causal": True, "scale": 0.125, "precision": "fp8"})
        self.assertAlmostEqual(row["counted_over_fp16"], row["peer_ratios"]["heed_fp16"]["value"] / row["peer_ratios"]["heed_counted"]["value"])

    def test_packages_get_what_they_take(self):
        from heed import precision_contenders

        sizes = []

        def flash(q, k, v, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None):
            sizes.append((tuple(q.shape), q.dtype, tuple(q_descale.shape), softmax_scale, causal))
            numbers = (x.float().transpose(1, 2) * f[:, :, None, None] for x, f in ((q, q_descale), (k, k_descale), (v, v_descale)))
            return torch.nn.functional.scaled_dot_product_attention(*numbers, is_causal=causal).bfloat16().transpose(1, 2), None

        def sage(q, k, v, tensor_layout, is_causal, sm_scale):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=sm_scale) * 1.01

        packages = {"flash_attn_interface": types.SimpleNamespace(flash_attn_func=flash), "sageattention": types.SimpleNamespace(sageattn=sage)}
        with mock.patch.dict(sys.modules, packages):
            row = self.row(CALL, precision_contenders.FlashAttention3(), precision_contenders.SageAttention())
        self.assertEqual(sizes[0], ((2, 200, 4, 64), torch.float8_e4m3fn, (2, 4), 0.125, True))
        self.assertTrue(0.02 < row["errors"]["flash_attn_3_fp8"]["rel_rms"] < 0.1, row["errors"])
        self.assertAlmostEqual(row["errors"]["sage_attention_2"]["rel_rms"], 0.01, delta=1e-3)
        with mock.patch.dict(sys.modules, {"flash_attn_interface": types.SimpleNamespace(flash_attn_func=lambda q, k, v: q)}):
            self.assertIn("takes no factors", self.row(CALL, precision_contenders.FlashAttention3())["refused"]["flash_attn_3_fp8"])

    def test_what_was_not_built_is_a_refusal(self):
        from heed import precision_contenders

        contest = self.contest(precision_contenders.HeedHalf({}))
        contest.heed = precision_contenders.HeedQuantised({CALL.text: {"refused": "head dim 64 is not supported"}})
        suite = suites.Suite("fp8", "", (CALL,), ("graph_cold",), "TFLOP/s")
        row = next(contest.rows(suite, CALL, {"flops": 1.0, "bytes": 1.0}))
        self.assertEqual(row["refused"], {"heed": "head dim 64 is not supported", "heed_fp16": "it was not built"})
        tables.summary([row])


class Charts(unittest.TestCase):
    def evidence(self):
        from example_evidence import RATIO, error

        rows = []
        for causal in (False, True):
            for length, us in ((512, 300.0), (1024, 500.0)):
                row = {"suite": "fp8", "workload": f"l{length} (fp8)", "mode": "graph_cold", "causal": causal, "is_call": True, "is_quantised": True, "dim": 64, "length": length}
                row |= {"flops": 1e11, "heed_us": us, "peers_us": {"heed_fp16": 2 * us, "peer": 3 * us}, "peer_ratios": {"heed_fp16": RATIO, "peer": RATIO}}
                row["errors"] = {name: error(0.01) | {"rel_rms": off, "rel_rms_outliers": 3 * off} for name, off in (("heed", 0.04), ("heed_fp16", 3e-4), ("peer", 0.05))}
                rows.append(row | {"refused": {"cudnn_fp8": "not importable"}})
        rows[-1]["errors"]["peer"]["rel_rms"] = None
        from example_evidence import evidence

        return {**evidence(), "suites": {"fp8": {"title": "a & b", "modes": [], "unit": "TFLOP/s", "workloads": 4}}, "rows": rows}

    def test_a_point_for_each_measured_error(self):
        root = xml.fromstring(plane.plane_chart(self.evidence(), "fp8"))
        points = [e for e in root.iter() if e.get("class") == "point"]
        self.assertEqual(len(points), 11)
        self.assertEqual(sum("polyline" in e.tag for e in root.iter()), 5, "a line of one point is none")
        titles = [e[0].text for e in points]
        self.assertIn("heed, length 512: 333.3 TFLOP/s, relative RMS 4.00e-02 (N(0, 1))", titles)
        self.assertEqual(len([e for e in xml.fromstring(plane.plane_chart(self.evidence(), "fp8", "rel_rms_outliers")).iter() if e.get("class") == "point"]), 12)

    def test_faster_is_to_the_right_and_exact_is_below(self):
        points = {}
        for e in xml.fromstring(plane.plane_chart(self.evidence(), "fp8")).iter():
            if e.get("class") == "point" and "length 512" in e[0].text:
                points.setdefault(e[0].text.split(",")[0], (float(e.get("cx")), float(e.get("cy"))))
        self.assertGreater(points["heed"][0], points["heed_fp16"][0])
        self.assertGreater(points["heed_fp16"][1], points["heed"][1])

    def test_files(self):
        from heed import arena_files, evidence

        data = self.evidence()
        for row in data["rows"]:
            arena.conclude(row)
        evidence.check(data)
        self.assertEqual((data["rows"][0]["best_peer"], data["rows"][0]["over_fp16"]), ("peer", 1.65))
        with tempfile.TemporaryDirectory() as folder:
            paths = arena_files.write_charts(data, Path(folder), "arena")
            self.assertEqual([path.name for path in paths], ["arena_fp8.svg", "arena_fp8_plane.svg", "arena_fp8_outliers.svg"])
        nothing = {**data, "rows": [{**data["rows"][0], "heed_us": 0, "peers_us": {}}]}
        self.assertIn("nothing was measured", plane.plane_chart(nothing, "fp8"))
        data["rows"][0]["errors"]["heed"]["rel_rms_outliers"] = "much"
        with self.assertRaisesRegex(evidence.Broken, "rel_rms_outliers"):
            evidence.check(data)


@unittest.skipUnless(torch, "PyTorch is not installed")
class EndToEnd(unittest.TestCase):
    def test_a_suite_from_the_command_line(self):
        tiny = {name: replace(call, batch=1, heads=1, heads_kv=1, len_q=16, len_k=16) for name, call in (("fp8", CALL), ("int8", INT8))}
        small = {name: suites.Suite(name, "small", (call,), ("graph_warm",), "TFLOP/s") for name, call in tiny.items()}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(precision_suites, "suites", lambda: small):
            output = Path(folder) / "arena.json"
            with contextlib.redirect_stdout(io.StringIO()):
                code = arena.main(["--suite", "fp8,int8", "--device", "cpu", "--quick", "--heed", HEED, "-o", str(output)])
            self.assertEqual(code, 0)
            evidence = arena.load(output)
            self.assertEqual([row["suite"] for row in evidence["rows"]], ["fp8", "int8"])
            self.assertTrue(evidence["complete"])
            self.assertIn("over fp16", evidence["tables"]["int8"])
            self.assertEqual(sorted(path.suffix for path in Path(folder).iterdir()), [".json", *[".svg"] * 6])


if __name__ == "__main__":
    unittest.main()

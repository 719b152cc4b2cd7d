"""The arena end to end on the CPU: fwd_cpu beside PyTorch's own attention, and contenders that are wrong. Needs PyTorch and a
built heed (HEED_BINARY)."""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from unittest import mock

from heed import arena, c_api, launch, measure, suites, tables

try:
    import torch
except ImportError:
    torch = None

HEED = os.environ.get("HEED_BINARY", str(arena.ROOT / "build" / "release" / "heed"))
CACHE = os.environ.get("HEED_TEST_CACHE", str(Path(tempfile.gettempdir()) / f"heed-test-cache-{os.getuid()}"))
PYTHON = Path(arena.__file__).parents[1]
FACTS = {"cache_bytes": 1 << 16, "memory_bytes": 1 << 30}


class Contract(unittest.TestCase):
    def test_what_cannot_be_built_says_why(self):
        with tempfile.TemporaryDirectory() as folder:
            good, bad = launch.build(HEED, [("b1h2l64d64", "fwd_cpu"), ("b1h1l8d600", "auto")], folder, "cpu", CACHE)["builds"]
            self.assertTrue(Path(good["file"]).is_file())
            self.assertIn("head dim 600", bad["refused"])
            self.assertTrue(Path(good["library"]).is_file())

    def test_structs_are_the_librarys(self):
        library = launch.library(str(Path(HEED).parent / "libheed.so"))
        for name, struct in (("problem", launch.Problem), ("tensors", launch.Tensors), ("options", launch.Options), ("plan_info", launch.PlanInfo)):
            one = struct()
            getattr(library.lib, f"heed_{name}_init")(ctypes.byref(one))
            self.assertEqual(one.struct_size, ctypes.sizeof(struct), name)
        problem = launch.Problem()
        library.lib.heed_problem_init(ctypes.byref(problem))
        self.assertEqual((problem.abi_version, problem.dim, problem.window_left, problem.window_right), (launch.ABI_VERSION, 64, -1, -1))
        with self.assertRaisesRegex(launch.HeedError, "compile with the library's own header"):
            problem.struct_size -= 1
            library.check(library.lib.heed_plan_create(ctypes.byref(problem), None, ctypes.byref(ctypes.c_void_p())))

    def test_a_program_that_is_not_heed(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(launch.HeedError, "heed build failed"):
                launch.build("/bin/false", [("l8d16", "auto")], folder, "cpu")
            with self.assertRaisesRegex(launch.HeedError, "unknown family"):
                launch.build(HEED, [("l8d16", "fwd_none")], folder, "cpu", CACHE)


@unittest.skipUnless(torch, "PyTorch is not installed")
class Launch(unittest.TestCase):
    def test_an_output_lies_as_the_program_writes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = "b2h4hkv2l8k10d64:fp32", "b1h1l8k10d64:fp32"
            binary, single = launch.build(HEED, [(text, "fwd_cpu") for text in texts], folder, "cpu", CACHE)["builds"]
            w, w_single = map(suites.parse_workload, texts)
            self.assertIsNone(binary["o_strides"])
            q, k, v = torch.randn(2, 4, 8, 64), torch.randn(2, 2, 10, 64), torch.randn(2, 2, 10, 64)
            free = launch.HeedAttention(binary, w)
            expected = free(q, k, v)
            self.assertEqual(expected.stride(), q.stride())
            # What is told here of dense outputs is told of a program that writes no others.
            dense = launch.HeedAttention({**binary, "o_strides": [8 * 4 * 64, 64, 4 * 64], "supports_pdl": True}, w)
            self.assertTrue(callable(dense.as_dependent()))
            self.assertIsNone(free.as_dependent())
            o = dense(q, k, v)
            self.assertEqual((o.shape, o.stride(), o.dtype), (q.shape, (8 * 4 * 64, 64, 4 * 64, 1), q.dtype))
            self.assertTrue(torch.equal(o, expected))
            other = torch.full((2, 9, 4, 64), 7.0).transpose(1, 2)[:, :, :8]
            free.into(q, k, v, other)
            self.assertTrue(torch.equal(other, expected))
            with self.assertRaisesRegex(launch.HeedError, "are 8 apart"):
                free.into(q.transpose(2, 3).contiguous().transpose(2, 3), k, v, other)
            # Strides that are never used may be any.
            q, k = q[:1, :1], k[:1, :1]
            one = launch.HeedAttention(single, w_single)
            o = torch.zeros(8 * 64).as_strided((1, 1, 8, 64), (9, 7, 64, 1))
            one.into(q, k, k, o)
            self.assertTrue(torch.equal(o, one(q, k, k)))

    def test_no_library_is_a_sentence(self):
        with self.assertRaisesRegex(launch.HeedError, "cannot be loaded"):
            c_api.Library("/no/such/libheed.so")


@unittest.skipUnless(torch, "PyTorch is not installed")
class Judge(unittest.TestCase):
    def test_the_reference_is_attention(self):
        from heed import reference

        for text in ("b2h4hkv2l33k50d64:fp32", "b1h2l40d64:fp32:causal_top_left", "b1h2l30k50d64:fp32:causal_bottom_right:blhd", "b1h1l9k4d64:fp32:causal_bottom_right",
                     "b1h2l30k50d64:fp32:window=7/3", "b1h1l40k9d64:fp32:window_top_left=0/20", "b1h2l40d64:fp32:causal_top_left:window=5"):
            w = suites.parse_workload(text)
            q, k, v = reference.make_sets(w, 1, "cpu", 3)[0]
            rows = reference.choose_rows(w, 1e12, 1)
            got = reference.attention_rows(w, q, k, v, rows).reshape(w.batch, w.heads, w.len_q, w.dim)
            group = w.heads // w.heads_kv
            scores = q.double() @ k.double().repeat_interleave(group, 1).transpose(-1, -2) * w.scale
            if w.masked:
                offset = w.len_k - w.len_q if "bottom_right" in w.mask else 0
                left, right = (n if n >= 0 else 1000 for n in (w.left, w.right))
                right = 0 if w.mask.startswith("causal") else right
                seen = torch.tensor([[-left <= j - i - offset <= right for j in range(w.len_k)] for i in range(w.len_q)])
                scores = scores.masked_fill(~seen, -math.inf)
            expected = torch.softmax(scores, -1).nan_to_num(0.0) @ v.double().repeat_interleave(group, 1)
            self.assertLess((got - expected).abs().max().item(), 1e-12, text)

    def test_chosen_rows_hold_the_ends_and_keep_to_the_budget(self):
        from heed import reference

        w = suites.parse_workload("b2h8l4096d64")
        rows = reference.choose_rows(w, 1e9, 1)
        self.assertLess(sum(len(indices) for *_, indices in rows) * 4 * w.dim * w.len_k, 2e9)
        for _, _, indices in rows:
            self.assertTrue(0 in indices and w.len_q - 1 in indices)
        whole = reference.choose_rows(w, 1e14, 1)
        self.assertEqual(sum(len(indices) for *_, indices in whole), 2 * 8 * 4096)

    def test_chunks_do_not_change_the_result(self):
        from heed import reference

        w = suites.parse_workload("b1h2l64d64:fp16:causal_top_left")
        tensors = reference.make_sets(w, 1, "cpu", 3)[0]
        rows = reference.choose_rows(w, 1e12, 1)
        whole, chunk = reference.attention_rows(w, *tensors, rows), reference.CHUNK_ELEMENTS
        try:
            reference.CHUNK_ELEMENTS = 64 * 5
            self.assertLess((reference.attention_rows(w, *tensors, rows) - whole).abs().max().item(), 1e-12)
        finally:
            reference.CHUNK_ELEMENTS = chunk

    def test_wrong_outputs_fail(self):
        from heed import reference

        w = suites.parse_workload("b1h2l64d64:fp16")
        q, k, v = reference.make_sets(w, 1, "cpu", 3)[0]
        judge = reference.Reference(w, q, k, v, 1e12, 1)
        right = judge.expected.reshape(1, 2, 64, 64).half()
        self.assertTrue(judge.judge(right)["pass"])
        one_off, lost, hole = right.clone(), torch.zeros_like(right), right.clone()
        one_off[0, 1, 63, 5] += 0.01
        hole[0, 0, 0, 0] = math.nan
        for wrong in (one_off, lost, hole, right[:, :1]):
            self.assertFalse(judge.judge(wrong)["pass"])
        json.dumps(judge.judge(hole), allow_nan=False)


class Fake:
    """A contender made of a function of (q, k, v)."""

    def __init__(self, name, function):
        self.name, self.function = name, function

    def prepare(self, w):
        return self.function


@unittest.skipUnless(torch, "PyTorch is not installed")
class Wrong(unittest.TestCase):
    """Contenders that return wrong numbers, return them only later, or raise."""

    def contest(self, *fakes):
        from heed import contenders, contest

        sdpa = contenders.Sdpa("sdpa_default", 1e9)
        heed = Fake("heed", lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v))
        settings = contest.Settings(quick=True)
        settings.block_us = 1
        return contest.Contest(heed, [sdpa, *fakes], "cpu", FACTS, settings)

    def row(self, mode, *fakes):
        suite = suites.custom(["b1h2l32d64"], [mode])
        return next(self.contest(*fakes).rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 1.0}))

    def test_wrong_numbers_are_shown_as_failing(self):
        for mode in ("acceptance", "graph_warm", "eager"):
            row = self.row(mode, Fake("liar", lambda q, k, v: v.clone()))
            self.assertFalse(row["errors"]["liar"]["pass"])
            self.assertTrue(row["errors"]["heed"]["pass"] and row["errors"]["sdpa_default"]["pass"])
            text = tables.acceptance([row]) if mode == "acceptance" else tables.details([row])
            line = next(line for line in text.splitlines() if "liar" in line and "FAIL" in line) if mode != "acceptance" else text
            self.assertIn("FAIL", line)

    def test_heed_against_itself_is_two_captures(self):
        run, captured, paired = self.contest(), [], []
        run.timer = lambda torch_, call, *rest: captured.append(measure.CpuTimer(torch_, call, *rest)) or captured[-1]

        def measured(base, other, *rest):
            paired.append((base, other))
            itself = other in (captured[0].block, captured[1].block)
            return {"base_us": 9.0 if itself else 1.0, "other_us": 1.0, "ratio": {"value": 1.0, "low": 1.0, "high": 1.0}}

        with mock.patch.object(measure, "measure_pair", measured):
            suite = suites.custom(["b1h2l32d64"], ["graph_warm"])
            row = next(run.rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 1.0}))
        self.assertEqual(len(captured), 3, "Heed twice, SDPA once")
        base = paired[0][0]
        own = [other for first, other in paired if other in (captured[0].block, captured[1].block)]
        self.assertEqual(len(own), 1)
        self.assertNotEqual(own[0], base)
        self.assertEqual(row["self_spread"], 0)
        self.assertEqual(row["heed_us"], 1, "its time beside another, not that of a GPU that runs nothing else")

    def test_an_output_that_is_wrong_only_when_timed_is_found(self):
        calls = []

        def later(q, k, v):
            calls.append(1)
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return o if len(calls) <= 2 else o * (1 + len(calls) * 0.1)

        self.assertFalse(self.row("graph_warm", Fake("later", later))["errors"]["later"]["pass"])

    def test_a_variant_that_may_be_a_dependent_has_a_row_of_its_own(self):
        plain = torch.nn.functional.scaled_dot_product_attention
        launched = []

        class Dependent:
            def __call__(self, q, k, v):
                return plain(q, k, v)

            def as_dependent(self):
                return lambda q, k, v: launched.append(1) or plain(q, k, v)

        contest = self.contest()
        contest.heed = Fake("heed", Dependent())
        suite = suites.custom(["b1h2l32d64"], ["graph_warm", "eager"])
        rows = list(contest.rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 1.0}))
        self.assertEqual([row["mode"] for row in rows], ["graph_warm", "graph_dependent", "eager"])
        self.assertTrue(launched)
        self.assertEqual(list(rows[1]["peers_us"]), ["heed_plain"], "beside what the same GPU does at the same time")
        self.assertTrue(rows[1]["errors"]["heed_plain"]["pass"])
        self.assertGreater(rows[1]["heed_us"], 0)
        self.assertNotIn("ratio", rows[1])
        self.assertIn("ratio", rows[0])
        self.assertIn("graph_dependent", tables.summary(rows))
        tables.details(rows)

    def test_a_copy_of_as_many_bytes_stands_beside(self):
        suite = suites.Suite("memory", "", ("b1h2hkv1l1k512d32",), ("graph_cold",), "us", copies=True)
        keys_and_values = 2 * 512 * 32 * 2
        ratio = {"value": 0.75, "low": 0.5, "high": 1.0}  # the copy's time / Heed's
        with mock.patch("heed.measure.measure_pair", return_value={"base_us": 4.0, "other_us": 3.0, "ratio": ratio}):
            row = next(self.contest().rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 2 * keys_and_values}))
        self.assertEqual(row["copy"], {"us": 3.0, "bytes": keys_and_values, "share": {"value": 1.5, "low": 1.0, "high": 2.0}})
        row = next(self.contest().rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": keys_and_values}))
        self.assertGreater(row["copy"]["us"], 0)
        self.assertIn("of copy", tables.summary([row]))
        self.assertNotIn("of copy", tables.summary([self.row("graph_cold")]))

    def test_a_copy_that_cannot_be_made_leaves_the_row(self):
        suite = suites.Suite("memory", "", ("b1h2hkv1l1k512d32",), ("graph_cold",), "us", copies=True)
        with mock.patch("torch.empty_like", side_effect=RuntimeError("out of memory")):
            row = next(self.contest().rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 1.0}))
        self.assertEqual(row["copy"], {"refused": "not timed: out of memory"})
        self.assertGreater(row["heed_us"], 0)
        self.assertIn("of copy", tables.summary([row]))

    def test_a_refusal_is_a_dash_with_its_reason(self):
        def refuses(q, k, v):
            raise RuntimeError("only multiples of 7\nand more")

        row = self.row("graph_warm", Fake("picky", refuses))
        self.assertEqual(row["refused"]["picky"], "only multiples of 7")
        self.assertIn("- only multiples of 7", tables.details([row]))
        self.assertNotIn("picky", row["peers_us"])

    def test_warnings_say_why_sdpa_refused(self):
        import warnings

        def refuses(q, k, v):
            warnings.warn("Flash attention kernel not used because: (Triggered internally at x.cpp:1.)")
            warnings.warn("Flash attention requires head dims up to 256. (Triggered internally at x.cpp:2.)")
            raise RuntimeError("No available kernel. Aborting execution.")

        self.assertEqual(self.row("acceptance", Fake("flash", refuses))["refused"]["flash"], "Flash attention requires head dims up to 256.")

    def test_without_heed_the_others_are_still_timed(self):
        from heed import contenders

        contest = self.contest()
        contest.heed = contenders.Heed({})
        suite = suites.custom(["b1h2l32d64"], ["graph_warm"])
        row = next(contest.rows(suite, suite.workloads[0], {"flops": 1.0, "bytes": 1.0}))
        self.assertIn("heed", row["refused"])
        self.assertGreater(row["peers_us"]["sdpa_default"], 0)
        self.assertNotIn("ratio", row)
        tables.summary([row])

    def test_scores_too_large_for_the_math_backend_are_left_out(self):
        from heed import contenders

        with self.assertRaisesRegex(contenders.Refused, "GiB"):
            contenders.Sdpa("sdpa_math", 139e9).prepare(suites.parse_workload("b1h32l16384d64"))

    def test_packages_that_are_missing_are_named(self):
        from heed import contenders

        found, skipped = contenders.gather(["sdpa_math", "xformers"], False, 1e9)
        self.assertEqual([c.name for c in found], ["sdpa_math"])
        self.assertEqual(list(skipped), ["xformers"])
        self.assertEqual(set(arena.SDPA + arena.OTHERS), set(contenders.SDPA_NAMES) | set(contenders.FOREIGN))


@unittest.skipUnless(torch, "PyTorch is not installed")
class EndToEnd(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.output = Path(self.temporary.name) / "e" / "arena.json"

    def command(self, *arguments):
        return [sys.executable, "-m", "heed.arena", "--device", "cpu", "--quick", "--heed", HEED, "--cache", CACHE, "-o", str(self.output), *arguments]

    def run_arena(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PYTHON)}, timeout=900)

    def test_shapes_beside_sdpa(self):
        shapes = "b1h2l64d64,b2h4hkv2l33k70d64:bf16:causal_bottom_right,b1h2l20d64:fp32:causal_top_left:blhd,b1h1l8d600"
        done = self.run_arena("--shapes", shapes, "--modes", "graph_warm,eager", "--against", "sdpa_math,sdpa_default", "--variant", "b1h2l64d64=fwd_cpu:block_m=64")
        self.assertEqual(done.returncode, 0, done.stderr)
        evidence = arena.load(self.output)
        self.assertTrue(evidence["complete"])
        self.assertEqual(len(evidence["rows"]), 8)
        self.assertTrue(evidence["rows"][0]["config"].startswith("fwd_cpu:"), evidence["rows"][0]["config"])
        self.assertIn("block_m=64", evidence["rows"][0]["config"])
        for row in evidence["rows"][:6]:
            for key in ("workload", "causal", "variant", "mode", "heed_us", "peers_us", "best_peer", "ratio", "ratio_ci", "tflops", "max_abs_err", "rel_rms_err"):
                self.assertIn(key, row)
            self.assertTrue(all(e["pass"] for e in row["errors"].values()), row["errors"])
            self.assertIn("aten::scaled_dot_product_attention", row["kernels"]["sdpa_math"])
        for row in evidence["rows"][6:]:
            self.assertIn("head dim 600", row["refused"]["heed"])
            self.assertGreater(row["peers_us"]["sdpa_math"], 0)
        self.assertEqual(evidence["table"], tables.everything(evidence))
        root = xml.parse(self.output.parent / "arena_shapes.svg").getroot()
        bars = [e for e in root.iter() if e.get("class") == "bar"]
        self.assertEqual(len(bars), sum(len(tables.times_of(row)) for row in evidence["rows"]))

    def test_acceptance_of_shapes(self):
        size = lambda text: suites.parse_workload(text).flops  # noqa: E731
        small = sorted(suites.random_workloads(1), key=size)[:6]  # PyTorch's fp16 products are slow on a CPU
        done = self.run_arena("--shapes", ",".join(small), "--modes", "acceptance", "--against", "sdpa_default")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        evidence = arena.load(self.output)
        self.assertEqual([row["errors"]["heed"]["pass"] for row in evidence["rows"]], [True] * 6)
        self.assertIn("verdict", evidence["table"])

    def test_acceptance_of_windows(self):
        # The first has keys in front that no query sees.
        shapes = "b2h4hkv2l33k170d64:bf16:causal_bottom_right:window=40,b1h2l64k50d64:fp32:window_top_left=9/3:blhd,b1h2l20k90d64:fp16:window=30"
        for mode in ("acceptance", "graph_warm"):
            done = self.run_arena("--shapes", shapes, "--modes", mode, "--against", "sdpa_default")
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            rows = arena.load(self.output)["rows"]
            self.assertEqual([row["errors"]["heed"]["pass"] for row in rows], [True] * 3)
            self.assertEqual([row["workload"] for row in rows], [str(suites.parse_workload(text)) for text in shapes.split(",")])

    def test_an_inexact_variant_fails_the_program(self):
        done = self.run_arena("--shapes", "b1h2l64d64:fp32", "--modes", "acceptance", "--against", "sdpa_default", "--variant", "fwd_cpu:exp2=degree3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("fail their gate at b1h2l64d64:fp32", done.stderr)

    def test_ctrl_c_keeps_the_rows_that_are_finished(self):
        shapes = ",".join(f"b1h1l{length}d64" for length in range(1, 300))
        process = subprocess.Popen(
            self.command("--shapes", shapes, "--modes", "acceptance", "--against", "sdpa_default"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
        )
        for line in process.stdout:
            if "shapes 3/299" in line:
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, err)
        evidence = arena.load(self.output)
        self.assertFalse(evidence["complete"])
        self.assertTrue(3 <= len(evidence["rows"]) < 299)
        self.assertIn("INCOMPLETE", out)
        self.assertIn("interrupted", err)


if __name__ == "__main__":
    unittest.main()

"""Tables and charts from evidence alone, and every refusal that needs no measurement. PyTorch is hidden from the program here."""

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as xml
from pathlib import Path

from heed import arena, chart, tables
from heed.conclusion import conclude

PYTHON = Path(arena.__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"
RATIO = {"value": 1.65, "low": 1.64, "high": 1.66}


def error(value, good=True):
    return {"max_abs": value, "rel_rms": 1e-4, "rows": 128, "limit": 1e-3, "pass": good}


def evidence():
    """A file with one row of every kind."""
    timed = {
        "suite": "latency",
        "workload": "b1h8l512d64:fp16",
        "causal": False,
        "mode": "graph_warm",
        "variant": "fwd_x",
        "flops": 536870912.0,
        "heed_us": 5.5,
        "tflops": 97.6,
        "floor_us": 0.52,
        "self_spread": 0.001,
        "peers_us": {"sdpa_cudnn": 9.1, "sdpa_math": 60.0},
        "peer_ratios": {"sdpa_cudnn": RATIO, "sdpa_math": {"value": 10.9, "low": 10.8, "high": 11.0}},
        "best_peer": "sdpa_cudnn",
        "ratio": 1.65,
        "ratio_ci": [1.64, 1.66],
        "errors": {"heed": error(2e-4), "sdpa_cudnn": error(1e-4), "sdpa_math": error(0.5, good=False)},
        "refused": {"sdpa_flash": "it <refuses> & says so"},
        "kernels": {"sdpa_cudnn": ["Memset (Device)", "cudnn_generated<64>(x)"]},
        "peak_flops": 1e15,
    }
    without_heed = {**timed, "suite": "throughput", "mode": "graph_cold", "refused": {"heed": "head dim 256 is not supported"}}
    without_heed["errors"] = {"sdpa_cudnn": error(1e-4)}
    without_heed["peers_us"] = {"sdpa_cudnn": 900.0}
    for key in ("heed_us", "tflops", "self_spread", "peer_ratios", "ratio", "ratio_ci", "variant"):
        del without_heed[key]
    accepted = {"suite": "acceptance", "workload": "b1h1l8d64:fp16", "causal": False, "mode": "acceptance", "flops": 1.0, "refused": {}, "kernels": {}}
    accepted["errors"] = {"heed": error(1e-4), "sdpa_flash": {**error(None, good=False), "rel_rms": None}}
    eager = {**timed, "suite": "eager", "mode": "eager", "synchronised_us": {"heed": 20.0, "sdpa_cudnn": 25.0}}
    titles = {"latency": "us", "throughput": "TFLOP/s", "acceptance": "error", "eager": "us"}
    return {
        "schema": 1,
        "what": "arena",
        "device": "NVIDIA Test",
        "arch": "sm_90a",
        "driver": "13.0",
        "clocks_mhz": {"before": 1980, "after": 1980},
        "heed": "0.1.0",
        "source_digest": "0123456789abcdef",
        "peer": {"torch": "2.11.0", "cudnn": "9.19"},
        "skipped": {"xformers": "No module named 'xformers'"},
        "complete": True,
        "suites": {name: {"title": f"title of {name}", "modes": [], "unit": unit, "workloads": 1} for name, unit in titles.items()},
        "rows": [timed, without_heed, accepted, eager],
    }


class Tables(unittest.TestCase):
    def test_say_everything(self):
        text = tables.everything(evidence())
        for words in (
            "NVIDIA Test",
            "cuDNN 9.19",
            "skipped   xformers",
            "1.650  [1.640, 1.660]",
            "5.0e-01 FAIL",
            "- it <refuses> & says so",
            "- head dim 256 is not supported",
            "cudnn_generated",
            "not finite FAIL",
            "waiting us",
            "heed ahead in 1, behind in 0, undecided in 0",
        ):
            self.assertIn(words, text)
        self.assertNotIn("INCOMPLETE", text)
        self.assertIn("INCOMPLETE", tables.everything({**evidence(), "complete": False}))

    def test_a_copy_is_a_column_where_one_was_timed(self):
        rows = evidence()["rows"][:1]
        self.assertNotIn("of copy", tables.summary(rows))
        copied = {**rows[0], "copy": {"us": 33.0, "bytes": 134217728, "share": {"value": 0.991, "low": 0.99, "high": 0.992}}}
        text = tables.summary([*rows, copied])
        for words in ("copy TB/s", "of copy", "4.07", "99.1%"):
            self.assertIn(words, text)

    def test_acceptance_gives_a_verdict_to_each(self):
        lines = tables.suite_text(evidence(), "acceptance").splitlines()
        self.assertTrue(any(line.split()[:2] == ["heed", "pass"] for line in lines))
        self.assertTrue(any(line.split()[:2] == ["sdpa_flash", "FAIL"] for line in lines))


class Standings(unittest.TestCase):
    """Ahead, behind and undecided of rows with a ratio."""

    def row(self, low, high, spread):
        return {"ratio": (low + high) / 2, "ratio_ci": [low, high], "self_spread": spread}

    def test_a_row_within_the_spread_is_neither_ahead_nor_behind(self):
        rows = [
            self.row(1.10, 1.20, 0.01),
            self.row(0.80, 0.90, 0.01),
            self.row(0.77, 0.86, 0.29),  # below 1, and nearer than the base to itself
            self.row(1.02, 1.30, 0.05),
            self.row(0.95, 1.05, 0.0),
            {"workload": "without a ratio"},
            {**self.row(1.10, 1.20, 0), "self_spread": None},
        ]
        self.assertEqual(tables.standings(rows), (2, 1, 3))


class BrokenEvidence(unittest.TestCase):
    """Every damage is one sentence and an exit code, never a traceback or an endless loop."""

    def shown(self, text):
        """(exit code, stderr) of --show with charts."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "arena.json")
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
                code = arena.main(["--show", str(path), "--charts", folder])
        return code, said.getvalue()

    def refused(self, words, change):
        broken = copy.deepcopy(evidence())
        change(broken)
        code, said = self.shown(json.dumps(broken))
        self.assertEqual(code, 1, said)
        self.assertIn(words, said)
        self.assertEqual(len(said.strip().splitlines()), 1)

    def test_numbers_that_are_none(self):
        for word in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
            code, said = self.shown(json.dumps(evidence()).replace('"heed_us": 5.5', f'"heed_us": {word}', 1))
            self.assertEqual(code, 1, word)
            self.assertIn("which is no number", said)

    def test_texts_that_are_no_json(self):
        whole = json.dumps(evidence())
        for text, words in ((whole[:500], "is no JSON"), ("", "is no JSON"), ("[" * 100000, "is no JSON"), (b"\xff\xfe{}", "is no text in UTF-8"), ("null", "has schema None"), ("3", "has schema None")):
            code, said = self.shown(text)
            self.assertEqual(code, 1, said)
            self.assertIn(words, said)

    def test_places_are_named(self):
        def put(value, *keys):
            def change(broken):
                for key in keys[:-1]:
                    broken = broken[key]
                broken[keys[-1]] = value

            return change

        for value, place, keys in (
            ("fast", "rows[0].heed_us", ("rows", 0, "heed_us")),
            (-1, "rows[0].heed_us", ("rows", 0, "heed_us")),
            (True, "rows[0].floor_us", ("rows", 0, "floor_us")),
            ([], "rows[0].peers_us", ("rows", 0, "peers_us")),
            (0, "rows[0].peers_us.sdpa_cudnn", ("rows", 0, "peers_us", "sdpa_cudnn")),
            ({"value": 1.5}, "rows[0].peer_ratios.sdpa_cudnn.low", ("rows", 0, "peer_ratios", "sdpa_cudnn")),
            (0, "rows[0].peer_ratios.sdpa_math.value", ("rows", 0, "peer_ratios", "sdpa_math", "value")),
            ([1.0], "rows[0].ratio_ci", ("rows", 0, "ratio_ci")),
            (None, "rows[0].ratio_ci", ("rows", 0, "ratio_ci")),
            (None, "rows[0].errors.heed", ("rows", 0, "errors", "heed")),
            ("1", "rows[0].errors.heed.limit", ("rows", 0, "errors", "heed", "limit")),
            (7, "rows[0].kernels.sdpa_cudnn", ("rows", 0, "kernels", "sdpa_cudnn")),
            (7, "rows[0].refused.sdpa_flash", ("rows", 0, "refused", "sdpa_flash")),
            (0, "rows[0].flops", ("rows", 0, "flops")),
            (None, "rows[1]", ("rows", 1)),
            ("none", "rows[2]", ("rows", 2, "suite")),
            ({"bytes": 1, "us": 0, "share": RATIO}, "rows[0].copy.us", ("rows", 0, "copy")),
            ("furlongs", "suites.latency", ("suites", "latency", "unit")),
            ({}, "suites.latency.title", ("suites", "latency")),
            ("2", "rows", ("rows",)),
            (7, "device", ("device",)),
            ("1980", "clocks_mhz.before", ("clocks_mhz", "before")),
            ("\ud800", "half a character", ("device",)),
        ):
            with self.subTest(place=place, value=value):
                self.refused(place, put(value, *keys))

    def test_no_rows_are_no_fault(self):
        empty = {**evidence(), "rows": []}
        self.assertEqual(self.shown(json.dumps(empty))[0], 0)

    def test_any_value_taken_away_or_replaced_is_a_sentence_or_a_table(self):
        def places(value, path=()):
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, inner in items:
                yield (*path, key)
                yield from places(inner, (*path, key))

        for place in places(evidence()):
            for replacement in (None, "x", 0, -1.5, 1e308, [], {}, "gone"):
                broken = copy.deepcopy(evidence())
                at = broken
                for key in place[:-1]:
                    at = at[key]
                if replacement == "gone":
                    del at[place[-1]]
                else:
                    at[place[-1]] = replacement
                code, said = self.shown(json.dumps(broken))
                self.assertIn(code, (0, 1), (place, replacement))
                self.assertEqual(len(said.strip().splitlines()), code, (place, replacement, said))


class Conclusions(unittest.TestCase):
    """Which SDPA call a row is judged by."""

    def row(self, **ratios):
        return {
            "flops": 1e9,
            "heed_us": 5.0,
            "peers_us": {"sdpa_cudnn": 9.0, "sdpa_flash": 12.0, "sdpa_default": 9.3, "flash_attn_3": 6.0},
            "peer_ratios": {n: {"value": v, "low": v - 0.01, "high": v + 0.01} for n, v in ratios.items()},
        }

    def test_the_lowest_ratio_counts_and_not_the_lowest_time(self):
        row = self.row(sdpa_cudnn=1.9, sdpa_flash=1.7, sdpa_default=1.8, flash_attn_3=1.2)
        conclude(row)
        self.assertEqual((row["best_peer"], row["ratio"], row["ratio_ci"]), ("sdpa_flash", 1.7, [1.69, 1.71]))
        self.assertAlmostEqual(row["tflops"], 200)

    def test_the_plain_call_counts_too(self):
        row = self.row(sdpa_cudnn=1.9, sdpa_flash=2.4, sdpa_default=1.8, flash_attn_3=1.2)
        conclude(row)
        self.assertEqual((row["best_peer"], row["ratio"]), ("sdpa_default", 1.8))

    def test_without_heed_the_lowest_time_counts(self):
        row = {**self.row(), "heed_us": None}
        conclude(row)
        self.assertEqual(row["best_peer"], "sdpa_cudnn")
        self.assertNotIn("ratio", row)
        nothing = {"flops": 1.0, "peers_us": {"flash_attn_3": 6.0}}
        conclude(nothing)
        self.assertNotIn("best_peer", nothing)

    def test_a_file_can_be_written_with_todays_conclusions(self):
        old = evidence()
        old["rows"][0]["peer_ratios"]["sdpa_default"] = {"value": 1.6, "low": 1.59, "high": 1.61}
        old["rows"][0]["peers_us"]["sdpa_default"] = 9.2
        with tempfile.TemporaryDirectory() as folder:
            path, again = Path(folder, "old.json"), Path(folder, "new.json")
            path.write_text(json.dumps(old))
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                self.assertEqual(arena.main(["--show", str(path), "-o", str(again)]), 0)
            new = json.loads(again.read_text())
        self.assertIn("1.600  [1.590, 1.610]", shown.getvalue())
        self.assertIn("1.600  [1.590, 1.610]", new["tables"]["latency"])
        self.assertEqual((new["rows"][0]["best_peer"], new["rows"][0]["ratio"]), ("sdpa_default", 1.6))
        for key in ("heed_us", "peers_us", "peer_ratios", "errors"):
            self.assertEqual(new["rows"][0][key], old["rows"][0][key])

    def test_a_place_that_cannot_be_written_is_one_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "old.json")
            path.write_text(json.dumps(evidence()))
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as shown:
                self.assertEqual(arena.main(["--show", str(path), "-o", folder]), 1)
        self.assertIn("cannot be written: it is a folder", said.getvalue())
        self.assertEqual(shown.getvalue(), "")


class Charts(unittest.TestCase):
    def bars(self, name):
        root = xml.fromstring(chart.suite_chart(evidence(), name))
        return root, [e for e in root.iter(f"{SVG}rect") if e.get("class") == "bar"]

    def test_hold_a_bar_for_every_time(self):
        for name, count in {"latency": 3, "throughput": 1, "acceptance": 1, "eager": 3}.items():
            root, bars = self.bars(name)
            self.assertEqual(len(bars), count, name)
            width = float(root.get("width"))
            for bar in bars:
                self.assertTrue(0 < float(bar.get("width")) <= width - float(bar.get("x")))

    def test_lengths_follow_the_values(self):
        _, bars = self.bars("latency")
        by_name = {next(bar.iter(f"{SVG}title")).text.split()[2].rstrip(":"): float(bar.get("width")) for bar in bars}
        self.assertAlmostEqual(by_name["sdpa_cudnn"] / by_name["heed"], 9.1 / 5.5, delta=0.02)

    def test_throughput_has_its_ceiling(self):
        root, bars = self.bars("throughput")
        ceilings = [e for e in root.iter(f"{SVG}line") if e.get("class") == "ceiling"]
        self.assertEqual(len(ceilings), 1)
        self.assertGreater(float(ceilings[0].get("x1")), float(bars[0].get("x")) + float(bars[0].get("width")))
        self.assertIn("ceiling 1000 TFLOP/s", xml.tostring(root, encoding="unicode"))

    def test_grid_lines_are_few_and_end(self):
        for top in (5e-324, 1e-12, 0.09, 1, 7.9, 8, 8.1, 10, 1234, 9.99e307):
            step = chart.nice_step(top)
            self.assertTrue(0 < step and top / step <= 8, top)
            self.assertTrue(top / step > 1 or top < 1e-290, (top, step))
        for top in (float("inf"), float("nan"), 0, -1):
            with self.assertRaises(ValueError):
                chart.nice_step(top)

    def test_an_infinite_time_has_no_bar(self):
        rows = evidence()["rows"][:1]
        rows[0]["peers_us"] = {"sdpa_cudnn": float("inf"), "sdpa_math": float("nan")}
        for unit in ("us", "TFLOP/s"):
            self.assertEqual(chart.bar_chart("a", "b", rows, unit).count('class="bar"'), 1)

    def test_of_nothing_is_still_a_picture(self):
        xml.fromstring(chart.bar_chart("a", "b & c", [], "us"))


class Program(unittest.TestCase):
    """The command line where PyTorch cannot be imported, or is too old."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)
        self.file = self.folder / "arena.json"
        self.file.write_text(json.dumps(evidence()))

    def run_arena(self, *arguments, torch="raise ImportError('no torch here')"):
        fake = self.folder / "fake" / "torch"
        fake.mkdir(parents=True, exist_ok=True)
        (fake / "__init__.py").write_text(torch)
        environment = {**os.environ, "PYTHONPATH": f"{fake.parent}:{PYTHON}"}
        return subprocess.run([sys.executable, "-m", "heed.arena", *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600)

    def refused(self, code, words, *arguments, **options):
        done = self.run_arena(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_show_needs_no_torch(self):
        done = self.run_arena("--show", self.file, "--charts", self.folder / "charts")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(tables.everything(evidence())))
        self.assertEqual(sorted(p.name for p in (self.folder / "charts").iterdir()), [f"arena_{n}.svg" for n in sorted(evidence()["suites"])])

    def test_without_torch(self):
        self.refused(1, "PyTorch cannot be imported (no torch here)", "--suite", "latency", "-o", self.folder / "o.json")

    def test_with_an_old_torch(self):
        for version in ("2.4.1", "1.13.0+cu117", "unknown"):
            self.refused(1, f"PyTorch {version} is too old", "--suite", "latency", torch=f"__version__ = {version!r}")

    def test_wrong_usage(self):
        self.refused(2, 'there is no suite "latencie"; there are latency, throughput, acceptance, decode, models, windows, eager, cpu, all', "--suite", "latencie")
        self.refused(2, 'there is no contender "sdpa_fast"', "--suite", "decode", "--against", "sdpa_fast")
        self.refused(2, 'there is no mode "graph"', "--shapes", "l8d16", "--modes", "graph")
        self.refused(2, "stands alone", "--shapes", "l8d16", "--modes", "graph_warm,acceptance")
        self.refused(2, "is no shape", "--shapes", "banana")
        self.refused(2, "nothing to measure")
        self.assertEqual(self.run_arena("--no-such-option").returncode, 2)

    def test_other_evidence(self):
        for changes, words in (
            ({"schema": 2}, "has schema 2; this version reads schema 1"),
            ({"what": "evolve"}, 'evidence of "evolve"'),
            ({"rows": [{"suite": "latency"}]}, "lacks rows[0].workload"),
        ):
            self.file.write_text(json.dumps({**evidence(), **changes}))
            self.refused(1, words, "--show", self.file)
        self.file.write_text(json.dumps({key: value for key, value in evidence().items() if key != "suites"}))
        self.refused(1, "lacks suites", "--show", self.file)
        self.file.write_text("[1, 2]")
        self.refused(1, "has schema None", "--show", self.file)
        self.file.write_text("{")
        self.refused(1, "is no JSON", "--show", self.file)
        self.refused(1, "cannot be read", "--show", self.folder / "none.json")

    def test_charts_that_cannot_be_written(self):
        self.refused(1, "charts cannot be written", "--show", self.file, "--charts", "/dev/null/x")

    TORCH = "__version__ = '2.9.0'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"

    def test_heed_not_found(self):
        self.refused(1, "heed program was not found", "--suite", "eager", "--heed", self.folder / "heed", torch=self.TORCH)

    def test_a_gpu_that_is_not_there(self):
        self.refused(1, "no GPU can be used", "--suite", "eager", "--device", "cuda", torch=self.TORCH)

    def test_an_unwritable_output_is_found_before_anything_is_measured(self):
        for path in ("/dev/null/x/arena.json", "/proc/arena.json", self.folder):
            self.refused(1, "cannot be written", "--suite", "eager", "--heed", sys.executable, "-o", path, torch=self.TORCH)


class Champions(unittest.TestCase):
    def test_variants_by_workload(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "champions.json"
            champion = lambda workload, variant, arch: {"workload": workload, "variant": variant, "arch": arch}  # noqa: E731
            champions = [champion("b1h8l512d64", "fwd_a:x=1", "sm_90a"), champion("l8d16:bf16", "fwd_b", "sm_90a"), champion("l8d16:bf16", "fwd_c", "x86_64-avx2")]
            file.write_text(json.dumps({"what": "champions", "champions": champions}))
            parse = lambda *arguments: arena.variants_of(arena.parser().parse_args(["--champions", str(file), *arguments]))  # noqa: E731
            self.assertEqual(parse(), ({"b1h8l512d64:fp16": "fwd_a:x=1", "b1h1l8d16:bf16": "fwd_b"}, "auto"))
            table, default = parse("--variant", "l8d16:bf16=fwd_c:y=on,z=off", "--variant", "fwd_d:block_m=32", "--variant", "l8d16:scale=0.5=auto")
            self.assertEqual(default, "fwd_d:block_m=32")
            self.assertEqual(table["b1h1l8d16:bf16"], "fwd_c:y=on,z=off")
            self.assertEqual(table["b1h1l8d16:fp16:scale=0.5"], "auto")
            for content, words in (("[]", "does not hold champions"), ('{"champions": [{"workload": "l8d16"}]}', "does not hold champions"), ("{", "cannot be read")):
                file.write_text(content)
                with self.assertRaisesRegex(arena.Failure, words):
                    parse()

    def test_a_device_has_its_own(self):
        champion = lambda variant, device: {"workload": "l8d16", "variant": variant, "arch": "sm_90a", "device": device}  # noqa: E731
        stored = {"champions": [champion("fwd_a", "Slow"), champion("fwd_b", "Fast")], "unbeaten": [{"workload": "l8d16", "arch": "sm_90a", "device": "Best"}]}
        for device, variant in (("Slow", "fwd_a"), ("Fast", "fwd_b"), ("Other", "fwd_a")):
            self.assertEqual(arena.champions_on(stored, "sm_90", device), {"b1h1l8d16:fp16": variant})
        self.assertEqual(arena.champions_on(stored, "sm_90", "Best"), {}, "its base is unbeaten")
        self.assertEqual(arena.champions_on(stored, "sm_80", "Other"), {})

    def test_a_variant_for_all_leaves_tuned_champions_aside(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tuned" / "champions.json"
            file.parent.mkdir()
            file.write_text(json.dumps({"what": "champions", "champions": [{"workload": "l8d16", "variant": "fwd_a", "arch": "sm_90a"}]}))
            parse = lambda *arguments: arena.variants_of(arena.parser().parse_args([*arguments]))  # noqa: E731
            with unittest.mock.patch.object(arena, "ROOT", Path(folder)):
                self.assertEqual(parse(), ({"b1h1l8d16:fp16": "fwd_a"}, "auto"))
                self.assertEqual(parse("--variant", "fwd_b"), ({}, "fwd_b"))
                self.assertEqual(parse("--variant", "l4d16=fwd_c"), ({"b1h1l8d16:fp16": "fwd_a", "b1h1l4d16:fp16": "fwd_c"}, "auto"))
                self.assertEqual(parse("--variant", "fwd_b", "--champions", str(file)), ({"b1h1l8d16:fp16": "fwd_a"}, "fwd_b"))

    def test_help_says_how(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
            arena.main(["--help"])
        self.assertIn("--show evidence/h200/arena.json", out.getvalue())


if __name__ == "__main__":
    unittest.main()

"""The arena's command line: every refusal that needs no measurement, and which variants it runs. PyTorch is hidden from the program here."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from example_evidence import evidence

from heed import arena, tables

PYTHON = Path(arena.__file__).parents[1]


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
        self.refused(2, 'there is no suite "latencie"; there are latency, throughput, acceptance, decode, models, random, windows, eager, masks, ragged, paged, sparse, fp8, int8, caches, cpu, all', "--suite", "latencie")
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

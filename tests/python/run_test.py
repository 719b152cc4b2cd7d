"""The runner of Python tests: a file counts as skipped only if every test in it skipped."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUNNER = Path(__file__).resolve().parent / "run.py"
HEAD = "import unittest\nclass Some(unittest.TestCase):\n"
PASSES = "    def test_passes(self):\n        pass\n"
FAILS = "    def test_fails(self):\n        self.fail('no')\n"
SKIPS = "    @unittest.skip('no such thing')\n    def test_skips(self):\n        pass\n"


class Runner(unittest.TestCase):
    def run_file(self, *texts, modules="some_test"):
        """Of one text some_test.py, of more some_test.py, some_test_1.py and so on, none of which needs PyTorch."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / (f"some_test_{i}.py" if i else "some_test.py") for i in range(len(texts))]
            for file, text in zip(files, texts, strict=True):
                file.write_text(text)
            # In the place of PyTorch, whose import takes seconds.
            (Path(folder) / "torch.py").write_text("seeds = []\nmanual_seed = seeds.append\nprint('torch is imported', flush=True)\n")
            environment = {**os.environ, "PYTHONPATH": folder}
            return subprocess.run(
                [sys.executable, str(RUNNER), "--import", modules, *map(str, files)], capture_output=True, text=True, timeout=300, env=environment
            )

    def test_a_file_passes_whose_tests_skip_in_part(self):
        done = self.run_file(HEAD + PASSES + SKIPS)
        self.assertEqual(done.returncode, 0)
        self.assertIn("skipped: some_test.Some.test_skips: no such thing", done.stdout)

    def test_a_file_is_skipped_whose_tests_all_skip(self):
        self.assertEqual(self.run_file(HEAD + SKIPS).returncode, 77)

    def test_a_file_is_skipped_that_skips_as_one(self):
        done = self.run_file("import unittest\ndef setUpModule():\n    raise unittest.SkipTest('no such thing')\n" + HEAD + PASSES)
        self.assertEqual(done.returncode, 77)
        self.assertIn("no such thing", done.stdout)

    def test_a_file_passes_a_class_of_which_skips_as_one(self):
        other = HEAD.replace("Some", "Other") + "    @classmethod\n    def setUpClass(cls):\n        raise unittest.SkipTest('no such thing')\n" + PASSES
        self.assertEqual(self.run_file(HEAD + PASSES + other).returncode, 0)

    def test_a_failure_counts_whatever_else_skipped(self):
        self.assertEqual(self.run_file(HEAD + FAILS + SKIPS).returncode, 1)

    def test_a_file_without_tests_fails(self):
        self.assertEqual(self.run_file("import unittest\n").returncode, 1)

    def test_a_file_that_cannot_be_imported_fails(self):
        self.assertEqual(self.run_file("import no_such_module_anywhere\n").returncode, 1)

    def test_every_test_draws_the_same_numbers(self):
        drawn = "import random, torch\n" + HEAD + "".join(
            f"    def test_{name}(self):\n        print('\\ndrawn', random.random(), torch.seeds)\n" for name in "ab"
        )
        lines = [line for line in self.run_file(drawn).stdout.splitlines() if line.startswith("drawn")]
        self.assertEqual([line.split()[1] for line in lines], [lines[0].split()[1]] * 2)
        self.assertEqual([line.split(maxsplit=2)[2] for line in lines], ["[0]", "[0, 0]"])

    def test_of_several_files_each_has_a_process_and_all_have_one_import(self):
        own = "import os, unittest, torch\nassert 'HEED_SEEN' not in os.environ\nos.environ['HEED_SEEN'] = 'yes'\n" + HEAD.split("\n", 1)[1] + PASSES
        done = self.run_file(own, own, HEAD + SKIPS, modules="no_such_module,json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("torch is imported"), 1)
        for line in ("=== some_test: exit 0", "=== some_test_1: exit 0", "=== some_test_2: exit 77", "skipped: some_test_2.Some.test_skips: no such thing"):
            self.assertIn(f"{line}\n", done.stdout)

    def test_several_files_are_skipped_only_if_each_is(self):
        self.assertEqual(self.run_file(HEAD + SKIPS, HEAD + SKIPS).returncode, 77)
        self.assertEqual(self.run_file(HEAD + SKIPS, HEAD + PASSES).returncode, 0)

    def test_one_failure_of_several_files_counts_and_the_rest_runs(self):
        kills = HEAD + "    def test_kills(self):\n        import os, signal\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        for bad, ended in ((HEAD + FAILS, "exit 1"), ("import no_such_module_anywhere\n", "exit 1"), (kills, "ended by signal 9")):
            done = self.run_file(bad, HEAD + PASSES)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"=== some_test: {ended}\n", done.stdout)
            self.assertIn("=== some_test_1: exit 0\n", done.stdout)


if __name__ == "__main__":
    unittest.main()

"""The runner of Python tests: a file counts as skipped only if every test in it skipped."""

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
    def run_file(self, text):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "some_test.py"
            file.write_text(text)
            return subprocess.run([sys.executable, str(RUNNER), str(file)], capture_output=True, text=True, timeout=300)

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


if __name__ == "__main__":
    unittest.main()

"""The example that plugs Heed into OpenEvolve: what evaluate() makes of edits that pass, fail and are none."""

import importlib.util
import os
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "openevolve"


class Evaluator(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("evaluator", EXAMPLE / "evaluator.py")
        self.evaluator = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.evaluator)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        options = f"--device cpu --measure-limit 0.02 --db {self.folder}/a.db"
        environment = {"HEED": os.environ["HEED_BINARY"], "HEED_SHAPE": "b1h1l48d16:fp32", "HEED_FAMILY": "fwd_cpu", "HEED_OPTIONS": options}
        patch = mock.patch.dict(os.environ, environment)
        patch.start()
        self.addCleanup(patch.stop)

    def metrics(self, text):
        program = self.folder / "program.md"
        program.write_text(text)
        result = self.evaluator.evaluate(str(program))
        return result if isinstance(result, dict) else result.metrics

    def test_edits_that_pass_and_edits_that_are_wrong(self):
        text = (EXAMPLE / "edits.md").read_text()
        first = self.metrics(text)
        self.assertEqual(first["valid"], 1.0)
        self.assertGreater(first["combined_score"], 0.0)
        again = self.metrics(text)  # a duplicate of the trial in the database
        self.assertEqual((again["combined_score"], again["valid"]), (first["combined_score"], 1.0))
        wrong = text.replace("  if (sum > 0) return 1.0F / sum;\n", "  if (sum > 0) return sum;\n")
        self.assertEqual(self.metrics(wrong), {"combined_score": 0.0, "valid": 0.0, "microseconds": 0.0})
        self.assertEqual(self.metrics(wrong)["valid"], 0.0, "a duplicate of edits that failed")
        self.assertEqual(self.metrics("I would unroll the loop.")["valid"], 0.0)

    def test_the_score_of_a_duplicate_is_that_of_the_trial_it_repeats(self):
        judged = {"verdict": "duplicate", "reason": "", "log": "", "ratio": None, "base_us": 3.0, "trial_us": None}
        known = {"trial": 7, "ratio": 1.5, "low": 1.4, "high": 1.6, "verdict": "ok"}
        nothing = {"combined_score": 0.0, "valid": 0.0, "microseconds": 0.0}
        for earlier, metrics in (
            (known, {"combined_score": 1.4, "valid": 1.0, "microseconds": 2.0}),
            ({"trial": None, "ratio": 1, "low": 1, "high": 1, "verdict": "ok"}, {"combined_score": 1, "valid": 1.0, "microseconds": 3.0}),  # the base
            (known | {"ratio": None, "low": None, "high": None, "verdict": "wrong"}, nothing),
            (None, nothing),
        ):
            with mock.patch.object(self.evaluator, "judge", return_value=judged | {"earlier": earlier}):
                self.assertEqual(self.metrics("x"), metrics)

    def test_lines_of_the_first_edits_stand_in_the_sources_once(self):
        for name in ("edits.md", "edits_gpu.md"):
            blocks = re.findall(r"^(\S+)\n<<<<<<< SEARCH\n(.*?\n)=======\n.*?>>>>>>> REPLACE$", (EXAMPLE / name).read_text(), re.S | re.M)
            self.assertTrue(blocks, name)
            for file, lines in blocks:
                self.assertEqual((ROOT / file).read_text().count(lines), 1, f"{name}: {file}: {lines}")

    def test_a_wrong_call_is_an_error(self):
        with mock.patch.dict(os.environ, {"HEED_SHAPE": "nonsense"}), self.assertRaisesRegex(RuntimeError, "nonsense"):
            self.metrics("x")

"""The example that plugs Heed into OpenEvolve: what evaluate() makes of edits that pass, fail and are none."""

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openevolve"


class Evaluator(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("evaluator", EXAMPLE / "evaluator.py")
        self.evaluator = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.evaluator)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        options = f"--device cpu --measure-limit 0.2 --db {self.folder}/a.db"
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
        judged = self.evaluator.judge(str(EXAMPLE / "edits.md"))
        self.assertIn(judged["verdict"], ("ok", "duplicate"), judged["reason"])
        wrong = text.replace("  if (sum > 0) return 1.0F / sum;\n", "  if (sum > 0) return sum;\n")
        self.assertEqual(self.metrics(wrong), {"combined_score": 0.0, "valid": 0.0, "microseconds": 0.0})
        self.assertEqual(self.metrics("I would unroll the loop.")["valid"], 0.0)

    def test_a_wrong_call_is_an_error(self):
        with mock.patch.dict(os.environ, {"HEED_SHAPE": "nonsense"}), self.assertRaisesRegex(RuntimeError, "nonsense"):
            self.metrics("x")

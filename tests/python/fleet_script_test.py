"""scripts/fleet on searches whose numbers are known."""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from heed import fleet

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "fleet"


def load():
    loader = importlib.machinery.SourceFileLoader("fleet_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fleet_script", loader))
    loader.exec_module(module)
    return module


script = load()


class Fleet(unittest.TestCase):
    def test_gpus(self):
        self.assertEqual(script.gpus_of("0-3"), [0, 1, 2, 3])
        self.assertEqual(script.gpus_of("2,5-6"), [2, 5, 6])
        self.assertRaises(ValueError, script.gpus_of, "0-")

    def test_wrong_usage(self):
        for arguments, words in {
            ("--gpus", "0"): "two different ones",
            ("--gpus", "a-b"): "write 0-3 or 0,2",
            ("--gpus", "0-1", "--shapes", "b1h8l512d64"): "as many workloads as GPUs",
            ("--gpus", "0-1", "--trials", "0"): "a trial",
        }.items():
            done = subprocess.run([sys.executable, SCRIPT, "heed", "out.json", *arguments], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, words in done.stderr), (2, True), done.stderr)

    def test_a_fleet_reads_the_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "calls.json"
            path.write_text(json.dumps(script.calls_of(["b1h8l512d64:fp16", "b1h8l512d64:bf16"])), encoding="utf-8")
            self.assertEqual(fleet.workloads_of(path), ["b1h8l512d64:fp16", "b1h8l512d64:bf16"])

    def test_a_rate_is_of_all_trials(self):
        run = {"evidence": {"device": "NVIDIA H200", "arch": "sm_90a"}}
        rows = [{"gpus": gpus, "seconds": seconds, "trials": 40, "trials_a_minute": 2400 / seconds, "results": [run]} for gpus, seconds in (([0], 120.0), ([0, 1], 64.0))]
        evidence = script.evidence_of(rows, ["a", "b"])
        self.assertAlmostEqual(evidence["ratio"], 1.875)
        self.assertEqual((evidence["device"], evidence["rows"][1]["gpus"]), ("NVIDIA H200", [0, 1]))
        self.assertNotIn("results", evidence["rows"][0])
        self.assertIn("1.88 times the rate on 2 GPUs", evidence["table"])


if __name__ == "__main__":
    unittest.main()

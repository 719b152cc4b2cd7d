"""scripts/devices on runs whose numbers are known."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "devices"


def load():
    loader = importlib.machinery.SourceFileLoader("devices_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


devices = load()


def run_of(names, rate, base_us):
    trials = [{"device": name, "base_us": us} for name, times in zip(names, base_us) for us in times]
    return {
        "id": 1,
        "created": "2020-01-01T00:00:00Z",
        "workload": "b1h8l512d64:fp16",
        "heed": "0",
        "source_digest": "0",
        "options": {"referee": 1},
        "device": {"name": "GPU", "arch": "sm_90a", "driver": "1"},
        "base": {"searches": [{"devices": names}]},
        "trials": trials,
        "devices": {"devices": [{"name": name, "lost": None} for name in names], "trials_a_minute": rate},
    }


class DevicesScript(unittest.TestCase):
    def test_the_first_of_a_list(self):
        for text, first in (("0-3", "0"), ("2,0", "2"), ("0+1,2+3", "0+1"), ("5", "5")):
            self.assertEqual(devices.first_of(text), first)

    def test_rates_and_the_cost_of_a_neighbour(self):
        alone = run_of(["GPU 0"], 20.0, [[2.0, 2.0, 2.0]])
        shared = run_of(["GPU 0", "GPU 1"], 39.0, [[2.1, 2.1, 0.0], [9.0, 9.0]])
        rows = [{"shared": False, **devices.summary_of(alone)}, {"shared": True, **devices.summary_of(shared)}]
        self.assertEqual(rows[1]["base_us"], [2.1, 2.1], "of the first device, and of trials that were timed")
        evidence = devices.evidence_of([alone, shared], rows)
        self.assertAlmostEqual(evidence["trials_a_minute"]["ratio"], 1.95)
        for key in ("value", "low", "high"):
            self.assertAlmostEqual(evidence["cost_of_neighbours"][key], 1.05)
        for key in ("schema", "device", "source_digest", "rows"):
            self.assertIn(key, evidence)

    def test_the_interval_is_as_wide_as_the_times(self):
        cost = devices.cost_of_neighbours([1.0, 1.1, 0.9] * 5, [1.0, 1.3, 0.8] * 5)
        self.assertLess(cost["low"], cost["value"] + 1e-9)
        self.assertGreater(cost["high"], cost["low"])

    def test_a_run_without_devices_is_refused(self):
        for broken in ({"id": 1, "trials": []}, {**run_of(["GPU 0"], 1.0, [[0.0]])}):
            with self.assertRaises(ValueError):
                devices.summary_of(broken)

    def test_wrong_usage(self):
        for arguments in ([], ["heed", "out.json"], ["heed", "out.json", "--devices", "0-1"], ["heed", "out.json", "--devices", "0", "--", "--shape", "x"],
                          ["heed", "out.json", "--devices", "0-1", "--rounds", "0", "--", "--shape", "x"]):
            done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, arguments)
        done = subprocess.run([sys.executable, str(SCRIPT), "/bin/false", "out.json", "--devices", "0-1", "--", "--shape", "x"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with code 1", done.stderr)


if __name__ == "__main__":
    unittest.main()

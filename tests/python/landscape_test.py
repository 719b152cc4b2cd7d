"""Landscapes as Kernel Tuner reads them. Its optimisers run where it is installed."""

import contextlib
import importlib.util
import io
import json
import tempfile
import unittest
from pathlib import Path

from heed import landscape


def document():
    results = []
    for a in (1, 2, 4):
        for mode in ("off", "on"):
            measurements = [] if (a, mode) == (4, "on") else [{"name": "time", "value": a + (mode == "on") / 2, "unit": "ms"}]
            results.append({"configuration": {"a": a, "mode": mode}, "measurements": measurements})
    knobs = [{"name": "a", "names": [], "values": [1, 2, 4]}, {"name": "mode", "names": ["off", "on"], "values": [0, 1]}]
    return {"heed": {"knobs": knobs}, "results": results[1:]}  # (1, off) is no legal point


class Landscape(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "landscape.json"
        self.file.write_text(json.dumps(document()))

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = landscape.main([str(one) for one in arguments])
            except SystemExit as exit:
                code = exit.code
        return code, out.getvalue(), err.getvalue()

    def test_read(self):
        names, values, times = landscape.read(self.file)
        self.assertEqual(names, ["a", "mode"])
        self.assertEqual(values, {"a": [1, 2, 4], "mode": ["off", "on"]})
        self.assertEqual(len(times), 5)
        self.assertEqual(times[(2, "off")], 2)
        self.assertIsNone(times[(4, "on")])

    def test_a_cache_of_kernel_tuner(self):
        cache = landscape.cache_of(*landscape.read(self.file))
        self.assertEqual(cache["tune_params_keys"], ["a", "mode"])
        self.assertEqual(cache["cache"]["2,off"]["time"], 2)
        self.assertEqual(cache["cache"]["4,on"]["time"], "RuntimeFailedConfig")

    def test_files_that_are_none(self):
        for text in ("{", "[]", "{}", '{"heed": {"knobs": []}, "results": []}'):
            self.file.write_text(text)
            with self.assertRaises(landscape.LandscapeError):
                landscape.read(self.file)
        with self.assertRaises(landscape.LandscapeError):
            landscape.read(self.file.parent / "none.json")

    def test_heeds_searches_beside(self):
        header = {key: "x" for key in landscape.HEADER}
        row = {"file": "a/landscape.json", "start": "random", "searches": [{"searcher": "elite", "median": 0.5}]}
        evidence = self.file.parent / "simulation.json"
        evidence.write_text(json.dumps({**header, "rows": [row]}))
        read, rows = landscape.rows_of_heed([evidence], [self.file])
        self.assertEqual((read, rows), (header, [{"searcher": "heed elite, random start", "medians": {"landscape.json": 0.5}}]))
        simulation = {"file": str(self.file), "trials": 4, "seeds": 2, "searches": [{"searcher": "pso", "median": 0.25}, {"searcher": "mls"}]}
        table = landscape.comparison([simulation], header, rows)["table"].splitlines()
        self.assertEqual([line.split()[-1] for line in table[2:]], ["(1)", "50.00%", "25.00%", "-"])
        stored, output = self.file.parent / "stored.json", self.file.parent / "comparison.json"
        stored.write_text(json.dumps({"simulations": [simulation]}))
        again = (self.file, "--beside", evidence, "--evidence", output, "--stored", stored, "--trials", 4)
        self.assertEqual(self.call(*again, "--seeds", 2)[0], 0)
        self.assertEqual(json.loads(output.read_text()), landscape.comparison([simulation], header, rows))
        self.assertIn("not of 4 trials and 3 seeds", self.call(*again, "--seeds", 3)[2])
        stored.write_text('{"simulations": []}')
        self.assertIn("no searches of optimisers on", self.call(*again, "--seeds", 2)[2])
        stored.write_text("[]")
        self.assertEqual(self.call(*again, "--seeds", 2)[0], 2)
        self.assertEqual(self.call(self.file, "--stored", stored)[0], 2)
        with self.assertRaisesRegex(landscape.LandscapeError, "no simulation on"):
            landscape.rows_of_heed([evidence], ["other.json"])
        evidence.write_text("{}")
        with self.assertRaisesRegex(landscape.LandscapeError, "no evidence"):
            landscape.rows_of_heed([evidence], [self.file])
        self.assertEqual(self.call(self.file, "--evidence", "x.json")[0], 2)

    @unittest.skipUnless(importlib.util.find_spec("kernel_tuner"), "Kernel Tuner is not installed")
    def test_optimisers_find_the_fastest_of_a_few(self):
        (row,) = landscape.simulate(self.file, ["random_sample"], trials=5, seeds=2)
        self.assertEqual((row["reason"], row["of_all_seeds"]), ("", [0, 0]))
        code, out, _ = self.call(self.file, "--strategies", "mls", "--seeds", 1, "--json")
        self.assertEqual(code, 0)
        self.assertEqual(json.loads(out)["simulations"][0]["searches"][0]["searcher"], "mls")
        self.assertEqual(self.call(self.file, "--strategies", "magic")[0], 2)

    @unittest.skipIf(importlib.util.find_spec("kernel_tuner"), "Kernel Tuner is installed")
    def test_without_kernel_tuner(self):
        code, _, err = self.call(self.file)
        self.assertEqual(code, 1)
        self.assertIn("pip install kernel-tuner", err)

    def test_wrong_usage(self):
        self.assertEqual(self.call(self.file, "--trials", 0)[0], 2)

"""Tables, standings, conclusions and charts from evidence alone."""

import contextlib
import io
import json
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

from example_evidence import evidence

from heed import arena, chart, tables
from heed.conclusion import conclude

SVG = "{http://www.w3.org/2000/svg}"


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


if __name__ == "__main__":
    unittest.main()

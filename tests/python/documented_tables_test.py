"""Tables of README.md and docs/limits.md that are no copies of a table in evidence, against the evidence that they name."""

import json
import re
import unittest
from pathlib import Path

from heed.tables import geometric_mean, standings

ROOT = Path(__file__).resolve().parents[2]
# What a row's first cell says: suite, mode.
ROWS = {
    "latency, warm": ("latency", "graph_warm"),
    "latency, cold": ("latency", "graph_cold"),
    "decode": ("decode", "graph_cold"),
    "windows and dense rows": ("windows", "graph_cold"),
    "cpu, warm": ("cpu", "graph_warm"),
    "calls of models in use, warm": ("models", "graph_warm"),
    "calls drawn at random": ("random", "graph_warm"),
    "masks, biases, sinks, lengths": ("masks", "graph_warm"),
    "ragged batches": ("ragged", "graph_warm"),
    "keys in pages": ("paged", "graph_warm"),
    "lists of blocks": ("sparse", "graph_warm"),
    "16,384 tokens": ("throughput", "graph_cold"),
}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def table_rows(text, header):
    """The cells of each row of the table with that header."""
    begin = text.index(header)
    lines = text[begin : text.index("\n\n", begin)].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def expected(evidence, suite, mode, peer):
    """(geometric mean, rows ahead) as README writes them. `peer` stands in for the best of SDPA."""
    rows = [row for row in evidence["rows"] if row["suite"] == suite and row["mode"] == mode]
    if peer:
        ratios = [(row, row["peer_ratios"][peer]) for row in rows if peer in row["peer_ratios"]]
        rows = [row | {"ratio": ratio["value"], "ratio_ci": [ratio["low"], ratio["high"]]} for row, ratio in ratios]
    ahead, _, undecided = standings(rows)
    counted = f"{ahead} of {len(rows)}" + (f", {WORDS[undecided]} undecided" if undecided else "")
    return f"{geometric_mean([row['ratio'] for row in rows]):.2f}", counted


class Tables(unittest.TestCase):
    def test_results_are_those_of_the_evidence(self):
        rows = table_rows((ROOT / "README.md").read_text(), "| suite | device | referee | geometric mean | rows ahead | evidence |")
        self.assertGreater(len(rows), 10)
        for what, device, referee, mean, ahead, path in rows:
            with self.subTest(what=what, path=path):
                evidence = json.loads((ROOT / path.strip("`")).read_text())
                (named,) = [name for name in ROWS if what.startswith(name)]
                peer = "triton_flex" if named == "windows and dense rows" else None
                self.assertEqual((mean, ahead), expected(evidence, *ROWS[named], peer))
                self.assertEqual(int(referee), evidence["referee"])
                self.assertIn(re.match(r"\w+", device)[0], evidence["device"])

    def test_distances_from_floors_are_those_of_the_evidence(self):
        rows = json.loads((ROOT / "evidence/h200/arena.json").read_text())["rows"]
        measured = {(row["workload"], row["suite"], row["mode"]): row for row in rows}
        listed = table_rows((ROOT / "docs/limits.md").read_text(), "| workload | floor, us | Heed, us | limited by |")
        self.assertGreater(len(listed), 5)
        for workload, floor, heed, _ in listed:
            with self.subTest(workload=workload):
                of = measured.get((f"{workload}:fp16", "latency", "graph_warm")) or measured[f"{workload}:fp16", "decode", "graph_cold"]
                self.assertEqual((floor, heed), (f"{of['floor_us']:.2f}", f"{of['heed_us']:.2f}"))

    def test_a_number_that_is_not_the_evidences_is_noticed(self):
        evidence = {"rows": [{"suite": "s", "mode": "m", "ratio": 2.0, "ratio_ci": [1.9, 2.1], "self_spread": 0.01}]}
        self.assertEqual(expected(evidence, "s", "m", None), ("2.00", "1 of 1"))
        evidence["rows"].append({"suite": "s", "mode": "m", "ratio": 0.5, "ratio_ci": [0.4, 1.1], "self_spread": 0.01})
        self.assertEqual(expected(evidence, "s", "m", None), ("1.00", "1 of 2, one undecided"))


if __name__ == "__main__":
    unittest.main()

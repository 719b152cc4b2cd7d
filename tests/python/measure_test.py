"""Pairs, the bootstrap and how many sets and calls a mode takes; no test reads a clock."""

import random
import statistics
import unittest

from heed import measure
from heed.suites import parse_workload


class Bootstrap(unittest.TestCase):
    def test_interval_covers_the_truth_about_as_often_as_it_says(self):
        rng = random.Random(5)
        resamples, measure.RESAMPLES = measure.RESAMPLES, 300
        try:
            covered = 0
            for trial in range(300):
                interval = measure.bootstrap([1.2 + rng.gauss(0, 0.05) for _ in range(10)], seed=trial)
                covered += interval["low"] <= 1.2 <= interval["high"]
        finally:
            measure.RESAMPLES = resamples
        # The percentile bootstrap of a median of ten covers 93 to 97%; three standard deviations of 300 trials are 4%.
        self.assertGreaterEqual(covered, 267)
        self.assertLess(covered, 300)

    def test_is_reproducible_and_ordered(self):
        ratios = [1.0, 1.1, 0.9, 1.05, 1.2]
        one = measure.bootstrap(ratios)
        self.assertEqual(one, measure.bootstrap(ratios))
        self.assertEqual(one["value"], statistics.median(ratios))
        self.assertTrue(one["low"] <= one["value"] <= one["high"])
        self.assertEqual(measure.bootstrap([2.0]), {"value": 2.0, "low": 2.0, "high": 2.0})


class Pairs(unittest.TestCase):
    def test_blocks_alternate_so_that_drift_cancels(self):
        order, clock = [], [0.0]

        def block(name, us):
            def run():
                order.append(name)
                clock[0] += 1
                return us + 0.01 * clock[0]  # a linear drift

            return run

        pair = measure.measure_pair(block("A", 10), block("B", 20), quads=5)
        self.assertEqual("".join(order), "ABBA" * 5)
        self.assertAlmostEqual(pair["ratio"]["value"], 2, delta=0.02)

        def drifting():
            clock[0] += 1
            return 10 + 0.01 * clock[0]

        self.assertAlmostEqual(measure.measure_pair(drifting, drifting, quads=4)["ratio"]["value"], 1, delta=1e-9)


class Sets(unittest.TestCase):
    L2 = 60e6
    MEMORY = 139e9

    def test_warm_sets_fit_half_the_cache(self):
        for text in ("b1h8l512d64", "b1h8l2048d64", "b1h1l16d16"):
            w = parse_workload(text)
            count = measure.sets_for(w, "graph_warm", self.L2, self.MEMORY)
            self.assertTrue(2 <= count <= measure.MOST_WARM_SETS)
            self.assertLessEqual(count * w.set_bytes, self.L2 / 2)
        self.assertEqual(measure.sets_for(parse_workload("b64h12l128d64"), "graph_warm", self.L2, self.MEMORY), 2)

    def test_cold_sets_exceed_the_cache_and_are_all_visited(self):
        for text in ("b1h8l512d64", "b8h32hkv4l1k8192d128", "b64h12l128d64"):
            w = parse_workload(text)
            count = measure.sets_for(w, "graph_cold", self.L2, self.MEMORY)
            self.assertGreaterEqual(count * w.input_bytes, 3 * self.L2)
            self.assertGreaterEqual(measure.calls_for("graph_cold", count, 1e6, 1000), count)

    def test_calls_of_a_block_do_not_repeat(self):
        sets = [(f"q{i}", f"k{i}", f"v{i}") for i in range(5)]
        calls = measure.calls_for("graph_warm", 5, 1.0, 1000)
        self.assertEqual(calls, 25)
        self.assertEqual(len({measure.arguments_of(sets, n) for n in range(calls)}), calls)

    def test_clocks_are_zero_where_they_cannot_be_read(self):
        self.assertEqual(measure.Clocks(False).mhz(), 0)


if __name__ == "__main__":
    unittest.main()

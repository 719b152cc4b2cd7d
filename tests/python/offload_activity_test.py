"""Shares of a step's time, from intervals as CUPTI gives them."""

import unittest

from heed import offload_activity
from heed.offload_activity import common, shares, union


class Intervals(unittest.TestCase):
    def test_those_that_meet_are_one(self):
        self.assertEqual(union([(5, 6), (0, 1), (1, 2), (1.5, 1.8)]), [(0, 2), (5, 6)])
        self.assertEqual(union([]), [])

    def test_what_is_in_both(self):
        self.assertAlmostEqual(common([(0, 2), (3, 5)], [(1, 4)]), 2)
        self.assertEqual(common([(0, 1)], [(1, 2)]), 0)
        self.assertAlmostEqual(common([(0, 2), (1, 3)], [(0, 3), (2, 3)]), 3, msg="two kernels at once count once")

    def test_shares(self):
        found = shares(copies=[(0, 4)], kernels=[(1, 3), (5, 6)], processors_s=2, wall_s=8)
        self.assertEqual(found, {"link_busy": 0.5, "kernel_busy": 0.375, "processors_busy": 0.25, "overlap": 0.5})
        self.assertIsNone(shares([], [(0, 1)], 0, 2)["overlap"])


class Simulated(unittest.TestCase):
    def test_more_than_the_time_was_at_once(self):
        class Pool:
            seconds = dict.fromkeys(("seconds_in", "seconds_compute", "seconds_host"), 0.0)
            device = type("Device", (), {"type": "cpu"})

            def info(self):
                return dict(self.seconds)

        pool = Pool()

        def step():  # 1000 seconds on each lane in no time: all of the link's time is a kernel's, too
            for name in pool.seconds:
                pool.seconds[name] += 1000.0

        found = offload_activity.of_steps(None, pool, step, 2)
        self.assertEqual(found["overlap"], 1.0)
        self.assertGreater(found["link_busy"], 1)


if __name__ == "__main__":
    unittest.main()

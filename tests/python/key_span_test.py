"""The keys that a query sees, by Python, beside those that the program counts (kernels/attention/mask.hpp)."""

import unittest

from heed import key_span, suites


class KeySpan(unittest.TestCase):
    def test_bounds_are_those_of_the_workloads(self):
        for mask in ("", ":causal_top_left", ":causal_bottom_right", ":window=2/1", ":window=0", ":window_top_left=3/0", ":causal_top_left:window=2"):
            for len_q, len_k in ((5, 5), (3, 9), (9, 3), (1, 4)):
                w = suites.parse_workload(f"b1h1l{len_q}k{len_k}d64{mask}")
                right = 0 if w.mask.startswith("causal") else w.right
                for row in range(len_q):
                    own = row + w.own_offset
                    seen = [key for key in range(len_k) if key_span.sees(own, key, w.left, right)]
                    self.assertEqual(seen, list(range(*w.keys_of(row))), (mask, len_q, len_k, row))

    def test_prefixes_are_seen_whatever_the_right_bound(self):
        self.assertTrue(key_span.sees(0, 3, key_span.ALL, 0, prefix=4))
        self.assertFalse(key_span.sees(0, 4, key_span.ALL, 0, prefix=4))
        self.assertFalse(key_span.sees(5, 3, 1, 0, prefix=4), "a left bound hides keys of a prefix")

    def test_alignment(self):
        self.assertEqual(key_span.own_offset(True, 3, 9), 6)
        self.assertEqual(key_span.own_offset(False, 3, 9), 0)


if __name__ == "__main__":
    unittest.main()

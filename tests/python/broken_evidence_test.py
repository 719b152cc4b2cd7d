"""Evidence that is damaged: every damage is one sentence and an exit code."""

import contextlib
import copy
import io
import json
import tempfile
import unittest
from pathlib import Path

from example_evidence import RATIO, evidence

from heed import arena


class BrokenEvidence(unittest.TestCase):
    """Every damage is one sentence and an exit code, never a traceback or an endless loop."""

    def shown(self, text):
        """(exit code, stderr) of --show with charts."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "arena.json")
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
                code = arena.main(["--show", str(path), "--charts", folder])
        return code, said.getvalue()

    def refused(self, words, change):
        broken = copy.deepcopy(evidence())
        change(broken)
        code, said = self.shown(json.dumps(broken))
        self.assertEqual(code, 1, said)
        self.assertIn(words, said)
        self.assertEqual(len(said.strip().splitlines()), 1)

    def test_numbers_that_are_none(self):
        for word in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
            code, said = self.shown(json.dumps(evidence()).replace('"heed_us": 5.5', f'"heed_us": {word}', 1))
            self.assertEqual(code, 1, word)
            self.assertIn("which is no number", said)

    def test_texts_that_are_no_json(self):
        whole = json.dumps(evidence())
        for text, words in ((whole[:500], "is no JSON"), ("", "is no JSON"), ("[" * 100000, "is no JSON"), (b"\xff\xfe{}", "is no text in UTF-8"), ("null", "has schema None"), ("3", "has schema None")):
            code, said = self.shown(text)
            self.assertEqual(code, 1, said)
            self.assertIn(words, said)

    def test_places_are_named(self):
        def put(value, *keys):
            def change(broken):
                for key in keys[:-1]:
                    broken = broken[key]
                broken[keys[-1]] = value

            return change

        for value, place, keys in (
            ("fast", "rows[0].heed_us", ("rows", 0, "heed_us")),
            (-1, "rows[0].heed_us", ("rows", 0, "heed_us")),
            (True, "rows[0].floor_us", ("rows", 0, "floor_us")),
            ([], "rows[0].peers_us", ("rows", 0, "peers_us")),
            (0, "rows[0].peers_us.sdpa_cudnn", ("rows", 0, "peers_us", "sdpa_cudnn")),
            ({"value": 1.5}, "rows[0].peer_ratios.sdpa_cudnn.low", ("rows", 0, "peer_ratios", "sdpa_cudnn")),
            (0, "rows[0].peer_ratios.sdpa_math.value", ("rows", 0, "peer_ratios", "sdpa_math", "value")),
            ([1.0], "rows[0].ratio_ci", ("rows", 0, "ratio_ci")),
            (None, "rows[0].ratio_ci", ("rows", 0, "ratio_ci")),
            (None, "rows[0].errors.heed", ("rows", 0, "errors", "heed")),
            ("1", "rows[0].errors.heed.limit", ("rows", 0, "errors", "heed", "limit")),
            (7, "rows[0].kernels.sdpa_cudnn", ("rows", 0, "kernels", "sdpa_cudnn")),
            (7, "rows[0].refused.sdpa_flash", ("rows", 0, "refused", "sdpa_flash")),
            (0, "rows[0].flops", ("rows", 0, "flops")),
            (None, "rows[1]", ("rows", 1)),
            ("none", "rows[2]", ("rows", 2, "suite")),
            ({"bytes": 1, "us": 0, "share": RATIO}, "rows[0].copy.us", ("rows", 0, "copy")),
            ("furlongs", "suites.latency", ("suites", "latency", "unit")),
            ({}, "suites.latency.title", ("suites", "latency")),
            ("2", "rows", ("rows",)),
            (7, "device", ("device",)),
            ("1980", "clocks_mhz.before", ("clocks_mhz", "before")),
            ("\ud800", "half a character", ("device",)),
        ):
            with self.subTest(place=place, value=value):
                self.refused(place, put(value, *keys))

    def test_no_rows_are_no_fault(self):
        empty = {**evidence(), "rows": []}
        self.assertEqual(self.shown(json.dumps(empty))[0], 0)

    def test_any_value_taken_away_or_replaced_is_a_sentence_or_a_table(self):
        def places(value, path=()):
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, inner in items:
                yield (*path, key)
                yield from places(inner, (*path, key))

        for place in places(evidence()):
            for replacement in (None, "x", 0, -1.5, 1e308, [], {}, "gone"):
                broken = copy.deepcopy(evidence())
                at = broken
                for key in place[:-1]:
                    at = at[key]
                if replacement == "gone":
                    del at[place[-1]]
                else:
                    at[place[-1]] = replacement
                code, said = self.shown(json.dumps(broken))
                self.assertIn(code, (0, 1), (place, replacement))
                self.assertEqual(len(said.strip().splitlines()), code, (place, replacement, said))


if __name__ == "__main__":
    unittest.main()

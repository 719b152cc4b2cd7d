"""The program that measures windows over the L2: what it refuses, and its table. The rest needs a GPU."""

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from heed import l2_window

ROW = {
    "workload": "b1h32hkv8l1k2048d128:bf16",
    "kv_bytes": 8388608,
    "between_bytes": 128000000,
    "set_aside_bytes": 39321600,
    "default_us": 73.14,
    "window_us": 74.13,
    "between_us": 65.58,
    "ratio": {"value": 0.987, "low": 0.986, "high": 0.988},
}


def run(*arguments):
    """(exit code, standard error)."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = l2_window.main(list(arguments))
        except SystemExit as end:
            code = end.code
    return code, said.getvalue()


class Program(unittest.TestCase):
    def test_wrong_usage(self):
        for arguments, words in {
            ("--lengths", "long"): "no list of whole numbers",
            ("--between", "-1"): "negative",
            ("--lengths", "0"): "at least 1",
            ("--quads", "0"): "at least 1",
        }.items():
            code, said = run(*(f"{arguments[0]}={arguments[1]}",))
            self.assertEqual((code, words in said), (2, True), said)

    def test_without_a_gpu_it_says_so(self):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
            code, said = run()
        self.assertEqual(code, 1, said)
        self.assertRegex(said, "sees no GPU|PyTorch cannot be imported")

    def test_a_file_that_cannot_be_written_is_named_first(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").touch()
            code, said = run("-o", str(Path(folder) / "file" / "l2.json"))
        self.assertEqual(code, 1, said)
        self.assertIn("cannot be written", said)

    def test_a_row_says_what_was_kept_and_what_it_gained(self):
        head, line = l2_window.table_of([ROW]).splitlines()
        self.assertEqual(line.split(), "b1h32hkv8l1k2048d128:bf16 8.4 MB 128.0 MB 39.3 MB 73.14 74.13 65.58 0.987 [0.986, 0.988]".split())
        self.assertEqual(head.index("ratio"), line.index("0.987"))


if __name__ == "__main__":
    unittest.main()

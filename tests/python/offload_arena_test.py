"""python -m heed.offload_arena on a simulated GPU: what it measures and writes, and what it refuses."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from attention_cases import require_programs


def setUpModule():
    require_programs()


class Arena(unittest.TestCase):
    def test_it_measures_and_writes_evidence(self):
        from heed import offload_arena

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "offload.json"
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(offload_arena.main(["--device", "cpu", "--quick", "--tokens", "512", "--kv-dtype", "int8", "-o", str(path)]), 0)
            evidence = json.loads(path.read_text())
        self.assertIn("heed_streamed", said.getvalue())
        self.assertEqual([row["mode"] for row in evidence["rows"]], ["decode", "prefill"])
        for row in evidence["rows"]:
            contenders = {"heed_streamed", "heed_resident", "torch_resident", "transformers_offloaded"}
            if "heed_int8" in row["refused"]:  # without programs for such pages
                self.assertIn("int8", row["refused"]["heed_int8"])
            else:
                contenders.add("heed_int8")
            self.assertEqual(set(row["contenders"]), contenders)
            for contender in row["contenders"].values():
                self.assertLess(contender["max_difference"], 2e-2)
            # Three quarters of 512 keys of two heads of 64 are not granted: what comes over the link is a share of 98 KB of K and as much of V, of two layers.
            self.assertLessEqual(row["bytes_in"], 2 * 2 * 2 * 2 * 64 * 512)
            self.assertGreater(row["link_utilisation"], 0) if row["mode"] == "prefill" else None
            self.assertGreater(row["activity"]["kernel_busy"], 0)
            self.assertIn("simulated GPU", row["activity"]["from"])
            self.assertEqual(row["least"]["resident_us"], row["contenders"]["heed_resident"]["us"])
        self.assertIn("of the link's time", said.getvalue())
        self.assertIn(evidence["table"], said.getvalue())
        self.assertEqual({len(line) > 200 for line in evidence["table"].splitlines()}, {False}, "documents quote it")

    def test_a_limit_leaves_contenders_out(self):
        from heed import offload_arena

        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(offload_arena.main(["--device", "cpu", "--quick", "--tokens", "512", "--limit", "1e-9"]), 0)
        evidence = json.loads(printed.getvalue())
        self.assertEqual(evidence["limit_s"], 1e-9)
        for row in evidence["rows"]:
            self.assertEqual(row["contenders"], {})
            self.assertIn("--limit were over", row["refused"]["transformers_offloaded"])
            self.assertGreater(row["heed_us"], 0)

    def test_wrong_usage(self):
        from heed import offload_arena

        for wrong in (["--tokens", "3"], ["--layers", "0"], ["--limit", "0"], ["--granted", "9999", "--tokens", "512"]):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(offload_arena.main(wrong), 2)
            self.assertIn("must be" if wrong[0] in ("--layers", "--limit") else "a context has", said.getvalue())


if __name__ == "__main__":
    unittest.main()

"""heed.tune: from a model to kernels, by a search of a few trials on the CPU."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from attention_cases import require_programs, tensors


def setUpModule():
    require_programs()
    global heed, program, tuning
    import heed
    from heed import program, tuning

    try:
        program.path()
    except FileNotFoundError as error:
        raise unittest.SkipTest(str(error)) from error


class Tuning(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.book = self.folder / "book.heed"
        # The book is that of this test alone, and no later call may take its champions.
        environment = mock.patch.dict(os.environ)
        environment.start()
        self.addCleanup(lambda: tuning.operators.native.heed_torch_forget())
        self.addCleanup(environment.stop)
        self.extra = ["--db", str(self.folder / "a.db"), "--cache", str(self.folder / "cache"), "--population", "2"]
        self.extra += ["--no-peers", "--no-profile", "--measure-limit", "0.02"]

    def test_a_model_is_tuned(self):
        q, k, v = tensors((1, 2, 2, 48, 48, 32, 32), torch.float32, "cpu")
        short = [tensor[:, :, :16].contiguous() for tensor in (q, k, v)]
        mask = torch.rand(48, 48) > 0.2

        def model():
            for _ in range(3):
                F.scaled_dot_product_attention(q, k, v)
            F.scaled_dot_product_attention(*short)
            F.scaled_dot_product_attention(q, k, v, mask)
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

        heed.reset_report()
        with torch.inference_mode():
            tuned = heed.tune(model, trials=4, calls=self.folder / "calls.json", book=self.book, extra=self.extra, quiet=True)

        calls = {(workload, form): calls for workload, form, calls, _, _ in tuned.rows}
        long, small, masked = "b1h2l48d32:fp32", "b1h2l16d32:fp32", "b1h2l48d32:fp32:bias=bool/lk"
        self.assertEqual(calls, {(long, ""): 3, (small, ""): 1, (masked, ""): 1, (long, "dropout"): 1})
        self.assertTrue(all(before > 0 and after > 0 for _, _, _, before, after in tuned.rows))
        self.assertGreater(tuned.step_before, 0)
        self.assertGreater(tuned.step_after, 0)
        for words in (long, small, masked, "dropout", "whole step"):
            self.assertIn(words, str(tuned))

        rows = tuned.results["workloads"]
        self.assertEqual({(row["workload"], row["calls"]) for row in rows}, {(long, 3), (small, 1), (masked, 1), (long, 1)})
        self.assertEqual(sum(row["trials"] for row in rows), 4)
        run = [row for row in rows if "run" in row]
        self.assertTrue(run)
        for row in rows:
            self.assertNotEqual("run" in row, "skipped" in row, row)
        champions = [row for row in run if row["result"]["outcome"] == "faster"]
        self.assertEqual(self.book.is_file(), bool(champions))
        self.assertEqual(tuned.results["saved_s"] > 0, bool(champions))

        served = {row.workload for row in heed.report().rows if row.served}
        self.assertIn(long, served)
        self.assertIn(small, served)
        self.assertIn(masked, served)

        again = tuning.evolve(self.folder / "calls.json", trials=4, book=self.book, device="cpu", extra=self.extra, quiet=True)
        self.assertTrue(all(row["reused"] for row in again["workloads"] if "run" in row))

    def test_no_champion_makes_no_book(self):
        q, k, v = tensors((1, 2, 2, 48, 48, 32, 32), torch.float32, "cpu")
        heed.reset_report()
        with torch.inference_mode(), mock.patch.object(tuning, "evolve", return_value={"workloads": []}):
            heed.tune(lambda: F.scaled_dot_product_attention(q, k, v), book=self.book)
        self.assertGreater(heed.report().served, 0)
        self.assertEqual(heed.report().handed_back, 0, str(heed.report()))

    def test_a_model_without_attention(self):
        with self.assertRaisesRegex(RuntimeError, "makes no call that Heed has a kernel for"):
            heed.tune(lambda: torch.ones(2) + 1, trials=2, book=self.book, extra=self.extra)

    def test_ctrl_c_is_one_for_the_search_and_says_how_to_go_on(self):
        """Of a program in the place of heed that stores what it has when it is interrupted."""
        stand_in, stored = self.folder / "heed", self.folder / "stored"
        stand_in.write_text(f'#!/bin/sh\ntrap "sleep 0.5; echo stored >> {stored}; exit 130" INT\ntouch {self.folder}/began\nwhile :; do sleep 0.1; done\n')
        stand_in.chmod(0o755)
        script = (
            "import signal, torch, torch.nn.functional as F, heed\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "q = torch.randn(1, 2, 48, 32)\n"
            "heed.tune(lambda: F.scaled_dot_product_attention(q, q, q), quiet=True)\n"
        )
        environment = {**os.environ, "HEED_PROGRAM": str(stand_in), "TMPDIR": str(self.folder)}
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        while not (self.folder / "began").exists() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said = process.communicate()[1]
        self.assertEqual(stored.read_text() if stored.exists() else said, "stored\n")
        command = re.search("KeyboardInterrupt: interrupted; what had ended is kept, and this goes on: (.*)", said)
        self.assertIsNotNone(command, said)
        words = shlex.split(command[1])
        self.assertTrue(Path(words[words.index("--workloads") + 1]).is_file(), command[1])

    def test_a_search_ends_with_the_process_that_waits_for_it(self):
        stand_in, stored, began = self.folder / "heed", self.folder / "stored", self.folder / "began"
        stand_in.write_text(f'#!/bin/sh\ntrap "echo stored > {stored}; exit 130" TERM\ntouch {began}\nwhile :; do sleep 0.1; done\n')
        stand_in.chmod(0o755)
        script = f"from heed import tuning\ntuning.evolve({str(self.folder / 'calls.json')!r}, quiet=True)\n"
        for number in (signal.SIGHUP, signal.SIGKILL):  # of a terminal that is closed, to the process that it knows
            with self.subTest(number=number):
                stored.unlink(missing_ok=True)
                began.unlink(missing_ok=True)
                process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "HEED_PROGRAM": str(stand_in)}, start_new_session=True)
                while not began.exists() and process.poll() is None:
                    time.sleep(0.05)
                os.killpg(process.pid, number)
                process.wait()
                until = time.monotonic() + 20
                while not stored.exists() and time.monotonic() < until:
                    time.sleep(0.05)
                self.assertTrue(stored.exists(), "the search outlived its parent")

    def test_what_cannot_be_evolved_is_told(self):
        calls = self.folder / "calls.json"
        calls.write_text('{"schema": 1, "what": "calls", "rows": [{"workload": "banana", "form": "", "calls": 1}]}')
        with self.assertRaisesRegex(RuntimeError, "ended with 2.*banana"):
            tuning.evolve(calls, trials=2, book=self.book, device="cpu", extra=self.extra, quiet=True)
        with self.assertRaisesRegex(RuntimeError, 'ended with 2: .*--trials cannot be "x": a number is wanted'):
            tuning.evolve(calls, trials="x", book=self.book, device="cpu", extra=self.extra, quiet=True)


class Program(unittest.TestCase):
    def test_the_one_that_is_named_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            named = Path(folder) / "heed"
            with mock.patch.dict(os.environ, HEED_PROGRAM=str(named)):
                with self.assertRaisesRegex(FileNotFoundError, "HEED_PROGRAM is .*no program that can be run"):
                    program.path()
                named.write_text("#!/bin/sh\necho named\n")
                named.chmod(0o755)
                self.assertEqual(subprocess.run([program.path()], capture_output=True, text=True).stdout, "named\n")


if __name__ == "__main__":
    unittest.main()

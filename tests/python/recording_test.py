"""heed.record, and the program `python -m heed`."""

import json
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from pathlib import Path

import torch
import torch.nn.functional as F
from attention_cases import require_programs, tensors

SMALL = (2, 4, 4, 16, 16, 64, 64)


def setUpModule():
    require_programs()
    global heed
    import heed


class Recordings(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = tensors(SMALL, torch.float32, "cpu")

    def rows(self, recording):
        return {(row.workload, row.form): row.calls for row in recording.rows.values()}

    def test_what_is_called_is_told_and_computed(self):
        q, k, v = self.q, self.k, self.v
        mask, padding, numbers = torch.rand(16, 16) > 0.5, torch.rand(2, 1, 1, 16) > 0.2, torch.randn(2, 4, 16, 16)
        learned = q.clone().requires_grad_()
        calls = {
            ("b2h4l16d64:fp32", ""): lambda: F.scaled_dot_product_attention(q, k, v),
            ("b2h4l16d64:fp32:causal_top_left", ""): lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            ("b2h4l16d64:fp32:bias=bool/lk", ""): lambda: F.scaled_dot_product_attention(q, k, v, mask),
            ("b2h4l16d64:fp32:bias=bool/bk", ""): lambda: F.scaled_dot_product_attention(q, k, v, padding),
            ("b2h4l16d64:fp32:bias=fp32", ""): lambda: F.scaled_dot_product_attention(q, k, v, numbers),
            ("b2h4l16d64:fp32:bias=fp32/hlk", ""): lambda: F.scaled_dot_product_attention(q, k, v, numbers[:1].expand(2, 4, 16, 16)),
            ("b2h4l16d64:fp32:bias=bool/hlk", ""): lambda: F.scaled_dot_product_attention(learned, k, v, torch.stack([mask] * 4)),
            ("b1h4l16d64:fp32", ""): lambda: F.scaled_dot_product_attention(q[0], k[0], v[0]),
            ("b2h4hkv1l16d64:fp32", ""): lambda: F.scaled_dot_product_attention(q, k[:1, :1], v[:1, :1]),
            ("b2h4l16d64:fp32:scale=0.25", ""): lambda: F.scaled_dot_product_attention(q[None], k[None], v[None], scale=-0.25),
            ("", "5-dimensional"): lambda: F.scaled_dot_product_attention(q[None], k[None], v[None], scale=torch.inf),
            ("", ""): lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double()),
            ("b2h4l16d64:fp32:scale=0.5", ""): lambda: heed.scaled_dot_product_attention(q, k, v, scale=0.5),
            ("b2h4l16d64:fp32:causal_top_left:window=3", ""): lambda: heed.attention(q, k, v, causal=True, window=(3, None), alignment="top_left"),
        }
        for by in ("torch", "heed"):
            wanted = [call() for call in calls.values()]
            with heed.record(by=by) as recording:
                got = [call() for _ in range(2) for call in calls.values()]
            self.assertEqual(self.rows(recording), {key: 2 for key in calls})
            for one, two in zip(got, 2 * wanted):
                torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5, equal_nan=True)
            self.assertTrue(all(row.seconds > 0 for row in recording.rows.values()))
        with heed.record() as recording:
            pass
        calls["b2h4l16d64:fp32", ""]()
        self.assertEqual(self.rows(recording), {})

    def test_calls_with_features(self):
        q, k, v = (tensor.half() for tensor in tensors((2, 4, 2, 16, 32, 64, 64), torch.float32, "cpu"))
        padding, lengths = torch.rand(2, 1, 1, 32) > 0.2, torch.tensor([7, 32])
        rows, cu = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (q, k, v)), torch.tensor([0, 10, 32], dtype=torch.int32)
        pools, table = (torch.randn(4, 16, 2, 64).half() for _ in range(2)), torch.tensor([[0, 1], [2, 3]])
        with heed.record() as recording:
            heed.attention(q, k, v, softcap=5.0, sinks=torch.zeros(4))
            heed.attention(q, k, v, bias=padding, alibi_slopes=torch.zeros(4))
            heed.attention(q, k, v, key_lengths=lengths, causal=True, alignment="bottom_right")
            heed.attention(q, *pools, page_table=table, key_lengths=lengths)
            heed.attention_varlen(*rows, cu_seqlens_q=cu, cu_seqlens_k=2 * cu, max_len_q=22, max_len_k=44)
        shape = "b2h4hkv2l16k32d64:fp16"
        wanted = [shape + text for text in (":softcap=5:sinks", ":bias=bool/bk:alibi", ":causal_bottom_right:key_lengths", ":key_lengths:page=16")]
        self.assertEqual(list(self.rows(recording)), [(text, "") for text in (*wanted, "b2h4hkv2l22k44d64:fp16:blhd:ragged")])

    def test_calls_without_elements_are_no_workload(self):
        empty, k = torch.ones(1, 2, 0, 32), torch.ones(1, 2, 64, 32)
        with heed.record() as recording:
            F.scaled_dot_product_attention(empty, k, k)
            heed.attention(k, empty, empty)
        self.assertEqual([row.workload for row in recording.rows.values()], ["", ""])

    def test_the_fast_path_of_modules(self):
        tokens, hidden = torch.randn(2, 16, 64), torch.rand(2, 16) > 0.7
        hidden[:, 0] = False
        layer = torch.nn.TransformerEncoderLayer(64, 2, batch_first=True).eval()
        heads = torch.nn.MultiheadAttention(64, 2, batch_first=True).eval()
        calls = {
            ("b2h2l16d32:fp32", ""): lambda: (layer(tokens), heads(tokens, tokens, tokens, need_weights=False)[0]),
            ("b2h2l16d32:fp32:bias=bool/bk", ""): lambda: (heads(tokens, tokens, tokens, key_padding_mask=hidden, need_weights=False)[0],) * 2,
        }
        with torch.inference_mode():
            wanted = [call() for call in calls.values()]
            for by in ("torch", "heed"):
                with heed.record(by=by) as recording:
                    got = [call() for call in calls.values()]
                self.assertEqual(self.rows(recording), dict(zip(calls, (2, 1))))
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
            with heed.record() as recording:
                heads(tokens, tokens, tokens)  # weights are PyTorch's
            with heed.record() as afterwards:
                pass
            layer(tokens)
        self.assertEqual((self.rows(recording), self.rows(afterwards)), ({}, {}))

    def test_gradients_and_threads(self):
        q = self.q.clone().requires_grad_()
        with heed.record() as recording:
            thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(q, self.k, self.v).sum().backward())
            thread.start()
            thread.join()
        self.assertEqual(sum(self.rows(recording).values()), 1)
        self.assertIsNotNone(q.grad)

    def test_the_file_is_written_after_an_exception_too(self):
        with tempfile.TemporaryDirectory() as folder:
            for wrong, error in ((Path(folder) / "none" / "calls.json", FileNotFoundError), (folder, IsADirectoryError)):
                with self.assertRaises(error), heed.record(wrong):
                    self.fail("the model ran, and its calls could not be kept")
            path = Path(folder) / "calls.json"
            with self.assertRaises(ZeroDivisionError), heed.record(path, tensors=True):
                F.scaled_dot_product_attention(self.q, self.k, self.v)
                raise ZeroDivisionError
            content = json.loads(path.read_text())
            self.assertEqual((content["schema"], content["what"], content["device"]), (1, "calls", "cpu"))
            (row,) = content["rows"]
            self.assertEqual((row["workload"], row["calls"]), ("b2h4l16d64:fp32", 1))
            from safetensors.torch import load_file

            torch.testing.assert_close(load_file(path.with_name(row["tensors"]))["k"], self.k)

    def test_one_at_a_time(self):
        with heed.record():
            with self.assertRaisesRegex(RuntimeError, "another recording"), heed.record():
                pass
        with heed.sdpa(), self.assertRaisesRegex(RuntimeError, "within heed.sdpa"), heed.record():
            pass
        with self.assertRaisesRegex(ValueError, 'must be "torch" or "heed"'), heed.record(by="numpy"):
            pass


class Program(unittest.TestCase):
    def run_module(self, *arguments):
        return subprocess.run([sys.executable, "-m", "heed", *arguments], capture_output=True, text=True, timeout=120)

    def test_what_is_there(self):
        done = self.run_module("--json", "--shape", "b1h8l512d64:fp32")
        found = json.loads(done.stdout)
        self.assertEqual(found["version"], heed.__version__)
        self.assertTrue(found["libraries"] and found["programs"] and found["torch"])
        self.assertTrue(found["served"][0]["runs"].startswith("fwd_cpu:"))
        self.assertIn("fwd_cpu", self.run_module().stdout)

    def test_programs_that_cannot_be_read_are_missing(self):
        import os
        from heed import __main__ as module

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "wrong.programs"
            path.write_text("no programs")
            with unittest.mock.patch.dict(os.environ, {"HEED_PROGRAMS": str(path)}):
                found = module.facts(["b1h8l512d64:fp32", "b1h8l256d64:fp32"])
        self.assertEqual([sentence for sentence in found["missing"] if "nothing is served" in sentence],
                         [f"nothing is served: {path} holds no programs; make it anew with heed programs build or heed book add, or take another copy of it"])

    def test_an_empty_name_is_no_book(self):
        import os
        from heed import __main__ as module

        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "heed").mkdir()
            (Path(folder) / "heed" / "book.heed").write_text("")
            with unittest.mock.patch.dict(os.environ, {"HEED_BOOK": "", "XDG_DATA_HOME": folder}):
                self.assertEqual(module.facts([])["book"], "")
            with unittest.mock.patch.dict(os.environ, {"XDG_DATA_HOME": folder}):
                os.environ.pop("HEED_BOOK", None)
                self.assertTrue(module.facts([])["book"].startswith(folder))

    def test_a_wrong_workload(self):
        done = self.run_module("--shape", "b1h8")
        self.assertEqual(done.returncode, 2)
        self.assertIn("b1h8", done.stderr)

    def test_importing_takes_neither_torch_nor_time(self):
        script = "import sys, heed; assert 'torch' not in sys.modules and 'ctypes' not in sys.modules; heed.attention; assert 'torch' in sys.modules"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_libraries_that_are_missing(self):
        import os

        script = "import heed\ntry: heed.attention\nexcept ImportError as error: print(error)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env={**os.environ, "HEED_LIBRARIES": "/nowhere"})
        self.assertIn("libheed_torch.so is not in /nowhere", done.stdout)

    def test_two_copies_in_one_process(self):
        import os
        import shutil

        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(Path(heed.__file__).parent, Path(folder) / "heed", ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
            script = f"""
import sys, torch, heed
heed.attention
for name in [name for name in sys.modules if name.split('.')[0] == 'heed']: del sys.modules[name]
sys.path.insert(0, {folder!r})
import heed
try: heed.attention
except ImportError as error: print(error)
"""
            environment = {**os.environ, "HEED_LIBRARIES": os.environ.get("HEED_LIBRARIES") or str(Path(heed.__file__).parents[2] / "build" / "release")}
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment)
            self.assertIn("another copy of Heed", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()

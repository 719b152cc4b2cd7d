"""Calls with features of the arena: tensors, reference and contenders, on a CPU."""

import os
import tempfile
import unittest
from dataclasses import replace

from heed import feature_suites


def small(**rest):
    """A call that a CPU computes at once."""
    return feature_suites.Call(2, 4, 2, 200, 200, 32, "bf16", **rest)


KINDS = {
    "causal": small(mask="causal_top_left"),
    "window": small(mask="causal_top_left", left=50),
    "softcap": small(mask="causal_top_left", softcap=20.0),
    "sinks": small(sinks=True),
    "alibi": small(mask="causal_top_left", alibi=True),
    "boolean mask": small(bias="bool/bk"),
    "bias": small(bias="bf16/hlk"),
    "lengths": small(key_lengths="uniform"),
    "prefix": small(mask="causal_top_left", prefix=70),
    "ragged": replace(small(mask="causal_top_left", ragged=(200, 31)), len_q=200, len_k=200),
    "pages": replace(small(mask="causal_bottom_right", key_lengths="uniform", page=16), len_q=3),
    "all changes of scores": small(mask="causal_top_left", softcap=20.0, sinks=True, alibi=True, bias="bf16/hlk"),
    "blocks by head": small(blocks="density0.5"),
    "Longformer": replace(small(blocks="window_global"), len_q=1300, len_k=1300),
    "BigBird": replace(small(blocks="bigbird"), len_q=1300, len_k=1300),
}


BUILT = ("window", "all changes of scores", "lengths", "prefix", "ragged", "pages", "blocks by head")  # a compiler takes seconds for each


class Data(unittest.TestCase):
    def test_every_suite_has_calls_with_names_of_their_own(self):
        for suite in feature_suites.suites().values():
            names = [call.name for call in suite.workloads]
            self.assertEqual(len(set(names)), len(names), suite.name)

    def test_bytes_of_ragged_rows_are_those_that_there_are(self):
        ragged = KINDS["ragged"]
        self.assertEqual(ragged.set_bytes, 231 * (4 + 2) * 2 * 32 * 2)
        self.assertEqual(KINDS["causal"].set_bytes, 2 * 200 * (4 + 2) * 2 * 32 * 2)


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch

        from heed import feature_calls, feature_contenders, launch

        cls.torch, cls.calls, cls.contenders = torch, feature_calls, feature_contenders
        cls.folder = tempfile.TemporaryDirectory()
        texts = [KINDS[kind].text for kind in BUILT] + [str(KINDS["window"].dense())]
        built = launch.build(os.environ["HEED_BINARY"], [(text, "auto") for text in texts], cls.folder.name, "cpu")
        cls.binaries = dict(zip(texts, built["builds"]))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def tensors(self, call):
        t = self.calls.CallTensors(call, "cpu", 3)
        q, k, v = t.new_set(self.torch.Generator().manual_seed(1))
        return t, (q, k, v)

    def test_heed_passes(self):
        for kind in BUILT:
            with self.subTest(kind), self.torch.no_grad():
                t, (q, k, v) = self.tensors(KINDS[kind])
                error = self.calls.Reference(t, q, k, v, 1).judge(self.contenders.Heed(self.binaries).prepare(t)(q, k, v))
                self.assertTrue(error["pass"], error)
        with self.assertRaises(self.contenders.Refused):
            self.contenders.Heed(self.binaries).prepare(self.tensors(small(bias="fp16/bk"))[0])

    def test_sdpa_passes_where_it_has_the_features(self):
        for kind, call in KINDS.items():
            with self.subTest(kind), self.torch.no_grad():
                t, (q, k, v) = self.tensors(call)
                reference = self.calls.Reference(t, q, k, v, 1)
                try:
                    run = self.contenders.SdpaMask("MATH").prepare(t)
                except self.contenders.Refused:
                    self.assertTrue(call.softcap or call.sinks or call.ragged or call.page)
                    continue
                with run.context():
                    error = reference.judge(run(q, k, v))
                self.assertTrue(error["pass"], error)

    def test_what_ignores_a_feature_fails(self):
        for kind, call in KINDS.items():
            plain = call.dense()
            if call.ragged or call.page or call.text == str(plain):
                continue
            with self.subTest(kind), self.torch.no_grad():
                t, (q, k, v) = self.tensors(call)
                reference = self.calls.Reference(t, q, k, v, 1)
                o = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=plain.masked, enable_gqa=True)
                self.assertFalse(reference.judge(o)["pass"])

    def test_scores_are_counted(self):
        for kind, expected in {"causal": 2 * 4 * 200 * 201 // 2, "window": 2 * 4 * (51 * 52 // 2 + 149 * 51), "ragged": 4 * (200 * 201 + 31 * 32) // 2, "alibi": 2 * 4 * 200 * 201 // 2}.items():
            with self.subTest(kind):
                self.assertEqual(self.tensors(KINDS[kind])[0].seen(), expected)

    def test_a_dense_call_beside_one_is_of_equal_sizes(self):
        t, (q, k, v) = self.tensors(KINDS["window"])
        run = self.contenders.HeedDense(self.binaries).prepare(t)
        self.assertEqual(run(q, k, v).shape, q.shape)
        self.assertTrue(run.other_result)
        with self.assertRaises(self.contenders.Refused):
            self.contenders.HeedDense(self.binaries).prepare(self.tensors(KINDS["ragged"])[0])


if __name__ == "__main__":
    unittest.main()

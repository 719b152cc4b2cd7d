"""Calls with features of the arena: tensors, reference and contenders, on a CPU."""

import os
import tempfile
import unittest
import unittest.mock
import warnings
from dataclasses import replace

from heed import arena, feature_suites


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
    "dropout": small(mask="causal_top_left", dropout=0.2),
    "all changes of scores": small(mask="causal_top_left", softcap=20.0, sinks=True, alibi=True, bias="bf16/hlk"),
    "blocks by head": small(blocks="density0.5"),
    "Longformer": replace(small(blocks="window_global"), len_q=1300, len_k=1300),
    "BigBird": replace(small(blocks="bigbird"), len_q=1300, len_k=1300),
}


BUILT = ("window", "dropout", "all changes of scores", "lengths", "prefix", "ragged", "pages", "blocks by head")  # a compiler takes seconds for each


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
                # What PyTorch's other kernels drop is not what Heed drops.
                self.assertEqual((error["pass"], getattr(run, "other_result", False)), (not call.dropout, bool(call.dropout)), error)

    def test_flex_attention_passes(self):
        """Its functions and lists, without its compiler."""
        from heed import flex_contender

        kinds = KINDS | {"pages and changes of scores": replace(KINDS["pages"], softcap=20.0, alibi=True)}
        with unittest.mock.patch.object(self.torch, "compile", lambda function, **options: function), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of running without its compiler
            for kind, call in kinds.items():
                with self.subTest(kind), self.torch.no_grad():
                    t, (q, k, v) = self.tensors(call)
                    if call.dropout:
                        self.assertRaisesRegex(self.contenders.Refused, "no dropout", flex_contender.Flex().prepare, t)
                        continue
                    error = self.calls.Reference(t, q, k, v, 1).judge(flex_contender.Flex().prepare(t)(q, k, v))
                    self.assertTrue(error["pass"], error)
            for page in (1, 48):
                with self.subTest(page=page), self.assertRaisesRegex(self.contenders.Refused, "power of two"):
                    flex_contender.Flex().prepare(self.tensors(replace(KINDS["pages"], page=page))[0])

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


class FakeFlashInfer:
    """What flashinfer's wrappers are documented to compute, of rows (rows, heads, dim), unfused and in float64: masks at the bottom right."""

    def __init__(self, torch):
        class Wrapper:
            def __init__(self, workspace, *layout, use_tensor_cores=False):
                assert workspace.dtype == torch.uint8 and layout in ((), ("NHD",))

            def attend(self, q, k, v, seen=None):
                group = q.shape[1] // k.shape[1]
                q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
                scores = torch.einsum("qhd,khd->hqk", q, k) * self.named["sm_scale"]
                if cap := self.named["logits_soft_cap"]:
                    scores = cap * torch.tanh(scores / cap)
                own = torch.arange(len(q))[:, None] + len(k) - len(q)
                shown = torch.ones(len(q), len(k), dtype=torch.bool) if seen is None else seen
                shown = shown & ~(self.named.get("causal", False) & (torch.arange(len(k)) > own))
                if (left := self.named.get("window_left", -1)) >= 0:
                    shown = shown & (torch.arange(len(k)) >= own - left)
                return torch.einsum("hqk,khd->qhd", scores.masked_fill(~shown, -torch.inf).softmax(-1), v).to(self.named["q_data_type"])

            def of_pages(self, q, pools, begins, numbers, last):
                for b, rows in enumerate(q):
                    own = numbers[begins[b] : begins[b + 1]].long()
                    end = (len(own) - 1) * self.page + int(last[b])
                    yield self.attend(rows, *(pool[own].flatten(0, 1)[:end] for pool in pools))

        class Ragged(Wrapper):
            def plan(self, q_begins, k_begins, heads, heads_kv, dim, **named):
                self.begins, self.named = (q_begins, k_begins), named

            def run(self, q, k, v):
                q, k, v = (x.tensor_split(begins[1:-1].long()) for x, begins in zip((q, k, v), (*self.begins, self.begins[1])))
                return torch.cat([self.attend(*one) for one in zip(q, k, v)])

        class Decode(Wrapper):
            def plan(self, *places, **named):
                *self.places, _, _, _, self.page = places
                self.named = named

            def run(self, q, pools):
                return torch.cat(list(self.of_pages(q[:, None], pools, *self.places)))

        class Paged(Wrapper):
            def plan(self, q_begins, *places, **named):
                *self.places, _, _, _, self.page = places
                self.begins, self.named = q_begins, named

            def run(self, q, pools):
                return torch.cat(list(self.of_pages(q.tensor_split(self.begins[1:-1].long()), pools, *self.places)))

        class Blocks(Wrapper):
            def plan(self, indptr, indices, rows, keys, block_rows, block_keys, heads, heads_kv, dim, **named):
                listed = torch.zeros(rows // block_rows, keys // block_keys, dtype=torch.bool)
                for row in range(len(listed)):
                    listed[row, indices[indptr[row] : indptr[row + 1]].long()] = True
                self.seen, self.named = listed.repeat_interleave(block_rows, 0).repeat_interleave(block_keys, 1), named

            def run(self, q, k, v):
                return self.attend(q, k, v, self.seen)

        class BlocksByHead(Wrapper):
            def plan(self, listed, rows, keys, heads, heads_kv, dim, **named):
                assert listed.shape == (heads_kv, rows.shape[1], keys.shape[1]) and len(rows) == len(keys) == heads_kv
                self.seen = [one.repeat_interleave(rows[h], 0).repeat_interleave(keys[h], 1) for h, one in enumerate(listed)]
                self.named = named

            def run(self, q, k, v):
                return torch.stack([self.attend(q[h, :, None], k[h, :, None], v[h, :, None], seen)[:, 0] for h, seen in enumerate(self.seen)])

        self.VariableBlockSparseAttentionWrapper = BlocksByHead
        self.BatchPrefillWithRaggedKVCacheWrapper, self.BatchDecodeWithPagedKVCacheWrapper = Ragged, Decode
        self.BatchPrefillWithPagedKVCacheWrapper, self.BlockSparseAttentionWrapper = Paged, Blocks


class FlashInfer(unittest.TestCase):
    """What the arena gives FlashInfer is the call that it measures."""

    SERVED = {
        **{kind: KINDS[kind] for kind in ("window", "softcap", "ragged", "pages")},
        "grouped heads": small(),
        "a token from pages": replace(small(key_lengths="uniform", page=64), len_q=1),
        "blocks": replace(small(blocks="window_global"), batch=1, len_q=1280, len_k=1280),
        "blocks by head": replace(small(blocks="density0.5"), batch=1, heads_kv=4, len_q=640, len_k=1280),
    }

    def judge(self, call, module):
        import torch

        from heed import feature_calls, flashinfer_contender

        t = feature_calls.CallTensors(call, "cpu", 3)
        q, k, v = t.new_set(torch.Generator().manual_seed(1))
        with unittest.mock.patch.dict("sys.modules", {"flashinfer": module}):
            run = flashinfer_contender.FlashInfer().prepare(t)
        return feature_calls.Reference(t, q, k, v, 1).judge(run(q, k, v))

    def test_calls(self):
        import torch

        for kind, call in self.SERVED.items():
            with self.subTest(kind):
                error = self.judge(call, FakeFlashInfer(torch))
                self.assertTrue(error["pass"], error)

    def test_what_it_is_not_given(self):
        import torch

        from heed.contenders import Refused

        fake = FakeFlashInfer(torch)
        for kind, words in (("sinks", "no sinks"), ("bias", "no bias"), ("alibi", "no alibi"), ("prefix", "no prefix"), ("lengths", "of pages"), ("blocks by head", "of one entry"), ("BigBird", "of one entry")):
            with self.subTest(kind), self.assertRaisesRegex(Refused, words):
                self.judge(KINDS[kind], fake)
        with self.assertRaisesRegex(Refused, "head of keys"):
            self.judge(replace(KINDS["blocks by head"], batch=1), fake)
        with self.assertRaisesRegex(Refused, "whole blocks"):
            self.judge(replace(KINDS["Longformer"], batch=1), fake)
        with self.assertRaisesRegex(Refused, "bottom right"):
            self.judge(replace(KINDS["causal"], len_k=300), fake)
        with self.assertRaisesRegex(Refused, "cannot be imported"):
            self.judge(small(), None)


class PeersOfCalls(unittest.TestCase):
    def test_all_take_part_unless_some_are_named(self):
        all_there_are = [unittest.mock.Mock() for _ in range(3)]
        for contender, name in zip(all_there_are, ("heed_dense", "sdpa_cudnn", "torch_varlen")):
            contender.name = name
        self.assertEqual(arena.peers_of_calls(all_there_are, None), all_there_are)
        self.assertEqual(arena.peers_of_calls(all_there_are, ("sdpa_cudnn",)), all_there_are[:2])


if __name__ == "__main__":
    unittest.main()

"""heed.HostKV and the cache of Transformers over it, on a simulated GPU: results are those of all keys at once."""

import copy
import os
import pickle
import signal
import unittest

import torch
from attention_cases import DEVICES, require_programs

HEADS, HEADS_KV, DIM = 4, 2, 32


def setUpModule():
    require_programs()
    global heed
    import heed


def pool(device="cpu", **given):
    options = {"heads": HEADS, "heads_kv": HEADS_KV, "dim": DIM, "host_tokens": 512, "device_tokens": 64, "page_size": 16, "dtype": torch.float16, "chunk_pages": 2}
    rates = {"link_rate": 1e9, "host_rate": 2e9, "device_rate": 1e10, "device_flops": 1e11}
    return heed.HostKV(device=device, **{**options, **rates, **given})


class Calls:
    """New tensors of steps, and attention over all of those so far."""

    def __init__(self, device, dtype, batch=1, dim=DIM):
        self.generator = torch.Generator().manual_seed(5)
        self.device, self.dtype, self.batch, self.dim = device, dtype, batch, dim
        self.keys, self.values = [], []

    def draw(self, heads, length, length_outer=False):
        shape = (self.batch, length, heads, self.dim) if length_outer else (self.batch, heads, length, self.dim)
        x = torch.randn(shape, generator=self.generator).to(self.device, self.dtype)
        return x.transpose(1, 2) if length_outer else x

    def step(self, rows, new_keys, length_outer=False):
        q, k, v = self.draw(HEADS, rows, length_outer), self.draw(HEADS_KV, new_keys, length_outer), self.draw(HEADS_KV, new_keys, length_outer)
        self.keys.append(k)
        self.values.append(v)
        return q, k, v

    def wanted(self, q, causal=True, left=None, softcap=0, sinks=None):
        k, v = torch.cat(self.keys, 2).double().repeat_interleave(HEADS // HEADS_KV, 1), torch.cat(self.values, 2).double().repeat_interleave(HEADS // HEADS_KV, 1)
        scores = q.double() @ k.transpose(-1, -2) / self.dim**0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        own = torch.arange(q.shape[2], device=q.device).view(-1, 1) + k.shape[2] - q.shape[2]
        j = torch.arange(k.shape[2], device=q.device)
        hidden = (j > own) & causal
        if left is not None:
            hidden = hidden | (j < own - left)
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
        lse = torch.logsumexp(scores, -1)
        return (torch.softmax(scores, -1)[..., : k.shape[2]] @ v), lse


class Attention(unittest.TestCase):
    def close(self, got, wanted, dtype=torch.float16):
        torch.testing.assert_close(got.double(), wanted, atol=2e-3 if dtype == torch.float16 else 2e-2, rtol=1e-2)

    def test_prefill_and_decoding(self):
        for device in DEVICES:
            for dtype in (torch.float16, torch.bfloat16):
                for layout in ("HND", "NHD"):
                    for length_outer in (False, True):
                        kv = pool(device, dtype=dtype, page_layout=layout, batch=2)
                        calls = Calls(device, dtype, batch=2)
                        for rows in (150, 1, 1, 5, 40, 1):
                            q, k, v = calls.step(rows, rows, length_outer)
                            o, lse = heed.attention(q, k, v, kv=kv, causal=True, return_lse=True)
                            wanted, wanted_lse = calls.wanted(q)
                            self.close(o, wanted, dtype)
                            self.close(lse, wanted_lse, dtype)
                            self.assertEqual(o.stride(), q.stride())
                        self.assertEqual(kv.length(), 198)
                        self.assertGreater(kv.info()["remote_pages"], 0)

    def test_masks_and_scores(self):
        for device in DEVICES:
            sinks = torch.randn(HEADS, generator=torch.Generator().manual_seed(3)).to(device)
            for given, wanted in (
                ({}, {"causal": False}),
                ({"causal": True, "window": (30, 0)}, {"left": 30}),
                ({"causal": True, "window": (30, None), "softcap": 5.0, "sinks": sinks}, {"left": 30, "softcap": 5, "sinks": sinks}),
                ({"causal": True, "alignment": "bottom_right", "sinks": sinks}, {"sinks": sinks}),
            ):
                kv, calls = pool(device), Calls(device, torch.float16)
                for rows in (200, 1, 30):
                    q, k, v = calls.step(rows, rows)
                    self.close(heed.attention(q, k, v, kv=kv, **given), calls.wanted(q, **wanted)[0])
                q = calls.draw(HEADS, 3)
                self.close(heed.attention(q, None, None, kv=kv, **given), calls.wanted(q, **wanted)[0])

    def test_scales_of_zero_and_less_and_negated_views(self):
        q, k, v = Calls("cpu", torch.float16).step(20, 20)
        sinks = torch.randn(HEADS)
        for scale in (0.0, 0, -0.5, 0.3):
            with self.subTest(scale=scale):
                self.close(heed.attention(q, k, v, kv=pool(), causal=True, scale=scale), heed.attention(q, k, v, causal=True, scale=scale).double())
        for name in ("q", "k", "v", "sinks"):
            with self.subTest(negated=name):
                tensors = {"q": q, "k": k, "v": v, "sinks": sinks}
                views, negated = ({**tensors, name: change(tensors[name])} for change in (torch._neg_view, torch.neg))
                got = heed.attention(views["q"], views["k"], views["v"], kv=pool(), causal=True, sinks=views["sinks"])
                self.close(got, heed.attention(negated["q"], negated["k"], negated["v"], causal=True, sinks=negated["sinks"]).double())

    def test_tensors_of_any_strides(self):
        q, k, v = Calls("cpu", torch.float16).step(20, 40)
        one = torch.tensor(0.5).half()  # expanded, it has strides of 0
        spread = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
        for query, key, value in ((q, one.expand_as(k), one.expand_as(v)), (one.expand_as(q), k, v), (q, k[:, :1].expand_as(k), v), spread):
            for rows in (20, 1):
                dense = [x.contiguous() for x in (query[:, :, -rows:], key, value)]
                got = heed.attention(query[:, :, -rows:], key, value, kv=pool(), causal=True)
                self.assertTrue(torch.equal(got, heed.attention(*dense, kv=pool(), causal=True)))

    def test_a_deep_copy_has_the_same_keys_and_goes_on_alone(self):
        for given in ({}, {"page_layout": "NHD"}, {"layers": 2, "batch": 2, "page_size": 8, "device_tokens": 0}):
            with self.subTest(**given):
                kv, calls = pool(host_tokens=4096, **given), Calls("cpu", torch.float16, batch=given.get("batch", 1))
                for index in range(kv.layers):
                    heed.attention(*calls.step(200, 1200 - index), kv=kv.layer(index), causal=True)
                other = copy.deepcopy(kv)
                for index in range(kv.layers):
                    q, k, v = calls.step(2, 2)
                    o = heed.attention(q, k, v, kv=other.layer(index), causal=True)
                    self.assertEqual((kv.length(index), other.length(index)), (1200 - index, 1202 - index))
                    self.close(o, heed.attention(q, k, v, kv=kv.layer(index), causal=True).double())
                del kv
                self.assertTrue(heed.attention(*calls.step(2, 2), kv=other, causal=True).isfinite().all())
        with self.assertRaisesRegex(TypeError, "copy.deepcopy makes another one"):
            copy.copy(other)
        with self.assertRaisesRegex(TypeError, "neither pickled nor shared"):
            pickle.dumps(other)

    def test_layers_and_clear(self):
        kv = pool(layers=3)
        calls = [Calls("cpu", torch.float16) for _ in range(3)]
        for rows in (100, 1):
            for layer, one in enumerate(calls):
                q, k, v = one.step(rows, rows)
                self.close(heed.attention(q, k, v, kv=kv.layer(layer), causal=True), one.wanted(q)[0])
        self.assertEqual([kv.length(layer) for layer in range(3)], [101] * 3)
        self.assertEqual(kv.layer(1).length(), 101)
        kv.clear()
        self.assertEqual(kv.length(2), 0)
        self.assertEqual(kv.info()["host_pages_free"], 32)
        with self.assertRaisesRegex(IndexError, "no layer 3"):
            kv.layer(3)

    @unittest.skipUnless(torch.cuda.is_available(), "there is no GPU")
    def test_a_step_in_a_cuda_graph(self):
        calls = Calls("cuda", torch.float16)
        kv = pool("cuda")
        q, k, v = calls.step(1, 300)
        heed.attention(q, k, v, kv=kv, causal=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, lse = kv.attend(q, None, None, return_lse=True)
        with self.assertRaisesRegex(ValueError, "cannot have new keys: a graph"):
            kv.attend(q, k, v)
        for _ in range(3):
            q.copy_(calls.draw(HEADS, 1))
            graph.replay()
            wanted, wanted_lse = calls.wanted(q)
            self.close(o, wanted)
            torch.testing.assert_close(lse.double(), wanted_lse, atol=2e-3, rtol=1e-3)
        graph.reset()
        q, k, v = calls.step(1, 1)
        self.close(kv.attend(q, k, v), calls.wanted(q)[0])

    def test_a_child_of_fork_has_no_pool(self):
        kv, calls = pool(), Calls("cpu", torch.float16)
        heed.attention(*calls.step(3, 3), kv=kv, causal=True)
        given = calls.step(1, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends one that waits for threads of its parent
            try:
                heed.attention(*given, kv=kv, causal=True)
            except ValueError as error:
                del kv
                os._exit(0 if "process that this one was forked from" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.close(heed.attention(*given, kv=kv, causal=True), calls.wanted(given[0])[0])

    def test_explain(self):
        kv, calls = pool(streamed_share=0.5), Calls("cpu", torch.float16)
        heed.attention(*calls.step(200, 200), kv=kv, causal=True)
        text = kv.explain()
        for words in ("4 pages on the device, 9 in host memory: 50% of these over the link, as the config says", "given", "the link is hidden from 50 query rows"):
            self.assertIn(words, text)

    def test_refusals(self):
        kv, calls = pool(), Calls("cpu", torch.float16)
        q, k, v = calls.step(20, 20)
        for error, words, given in (
            (NotImplementedError, "there is no bias", {"bias": torch.zeros(20, 20)}),
            (NotImplementedError, "there is no dropout_p", {"dropout_p": 0.5}),
            (ValueError, "alignment must be", {"causal": True, "alignment": "top_left"}),
            (ValueError, "rows see no keys after their own", {"window": (3, 4)}),
            (ValueError, "the scale is nan; it must be finite", {"scale": float("nan")}),
            (TypeError, "the scale is 'a'; it must be a number", {"scale": "a"}),
            (TypeError, "sinks must be a Tensor, not list", {"sinks": [0.0] * HEADS}),
            (ValueError, "sinks is of torch.int32", {"sinks": torch.zeros(HEADS, dtype=torch.int32)}),
            (TypeError, "window is 5; it must be \\(left, right\\)", {"causal": True, "window": 5}),
            (ValueError, "window is \\('1', 0\\); both numbers", {"causal": True, "window": ("1", 0)}),
            (NotImplementedError, "there is no out_norm_eps", {"out_norm_eps": 1e-5}),
            (NotImplementedError, "there is no dropout_seed", {"dropout_seed": 5}),
            (NotImplementedError, "there is no dropout_offset", {"dropout_offset": 5}),
            (NotImplementedError, "there is no page_layout", {"page_layout": "HND"}),
            (NotImplementedError, "no gradients", {"sinks": torch.zeros(HEADS, requires_grad=True)}),
            (ValueError, "scale=1e\\+300 cannot be used", {"scale": 1e300}),
        ):
            with self.assertRaisesRegex(error, words):
                heed.attention(q, k, v, kv=kv, **given)
        for error, words, tensors in (
            (ValueError, "key is \\(1, 4, 20, 32\\); it must be \\(1, 2, length, 32\\)", (q, q, v)),
            (ValueError, "query is torch.float32 on cpu; these pages are of torch.float16", (q.float(), k, v)),
            (ValueError, "come together", (q, k, None)),
            (TypeError, "query must be a Tensor", (3, k, v)),
        ):
            with self.assertRaisesRegex(error, words):
                heed.attention(*tensors, kv=kv)
        with self.assertRaisesRegex(NotImplementedError, "query is a tensor of torch.vmap, whose entries share one pool"):
            torch.vmap(lambda q, k, v: heed.attention(q, k, v, kv=kv))(*(tensor[None] for tensor in (q, k, v)))
        with self.assertRaisesRegex(TypeError, "kv must be a heed.HostKV"):
            heed.attention(q, k, v, kv=5)
        with self.assertRaisesRegex(NotImplementedError, "no gradients"):
            heed.attention(q.clone().requires_grad_(), k, v, kv=kv)
        # ctypes would take 2^32 for 0, and 2^64 + 3 for 3.
        for error, words, given in (
            (ValueError, "layer is 4294967296; it must be 0 to 0", {"layer": 1 << 32}),
            (TypeError, "layer is 0.5; it must be a whole number", {"layer": 0.5}),
            (ValueError, "window_left is 18446744073709551619; it must be -1 to 2147483647", {"window_left": (1 << 64) + 3}),
            (ValueError, "window_left is -2", {"window_left": -2}),
        ):
            with self.assertRaisesRegex(error, words):
                kv.attend(q, k, v, **given)
        with self.assertRaisesRegex(ValueError, "layer is 4294967296"):
            kv.length(1 << 32)
        self.assertEqual((kv.length(), kv.info()["host_pages_free"]), (0, 32))
        with self.assertRaisesRegex(MemoryError, "the pool is full"):
            heed.attention(*calls.step(600, 600), kv=kv)
        for error, words, given in (
            (ValueError, "host_tokens is 0", {"host_tokens": 0}),
            (ValueError, "page_size is 12", {"page_size": 12}),
            (ValueError, "page_layout is 'x'", {"page_layout": "x"}),
            (ValueError, "dtype is torch.int8", {"dtype": torch.int8}),
            (ValueError, "no pools for a meta device", {"device": "meta"}),
            (TypeError, "unknown argument speed", {"speed": 3.0}),
            (MemoryError, "the host's part of a page pool", {"host_tokens": 1 << 30, "layers": 4096, "page_size": 1 << 12}),
        ):
            with self.assertRaisesRegex(error, words):
                pool(**given)


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from transformers_models import require_transformers

        require_transformers()
        import heed.transformers  # noqa: F401

    @torch.no_grad()
    def generated(self, model, tokens, cache, **arguments):
        from transformers_models import named_cache

        return model.generate(tokens, **named_cache(cache), do_sample=False, **{"max_new_tokens": 40, **arguments})

    def test_tokens_are_those_of_a_dynamic_cache(self):
        from heed.transformers_cache import HostCache
        from transformers import DynamicCache
        from transformers_models import VOCABULARY, made

        for name in ("llama", "mistral", "gemma2", "qwen2"):
            model = made(name)
            model.set_attn_implementation("heed")
            tokens = torch.randint(1, VOCABULARY, (2, 60), generator=torch.Generator().manual_seed(2))
            for arguments in ({}, {"prefill_chunk_size": 24}):
                with self.subTest(model=name, **arguments):
                    wanted = self.generated(model, tokens, DynamicCache(config=model.config), **arguments)
                    # 100 tokens of 2 sequences, a quarter of them on the device.
                    cache = HostCache(model.config, host_tokens=256, device_tokens=48, sink_tokens=8, page_size=8, chunk_pages=2, link_latency=1e-5, **RATES)
                    got = self.generated(model, tokens, cache, **arguments)
                    self.assertTrue(torch.equal(got, wanted), f"{got.tolist()} instead of {wanted.tolist()}")
                    self.assertEqual(cache.get_seq_length(), 99)
                    info = cache.kv.info()
                    self.assertGreaterEqual(info["remote_pages"], 3 * 6)
                    self.assertGreater(info["bytes_in"], 0)

    def test_copies_of_the_cache_of_a_prompt_go_on_alone(self):
        from heed.transformers_cache import HostCache
        from transformers import DynamicCache
        from transformers_models import VOCABULARY, made, named_cache

        model = made("llama")
        model.set_attn_implementation("heed")
        tokens = torch.randint(1, VOCABULARY, (3, 1, 40), generator=torch.Generator().manual_seed(3))
        cache = HostCache(model.config, host_tokens=256, device_tokens=48, page_size=8, **RATES)
        with torch.no_grad():
            model(tokens[0], **named_cache(cache), use_cache=True)
        for more in tokens[1:]:
            whole = torch.cat((tokens[0], more), 1)
            wanted = self.generated(model, whole, DynamicCache(config=model.config), max_new_tokens=10)
            self.assertTrue(torch.equal(self.generated(model, whole, copy.deepcopy(cache), max_new_tokens=10), wanted))
        self.assertEqual(cache.get_seq_length(), 40)

    def test_what_it_cannot_do_is_said(self):
        from heed.transformers_cache import HostCache
        from transformers_models import VOCABULARY, made

        model = made("llama")
        model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(ValueError, 'attends by "sdpa"'):
            HostCache(model.config, host_tokens=64)
        model.set_attn_implementation("heed")
        tokens = torch.randint(1, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(2))

        def cache():
            return HostCache(model.config, host_tokens=64, page_size=8, **RATES)

        with self.assertRaisesRegex(NotImplementedError, "without padding"):
            mask = torch.ones_like(tokens)
            mask[0, :3] = 0
            self.generated(model, tokens, cache(), attention_mask=mask, max_new_tokens=2)
        with self.assertRaisesRegex(NotImplementedError, "beams"):
            self.generated(model, tokens, cache(), num_beams=2, max_new_tokens=2)
        one = cache()
        keys = torch.zeros(2, 2, 3, 32)
        one.update(keys, keys, 0)
        with self.assertRaisesRegex(RuntimeError, "attended without its keys"):
            one.update(keys, keys, 1)
        full = cache()
        with self.assertRaisesRegex(MemoryError, "the pool is full"):
            self.generated(model, tokens, full, max_new_tokens=40)
        # Not that the model attends by another implementation.
        with self.assertRaisesRegex(MemoryError, "the pool is full"):
            self.generated(model, torch.cat([tokens] * 3, 1), full, max_new_tokens=40)
        full.reset()
        self.assertEqual(full.get_seq_length(), 0)


RATES = {"link_rate": 1e9, "host_rate": 2e9, "device_rate": 1e10, "device_flops": 1e11}

if __name__ == "__main__":
    unittest.main()

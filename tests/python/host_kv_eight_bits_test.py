"""heed.HostKV with pages of 8 bits, on a simulated GPU: results are those over the numbers that pages hold."""

import unittest

import torch
from attention_cases import require_programs

HEADS, HEADS_KV, DIM = 4, 2, 32
K_SCALE, V_SCALE = (0.02, 0.006), (0.011, 0.03)
FP8 = torch.float8_e4m3fn
RATES = {"link_rate": 1e9, "host_rate": 2e9, "device_rate": 1e10, "device_flops": 1e11}


def setUpModule():
    require_programs()
    global heed
    import heed


def pool(**given):
    options = {"heads": HEADS, "heads_kv": HEADS_KV, "dim": DIM, "host_tokens": 512, "device_tokens": 64, "page_size": 16, "chunk_pages": 2, "dtype": torch.float32}
    scales = {"kv_dtype": "fp8_e4m3", "k_scale": K_SCALE, "v_scale": V_SCALE}
    return heed.HostKV(**{**options, **scales, **RATES, **given})


def quantised(x, scale):
    """Elements of e4m3, and the numbers that they are. torch's conversion makes NaN of what is beyond 448."""
    factors = torch.tensor(scale).view(-1, 1, 1) if not isinstance(scale, float) else scale
    elements = (x.float() / factors).clamp(-448, 448).to(FP8)
    return elements, elements.double() * factors


def attention(q, keys, values, left=None):
    """O and the log-sum-exp in float64, causal, aligned to the bottom right."""
    k, v = (torch.cat(all_of, 2).repeat_interleave(HEADS // HEADS_KV, 1) for all_of in (keys, values))
    scores = q.double() @ k.transpose(-1, -2) / DIM**0.5
    own = torch.arange(q.shape[2]).view(-1, 1) + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2])
    hidden = j > own if left is None else (j > own) | (j < own - left)
    scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


class Attention(unittest.TestCase):
    def test_prefill_and_decoding(self):
        generator = torch.Generator().manual_seed(5)
        for layout in ("HND", "NHD"):
            kv, keys, values = pool(page_layout=layout, batch=2), [], []
            for step, rows in enumerate((150, 1, 1, 5, 40, 1)):
                q, k, v = (3 * torch.randn(2, heads, rows, DIM, generator=generator) for heads in (HEADS, HEADS_KV, HEADS_KV))
                (k8, k_numbers), (v8, v_numbers) = quantised(k, K_SCALE), quantised(v, V_SCALE)
                keys.append(k_numbers)
                values.append(v_numbers)
                given = (k8, v8) if step % 2 else (k, v)
                left = 30 if rows == 5 else None
                o, lse = heed.attention(q, *given, kv=kv, causal=True, window=left and (left, 0), return_lse=True)
                wanted, wanted_lse = attention(q, keys, values, left)
                torch.testing.assert_close(o.double(), wanted, atol=6e-5, rtol=2e-5)
                torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-4, rtol=1e-5)
            self.assertGreater(kv.info()["remote_pages"], 0)

    def test_tensors_of_any_strides(self):
        q, k, v = (torch.randn(1, heads, 40, DIM, generator=torch.Generator().manual_seed(6)) for heads in (HEADS, HEADS_KV, HEADS_KV))
        for rows in (40, 1):
            wanted = heed.attention(q[:, :, -rows:], k, v, kv=pool(), causal=True)
            columns = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
            self.assertTrue(torch.equal(heed.attention(columns[0][:, :, -rows:], *columns[1:], kv=pool(), causal=True), wanted))

    def test_a_byte_an_element(self):
        sizes = {}
        for kv_dtype in (None, "fp8_e4m3"):
            kv = pool(streamed_share=1.0, **({} if kv_dtype else {"kv_dtype": None, "k_scale": None, "v_scale": None}))
            tensors = [torch.randn(1, heads, 200, DIM) for heads in (HEADS, HEADS_KV, HEADS_KV)]
            heed.attention(*tensors, kv=kv, causal=True)
            before = kv.info()["bytes_in"]
            heed.attention(tensors[0][:, :, :1], None, None, kv=kv)
            sizes[kv_dtype] = (kv.info()["bytes_in"] - before, kv.info()["host_bytes"])
        self.assertEqual(sizes[None][0], 4 * sizes["fp8_e4m3"][0])
        self.assertEqual(sizes[None][1], 4 * sizes["fp8_e4m3"][1])
        self.assertIn("in e4m3 a page and layer", kv.explain())

    def test_factors_of_layers(self):
        kv = pool(layers=2, k_scale=torch.tensor([K_SCALE, V_SCALE]), v_scale=0.05)
        generator = torch.Generator().manual_seed(6)
        for layer, k_scale in enumerate((K_SCALE, V_SCALE)):
            q, k, v = (torch.randn(1, heads, 70, DIM, generator=generator) for heads in (HEADS, HEADS_KV, HEADS_KV))
            wanted, _ = attention(q, [quantised(k, k_scale)[1]], [quantised(v, 0.05)[1]])
            torch.testing.assert_close(heed.attention(q, k, v, kv=kv.layer(layer), causal=True).double(), wanted, atol=5e-5, rtol=2e-5)

    def test_refusals(self):
        for error, words, given in (
            (ValueError, "kv_dtype is 'fp4'; it must be 'fp8_e4m3', 'fp8_e5m2', 'int8', or None", {"kv_dtype": "fp4"}),
            (ValueError, "k_scale is given, and pages are not of 8 bits", {"kv_dtype": None}),
            (ValueError, "k_scale is \\(3,\\); it must be one factor, \\(2,\\) of the heads of keys, or \\(1, 2\\)", {"k_scale": [1, 2, 3]}),
            (TypeError, "v_scale is 'large'; it must be a number", {"v_scale": "large"}),
            (ValueError, "k_scales\\[0\\] is 0; a scale factor must be positive and finite", {"k_scale": 0.0}),
            (ValueError, "v_scales\\[1\\] is -1; a scale factor must be positive", {"v_scale": [1, -1]}),
            (ValueError, "k_scales\\[0\\] is nan", {"k_scale": float("nan")}),
            (ValueError, "v_scales\\[0\\] is inf", {"v_scale": float("inf")}),
            (ValueError, "elements of HEED_INT8 are whole numbers", {"kv_dtype": "int8", "k_scale": None}),
            (NotImplementedError, "int8", {"kv_dtype": "int8"}),  # the file has programs for pages of e4m3
        ):
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                pool(**given)
        kv = pool()
        q, k = torch.zeros(1, HEADS, 1, DIM), torch.zeros(1, HEADS_KV, 1, DIM)
        for words, tensors in (
            ("key is torch.int8 on cpu; these pages are of torch.float32 or torch.float8_e4m3fn", (q, k.to(torch.int8), k)),
            ("key is torch.float32 and value torch.float8_e4m3fn; quantise both, or none", (q, k, k.to(FP8))),
            ("query is torch.float8_e4m3fn on cpu; these pages are of torch.float32", (q.to(FP8), k, k)),
        ):
            with self.assertRaisesRegex(ValueError, words):
                heed.attention(*tensors, kv=kv)
        self.assertEqual(kv.length(), 0)


class Generation(unittest.TestCase):
    @torch.no_grad()
    def test_a_model_generates_past_its_memory(self):
        from transformers_models import VOCABULARY, made, named_cache, require_transformers

        require_transformers()
        import heed.transformers  # noqa: F401
        from heed.transformers_cache import HostCache
        from transformers import DynamicCache

        model = made("llama")
        model.set_attn_implementation("heed")
        tokens = torch.randint(1, VOCABULARY, (1, 60), generator=torch.Generator().manual_seed(2))
        options = {"host_tokens": 128, "device_tokens": 32, "page_size": 8, "chunk_pages": 2}
        cache = HostCache(model.config, kv_dtype="fp8_e4m3", k_scale=0.01, v_scale=0.01, **options, **RATES)
        logits = model(tokens, **named_cache(cache)).logits
        wanted = model(tokens, **named_cache(DynamicCache(config=model.config))).logits
        # Keys and values of 4 digits: some percent.
        self.assertLess((logits - wanted).norm() / wanted.norm(), 0.1)
        self.assertEqual(cache.kv.kv_dtype, "fp8_e4m3")
        generated = model.generate(
            tokens,
            **named_cache(HostCache(model.config, kv_dtype="fp8_e4m3", k_scale=0.01, v_scale=0.01, **options, **RATES)),
            do_sample=False,
            max_new_tokens=20,
        )
        self.assertEqual(generated.shape[1], 80)


if __name__ == "__main__":
    unittest.main()

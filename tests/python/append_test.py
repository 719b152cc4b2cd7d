"""heed.append_kv: what attention over the cache gives, caches of 8 bits, torch.compile, and what is refused."""

import itertools
import math
import unittest

import torch
from attention_cases import DEVICES, require_programs

HEADS, ROOM = 2, 40


def setUpModule():
    require_programs()
    global heed, operators
    import heed
    from heed import operators


def drawn(*sizes, dtype=torch.float32, device="cpu", seed=1):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


class Cache:
    """Three entries, in pages of a pool whose order is drawn, or in one tensor, filled with NaN."""

    def __init__(self, page_size=8, layout="NHD", dtype=torch.float32, dim=64, dim_v=64, device="cpu"):
        self.page_size, self.layout = page_size, layout
        if page_size == 0:
            self.k, self.v = (torch.full((3, HEADS, ROOM, size), math.nan, device=device).to(dtype) for size in (dim, dim_v))
            self.named = {}
            return
        pages = 3 * -(-ROOM // page_size)
        sizes = (pages, page_size, HEADS) if layout == "NHD" else (pages, HEADS, page_size)
        self.k, self.v = (torch.full((*sizes, size), math.nan, device=device).to(dtype) for size in (dim, dim_v))
        table = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).reshape(3, -1).to(device, torch.int32)
        self.named = {"page_table": table, "page_layout": layout}


class Append(unittest.TestCase):
    def test_attention_over_the_cache_is_that_over_all_keys(self):
        for device, dtype, page_size, layout in itertools.product(DEVICES, (torch.float32, torch.float16), (0, 1, 8, 16), ("NHD", "HND")):
            if page_size == 0 and layout == "HND":
                continue
            with self.subTest(device=device, dtype=dtype, page_size=page_size, layout=layout), torch.no_grad():
                k, v, q = (drawn(3, heads, 20, 64, dtype=dtype, device=device, seed=seed) for seed, heads in ((1, HEADS), (2, HEADS), (3, 2 * HEADS)))
                cache = Cache(page_size, layout, dtype, device=device)
                lengths = torch.zeros(3, dtype=torch.int64, device=device)
                for rows in (slice(0, 13), slice(13, 19), slice(19, 20)):
                    lengths = heed.append_kv(k[:, :, rows], v[:, :, rows], cache.k, cache.v, lengths, **cache.named)
                self.assertEqual((lengths.dtype, lengths.tolist()), (torch.int32, [20, 20, 20]))
                given = {"key_lengths": lengths, "causal": True, "alignment": "bottom_right"}
                o = heed.attention(q[:, :, -3:], cache.k.nan_to_num(0), cache.v.nan_to_num(0), **given, **cache.named)
                wanted = heed.attention(q[:, :, -3:], k, v, causal=True, alignment="bottom_right")
                torch.testing.assert_close(o, wanted, atol=2e-3 if dtype == torch.float16 else 1e-5, rtol=1e-3)

    def test_entries_may_get_numbers_of_their_own(self):
        for device in DEVICES:
            k, v = drawn(9, HEADS, 64, device=device), drawn(9, HEADS, 32, device=device, seed=2)
            starts = torch.tensor([0, 4, 4, 9], device=device)
            for after in (False, True):
                cache = Cache(dim_v=32, device=device)
                lengths = torch.tensor([3, 30, 7], device=device)
                given = lengths + torch.tensor([4, 0, 5], device=device) if after else lengths
                found = heed.append_kv(k, v, cache.k, cache.v, given, cu_seqlens=starts, lengths_are_after=after, **cache.named)
                self.assertEqual(found.tolist(), [7, 30, 12])
                table = cache.named["page_table"].long()
                for entry, first, count, begin in ((0, 3, 4, 0), (2, 7, 5, 4)):
                    for i in range(count):
                        page, row = table[entry, (first + i) // 8], (first + i) % 8
                        torch.testing.assert_close(cache.k[page, row], k[begin + i])
                        torch.testing.assert_close(cache.v[page, row], v[begin + i])
                self.assertEqual(int(cache.k.isnan().sum()), cache.k.numel() - k.numel())

    def test_new_keys_of_any_strides(self):
        for device in DEVICES:
            for page_size in (0, 8):
                one = torch.tensor(0.5, device=device)
                k = drawn(3, HEADS, 9, 64, device=device)
                starts = torch.tensor([0, 4, 4, 9], device=device)
                for new in (one.expand(3, HEADS, 9, 64), k[:, :1].expand_as(k), k.transpose(1, 3).contiguous().transpose(1, 3)):
                    caches = []
                    for key in (new, new.contiguous()):
                        cache = Cache(page_size, device=device)
                        heed.append_kv(key, key, cache.k, cache.v, torch.tensor([3, 30, 7], device=device), **cache.named)
                        caches.append((cache.k.nan_to_num(9), cache.v.nan_to_num(9)))
                    for strided, dense in zip(*caches):
                        self.assertTrue(torch.equal(strided, dense))
                cache = Cache(page_size, device=device)
                heed.append_kv(*[one.expand(9, HEADS, 64)] * 2, cache.k, cache.v, torch.tensor([3, 30, 7], device=device), cu_seqlens=starts, **cache.named)
                self.assertEqual(int((cache.k == 0.5).sum()), 9 * HEADS * 64)
                self.assertEqual(int(cache.k.isnan().sum()), cache.k.numel() - 9 * HEADS * 64)

    def test_keys_and_values_in_one_tensor(self):
        k, v = drawn(3, HEADS, 9, 64), drawn(3, HEADS, 9, 64, seed=2)
        table = Cache(8).named["page_table"]
        both = torch.full((15, 2, 8, HEADS, 64), math.nan)
        separate = Cache(8)
        for k_cache, v_cache in ((both[:, 0], both[:, 1]), (separate.k, separate.v)):
            heed.append_kv(k, v, k_cache, v_cache, torch.tensor([3, 30, 7]), page_table=table)
        self.assertTrue(torch.equal(both[:, 0].nan_to_num(9), separate.k.nan_to_num(9)))
        self.assertTrue(torch.equal(both[:, 1].nan_to_num(9), separate.v.nan_to_num(9)))

    def test_caches_of_8_bits(self):
        k, v = drawn(3, HEADS, 5, 64), drawn(3, HEADS, 5, 64, seed=2)
        k_scale = torch.tensor([0.01, 0.02])
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
            cache = Cache(0)
            of_k = torch.zeros(3, HEADS, ROOM, 64).to(dtype)
            of_v = of_k.clone()
            v_scale = torch.full((3, HEADS, ROOM), math.nan)
            lengths = heed.append_kv(k, v, of_k, of_v, torch.tensor([0, 9, 35]), k_scale=k_scale, v_scale=v_scale)
            self.assertEqual(lengths.tolist(), [5, 14, 40])
            cache = heed.quantise(k, dtype, k_scale[:, None, None])
            self.assertTrue(torch.equal(of_k[1, :, 9:14].float(), cache[1].float()))
            largest = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}[dtype]
            found = v_scale[1, :, 9:14]
            torch.testing.assert_close(found, v[1].abs().amax(-1) / largest)
            torch.testing.assert_close(of_v[1, :, 9:14].float() * found[..., None], v[1], atol=0.3, rtol=0.13)
            self.assertEqual(int(v_scale.isnan().sum()), v_scale.numel() - 3 * HEADS * 5)

    def test_operator_and_traces(self):
        k, v = drawn(3, HEADS, 2, 64), drawn(3, HEADS, 2, 64, seed=2)
        cache = Cache()
        lengths = torch.tensor([3, 30, 7], dtype=torch.int32)
        table = cache.named["page_table"]
        for pools in ((cache.k.transpose(1, 2), cache.v.transpose(1, 2), table), (Cache(0).k, Cache(0).v, None)):
            torch.library.opcheck(operators.append_kv, (k, v, pools[0].nan_to_num(0), pools[1].nan_to_num(0), lengths, pools[2]))

        def step(k, v, k_cache, v_cache, lengths, table):
            after = heed.append_kv(k * 2, v, k_cache, v_cache, lengths, page_table=table)
            return heed.attention(k * 2, k_cache, v_cache, page_table=table, key_lengths=after), after

        results = []
        for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
            one = Cache()
            k_cache, v_cache = one.k.nan_to_num(0), one.v.nan_to_num(0)
            with torch.no_grad():
                results.append((*run(k, v, k_cache, v_cache, lengths, table), k_cache, v_cache))
        for eager, compiled in zip(*results):
            torch.testing.assert_close(compiled, eager)

    def test_an_append_is_a_change_in_place(self):
        k, v = drawn(3, HEADS, 2, 64), drawn(3, HEADS, 2, 64, seed=2)
        for page_size in (0, 8):
            cache = Cache(page_size)
            cache.k.nan_to_num_(0), cache.v.nan_to_num_(0)
            q = drawn(3, HEADS, 1, 64).requires_grad_()
            lengths = torch.full((3,), 5)
            o = heed.attention(q, cache.k, cache.v, key_lengths=lengths, **cache.named)
            heed.append_kv(k, v, cache.k, cache.v, torch.zeros(3, dtype=torch.int64), **cache.named)
            with self.subTest(page_size=page_size), self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                o.sum().backward()

    def test_factors_of_rows_are_changed_in_place_and_others_are_not(self):
        k, v = drawn(3, HEADS, 2, 64), drawn(3, HEADS, 2, 64, seed=2)
        caches = [torch.zeros(3, HEADS, ROOM, 64, dtype=torch.int8) for _ in "kv"]
        of_rows, of_all = torch.ones(3, HEADS, ROOM), torch.ones(HEADS)
        before = of_rows._version, of_all._version
        heed.append_kv(k, v, *caches, torch.zeros(3, dtype=torch.int64), k_scale=of_rows, v_scale=of_all)
        self.assertEqual((of_rows._version > before[0], of_all._version), (True, before[1]))

    def test_tensors_of_inference_mode(self):
        with torch.inference_mode():
            cache, rows = Cache(0), drawn(3, HEADS, 2, 64)
            self.assertEqual(heed.append_kv(rows, rows, cache.k, cache.v, torch.zeros(3, dtype=torch.int64)).tolist(), [2, 2, 2])

    def test_meta_tensors_have_sizes(self):
        cache = Cache()
        tensors = (drawn(3, HEADS, 2, 64), drawn(3, HEADS, 2, 64), cache.k, cache.v, torch.tensor([3, 30, 7]))
        made = heed.append_kv(*(tensor.to("meta") for tensor in tensors), page_table=cache.named["page_table"].to("meta"))
        self.assertEqual((tuple(made.shape), made.dtype, made.device.type), ((3,), torch.int32, "meta"))

    def test_what_cannot_be_is_refused(self):
        k, v, lengths = drawn(3, HEADS, 2, 64), drawn(3, HEADS, 2, 64), torch.tensor([3, 30, 7])
        one, paged = Cache(0), Cache()

        def call(key=k, value=v, key_cache=one.k, value_cache=one.v, lengths=lengths, **named):
            return lambda: heed.append_kv(key, value, key_cache, value_cache, lengths, **named)

        def of_pages(**named):
            return call(**{"key_cache": paged.k, "value_cache": paged.v, **paged.named, **named})

        table = paged.named["page_table"]
        for words, error, run in (
            ("key must be a Tensor", TypeError, call(key=[1])),
            ("key has 3 dimensions; it must have 4", ValueError, call(key=k[0])),
            ("key and value must have one dtype", ValueError, call(value=v.half())),
            ("key_cache is of torch.float16; it must be of torch.float32", ValueError, call(key_cache=one.k.half())),
            ("beside key_cache", ValueError, call(key=k[..., :32])),
            ("beside key_cache", ValueError, call(key=k[:, :1])),
            ("value is", ValueError, call(value=v[:, :, :1])),
            ("with 2 lengths it must be", ValueError, call(lengths=lengths[:2])),
            ("may differ in its last dimension alone", ValueError, call(value_cache=one.v[:, :, :9])),
            ("lengths is of torch.float32", ValueError, call(lengths=lengths.float())),
            ("they must be on one device", ValueError, call(lengths=lengths.to("meta"))),
            ("page_layout is 'NDH'", ValueError, of_pages(page_layout="NDH")),
            ("it must be (3, pages of an entry)", ValueError, of_pages(page_table=table[:2])),
            ("max_len is of calls with cu_seqlens", ValueError, call(max_len=3)),
            ("it must be (4,)", ValueError, call(key=k[0].transpose(0, 1), value=v[0].transpose(0, 1), cu_seqlens=torch.tensor([0, 2]))),
            ("max_len is 3; with 2 new rows", ValueError, call(key=k[0].transpose(0, 1), value=v[0].transpose(0, 1), cu_seqlens=torch.tensor([0, 1, 1, 2]), max_len=3)),
            ("k_scale is given, and key_cache is of torch.float32", ValueError, call(k_scale=1.0)),
            ("which is nothing without scale factors; give k_scale", ValueError, call(key_cache=one.k.to(torch.int8))),
            ("factors of rows are written, and must be", ValueError, call(key_cache=one.k.to(torch.int8), k_scale=torch.ones(3, HEADS, ROOM, dtype=torch.float64))),
            ("an append has no gradient", NotImplementedError, call(key=k.clone().requires_grad_())),
            ("k overlaps v; what is written must lie apart", RuntimeError, call(value_cache=one.k)),
            ("k overlaps new_k", RuntimeError, call(key=one.k[:, :, :2])),
            ("cannot take a cache whose elements share one place", RuntimeError, call(value_cache=torch.zeros(()).expand_as(one.v))),
            ("so that its 3 entries would be written over one another", RuntimeError, call(value_cache=one.v[:1].expand_as(one.v))),
            ("the length of entry 1 is -1", RuntimeError, call(lengths=torch.tensor([3, -1, 7]))),
            ("entry 2 has 39 keys, and 2 new ones; its cache has room for 40", RuntimeError, call(lengths=torch.tensor([3, 1, 39]))),
            ("the pool has the pages 0 to 14", RuntimeError, of_pages(page_table=table + 1)),
            ("it must be 2 or more", RuntimeError, call(key=k[0].transpose(0, 1), value=v[0].transpose(0, 1), cu_seqlens=torch.tensor([0, 2, 1, 2]))),
        ):
            with self.subTest(words):
                before = one.k.clone(), paged.k.clone()
                with self.assertRaises(error) as raised:
                    run()
                self.assertIn(words, str(raised.exception))
                for now, then in zip((one.k, paged.k), before):
                    self.assertTrue(torch.equal(now.nan_to_num(9), then.nan_to_num(9)))


@unittest.skipUnless(torch.cuda.is_available(), "it needs a GPU")
class OnAGpu(unittest.TestCase):
    def test_what_does_not_fit_is_left_out(self):
        k, v = drawn(3, HEADS, 2, 64, device="cuda"), drawn(3, HEADS, 2, 64, device="cuda", seed=2)
        cache = Cache(device="cuda")
        guard = cache.k.clone()
        table = cache.named["page_table"].clone()
        table[1] = 1 << 20
        lengths = heed.append_kv(k, v, cache.k, cache.v, torch.tensor([39, 5, -7], device="cuda"), page_table=table)
        self.assertEqual(lengths.tolist(), [40, 7, 2])
        self.assertEqual(int((~cache.k.isnan()).sum()), 3 * HEADS * 64)
        self.assertTrue(guard.isnan().all())
        before = cache.k.clone()
        lengths = heed.append_kv(k[0].transpose(0, 1), v[0].transpose(0, 1), cache.k, cache.v, torch.tensor([1, 2, 3], device="cuda"), page_table=table, cu_seqlens=torch.tensor([0, 2, 1, 2], device="cuda"))
        self.assertEqual(lengths.tolist(), [1, 2, 3])
        self.assertTrue(torch.equal(before.nan_to_num(9), cache.k.nan_to_num(9)))

    def test_a_decode_step_in_a_graph(self):
        cache = Cache(dtype=torch.float16, device="cuda")
        cache.k.zero_(), cache.v.zero_()
        k, v = (drawn(3, HEADS, 1, 64, dtype=torch.float16, device="cuda", seed=seed) for seed in (1, 2))
        lengths = torch.tensor([5, 0, 17], dtype=torch.int32, device="cuda")

        def step():
            after = heed.append_kv(k, v, cache.k, cache.v, lengths, **cache.named)
            return heed.attention(k, cache.k, cache.v, key_lengths=after, **cache.named), after

        with torch.no_grad():
            wanted, _ = step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o, after = step()
            cache.k.zero_(), cache.v.zero_()
            graph.replay()
            torch.testing.assert_close(o, wanted)
            self.assertEqual(after.tolist(), [6, 1, 18])


if __name__ == "__main__":
    unittest.main()

"""Tensors of 8 bits with scale factors: heed.attention over caches that hold keys and values so, heed.quantise, and what is refused."""

import itertools
import os
import unittest
from unittest import mock

import torch
from attention_cases import require_programs, tensors

E4M3 = torch.float8_e4m3fn
PAGE = 16


def setUpModule():
    require_programs()
    global heed
    import heed
    import heed.quantised


def exact(q, k, v, lengths=None, causal=False):
    """Attention in double precision, masks aligned to each entry's last key."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    for entry, length in enumerate([k.shape[2]] * q.shape[0] if lengths is None else lengths.tolist()):
        hidden = (keys >= length) | (causal & (keys > rows + length - q.shape[2]))
        scores[entry].masked_fill_(hidden, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ v


def relative(o, wanted):
    return ((o.double() - wanted).square().mean() / wanted.square().mean()).sqrt().item()


class Cache:
    """Keys and values in 8 bits, dense and in pages of 16 that lie in any order."""

    def __init__(self, batch=2, heads_kv=2, length=48, dim=64, dtype=E4M3):
        generator = torch.Generator().manual_seed(7)
        k, v = (torch.randn(batch, heads_kv, length, dim, generator=generator) for _ in range(2))
        self.k_scale, self.v_scale = torch.rand(batch, heads_kv, generator=generator) / 50 + 0.02, 0.03
        self.k, self.v = heed.quantise(k, dtype, self.k_scale[:, :, None, None]), heed.quantise(v, dtype, self.v_scale)
        self.table = torch.randperm(batch * length // PAGE, generator=generator).reshape(batch, -1)
        self.k_pages, self.v_pages = (self.paged(x) for x in (self.k, self.v))

    def paged(self, x):
        """(pages, page_size, heads_kv, columns)"""
        batch, heads, length, columns = x.shape
        pool = torch.empty(self.table.numel(), PAGE, heads, columns, dtype=x.dtype)
        pool[self.table.flatten()] = x.reshape(batch, heads, -1, PAGE, columns).permute(0, 2, 3, 1, 4).flatten(0, 1)
        return pool

    def values(self):
        return self.k.double() * self.k_scale[:, :, None, None], self.v.double() * self.v_scale


class Caches(unittest.TestCase):
    def setUp(self):
        heed.reset_report()
        self.cache = Cache()
        self.lengths = torch.tensor([48, 21])

    def test_pages_of_8_bits_are_served(self):
        one = self.cache
        for rows, dtype in ((1, torch.bfloat16), (1, torch.float32), (5, torch.float32)):
            q = torch.randn(2, 4, rows, 64).to(dtype)
            wanted = exact(q, *one.values(), self.lengths, causal=True)
            named = {"page_table": one.table, "key_lengths": self.lengths, "causal": True, "alignment": "bottom_right", "k_scale": one.k_scale, "v_scale": one.v_scale}
            with self.subTest(rows=rows, dtype=dtype):
                o, lse = heed.attention(q, one.k_pages, one.v_pages, **named, return_lse=True)
                self.assertEqual((o.dtype, lse.shape), (dtype, (2, 4, rows)))
                # P is rounded to e4m3 beside V in it.
                self.assertLess(relative(o, wanted), 0.05)
                heads_first = (x.transpose(1, 2).contiguous() for x in (one.k_pages, one.v_pages))
                torch.testing.assert_close(heed.attention(q, *heads_first, page_layout="HND", **named), o, atol=0, rtol=0)
                flat = q.transpose(1, 2).flatten(0, 1)
                ragged = heed.attention_varlen(flat, one.k_pages, one.v_pages, cu_seqlens_q=torch.tensor([0, rows, 2 * rows]), max_len_q=rows, max_len_k=48, **named)
                torch.testing.assert_close(ragged.unflatten(0, (2, rows)).transpose(1, 2), o)
        row = next(row for row in heed.report().rows if row.served)
        self.assertIn("quantised=k/e4m3/head+v/e4m3/tensor", row.workload)
        self.assertIn("page=16", row.workload)

    def test_every_granularity(self):
        one = self.cache
        q = torch.randn(2, 4, 3, 64)
        of_k = {"all": torch.tensor(0.04), "heads": torch.rand(2) + 0.5, "entries": torch.rand(2, 2) + 0.5, "tokens": torch.rand(2, 2, 48) + 0.5, "blocks": torch.rand(2, 2, 3) + 0.5}
        of_v = {**of_k, "columns": torch.rand(2, 2, 1, 64) + 0.5, "columns of heads": torch.rand(1, 2, 1, 64) + 0.5}

        def four(x, rows):
            x = {0: lambda: x.reshape(1, 1, 1, 1), 1: lambda: x[None, :, None, None], 2: lambda: x[:, :, None, None], 3: lambda: x.repeat_interleave(rows, 2)[..., None], 4: lambda: x}[x.dim()]()
            return x.double()

        for (k_name, k_scale), (v_name, v_scale) in itertools.product(of_k.items(), of_v.items()):
            rows = {name: 16 if name == "blocks" else 1 for name in (k_name, v_name)}
            with self.subTest(k=k_name, v=v_name):
                o = heed.attention(q, one.k, one.v, k_scale=k_scale, v_scale=v_scale, scale_rows=(1, rows[k_name], rows[v_name]), scale=0.02)
                values = one.k.double() * four(k_scale, rows[k_name]) * 8 * 0.02, one.v.double() * four(v_scale, rows[v_name])
                self.assertLess(relative(o, exact(q, *values)), 0.05)

    def test_factors_of_rows_of_pages(self):
        one = self.cache
        q = torch.randn(2, 4, 3, 64)
        dense = torch.rand(2, 2, 48) / 10 + 0.02
        of_pages = one.paged(dense[..., None])[..., 0].transpose(1, 2).contiguous()  # (pages, heads_kv, page_size)
        o = heed.attention(q, one.k_pages, one.v_pages, page_table=one.table, k_scale=of_pages, v_scale=0.03)
        torch.testing.assert_close(o, heed.attention(q, one.k, one.v, k_scale=dense, v_scale=0.03))

    def test_queries_of_8_bits(self):
        q, k, v = tensors((2, 4, 2, 70, 150, 64, 64), torch.float32, "cpu")
        eight = [heed.quantise(x, E4M3, 0.01) for x in (q, k, v)]
        for out in (torch.float32, torch.bfloat16):
            o = heed.attention(*eight, q_scale=0.01, k_scale=0.01, v_scale=0.01, out_dtype=out, window=(60, 4), alignment="bottom_right")
            wanted = heed.attention(*eight, q_scale=torch.full((2, 4), 0.01), k_scale=torch.full((2,), 0.01), v_scale=0.01, out_dtype=out, window=(60, 4), alignment="bottom_right")
            self.assertEqual(o.dtype, out)
            torch.testing.assert_close(o, wanted, atol=0, rtol=0)
        o = heed.attention(*eight, q_scale=0.01, k_scale=0.01, v_scale=0.01, out_dtype=torch.float32)
        self.assertLess(relative(o, exact(*(x.double() * 0.01 for x in eight))), 0.05)

    def test_explain_and_traces(self):
        one = self.cache
        q = torch.randn(2, 4, 3, 64)
        named = {"k_scale": one.k_scale, "v_scale": one.v_scale}
        self.assertIn("quantised=k/e4m3/head+v/e4m3/tensor", heed.explain(q, one.k, one.v, **named))
        compiled = torch.compile(lambda q, k, v: heed.attention(q, k, v, **named), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q, one.k, one.v), heed.attention(q, one.k, one.v, **named), atol=0, rtol=0)
        factors = one.k_scale[:, :, None, None], torch.full((1, 1, 1, 1), 0.03)
        # Without its check of the schema, which multiplies elements of 8 bits.
        checks = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
        torch.library.opcheck(torch.ops.heed.forward_scaled.default, (q, one.k, one.v), {"k_scale": factors[0], "v_scale": factors[1]}, test_utils=checks)
        eight = heed.quantise(q, E4M3, 0.01)
        fake = torch.compile(lambda q, k, v: heed.attention(q, k, v, q_scale=0.01, **named, out_dtype=torch.bfloat16) * 2, fullgraph=True, backend="aot_eager")
        self.assertEqual(fake(eight, one.k, one.v).dtype, torch.bfloat16)

    def test_precision_refuses_pages_and_names_the_way(self):
        one = self.cache
        q = torch.randn(2, 4, 1, 64)
        with self.assertRaisesRegex(NotImplementedError, "keys in pages are a cache that outlives it; quantise the pages as they are written.* k_scale= and v_scale= of heed.attention"):
            heed.attention(q, one.k_pages.float(), one.v_pages.float(), page_table=one.table, dropout_p=0.1, precision="fp8_smooth")

    def test_what_is_refused(self):
        one = self.cache
        q, k, v = torch.randn(2, 4, 3, 64), one.k, one.v
        scales = {"k_scale": 0.02, "v_scale": 0.02}
        for error, words, call in [
            (ValueError, "key is of torch.float8_e4m3fn, which is nothing without scale factors; give k_scale", lambda: heed.attention(q, k, v, v_scale=0.1)),
            (ValueError, "q_scale is given, and query is of torch.float32; leave it out", lambda: heed.attention(q, k, v, q_scale=0.1, **scales)),
            (ValueError, "k_scale is given, and key is of torch.float32; scale factors are of tensors of 8 bits", lambda: heed.attention(q, k.float(), v.float(), k_scale=0.1)),
            (ValueError, "scale_rows is of calls whose tensors have 8 bits", lambda: heed.attention(q, k.float(), v.float(), scale_rows=4)),
            (ValueError, r"k_scale is \(3,\); it must be a number for all, \(2,\) by heads", lambda: heed.attention(q, k, v, k_scale=torch.ones(3), v_scale=0.1)),
            (ValueError, r"k_scale is \(2, 2, 1, 64\)", lambda: heed.attention(q, k, v, k_scale=torch.ones(2, 2, 1, 64), v_scale=0.1)),
            (ValueError, r"v_scale is \(2, 2, 48, 64\)", lambda: heed.attention(q, k, v, k_scale=0.1, v_scale=torch.ones(2, 2, 48, 64))),
            (ValueError, r"k_scale is \(2, 2, 48\)", lambda: heed.attention(q, k, v, k_scale=torch.ones(2, 2, 48), v_scale=0.1, scale_rows=16)),
            (TypeError, "k_scale is of torch.complex64; scale factors are real", lambda: heed.attention(q, k, v, k_scale=torch.tensor([0.1 + 1j, 0.1]), v_scale=0.1)),
            (ValueError, "scale_rows is 1.5; it must be how many rows share a factor, one number or three", lambda: heed.attention(q, k, v, scale_rows=1.5, **scales)),
            (ValueError, "scale_rows is 0", lambda: heed.attention(q, k, v, scale_rows=0, **scales)),
            (TypeError, "k_scale must be a Tensor or a number, not str", lambda: heed.attention(q, k, v, k_scale="1", v_scale=0.1)),
            *((ValueError, "k_scale holds a factor that is not positive and finite", lambda bad=bad: heed.attention(q, k, v, k_scale=torch.tensor([1.0, bad]), v_scale=0.1)) for bad in (0.0, -1.0, float("nan"), float("inf"))),
            (ValueError, "O is not written in; give out_dtype", lambda: heed.attention(heed.quantise(q, E4M3, 0.1), k, v, q_scale=0.1, **scales)),
            (ValueError, "out_dtype is torch.int8", lambda: heed.attention(heed.quantise(q, E4M3, 0.1), k, v, q_scale=0.1, out_dtype=torch.int8, **scales)),
            (ValueError, "must have one dtype, not torch.bfloat16 and torch.float32", lambda: heed.attention(q, k, v.bfloat16(), k_scale=0.1)),
            (ValueError, "precision='fp8' quantises tensors of 16 or 32 bits", lambda: heed.attention(q, k, v, precision="fp8", **scales)),
            (NotImplementedError, "has no gradient", lambda: heed.attention(q.clone().requires_grad_(), k, v, **scales)),
            (NotImplementedError, "holds no program for", lambda: heed.attention(q, k.to(torch.float8_e5m2), v.to(torch.float8_e5m2), **scales)),
        ]:  # fmt: skip
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                call()


class Quantise(unittest.TestCase):
    def test_values_and_saturation(self):
        x = torch.tensor([1.0, -3.3, 447.0, 463.0, 500.0, -1e30])
        self.assertEqual(heed.quantise(x, "e4m3", 1.0).float().tolist(), [1.0, -3.25, 448.0, 448.0, 448.0, -448.0])
        self.assertEqual(heed.quantise(x, torch.int8, 2.0).tolist(), [0, -2, 127, 127, 127, -128])
        self.assertEqual(heed.quantise(x * 200, "e5m2", torch.tensor(1.0)).float()[3:].tolist(), [57344.0, 57344.0, -57344.0])
        bad = torch.tensor([float("nan"), float("inf"), 2.0])
        self.assertEqual(heed.quantise(bad, "e4m3", 1.0).float().isnan().tolist(), [True, True, False])
        self.assertEqual(heed.quantise(bad, "int8", 1.0).tolist(), [0, 0, 2])
        self.assertEqual(heed.quantise(torch.zeros(0, 3, dtype=torch.bfloat16), "int8", torch.ones(3)).shape, (0, 3))

    def test_debug_says_what_is_lost(self):
        x = torch.zeros(2, 3, 4)
        x[1, 0, 2], x[1, 2, 3] = 500.0, -900.0
        with mock.patch.dict(os.environ, {"HEED_DEBUG": "1"}):
            with self.assertRaisesRegex(RuntimeError, r"lost 2 values in e4m3, the first at \(1, 0, 2\), 500: the largest that its scale factor holds is 464 times"):
                heed.quantise(x, E4M3, 1.0)
            heed.quantise(x, E4M3, 2.0)
            for value, dtype, lost in ((float("inf"), "e4m3", True), (float("nan"), "e4m3", False), (float("nan"), "int8", True), (-128.4, "int8", False), (127.6, "int8", True), (61441.0, "e5m2", True)):
                with self.subTest(value=value, dtype=dtype):
                    if lost:
                        with self.assertRaisesRegex(RuntimeError, "lost 1 value in"):
                            heed.quantise(torch.tensor([1.0, value]), dtype, 1.0)
                    else:
                        heed.quantise(torch.tensor([1.0, value]), dtype, 1.0)
        with mock.patch.dict(os.environ, {"HEED_DEBUG": "yes"}), self.assertRaisesRegex(ValueError, 'HEED_DEBUG is "yes"'):
            heed.quantise(x, E4M3, 1.0)

    def test_what_is_refused(self):
        x = torch.ones(2, 3)
        for error, words, arguments in [
            (ValueError, "dtype is fp4", (x, "fp4", 1.0)),
            (TypeError, "x must be a Tensor of floating point", (x.to(torch.int8), "int8", 1.0)),
            (TypeError, "not float", (1.0, "int8", 1.0)),
            (ValueError, "must broadcast to x", (x, "int8", torch.ones(2))),
            (ValueError, "not positive and finite", (x, "int8", 0.0)),
            (TypeError, "scale must be a Tensor or a number, not NoneType", (x, "int8", None)),
            (TypeError, "scale must be a Tensor or a number, not str", (x, "int8", "1")),
            (TypeError, "scale is of torch.complex64", (x, "int8", torch.tensor(1j))),
            (ValueError, "not positive and finite", (x, "int8", torch.tensor([1.0, 1.0, float("nan")]))),
        ]:  # fmt: skip
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                heed.quantise(*arguments)


if __name__ == "__main__":
    unittest.main()

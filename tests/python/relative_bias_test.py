"""heed.RelativeBias: T5's biases by relative position, against those that Transformers makes."""

import math
import unittest

import torch
from attention_cases import DEVICES, DTYPES, assert_close, require_programs, tensors

HEADS = 4


def setUpModule():
    require_programs()
    global heed, relative_bias
    import heed
    from heed import relative_bias


def ahead(len_q, len_k, device="cpu"):
    return torch.arange(len_k, device=device) - (torch.arange(len_q, device=device).view(-1, 1) + len_k - len_q)


def table_of(buckets, device="cpu", seed=3):
    return (torch.randn(HEADS, buckets, generator=torch.Generator().manual_seed(seed)) * 2).to(device)


class Buckets(unittest.TestCase):
    def test_they_are_those_of_transformers(self):
        try:
            from transformers.models.t5.modeling_t5 import T5Attention
        except ImportError:
            self.skipTest("Transformers is not installed")
        distances = torch.arange(-5000, 5001)
        for bidirectional in (True, False):
            for buckets, most in ((32, 128), (8, 20), (64, 256), (40, 1000), (4, 100), (320, 4096)):
                wanted = T5Attention._relative_position_bucket(distances, bidirectional, buckets, most)
                self.assertTrue(torch.equal(relative_bias.relative_buckets(distances, bidirectional, buckets, most), wanted), (bidirectional, buckets, most))

    def test_kernels_have_them_at_every_distance(self):
        # Values are zeros but for one key: its share of the probability tells its bias.
        for device in DEVICES:
            for bidirectional in (True, False):
                for buckets, most in ((32, 128), (8, 20), (64, 256), (40, 1000)):
                    length = 300
                    table = torch.linspace(0, 3, buckets, device=device).expand(1, -1).contiguous()
                    q = torch.zeros(1, 1, length, 64, device=device, dtype=torch.float16)
                    v = torch.zeros(1, 1, length, 64, device=device, dtype=torch.float16)
                    given = heed.RelativeBias(table, bidirectional=bidirectional, max_distance=most)
                    _, lse = heed.attention(q, q, v, relative_bias=given, return_lse=True)
                    biases = table[0][relative_bias.relative_buckets(ahead(length, length, device), bidirectional, buckets, most)]
                    torch.testing.assert_close(lse[0, 0], torch.logsumexp(biases, -1), atol=2e-4, rtol=1e-5)


class Attention(unittest.TestCase):
    def test_a_table_is_the_bias_that_it_stands_for(self):
        for device in DEVICES:
            for dtype in DTYPES[device]:
                for len_q, len_k in ((150, 260), (260, 150), (1, 300)):
                    for bidirectional in (True, False):
                        for masking in ({}, {"causal": True, "alignment": "bottom_right"}, {"window": (90, 7), "alignment": "bottom_right"}):
                            with self.subTest(device=device, dtype=dtype, lengths=(len_q, len_k), bidirectional=bidirectional, **masking):
                                q, k, v = tensors((2, HEADS, 2, len_q, len_k, 64, 64), dtype, device)
                                table = table_of(32, device)
                                results = heed.attention(q, k, v, relative_bias=heed.RelativeBias(table, bidirectional=bidirectional), return_lse=True, **masking)
                                bias = table[:, relative_bias.relative_buckets(ahead(len_q, len_k, device), bidirectional, 32, 128)]
                                wanted = heed.attention(q, k, v, bias=bias, return_lse=True, **masking)
                                assert_close(self, results[0], wanted[0].double(), dtype)
                                torch.testing.assert_close(results[1], wanted[1], atol=2e-3, rtol=1e-3)

    def test_own_keys_are_each_entrys(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            q, k, v = tensors((3, HEADS, 2, 70, 260, 64, 64), dtype, device)
            lengths = torch.tensor([260, 40, 100], device=device)
            given = heed.RelativeBias(table_of(32, device))
            o = heed.attention(q, k, v, relative_bias=given, key_lengths=lengths)
            for b, length in enumerate(lengths.tolist()):
                one = heed.attention(q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length], relative_bias=given)
                assert_close(self, o[b], one[0].double(), dtype)
            rows = torch.randn(200, HEADS, 64, device=device, dtype=dtype)
            begins = torch.tensor([0, 70, 200], device=device)
            o = heed.attention_varlen(rows, rows, rows, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=130, max_len_k=130, relative_bias=given)
            one = rows[70:].transpose(0, 1).unsqueeze(0)
            assert_close(self, o[70:], heed.attention(one, one, one, relative_bias=given)[0].transpose(0, 1).double(), dtype)

    def test_the_table_has_a_gradient(self):
        for device in DEVICES:
            q, k, v = (tensor.half() for tensor in tensors((2, HEADS, 2, 9, 40, 16, 16), torch.float32, device))
            table = table_of(8, device).requires_grad_()
            buckets = relative_bias.relative_buckets(ahead(9, 40, device), True, 8, 20)
            o = heed.attention(q, k, v, relative_bias=heed.RelativeBias(table, max_distance=20))
            weight = torch.randn_like(o)
            (got,) = torch.autograd.grad((o * weight).float().sum(), table)
            exact = table.detach().double().requires_grad_()
            scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) / 4 + exact[:, buckets]
            wanted = torch.softmax(scores, -1) @ v.double().repeat_interleave(2, 1)
            torch.testing.assert_close(got.double(), torch.autograd.grad((wanted * weight.double()).sum(), exact)[0], atol=2e-2, rtol=2e-2)

    def test_traced(self):
        for device in DEVICES:
            q, k, v = tensors((2, HEADS, 2, 16, 40, 64, 64), DTYPES[device][0], device)
            table = table_of(32, device)

            def call(q, k, v, table):
                return heed.attention(q, k, v, relative_bias=heed.RelativeBias(table)) * 2

            with torch.no_grad():
                torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, table), call(q, k, v, table))


class Refusals(unittest.TestCase):
    def test_tables_that_cannot_be_are_named(self):
        q, k, v = tensors((2, HEADS, 2, 9, 11, 64, 64), torch.float32, "cpu")

        def given(*sizes, **others):
            return heed.RelativeBias(torch.zeros(sizes), **others)

        for error, words, bias in (
            (TypeError, "must be a heed.RelativeBias, not Tensor", torch.zeros(HEADS, 32)),
            (TypeError, "must have a Tensor as its table, not list", heed.RelativeBias([0.0])),
            (ValueError, r"the table of relative_bias is \(32,\); it must be \(heads, buckets\)", given(32)),
            (ValueError, r"relative_bias is \(3, 32\); it must be \(4, 32\)", given(3, 32)),
            (ValueError, "has 33 buckets; it must have 4 to 1024, an even number", given(HEADS, 33)),
            (ValueError, "has 1 buckets; it must have 2 to 1024$", given(HEADS, 1, bidirectional=False)),
            (ValueError, "max_distance of relative_bias is 8; with 32 buckets it must be 9 to 65536", given(HEADS, 32, max_distance=8)),
            (ValueError, "max_distance of relative_bias is 99.5", given(HEADS, 32, max_distance=99.5)),
            (ValueError, "relative_bias is of torch.int64", heed.RelativeBias(torch.zeros(HEADS, 32, dtype=torch.int64))),
            (ValueError, "relative_bias is on meta", heed.RelativeBias(torch.zeros(HEADS, 32, device="meta"))),
        ):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                heed.attention(q, k, v, relative_bias=bias)

    def test_explain_spells_it(self):
        q, k, v = tensors((2, HEADS, 2, 9, 11, 64, 64), torch.float32, "cpu")
        text = heed.explain(q, k, v, relative_bias=heed.RelativeBias(torch.zeros(HEADS, 32), bidirectional=False))
        self.assertRegex(text, ":relative=32/128/past\n(.*\n)*runs      fwd_cpu")


if __name__ == "__main__":
    unittest.main()

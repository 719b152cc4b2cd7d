"""Arguments of heed.attention and heed.attention_varlen whose numbers do not fit their tensors, or that are of another kind."""

import math
import unittest
import warnings

import torch
from attention_cases import DEVICES, require_programs


def setUpModule():
    require_programs()
    global heed
    import heed


def drawn(*sizes, device="cpu"):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(device)


class Ragged(unittest.TestCase):
    def call(self, cu_seqlens_q, max_len_q, cu_seqlens_k=(0, 30), max_len_k=30, rows=None, **given):
        rows = drawn(30, 2, 32) if rows is None else rows
        cu = {f"cu_seqlens_{letter}": torch.tensor(numbers) for letter, numbers in (("q", cu_seqlens_q), ("k", cu_seqlens_k))}
        return heed.attention_varlen(rows, drawn(30, 2, 32), drawn(30, 2, 32), **cu, max_len_q=max_len_q, max_len_k=max_len_k, return_lse=True, **given)

    def test_numbers_that_do_not_fit_are_named(self):
        rising = 0, 10, 20, 30
        for words, numbers in (
            ("max_len_q is 10, and entry 0 has 30 rows by cu_seqlens_q; it must be 30 or more", {"cu_seqlens_q": (0, 30), "max_len_q": 10}),
            ("max_len_q is 0, and entry 0 has 30 rows", {"cu_seqlens_q": (0, 30), "max_len_q": 0}),
            ("max_len_k is 29, and entry 0 has 30 keys by cu_seqlens_k", {"cu_seqlens_q": (0, 30), "max_len_q": 30, "max_len_k": 29}),
            (r"cu_seqlens_q\[2\] is 10 and the number before it 20; they must not decrease", {"cu_seqlens_q": (0, 20, 10, 30), "cu_seqlens_k": rising, "max_len_q": 20}),
            (r"cu_seqlens_k\[2\] is 10 and the number before it 20", {"cu_seqlens_q": rising, "cu_seqlens_k": (0, 20, 10, 30), "max_len_q": 30}),
            (r"cu_seqlens_q\[1\] is 31; with 30 rows it must be 0 to 30", {"cu_seqlens_q": (0, 31), "max_len_q": 31}),
            (r"cu_seqlens_q\[0\] is -1", {"cu_seqlens_q": (-1, 30), "max_len_q": 31}),
            (r"cu_seqlens_q\[1\] is 4294967296", {"cu_seqlens_q": (0, 1 << 32), "max_len_q": 30}),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(ValueError, words):
                self.call(**numbers)

    def test_rows_of_no_entry_are_zeros(self):
        rows = drawn(30, 2, 32)
        for begin, end in ((0, 10), (5, 30), (5, 20), (7, 7)):
            # Memory that an output would otherwise be found in.
            stale = [torch.full((30, 2, 32), 777.0) for _ in range(50)]
            del stale
            gate = drawn(30, 2, 32)
            learned = rows.clone().requires_grad_()
            o, lse = self.call((begin, end), 30, rows=learned, out_gate=gate)
            outside = torch.ones(30, dtype=torch.bool)
            outside[begin:end] = False
            with self.subTest(begin=begin, end=end):
                self.assertEqual(int(o[outside].count_nonzero()), 0)
                self.assertTrue(bool((lse[:, outside] == -math.inf).all()))
                o.sum().backward()
                self.assertEqual(int(learned.grad[outside].count_nonzero()), 0)
                if begin < end:
                    wanted, wanted_lse = self.call((0, end - begin), 30, rows=rows[begin:end], out_gate=gate[begin:end])
                    torch.testing.assert_close(o[begin:end], wanted)
                    torch.testing.assert_close(lse[:, begin:end], wanted_lse)

    def test_bounds_may_be_larger_than_the_tensors(self):
        for device in DEVICES:
            rows, cu = drawn(90, 2, 64, device=device).half(), torch.tensor([0, 60, 90], device=device)
            common = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
            bias = drawn(2, 1, 300, 200, device=device)
            lists = heed.BlockMask.from_blocks((drawn(5, 4) < 0.5).to(device), 64)
            for name, wide, narrow in (
                ("none", {}, {}),
                ("bias", {"bias": bias}, {"bias": bias[:, :, :90, :90]}),
                ("keys", {"bias": bias[0, 0, 0]}, {"bias": bias[0, 0, 0, :90]}),
                ("blocks", {"block_mask": lists}, {"block_mask": heed.BlockMask(lists.counts[:, :, :2], lists.indices[:, :, :2], 64, 64)}),
            ):
                with self.subTest(device=device, name=name):
                    o = heed.attention_varlen(rows, rows, rows, **common, max_len_q=300, max_len_k=200, causal=True, **wide)
                    wanted = heed.attention_varlen(rows, rows, rows, **common, max_len_q=90, max_len_k=90, causal=True, **narrow)
                    torch.testing.assert_close(o, wanted, atol=0, rtol=0)

    def test_a_bound_in_a_trace(self):
        rows, cu = drawn(90, 2, 64), torch.tensor([0, 60, 90])

        def call(rows, cu, most):
            return heed.attention_varlen(rows, rows, rows, cu_seqlens_q=cu, cu_seqlens_k=cu, max_len_q=most, max_len_k=most)

        with torch.no_grad():
            torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(rows, cu, 95), call(rows, cu, 60))


class Pages(unittest.TestCase):
    def call(self, key_type=None, query_type=None, **given):
        query, pool = drawn(1, 2, 3, 32), drawn(2, 16, 2, 32)
        given = {"page_table": torch.tensor([[0, 1]]), "return_lse": True, **given}
        if key_type is not None:
            pool = heed.quantise(pool, key_type, 0.1)
            given |= {"k_scale": 0.1, "v_scale": 0.1}
        if query_type is not None:
            query = heed.quantise(query, query_type, 0.1)
            given |= {"q_scale": 0.1, "out_dtype": torch.float32}
        return heed.attention(query, pool, pool, **given)

    def test_no_keys_are_rows_of_zeros(self):
        none, sinks = torch.zeros(1, 0, dtype=torch.int32), torch.tensor([1.0, -2.0])
        of_8_bits = {"page_table": none, "key_type": "e4m3"}, {"max_len_k": 0, "key_type": "int8", "query_type": "int8"}
        for given in ({"page_table": none}, {"max_len_k": 0}, *of_8_bits, {"max_len_k": 0, "sinks": sinks}):
            with self.subTest(given=list(given)):
                o, lse = self.call(**given)
                self.assertEqual((tuple(o.shape), o.dtype, int(o.count_nonzero())), ((1, 2, 3, 32), torch.float32, 0))
                wanted = sinks.view(1, 2, 1).expand(1, 2, 3) if "sinks" in given else torch.full((1, 2, 3), -math.inf)
                torch.testing.assert_close(lse, wanted)
        rows, pool = drawn(30, 2, 32), drawn(2, 16, 2, 32)
        o = heed.attention_varlen(rows, pool, pool, cu_seqlens_q=torch.tensor([0, 30]), page_table=none, max_len_q=30, max_len_k=100)
        self.assertEqual(int(o.count_nonzero()), 0)

    def test_a_bound_beyond_the_table_is_that_of_the_table(self):
        bias = drawn(3, 40)
        torch.testing.assert_close(self.call(max_len_k=40), self.call(), atol=0, rtol=0)
        torch.testing.assert_close(self.call(max_len_k=40, bias=bias), self.call(bias=bias[:, :32]), atol=0, rtol=0)

    def test_numbers_of_64_bits_do_not_wrap(self):
        torch.testing.assert_close(self.call(key_lengths=torch.tensor([(1 << 32) + 5])), self.call(key_lengths=torch.tensor([32])), atol=0, rtol=0)
        torch.testing.assert_close(self.call(key_lengths=torch.tensor([-(1 << 32) + 5])), self.call(key_lengths=torch.tensor([0])), atol=0, rtol=0)
        beyond = self.call(page_table=torch.tensor([[0, 1 << 32]]))
        torch.testing.assert_close(beyond, self.call(page_table=torch.tensor([[0, 7]])), atol=0, rtol=0)
        self.assertFalse(torch.equal(beyond[0], self.call(page_table=torch.tensor([[0, 0]]))[0]))

    def test_bounds_that_are_none_are_named(self):
        for bound in (-1, 1.5, "3"):
            with self.subTest(bound=bound), self.assertRaisesRegex(ValueError, f"max_len_k is {bound}; it must be a whole number, 0 or more"):
                self.call(max_len_k=bound)
        with self.assertRaisesRegex(TypeError, "page_table is list; it must be a Tensor"):
            self.call(page_table=[[0, 1]])


class Kinds(unittest.TestCase):
    def test_what_is_of_another_kind_is_named(self):
        q, k, v = drawn(2, 4, 20, 32), drawn(2, 2, 30, 32), drawn(2, 2, 30, 32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of prototypes
            nested = torch.nested.nested_tensor([q[0], q[1]])
        own = {"alignment": "bottom_right"}
        for error, words, given in (
            (NotImplementedError, r"bias is torch.sparse_coo; .* bias.to_dense\(\) makes one", {"bias": torch.zeros(20, 30).to_sparse()}),
            (NotImplementedError, "bias is a nested tensor", {"bias": nested}),
            (NotImplementedError, "query is a nested tensor", {"query": nested}),
            (ValueError, "softcap is 'a'; it must be a positive number", {"softcap": "a"}),
            (TypeError, r"scale is \[1\]; it must be a number", {"scale": [1]}),
            (TypeError, "scale is 1j; it must be a number", {"scale": 1j}),
            (TypeError, "causal is a Tensor; it must be True or False", {"causal": torch.ones(20, 30)}),
            (ValueError, r"window is \('1', 0\); both numbers of keys must be whole", {"window": ("1", 0), **own}),
            (ValueError, r"window is \(1\.5, 0\); both numbers of keys must be whole", {"window": (1.5, 0), **own}),
            (ValueError, r"window is \(1180591620717411303424, 0\); both numbers .* below 2\^63", {"window": (2**70, 0), **own}),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                heed.attention(**{"query": q, "key": k, "value": v, **given})

    def test_a_scale_that_has_a_gradient_is_refused(self):
        """As by PyTorch's function, where numbers in tensors are accepted too."""
        x, rows = drawn(1, 2, 8, 32), drawn(8, 2, 32)
        calls = {
            "attention": lambda scale: heed.attention(x, x, x, scale=scale),
            "varlen": lambda scale: heed.attention_varlen(
                rows, rows, rows, cu_seqlens_q=torch.tensor([0, 8]), cu_seqlens_k=torch.tensor([0, 8]), max_len_q=8, max_len_k=8, scale=scale
            ),
            "sdpa": lambda scale: heed.scaled_dot_product_attention(x, x, x, scale=scale),
            "PyTorch": lambda scale: torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=scale),
        }
        learned = torch.nn.Parameter(torch.tensor(0.3))
        for name, call in calls.items():
            for scale in (learned, learned.exp(), torch.tensor([0.3, 0.2])):
                with self.subTest(name, scale=scale), self.assertRaisesRegex(TypeError, "scale"):
                    call(scale)
            torch.testing.assert_close(call(torch.tensor(0.3)), call(torch.tensor(0.3).item()))

    def test_numbers_of_numpy_are_numbers(self):
        try:
            import numpy
        except ModuleNotFoundError:
            self.skipTest("NumPy is not installed")
        q, k, v = drawn(2, 4, 20, 32), drawn(2, 2, 30, 32), drawn(2, 2, 30, 32)
        given = {"softcap": numpy.float32(3.0), "scale": numpy.float32(0.5), "window": (numpy.int64(5), 0), "alignment": "bottom_right"}
        wanted = heed.attention(q, k, v, softcap=3.0, scale=0.5, window=(5, 0), alignment="bottom_right")
        torch.testing.assert_close(heed.attention(q, k, v, **given), wanted, atol=0, rtol=0)


if __name__ == "__main__":
    unittest.main()

"""heed.attention and heed.scaled_dot_product_attention: results, layouts, errors."""

import itertools
import math
import unittest
import warnings

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, DTYPES, SIZES, assert_close, expected, require_programs, tensors

MASKS = [
    {},
    {"causal": True, "alignment": "top_left"},
    {"causal": True, "alignment": "bottom_right"},
    {"window": (5, 3), "alignment": "top_left"},
    {"window": (9, 0), "alignment": "bottom_right"},
    {"causal": True, "window": (4, None), "alignment": "bottom_right"},
]


def setUpModule():
    require_programs()
    global heed
    import heed


class Results(unittest.TestCase):
    def test_every_mask_type_and_size(self):
        for device in DEVICES:
            for dtype, sizes, mask in itertools.product(DTYPES[device], SIZES, MASKS):
                with self.subTest(device=device, dtype=dtype, sizes=sizes, **mask):
                    q, k, v = tensors(sizes, dtype, device)
                    o, lse = heed.attention(q, k, v, **mask, return_lse=True)
                    wanted, wanted_lse = expected(q, k, v, **mask)
                    assert_close(self, o, wanted, dtype)
                    torch.testing.assert_close(lse.double().cpu(), wanted_lse, atol=1e-3, rtol=1e-3)
                    self.assertEqual(lse.dtype, torch.float32)

    def test_every_layout(self):
        for device in DEVICES:
            for layout, sizes in itertools.product(("bhld", "blhd", "packed", "strided"), SIZES):
                with self.subTest(device=device, layout=layout, sizes=sizes):
                    q, k, v = tensors(sizes, torch.float16, device, layout)
                    o = heed.attention(q, k, v)
                    assert_close(self, o, expected(q, k, v)[0], torch.float16)
                    lies_length_outer = layout in ("blhd", "packed") and sizes[1] > 1 and sizes[3] > 1
                    self.assertEqual(o.transpose(1, 2).is_contiguous() and not o.is_contiguous(), lies_length_outer)

    def test_repeated_elements(self):
        # pytorch#191937: stride-0 K and V with Lk mod 32 = 1
        for device, len_k in itertools.product(DEVICES, (33, 65)):
            q, k, v = tensors((2, 4, 4, 8, len_k, 64, 64), torch.float16, device)
            cases = {
                "batch": (k[:1].expand_as(k), v[:1].expand_as(v)),
                "heads": (k[:, :1].expand_as(k), v[:, :1].expand_as(v)),
                "keys": (k[:, :, :1].expand_as(k), v[:, :, :1].expand_as(v)),
                "everything": (k[:1, :1, :1, :1].expand_as(k), v[:1, :1, :1, :1].expand_as(v)),
            }
            for name, (one_k, one_v) in cases.items():
                with self.subTest(device=device, len_k=len_k, repeated=name):
                    assert_close(self, heed.attention(q, one_k, one_v), expected(q, one_k, one_v)[0], torch.float16)

    def test_addresses_between_chunks_of_16_bytes(self):
        for device in DEVICES:
            storage = torch.randn(3 * 2 * 16 * 64 + 1).to(torch.float16).to(device)
            q, k, v = storage[1:].view(3, 1, 2, 16, 64)
            self.assertNotEqual(q.data_ptr() % 16, 0)
            assert_close(self, heed.attention(q, k, v), expected(q, k, v)[0], torch.float16)

    def test_not_a_number_and_infinity_propagate_as_in_pytorch(self):
        for device in DEVICES:
            for place, value in itertools.product(range(3), (math.nan, math.inf)):
                q, k, v = tensors((1, 2, 2, 16, 16, 64, 64), torch.float16, device)
                (q, k, v)[place][0, 1, 5, 7] = value
                with self.subTest(device=device, place=place, value=value):
                    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
                    self.assertTrue(torch.equal(heed.scaled_dot_product_attention(q, k, v).isfinite(), wanted.isfinite()))

    def test_the_scale(self):
        q, k, v = tensors((1, 2, 2, 16, 16, 64, 64), torch.float32, "cpu")
        assert_close(self, heed.attention(q, k, v, scale=0.7), expected(q, k, v, scale=0.7)[0], torch.float32)
        # Zero stands for the default in libheed's struct: it must not here.
        torch.testing.assert_close(heed.scaled_dot_product_attention(q, k, v, scale=0.0), F.scaled_dot_product_attention(q, k, v, scale=0.0))

    def test_many_threads(self):
        import threading

        failures = []

        def work(seed):
            for turn in range(20):
                q, k, v = tensors(SIZES[(seed + turn) % len(SIZES)], torch.float32, "cpu", seed=seed)
                if (heed.attention(q, k, v) - expected(q, k, v)[0]).abs().max() > 1e-4:
                    failures.append((seed, turn))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_a_changed_number_of_threads_holds(self):
        before = torch.get_num_threads()
        q, k, v = tensors(SIZES[1], torch.float32, "cpu")
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert_close(self, heed.attention(q, k, v), expected(q, k, v)[0], torch.float32)
        finally:
            torch.set_num_threads(before)


class SameAsPyTorch(unittest.TestCase):
    """heed.scaled_dot_product_attention beside torch.nn.functional's, whoever serves the call."""

    def check(self, *arguments, **named):
        def outcome(function):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return function(*arguments, **named)
            except Exception as error:
                return error

        ours, theirs = outcome(heed.scaled_dot_product_attention), outcome(F.scaled_dot_product_attention)
        if isinstance(theirs, Exception):
            self.assertIs(type(ours), type(theirs), f"{ours!r} beside {theirs!r}")
            self.assertEqual(str(ours).split("\n")[0], str(theirs).split("\n")[0])
        else:
            self.assertNotIsInstance(ours, Exception, f"{ours!r}")
            torch.testing.assert_close(ours, theirs, atol=3e-3, rtol=3e-3, equal_nan=True)

    def test_calls_that_pytorch_takes(self):
        q, k, v = tensors((2, 4, 4, 16, 16, 64, 64), torch.float32, "cpu")
        few = tensors((2, 4, 2, 16, 16, 64, 64), torch.float32, "cpu")
        self.check(q, k, v)
        self.check(q, k, v, is_causal=True)
        self.check(q[:, :, :5], k, v, is_causal=True)
        self.check(q, k[:, :, :5], v[:, :, :5], is_causal=True)
        self.check(q, k, v, torch.randn(16, 16))
        self.check(q, k, v, torch.rand(2, 1, 16, 16) > 0.5)
        self.check(q, k, v, scale=0.3)
        self.check(q, k, v, scale=-0.3)
        self.check(q.double(), k.double(), v.double())
        self.check(q[0], k[0], v[0])
        self.check(q[0, 0], k[0, 0], v[0, 0])
        self.check(*few, enable_gqa=True)
        self.check(q, k[:1], v[:1])
        self.check(*(tensor[..., :40] for tensor in (q, k, v)))
        self.check(q[:0], k[:0], v[:0])
        self.check(q[:, :, :0], k, v)
        self.check(q.to("meta"), k.to("meta"), v.to("meta"))

    def test_calls_that_pytorch_refuses(self):
        q, k, v = tensors((2, 4, 4, 16, 16, 64, 64), torch.float32, "cpu")
        few = tensors((2, 4, 3, 16, 16, 64, 64), torch.float32, "cpu")
        self.check(q, k.half(), v)
        self.check(q, k[..., :32], v)
        self.check(q, k[:, :, :5], v)
        self.check(*few)
        self.check(*few, enable_gqa=True)
        self.check(q, k, v, torch.zeros(3, 16))
        self.check(q, k, v, torch.zeros(16, 16, dtype=torch.int32))
        self.check(q, k, v, torch.zeros(16, 16), is_causal=True)
        self.check(q, k, v, torch.zeros(16, 16).double())
        self.check(q, k.to("meta"), v)
        self.check(1, k, v)
        self.check(q, None, v)
        self.check(q, k, v, "mask")
        self.check(q.long(), k.long(), v.long())
        self.check(q.flatten(), k.flatten(), v.flatten())
        self.check(q, k, v, scale="half")
        self.check(q, k, v, is_causal="yes")
        self.check(q, k, v, dropout_p="none")

    def test_dropout_follows_pytorchs_generator(self):
        q, k, v = tensors((2, 4, 4, 16, 16, 64, 64), torch.float32, "cpu")
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(heed.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
        self.assertTrue(torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2]))


class Refusals(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = tensors((1, 4, 2, 8, 8, 64, 64), torch.float32, "cpu")

    def refused(self, kind, words, *tensors, **named):
        with self.assertRaises(kind) as caught:
            heed.attention(*(tensors or (self.q, self.k, self.v)), **named)
        self.assertRegex(str(caught.exception), words)

    def test_what_no_attention_can_have(self):
        q, k, v = self.q, self.k, self.v
        self.refused(TypeError, "query must be a Tensor, not int", 1, k, v)
        for name in ("windows", "dropout", "attn_mask", "cu_seqlens_q"):
            self.refused(TypeError, f"unexpected keyword argument '{name}'", **{name: 3})
        self.refused(ValueError, "has 3 dimensions", q[0], k, v)
        self.refused(ValueError, "one dtype", q, k.half(), v)
        self.refused(ValueError, "one device", q, k.to("meta"), v)
        self.refused(ValueError, "key is", q, k[..., :32], v)
        self.refused(ValueError, "value is", q, k, v[:, :, :4])
        self.refused(ValueError, "4 query heads do not divide among 3", q, torch.zeros(1, 3, 8, 64), torch.zeros(1, 3, 8, 64))
        self.refused(ValueError, "the scale is inf", scale=math.inf)
        self.refused(ValueError, "the scale is nan", scale=math.nan)
        self.refused(TypeError, "the scale is 'half'; it must be a number", scale="half")
        self.refused(ValueError, "window is", window=(-2, 0))
        self.refused(ValueError, "must be whole, 0 or more", window=(1.5, 0))
        for window in (8, 0, True, "8", [3], (1, 2, 3)):
            self.refused(TypeError, r"it must be \(left, right\)", window=window)
        self.refused(TypeError, "causal is 'bottom_right'; it must be True or False, and alignment says", causal="bottom_right")
        self.refused(NotImplementedError, r"query is torch.sparse_coo; it must be a dense tensor: query.to_dense\(\)", q.to_sparse(), k, v)
        self.refused(ValueError, "after it", causal=True, window=(1, 1))
        self.refused(ValueError, "alignment is 'left'", causal=True, alignment="left")
        self.refused(ValueError, "needs alignment", q[:, :, :3], k, v, causal=True)

    def test_tensors_without_elements(self):
        for sizes, features in (((0, 4, 2, 8, 8), {}), ((2, 4, 2, 0, 8), {}), ((2, 4, 2, 8, 0), {}), ((2, 4, 2, 8, 0), {"sinks": torch.ones(4)})):
            with self.subTest(sizes, features=features):
                leaves = [tensor.requires_grad_() for tensor in tensors((*sizes, 64, 32), torch.float32, "cpu", "blhd")]
                o, lse = heed.attention(*leaves, **features, return_lse=True)
                self.assertTrue(torch.equal(o, torch.zeros(*sizes[:2], sizes[3], 32)) and o.shape == (*sizes[:2], sizes[3], 32))
                self.assertTrue(torch.equal(lse, torch.full(o.shape[:3], 1.0 if features else -math.inf)))
                for leaf, gradient in zip(leaves, torch.autograd.grad(o.sum(), leaves)):
                    self.assertTrue(torch.equal(gradient, torch.zeros_like(leaf)))
        rows, none = torch.randn(0, 4, 64), torch.tensor([0, 0])
        self.assertEqual(heed.attention_varlen(rows, rows, rows, cu_seqlens_q=none, cu_seqlens_k=none, max_len_q=5, max_len_k=5).shape, (0, 4, 64))
        self.assertEqual(heed.attention_varlen(rows, rows, rows, cu_seqlens_q=none, cu_seqlens_k=none, max_len_q=0, max_len_k=0).shape, (0, 4, 64))
        o = heed.attention_varlen(torch.randn(3, 4, 64), rows, rows, cu_seqlens_q=torch.tensor([0, 3]), cu_seqlens_k=none, max_len_q=3, max_len_k=0)
        self.assertTrue(torch.equal(o, torch.zeros(3, 4, 64)))

    def test_scales_of_zero_and_less(self):
        for scale in (-0.3, 0.0, -0.0):
            leaves = [tensor.clone().requires_grad_() for tensor in (self.q, self.k, self.v)]
            o = heed.attention(*leaves, scale=scale, causal=True)
            q, k, v = leaves  # PyTorch's kernel makes NaN of a zero times minus infinity
            wanted = torch.nn.functional.scaled_dot_product_attention(q * scale, k, v, scale=1.0, is_causal=True, enable_gqa=True)
            torch.testing.assert_close(o, wanted, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(torch.autograd.grad(o.sin().sum(), leaves), torch.autograd.grad(wanted.sin().sum(), leaves), atol=1e-5, rtol=1e-4)
        features = {"softcap": 3.0, "sinks": torch.zeros(self.q.shape[1])}
        self.assertTrue(torch.equal(heed.attention(self.q, self.k, self.v, scale=-0.3, **features), heed.attention(-self.q, self.k, self.v, scale=0.3, **features)))
        rows, begins = torch.randn(9, 4, 64), torch.tensor([0, 4, 9])
        o = heed.attention_varlen(rows, rows, rows, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=5, max_len_k=5, scale=0.0)
        torch.testing.assert_close(o, torch.cat([part.mean(0, keepdim=True).expand(len(part), 4, 64) for part in rows.split([4, 5])]), atol=1e-5, rtol=1e-4)

    def test_what_no_kernel_computes(self):
        self.refused(NotImplementedError, "d600:fp32", *(torch.zeros(1, 1, 8, 600) for _ in range(3)))
        self.refused(NotImplementedError, "d600", *(torch.zeros(1, 1, 8, 600) for _ in range(3)), softcap=2.0, bias=torch.zeros(8))
        for features in ({}, {"softcap": 2.0}, {"sinks": torch.zeros(4)}):
            self.refused(NotImplementedError, "float64", self.q.double(), self.k.double(), self.v.double(), **features)
        self.assertEqual(heed.attention(self.q, self.k, self.v, softcap=0.0, bias=None).shape, self.q.shape)

    def test_explain(self):
        self.assertIn("runs      fwd_cpu", heed.explain(self.q, self.k, self.v, causal=True))
        self.assertRegex(heed.explain(self.q, self.k, self.v, softcap=1.0), "fp32:softcap=1\n(.*\n)*runs      fwd_cpu")
        self.assertIn("refused", heed.explain(*(torch.zeros(1, 1, 8, 600) for _ in range(3))))
        with self.assertRaises(ValueError):
            heed.explain(self.q, self.k, self.v, scale=-math.inf)


if __name__ == "__main__":
    unittest.main()

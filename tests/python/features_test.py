"""heed.attention with features, heed.attention_varlen, and mask tensors of scaled_dot_product_attention."""

import itertools
import math
import unittest

import torch
import torch.nn.functional as F
from attention_cases import DEVICES, DTYPES, assert_close, require_programs, tensors

LENGTHS = (70, 130)
HEADS = 4


def setUpModule():
    require_programs()
    global heed, unfused
    import heed
    from heed import unfused


def definition(q, k, v, *, own, left=None, right=None, softcap=0.0, bias=None, sinks=None, slopes=None):
    """O and log-sum-exp in float64 of one entry: q (heads, len_q, dim), k and v (heads_kv, len_k, dim). own: query i's own key is own + i."""
    group = q.shape[0] // k.shape[0]
    q, k, v = q.double(), k.double().repeat_interleave(group, 0), v.double().repeat_interleave(group, 0)
    len_q, len_k = q.shape[1], k.shape[1]
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    row, key = torch.arange(len_q, device=q.device).view(-1, 1), torch.arange(len_k, device=q.device)
    if bias is not None:
        hidden = ~bias if bias.dtype == torch.bool else bias <= torch.finfo(bias.dtype).min
        scores = (scores if bias.dtype == torch.bool else scores + bias.double()).masked_fill(hidden, -math.inf)
    if slopes is not None:
        scores = scores - slopes.double().view(-1, 1, 1) * (row + len_k - len_q - key).abs()
    if left is not None:
        scores = scores.masked_fill(key < row + own - left, -math.inf)
    if right is not None:
        scores = scores.masked_fill(key > row + own + right, -math.inf)
    lse = torch.logsumexp(scores, -1) if len_k else torch.full(q.shape[:2], -math.inf, dtype=torch.float64, device=q.device)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double().view(-1, 1).expand_as(lse))
    weights = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse).unsqueeze(-1))
    return weights @ v, lse


def biases(device, dtype=torch.float32):
    """Name and tensor (2, HEADS, *LENGTHS) or one that broadcasts to it."""
    generator = torch.Generator().manual_seed(5)
    full = torch.randn(2, HEADS, *LENGTHS, generator=generator)
    full[full > 1.2] = -math.inf
    full[0, 1, 3] = -math.inf  # a row that sees no key
    least = torch.where(full == -math.inf, torch.tensor(torch.finfo(dtype).min), full)
    shown = torch.rand(2, 1, 1, LENGTHS[1], generator=generator) > 0.3
    return {
        "full": full.to(dtype),
        "least": least.to(dtype),
        "padding": shown,
        "rows": (torch.rand(*LENGTHS, generator=generator) > 0.5),
        "one head": full[:1, 1:2].to(dtype),
        "every other": torch.stack((full, torch.full_like(full, math.nan)), -1).to(dtype)[..., 0],
        "expanded": full[:1].to(dtype).expand(2, -1, -1, -1),
    }


def close(test, results, wanted, dtype):
    assert_close(test, results[0], wanted[0], dtype)
    torch.testing.assert_close(results[1].double().cpu(), wanted[1].cpu(), atol=2e-3, rtol=1e-3)


class Dense(unittest.TestCase):
    def check(self, device, dtype, masking, own=0, left=None, right=None, dim=64, **features):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, dim, dim), dtype, device)
        given = {"alibi_slopes" if name == "slopes" else name: value for name, value in features.items()}
        results = heed.attention(q, k, v, **masking, **given, return_lse=True)
        wanted = []
        for b in range(2):
            one = dict(features)
            if one.get("bias") is not None:
                one["bias"] = one["bias"].expand(2, HEADS, *LENGTHS)[b]
            wanted.append(definition(q[b], k[b], v[b], own=own, left=left, right=right, **one))
        close(self, results, [torch.stack(each) for each in zip(*wanted)], dtype)

    def test_each_and_all(self):
        for device in DEVICES:
            sinks, slopes = torch.tensor([0.5, -2.0, 8.0, -math.inf], device=device), torch.tensor([0.5, 0.1, 0.02, 0.0], device=device)
            alone = [{"softcap": 2.0}, {"sinks": sinks}, {"slopes": slopes}, {"bias": biases("cpu")["full"].to(device)}]
            together = {name: value for one in alone for name, value in one.items()}
            for dtype, features in itertools.product(DTYPES[device], (*alone, together)):
                for dim in (64, 40):
                    with self.subTest(device=device, dtype=dtype, dim=dim, features=list(features)):
                        self.check(device, dtype, {}, dim=dim, **features)
                        self.check(device, dtype, {"causal": True, "alignment": "bottom_right"}, own=60, right=0, dim=dim, **features)
                        self.check(device, dtype, {"window": (20, 7), "alignment": "top_left"}, left=20, right=7, dim=dim, **features)

    def test_every_bias(self):
        for device, bias_dtype in itertools.product(DEVICES, (torch.float32, torch.float16, torch.bfloat16)):
            for name, bias in biases(device, bias_dtype).items():
                with self.subTest(device=device, name=name, dtype=bias_dtype):
                    self.check(device, torch.float16, {}, bias=bias.to(device) if name != "expanded" else bias[:1].to(device).expand(2, -1, -1, -1))

    def test_key_lengths(self):
        for device in DEVICES:
            lengths = torch.tensor([0, 1, 57, 130, 1000], device=device)
            q, k, v = tensors((5, HEADS, 2, *LENGTHS, 64, 64), torch.float16, device)
            k[2, :, 57:] = v[2, :, 57:] = math.nan
            for masking, right in (({}, None), ({"causal": True, "alignment": "bottom_right"}, 0)):
                o, lse = heed.attention(q, k, v, key_lengths=lengths, **masking, return_lse=True)
                for b, length in enumerate(lengths.clamp(max=130).tolist()):
                    with self.subTest(device=device, length=length, **masking):
                        wanted = definition(q[b], k[b, :, :length], v[b, :, :length], own=length - 70, right=right)
                        close(self, (o[b], lse[b]), wanted, torch.float16)

    def test_gradients(self):
        for device in DEVICES:
            q, k, v = (tensor.double() for tensor in tensors((1, 4, 2, 9, 11, 16, 16), torch.float32, device))
            bias = torch.randn(1, 4, 9, 11, device=device)
            given = {"softcap": 3.0, "bias": bias, "sinks": torch.randn(4, device=device), "alibi_slopes": torch.rand(4, device=device)}
            learned = [tensor.half().requires_grad_() for tensor in (q, k, v)]
            extra = {name: given[name].clone().requires_grad_() for name in ("bias", "sinks", "alibi_slopes")}
            o, lse = heed.attention(*learned, softcap=3.0, **extra, return_lse=True)
            weight = torch.randn_like(o)
            got = torch.autograd.grad((o * weight).float().sum() + lse[lse > -math.inf].sum(), [*learned, *extra.values()])
            exact = [tensor.detach().double().requires_grad_() for tensor in (*learned, *extra.values())]
            o, lse = definition(*(tensor[0] for tensor in exact[:3]), own=0, softcap=3.0, bias=exact[3][0], sinks=exact[4], slopes=exact[5])
            wanted = torch.autograd.grad((o * weight[0].double()).sum() + lse[lse > -math.inf].sum(), exact)
            for one, other in zip(got, wanted):
                self.assertTrue(torch.isfinite(one).all())
                torch.testing.assert_close(one.double(), other, atol=2e-2, rtol=2e-2)
            # A row that sees no key gives none, and takes none from others.
            extra["bias"].data[0, 1, 2] = -math.inf
            o = heed.attention(*learned, softcap=3.0, **extra)
            for one in torch.autograd.grad(o.float().square().sum(), [*learned, *extra.values()]):
                self.assertTrue(torch.isfinite(one).all())

    def test_gradients_of_gradients(self):
        q, _, _ = tensors((1, 4, 4, 6, 6, 16, 16), torch.float32, "cpu")
        bias = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
        results = []
        for function in (lambda *tensors: heed.attention(*tensors, bias=bias, softcap=3.0), lambda *tensors: unfused.forward_features(*tensors, softcap=3.0, bias=bias)[0]):
            learned = q.clone().requires_grad_()
            # Q, K and V are of one tensor: a gradient of each is not one of the others.
            (first,) = torch.autograd.grad(function(learned, learned.cos(), learned * 2).sin().sum(), learned, create_graph=True)
            results.append((first.detach(), *torch.autograd.grad(first.square().sum(), learned)))
        for one, two in zip(*results):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)

    def test_autocast(self):
        q, k, v = tensors((1, 4, 2, 9, 11, 64, 64), torch.float32, "cpu")
        learned = q.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            o = heed.attention(learned, k, v, softcap=3.0)
        wanted = heed.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), softcap=3.0)
        torch.testing.assert_close(o, wanted, atol=0, rtol=0)
        o.float().sum().backward()
        self.assertTrue(learned.grad.isfinite().all() and learned.grad.dtype == torch.float32)

    def test_arguments_that_cannot_be(self):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float16, DEVICES[0])
        device = q.device
        for error, names, given in (
            (ValueError, "softcap", {"softcap": -1.0}),
            (ValueError, "softcap", {"softcap": math.nan}),
            (TypeError, "sinks", {"sinks": [0.0] * HEADS}),
            (ValueError, "sinks", {"sinks": torch.zeros(HEADS + 1, device=device)}),
            (ValueError, "sinks", {"sinks": torch.zeros(HEADS, dtype=torch.int32, device=device)}),
            (ValueError, "alibi_slopes", {"alibi_slopes": torch.zeros(2, device=device)}),
            (ValueError, "bias", {"bias": torch.zeros(3, *LENGTHS, device=device)}),
            (ValueError, "bias", {"bias": torch.zeros(LENGTHS, dtype=torch.int64, device=device)}),
            (ValueError, "key_lengths", {"key_lengths": torch.zeros(3, dtype=torch.int32, device=device)}),
            (ValueError, "key_lengths", {"key_lengths": torch.zeros(2, device=device)}),
            (ValueError, "page_table", {"page_table": torch.zeros(2, dtype=torch.int32, device=device)}),
            (ValueError, "page_layout", {"page_table": torch.zeros(2, 3, dtype=torch.int32, device=device), "page_layout": "DHN"}),
            (ValueError, "max_len_k", {"max_len_k": 3}),
            (ValueError, "alignment", {"causal": True, "key_lengths": torch.zeros(2, dtype=torch.int32, device=device)}),
        ):
            pools = (k.transpose(1, 2), v.transpose(1, 2)) if "page_table" in given else (k, v)
            with self.subTest(names=names, given=list(given)), self.assertRaisesRegex(error, names):
                heed.attention(q, *pools, **given)

    def test_explain_and_text(self):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float16, DEVICES[0])
        text = heed.explain(q, k, v, softcap=5.0, sinks=torch.zeros(HEADS, device=q.device))
        self.assertIn(":softcap=5:sinks", text)


class Ragged(unittest.TestCase):
    LENGTHS_Q, LENGTHS_K = [33, 0, 70, 1], [50, 20, 70, 0]

    def tensors(self, device, dtype=torch.float16, heads=HEADS, heads_kv=2, dim=64):
        generator = torch.Generator().manual_seed(3)
        sizes = (sum(self.LENGTHS_Q), heads), (sum(self.LENGTHS_K), heads_kv), (sum(self.LENGTHS_K), heads_kv)
        q, k, v = (torch.randn(*size, dim, generator=generator).to(device, dtype) for size in sizes)
        cu = [torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device) for lengths in (self.LENGTHS_Q, self.LENGTHS_K)]
        return q, k, v, *cu

    def test_every_entry(self):
        for device in DEVICES:
            for dtype, dim in itertools.product(DTYPES[device], (64, 40)):
                q, k, v, cu_q, cu_k = self.tensors(device, dtype, dim=dim)
                sinks = torch.randn(HEADS, device=device)
                for masking, alignment, right, left in (({}, 1, None, None), ({"causal": True}, 1, 0, None), ({"causal": True, "alignment": "top_left"}, 0, 0, None), ({"window": (9, 4)}, 1, 4, 9)):
                    o, lse = heed.attention_varlen(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_len_q=70, max_len_k=70, **masking, sinks=sinks, return_lse=True)
                    self.assertEqual((tuple(o.shape), tuple(lse.shape)), ((q.shape[0], HEADS, dim), (HEADS, q.shape[0])))
                    for b, (len_q, len_k) in enumerate(zip(self.LENGTHS_Q, self.LENGTHS_K)):
                        rows, keys = slice(int(cu_q[b]), int(cu_q[b + 1])), slice(int(cu_k[b]), int(cu_k[b + 1]))
                        with self.subTest(device=device, dtype=dtype, entry=b, **masking):
                            wanted = definition(*(t.transpose(0, 1) for t in (q[rows], k[keys], v[keys])), own=(len_k - len_q) * alignment, left=left, right=right, sinks=sinks)
                            close(self, (o[rows].transpose(0, 1), lse[:, rows]), wanted, dtype)

    def test_gradients(self):
        for device in DEVICES:
            q, k, v, cu_q, cu_k = self.tensors(device)
            learned = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
            heed.attention_varlen(*learned, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_len_q=70, max_len_k=70, causal=True).float().square().sum().backward()
            exact = [tensor.detach().double().requires_grad_() for tensor in learned]
            loss = 0
            for b, (len_q, len_k) in enumerate(zip(self.LENGTHS_Q, self.LENGTHS_K)):
                rows, keys = slice(int(cu_q[b]), int(cu_q[b + 1])), slice(int(cu_k[b]), int(cu_k[b + 1]))
                if len_q and len_k:
                    loss = loss + definition(*(t.transpose(0, 1) for t in (exact[0][rows], exact[1][keys], exact[2][keys])), own=len_k - len_q, right=0)[0].nan_to_num().square().sum()
            loss.backward()
            for one, other in zip(learned, exact):
                torch.testing.assert_close(one.grad.double(), other.grad.nan_to_num(), atol=3e-2, rtol=3e-2)

    def test_pages(self):
        for device in DEVICES:
            for page_size, layout, dtype in itertools.product((1, 16, 64), ("NHD", "HND"), DTYPES[device][-2:]):
                q, k, v, cu_q, cu_k = self.tensors(device, dtype)
                per_entry = -(-70 // page_size)
                pools = [torch.full((4 * per_entry + 2, page_size, 2, 64), math.nan, dtype=dtype, device=device) for _ in range(2)]
                order = torch.randperm(4 * per_entry + 2, generator=torch.Generator().manual_seed(1)).tolist()
                table = torch.full((4, per_entry), 2**30, dtype=torch.int32)
                for b, length in enumerate(self.LENGTHS_K):
                    for p in range(-(-length // page_size)):
                        table[b, p] = page = order.pop()
                        begin = int(cu_k[b]) + p * page_size
                        end = min(begin + page_size, int(cu_k[b]) + length)
                        for pool, tensor in zip(pools, (k, v)):
                            pool[page, : end - begin] = tensor[begin:end]
                if layout == "HND":
                    pools = [pool.transpose(1, 2).contiguous() for pool in pools]
                lengths = torch.tensor(self.LENGTHS_K, device=device)
                common = {"page_table": table.to(device), "page_layout": layout, "key_lengths": lengths}
                o = heed.attention_varlen(q, *pools, cu_seqlens_q=cu_q, max_len_q=70, max_len_k=70, causal=True, **common)
                decoded = heed.attention(torch.stack([q[:1].transpose(0, 1)] * 4), *pools, max_len_k=70, **common)
                with self.subTest(device=device, page_size=page_size, layout=layout, dtype=dtype):
                    wanted = heed.attention_varlen(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_len_q=70, max_len_k=70, causal=True)
                    torch.testing.assert_close(o, wanted, atol=2e-2, rtol=2e-2)
                    self.assertTrue(torch.isfinite(o).all())
                    for b, length in enumerate(self.LENGTHS_K):
                        keys = slice(int(cu_k[b]), int(cu_k[b]) + length)
                        assert_close(self, decoded[b], definition(q[:1].transpose(0, 1), k[keys].transpose(0, 1), v[keys].transpose(0, 1), own=0)[0], dtype)

    def test_arguments_that_cannot_be(self):
        q, k, v, cu_q, cu_k = self.tensors(DEVICES[0])
        good = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_len_q": 70, "max_len_k": 70}
        for names, change in (
            ("cu_seqlens_q", {"cu_seqlens_q": cu_q.float()}),
            ("cu_seqlens_k", {"cu_seqlens_k": cu_k[:-1]}),
            ("cu_seqlens_k", {"cu_seqlens_k": None}),
            ("key_lengths", {"key_lengths": cu_q[1:]}),
            ("max_len_q", {"max_len_q": -1}),
            ("max_len_k", {"max_len_k": 1.5}),
        ):
            with self.subTest(names=names), self.assertRaisesRegex(ValueError, names):
                heed.attention_varlen(q, k, v, **{**good, **change})
        with self.assertRaisesRegex(ValueError, "3 dimensions|must have 3"):
            heed.attention_varlen(q.unsqueeze(0), k, v, **good)


class MaskTensors(unittest.TestCase):
    def test_scaled_dot_product_attention_is_served(self):
        for device in DEVICES:
            for name, bias in biases(device, torch.float16).items():
                q, k, v = tensors((2, HEADS, HEADS, *LENGTHS, 64, 64), torch.float16, device)
                bias = bias.to(device)
                heed.reset_report()
                with self.subTest(device=device, name=name), torch.no_grad():
                    o = heed.scaled_dot_product_attention(q, k, v, bias)
                    wanted = torch.stack([definition(q[b], k[b], v[b], own=0, bias=bias.expand(2, HEADS, *LENGTHS)[b])[0] for b in range(2)])
                    assert_close(self, o, wanted, torch.float16)
                    self.assertEqual(heed.report().served, 1, heed.report())

    def test_a_call_that_needs_a_gradient(self):
        q, k, v = tensors((2, HEADS, HEADS, 40, 40, 64, 64), torch.float16, DEVICES[0])
        mask = torch.rand(40, 40, device=q.device) > 0.3
        learned = q.clone().requires_grad_()
        o = heed.scaled_dot_product_attention(learned, k, v, mask)
        torch.testing.assert_close(o, F.scaled_dot_product_attention(learned, k, v, mask), atol=3e-3, rtol=3e-3)
        o.float().sum().backward()
        self.assertIsNotNone(learned.grad)

    def test_types_that_pytorch_refuses_are_refused(self):
        q, k, v = tensors((1, 2, 2, 8, 8, 64, 64), torch.bfloat16, DEVICES[0])
        with self.assertRaises(RuntimeError), torch.no_grad():
            heed.scaled_dot_product_attention(q, k, v, torch.zeros(8, 8, dtype=torch.float16, device=q.device))

    def test_compiled(self):
        for device in DEVICES:
            q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float16, device)
            sinks = torch.randn(HEADS, device=device)

            def call(q, k, v, sinks):
                return heed.attention(q, k, v, causal=True, alignment="bottom_right", sinks=sinks, softcap=4.0)

            with torch.no_grad():
                torch.testing.assert_close(torch.compile(call, fullgraph=True)(q, k, v, sinks), call(q, k, v, sinks))


class Unfused(unittest.TestCase):
    def test_it_agrees_with_the_definition(self):
        q, k, v = (tensor.float() for tensor in tensors((2, HEADS, 2, *LENGTHS, 16, 16), torch.float32, "cpu"))
        bias, sinks, slopes = biases("cpu")["full"], torch.randn(HEADS), torch.rand(HEADS)
        results = unfused.forward_features(q, k, v, unfused.WINDOW_BOTTOM_RIGHT, 30, 5, None, 2.0, bias, sinks, slopes, torch.tensor([90, 130]))
        for b, length in enumerate((90, 130)):
            wanted = definition(q[b], k[b, :, :length], v[b, :, :length], own=length - 70, left=30, right=5, softcap=2.0, bias=bias[b][..., :length], sinks=sinks, slopes=slopes)
            torch.testing.assert_close(results[0][b].double(), wanted[0], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(results[1][b].double(), wanted[1], atol=1e-4, rtol=1e-4)


class Prefixes(unittest.TestCase):
    def test_rows_see_the_prefix_that_a_right_bound_hides(self):
        len_q, len_k = LENGTHS
        for device in DEVICES:
            prefixes = torch.tensor([100, 7], device=device)
            row, key = torch.arange(len_q, device=device).view(-1, 1), torch.arange(len_k, device=device)
            for masking, codes, shown in (
                ({"causal": True, "alignment": "top_left"}, (unfused.CAUSAL_TOP_LEFT, -1, -1), key <= row),
                ({"causal": True, "alignment": "bottom_right"}, (unfused.CAUSAL_BOTTOM_RIGHT, -1, -1), key <= row + len_k - len_q),
                ({"window": (20, 3), "alignment": "top_left"}, (unfused.WINDOW_TOP_LEFT, 20, 3), key <= row + 3),
                ({}, (unfused.NONE, -1, -1), key >= 0),
            ):
                hidden = key < row - 20 if "window" in masking else key < 0
                seen = (shown | (key < prefixes.view(-1, 1, 1, 1))) & ~hidden
                for dtype in DTYPES[device]:
                    with self.subTest(device=device, dtype=dtype, **masking):
                        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), dtype, device)
                        results = heed.attention(q, k, v, prefix_lengths=prefixes, return_lse=True, **masking)
                        wanted = heed.attention(q, k, v, bias=seen, return_lse=True)
                        assert_close(self, results[0], wanted[0].double(), dtype)
                        torch.testing.assert_close(results[1], wanted[1], atol=2e-3, rtol=1e-3)
                        assert_close(self, unfused.forward_features(q, k, v, *codes, prefix_lengths=prefixes)[0], wanted[0].double(), dtype)

    def test_entries_of_a_ragged_batch_have_their_own(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            q, k, v = (torch.randn(200, HEADS, 64, device=device, dtype=dtype) for _ in range(3))
            begins = torch.tensor([0, 70, 200], device=device)
            prefixes = torch.tensor([90, 50], device=device)
            o = heed.attention_varlen(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=130, max_len_k=130, causal=True, prefix_lengths=prefixes)
            for entry, (begin, end) in enumerate(((0, 70), (70, 200))):
                one = [tensor[begin:end].transpose(0, 1).unsqueeze(0) for tensor in (q, k, v)]
                alone = heed.attention(*one, causal=True, prefix_lengths=prefixes[entry : entry + 1])
                assert_close(self, o[begin:end], alone[0].transpose(0, 1).double(), dtype)

    def test_lengths_that_cannot_be_are_named(self):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float32, "cpu")
        for prefixes, words in ((torch.tensor([1, 2, 3]), r"prefix_lengths is \(3,\); it must be \(2,\)"), (torch.tensor([1.0, 2.0]), "prefix_lengths is of torch.float32")):
            with self.assertRaisesRegex(ValueError, words):
                heed.attention(q, k, v, causal=True, alignment="top_left", prefix_lengths=prefixes)


class Documents(unittest.TestCase):
    def test_packed_documents_are_a_ragged_batch_of_the_same_memory(self):
        begins = [0, 40, 41, 130, 200]
        for device in DEVICES:
            dtype = DTYPES[device][0]
            starts = torch.tensor(begins, device=device)
            document = torch.bucketize(torch.arange(200, device=device), starts[1:], right=True)
            own = document.view(-1, 1) == document
            common = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_len_q": 89, "max_len_k": 89}
            q, k, v = tensors((1, HEADS, 2, 200, 200, 64, 64), dtype, device)
            for causal in (False, True):
                wanted = heed.attention(q, k, v, bias=own.tril() if causal else own)[0].transpose(0, 1)
                views = [tensor[0].transpose(0, 1) for tensor in (q, k, v)]
                assert_close(self, heed.attention_varlen(*views, causal=causal, **common), wanted.double(), dtype)
                lengths_first = [tensor.transpose(1, 2).contiguous().flatten(0, 1) for tensor in (q, k, v)]
                assert_close(self, heed.attention_varlen(*lengths_first, causal=causal, **common), wanted.double(), dtype)

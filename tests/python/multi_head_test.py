"""Heed in the fast path of torch.nn.MultiheadAttention and torch.nn.TransformerEncoder, beside PyTorch's own."""

import unittest
import warnings

import torch
from attention_cases import require_programs
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, LENGTH, DIM, HEADS = 3, 5, 128, 2
_operator = torch.ops.aten._native_multi_head_attention


def setUpModule():
    require_programs()
    global heed
    import heed


class FastPath(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        heed.reset_report()
        self.x = torch.randn(BATCH, LENGTH, DIM)
        self.attention = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
        self.layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, 64, batch_first=True).eval()
        self.padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
        self.padding[1, 3:] = True
        self.after = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def compare(self, call, served, handed_back=0):
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = call()
            heed.reset_report()
            with heed.sdpa():
                got = call()
        report = heed.report()
        self.assertEqual((report.served, report.handed_back), (served, handed_back), str(report))
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)

    def test_every_mask_is_served(self):
        x, after, padding = self.x, self.after, self.padding
        for masks in ({}, {"attn_mask": after}, {"key_padding_mask": padding}, {"attn_mask": after, "key_padding_mask": padding}, {"attn_mask": after.float() * -100}):
            with self.subTest(**masks):
                self.compare(lambda masks=masks: self.attention(x, x, x, need_weights=False, **masks)[0], 1)
        self.compare(lambda: self.attention(x[0], x[0], x[0], need_weights=False)[0], 1)
        for masks in ({}, {"src_mask": after, "is_causal": True}, {"src_key_padding_mask": padding}):
            with self.subTest(layer=masks):
                self.compare(lambda masks=masks: self.layer(x, **masks), 1)

    def test_every_type(self):
        for dtype, served in ((torch.float16, 1), (torch.bfloat16, 1), (torch.float64, 0)):
            x, attention = self.x.to(dtype), self.attention.to(dtype)
            with torch.inference_mode():
                wanted = attention(x, x, x, need_weights=False)[0]
                heed.reset_report()
                with heed.sdpa():
                    got = attention(x, x, x, need_weights=False)[0]
            self.assertEqual((heed.report().served, heed.report().handed_back), (served, 1 - served))
            torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)

    def test_what_pytorchs_kernel_computes(self):
        x = self.x
        self.compare(lambda: self.attention(x, x, x), 0)  # weights
        self.compare(lambda: self.attention(x, x.clone(), x, need_weights=False)[0], 1)  # not the fast path
        # Padding at the ends of rows: nested tensors.
        encoder = torch.nn.TransformerEncoder(self.layer, 2).eval()
        self.compare(lambda: encoder(x, src_key_padding_mask=self.padding), 0)

    def test_a_selection_of_backends_is_kept_and_strict_mode_says_so(self):
        def call():
            with sdpa_kernel(SDPBackend.MATH):
                return self.attention(self.x, self.x, self.x, need_weights=False)[0]

        self.compare(call, 0, 1)
        with torch.inference_mode(), heed.sdpa(strict=True), self.assertRaisesRegex(heed.NotServed, "selection of backends"):
            call()

    def test_the_switch_is_left_alone(self):
        for enabled in (True, False):
            torch.backends.mha.set_fastpath_enabled(enabled)
            try:
                with heed.sdpa():
                    self.assertEqual(torch.backends.mha.get_fastpath_enabled(), enabled)
                self.assertEqual(torch.backends.mha.get_fastpath_enabled(), enabled)
            finally:
                torch.backends.mha.set_fastpath_enabled(True)

    def test_installing_warns_of_nothing(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with heed.sdpa():
                pass

    def test_rows_that_see_no_key_are_zeros(self):
        hidden = self.after.clone()
        hidden[2] = True
        with torch.inference_mode(), heed.sdpa(strict=True):
            o = self.attention(self.x, self.x, self.x, need_weights=False, attn_mask=hidden)[0]
        torch.testing.assert_close(o[:, 2], self.attention.out_proj.bias.detach().expand(BATCH, DIM))
        self.assertTrue(o.isfinite().all())

    def test_malformed_calls_have_pytorchs_errors(self):
        x, weight, bias, out = self.x, torch.randn(3 * DIM, DIM), torch.randn(3 * DIM), torch.randn(DIM, DIM)
        rest = None, False, True
        calls = {
            "a row": (x[0], x[0], x[0], DIM, HEADS, weight, bias, out, bias[:DIM], *rest, None),
            "heads": (x, x, x, DIM, 3, weight, bias, out, bias[:DIM], *rest, None),
            "width": (x, x, x, DIM - 2, HEADS, weight, bias, out, bias[:DIM], *rest, None),
            "weight": (x, x, x, DIM, HEADS, weight[1:], bias, out, bias[:DIM], *rest, None),
            "bias": (x, x, x, DIM, HEADS, weight, bias[1:], out, bias[:DIM], *rest, None),
            "type": (x.double(),) * 3 + (DIM, HEADS, weight, bias, out, bias[:DIM], *rest, None),
            "mask without a type": (x, x, x, DIM, HEADS, weight, bias, out, bias[:DIM], self.after, False, True, None),
            "mask of another type": (x, x, x, DIM, HEADS, weight, bias, out, bias[:DIM], self.after, False, True, 1),
        }
        for name, arguments in calls.items():
            with self.subTest(name), torch.inference_mode():
                with self.assertRaises(RuntimeError) as wanted:
                    _operator(*arguments)
                with heed.sdpa(), self.assertRaises(RuntimeError) as got:
                    _operator(*arguments)
                self.assertEqual(str(got.exception).split("\n")[0], str(wanted.exception).split("\n")[0])

    def test_compiled(self):
        with torch.no_grad(), heed.sdpa(strict=True):
            compiled = torch.compile(self.layer, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(self.x), self.layer(self.x), atol=1e-5, rtol=1e-4)
        # One of each call; PyTorch 2.11 runs one more while it compiles.
        self.assertIn(heed.report().served, (2, 3))


if __name__ == "__main__":
    unittest.main()

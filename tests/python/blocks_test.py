"""heed.attention with lists of blocks of keys, and heed.BlockMask from the forms that others have."""

import math
import unittest

import torch
from attention_cases import DEVICES, DTYPES, assert_close, require_programs, tensors

HEADS = 4


def setUpModule():
    require_programs()
    global heed, unfused
    import heed
    from heed import unfused


def drawn(*sizes, share=0.5, seed=3):
    """A boolean tensor; its first row of blocks sees nothing."""
    blocks = torch.rand(*sizes, generator=torch.Generator().manual_seed(seed)) < share
    blocks[..., 0, :] = False
    return blocks


def spread(blocks, size, len_q, len_k):
    """Blocks as a mask of scores."""
    rows, keys = size if isinstance(size, tuple) else (size, size)
    return blocks.repeat_interleave(rows, -2)[..., :len_q, :].repeat_interleave(keys, -1)[..., :len_k]


class Attention(unittest.TestCase):
    def check(self, device, dtype, blocks, size, lengths=(300, 500), **given):
        """A call with blocks, and the same with their boolean mask; keys that no row sees are NaN."""
        q, k, v = tensors((2, HEADS, 2, *lengths, 64, 64), dtype, device)
        mask = spread(blocks, size, *lengths).to(device)
        o, lse = heed.attention(q, k, v, block_mask=heed.BlockMask.from_blocks(blocks.to(device), size), return_lse=True, **given)
        bias = given.pop("bias", None)
        seen = mask if bias is None else mask & bias
        wanted, wanted_lse = heed.attention(q, k, v, bias=seen.expand(2, HEADS, *lengths) if seen.dim() == 2 else seen, return_lse=True, **given)
        assert_close(self, o, wanted.double(), dtype)
        torch.testing.assert_close(lse, wanted_lse, atol=2e-3, rtol=1e-3)

    def test_lists_show_what_their_mask_shows(self):
        for device in DEVICES:
            for dtype in DTYPES[device]:
                with self.subTest(device=device, dtype=dtype):
                    self.check(device, dtype, drawn(5, 8), 64)
                    self.check(device, dtype, drawn(HEADS, 3, 4), 128)
                    self.check(device, dtype, drawn(2, HEADS, 5, 4), (64, 128), causal=True, alignment="bottom_right")
                    self.check(device, dtype, drawn(2, 1, 3, 8), (128, 64), window=(100, 20), alignment="bottom_right")
                    self.check(device, dtype, drawn(5, 8), 64, softcap=5.0, sinks=torch.zeros(HEADS, device=device), key_lengths=torch.tensor([500, 77], device=device))
                    self.check(device, dtype, drawn(5, 8), 64, bias=(torch.rand(1, 1, 300, 500) > 0.3).to(device))

    def test_blocks_that_no_list_has_are_not_read(self):
        for device in DEVICES:
            q, k, v = tensors((1, HEADS, HEADS, 128, 256, 64, 64), DTYPES[device][0], device)
            blocks = torch.tensor([[True, False, False, True], [True, False, False, False]], device=device)
            before = heed.attention(q, k, v, block_mask=heed.BlockMask.from_blocks(blocks, 64))
            k[:, :, 64:192], v[:, :, 64:192] = math.nan, math.nan
            self.assertTrue(torch.equal(before, heed.attention(q, k, v, block_mask=heed.BlockMask.from_blocks(blocks, 64))))

    def test_entries_of_a_ragged_batch_count_from_their_own_rows(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            q, k, v = (torch.randn(200, HEADS, 64, device=device, dtype=dtype) for _ in range(3))
            begins = torch.tensor([0, 70, 200], device=device)
            blocks = drawn(2, HEADS, 3, 3, share=0.6).to(device)
            o = heed.attention_varlen(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=130, max_len_k=130, block_mask=heed.BlockMask.from_blocks(blocks, 64))
            for entry, (begin, end) in enumerate(((0, 70), (70, 200))):
                one = [tensor[begin:end].transpose(0, 1).unsqueeze(0) for tensor in (q, k, v)]
                count = -(-(end - begin) // 64)
                alone = heed.attention(*one, block_mask=heed.BlockMask.from_blocks(blocks[entry, :, :count, :count], 64))
                assert_close(self, o[begin:end], alone[0].transpose(0, 1).double(), dtype)

    def test_gradients_are_those_of_the_mask(self):
        blocks = drawn(5, 8)
        mask = spread(blocks, 64, 300, 500)
        results = []
        for given in ({"block_mask": heed.BlockMask.from_blocks(blocks, 64)}, {"bias": mask}):
            q, k, v = (tensor.requires_grad_() for tensor in tensors((2, HEADS, 2, 300, 500, 64, 64), torch.float32, "cpu"))
            heed.attention(q, k, v, **given).sum().backward()
            results.append((q.grad, k.grad, v.grad))
        for of_blocks, of_mask in zip(*results):
            # Gradients of 300 rows are summed in another order where more threads share them: 1.6e-5 of differences were seen.
            torch.testing.assert_close(of_blocks, of_mask, atol=1e-4, rtol=1e-4)

    def test_unfused_lists_are_the_kernels(self):
        q, k, v = tensors((2, HEADS, 2, 300, 500, 64, 64), torch.float32, "cpu")
        mask = heed.BlockMask.from_blocks(drawn(2, HEADS, 5, 8), 64)
        o, lse = unfused.forward_features(q, k, v, block_counts=mask.counts, block_indices=mask.indices, block_rows=64, block_keys=64)
        wanted, wanted_lse = heed.attention(q, k, v, block_mask=mask, return_lse=True)
        torch.testing.assert_close(o, wanted, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(lse, wanted_lse, atol=1e-4, rtol=1e-4)

    def test_lists_that_do_not_fit_are_named(self):
        q, k, v = tensors((2, HEADS, 2, 300, 500, 64, 64), torch.float32, "cpu")
        for blocks, size, words in ((drawn(4, 8), 64, "blocks of 64 take \\(2, 4, 5\\)"), (drawn(3, 5, 8), 64, "1 in the place"), (drawn(3, 1, 5, 8), 64, "1 in the place")):
            with self.assertRaisesRegex(ValueError, words):
                heed.attention(q, k, v, block_mask=heed.BlockMask.from_blocks(blocks, size))
        with self.assertRaisesRegex(TypeError, "block_mask must be a heed.BlockMask"):
            heed.attention(q, k, v, block_mask=drawn(5, 8))


class Forms(unittest.TestCase):
    def same(self, mask, blocks):
        self.assertTrue(torch.equal(mask.listed(blocks.shape[-1]), blocks.reshape((1,) * (4 - blocks.dim()) + tuple(blocks.shape))))

    def test_boolean_blocks(self):
        for sizes in ((5, 8), (3, 5, 8), (2, 3, 5, 8)):
            self.same(heed.BlockMask.from_blocks(drawn(*sizes)), drawn(*sizes))

    def test_block_sparse_rows(self):
        for sizes in ((5, 8), (2, 3, 5, 8)):
            blocks = drawn(*sizes)
            counts = blocks.flatten(0, -2).sum(-1)
            ends = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
            rows = blocks.shape[-2]
            indptr = torch.stack([ends[first : first + rows + 1] for first in range(0, counts.shape[0], rows)]).reshape(*blocks.shape[:-2], rows + 1)
            self.same(heed.BlockMask.from_bsr(indptr, blocks.flatten(0, -2).nonzero()[:, 1], blocks.shape[-1]), blocks)
        self.same(heed.BlockMask.from_bsr(torch.tensor([0, 0, 0]), torch.tensor([], dtype=torch.int32), 4), torch.zeros(2, 4, dtype=torch.bool))

    def test_block_masks_of_flex_attention(self):
        from torch.nn.attention import flex_attention as flex

        def longformer(b, h, row, key):
            return ((row - key).abs() <= 150) | (key < 3 + h)

        mask = flex.create_block_mask(longformer, None, HEADS, 600, 600, device="cpu")
        q, k, v = tensors((2, HEADS, HEADS, 600, 600, 64, 64), torch.float32, "cpu")
        dense = flex.create_mask(longformer, 1, HEADS, 600, 600, device="cpu")
        torch.testing.assert_close(heed.attention(q, k, v, block_mask=mask), heed.attention(q, k, v, bias=dense), atol=2e-5, rtol=1e-4)
        self.same(heed.BlockMask.from_flex(mask), torch.nn.functional.max_pool2d(torch.nn.functional.pad(dense, (0, 40, 0, 40)).float(), 128).bool())
        with self.assertRaisesRegex(ValueError, "the function of block_mask and bias"):
            heed.attention(q, k, v, block_mask=mask, bias=dense)
        # A function that shows all takes no mask: keys of other blocks may be NaN.
        blocks = heed.BlockMask.from_blocks(drawn(5, 5))
        whole = flex.BlockMask.from_kv_blocks(blocks.counts, blocks.indices, BLOCK_SIZE=128, seq_lengths=(600, 600))
        self.assertIsNone(heed.blocks.mask_of(whole, 600, 600))
        self.assertTrue(torch.equal(heed.attention(q, k, v, block_mask=whole), heed.attention(q, k, v, block_mask=blocks)))

    def test_forms_that_cannot_be_are_named(self):
        for make, words in (
            (lambda: heed.BlockMask.from_blocks(drawn(5, 8).float()), "blocks must be a boolean"),
            (lambda: heed.BlockMask.from_blocks(drawn(5, 8), 32), "64 or 128 rows and as many keys, not 32 and 32"),
            (lambda: heed.BlockMask.from_blocks(drawn(5, 8), (64, 256)), "not 64 and 256"),
            (lambda: heed.BlockMask.from_bsr(torch.tensor([0.0, 1.0]), torch.tensor([0]), 4), "indptr must be a Tensor of integers"),
            (lambda: heed.BlockMask.from_bsr(torch.tensor([0]), torch.tensor([0]), 4), "indptr must be"),
            (lambda: heed.BlockMask.from_bsr(torch.tensor([0, 1]), torch.tensor([0]), 0), "key_blocks positive"),
            (lambda: heed.BlockMask(torch.zeros(1, 1, 4, dtype=torch.int32), torch.zeros(1, 1, 5, 4, dtype=torch.int32)), "must have the same lists"),
            (lambda: heed.BlockMask(torch.zeros(4), torch.zeros(1, 1, 4, 4, dtype=torch.int32)), "counts must be a Tensor of integers with 3"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                make()


class Patterns(unittest.TestCase):
    # What the text of a workload with these blocks lists: block_lists of lib/workload/blocks.cpp.
    LISTS = {
        ("64/bigbird@7", 512): ([0, 1, 2, 3, 4, 5, 6, 7],) * 2 + ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 7], [0, 1, 3, 4, 5, 7], [0, 1, 4, 5, 6], [0, 1, 3, 5, 6, 7], [0, 1, 3, 4, 5, 6, 7]),
        ("64/density0.4@9", 256): ([0], [0], [1], []),
        ("128/window1+global1", 512): ([0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3]),
        ("64/dilated1x2", 256): ([0, 2], [1, 3], [0, 2], [1, 3]),
        ("64/stride3", 256): ([0, 3], [1], [2], [0, 3]),
        ("64/wavefront3", 256): ([0, 3], [2], [1], [0, 3]),
    }

    def test_lists(self):
        for (text, length), lists in self.LISTS.items():
            mask = heed.BlockMask.from_pattern(text, length, length)
            blocks = mask.listed(-(-length // mask.keys))[0, 0]
            self.assertEqual([row.nonzero().flatten().tolist() for row in blocks], list(lists), text)
        self.assertEqual(heed.BlockMask.from_pattern("64x128/bigbird@3/bh", 300, 500, batch=2, heads=HEADS).counts.shape, (2, HEADS, 5))
        causal = heed.BlockMask.from_pattern("64/window0", 128, 256), heed.BlockMask.from_pattern("64/window0", 128, 256, alignment="top_left")
        self.assertEqual([mask.indices[0, 0, :, 0].tolist() for mask in causal], [[2, 3], [0, 1]])

    def test_a_call(self):
        q, k, v = tensors((1, HEADS, HEADS, 256, 256, 64, 64), torch.float32, "cpu")
        for text in ("64/longformer", "64/bigbird@7/h", "64/dilated1x2+global1", "64/wavefront2"):
            mask = heed.BlockMask.from_pattern(text, 256, 256, heads=HEADS)
            wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, spread(mask.listed(4), 64, 256, 256))
            torch.testing.assert_close(heed.attention(q, k, v, block_mask=mask), wanted, atol=1e-5, rtol=1e-4)

    def test_texts_that_are_no_pattern_are_named(self):
        for text, words in (
            ("32/longformer", '"32" .* is no size'),
            ("64/", '"" is no part'),
            ("64/@3", '"" is no part'),
            ("64/tornado3", '"tornado3" is no part'),
            ("64/window", '"window" is no part'),
            ("64/global0", '"global0" is no part'),
            ("64/dilated2x1", '"dilated2x1" is no part'),
            ("64/density1.5", '"density1.5" is no part'),
            ("64/window1+dilated2x2", "says again"),
            ("64/window1@7", "no part that is drawn"),
            ("64/bigbird@0", "is no seed"),
            ("64/bigbird@7/x", "are no dimensions"),
            ("64/random1048577", "above 1048576"),
            ("64/dilated2x99999999999999999999", "above 1048576"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                heed.BlockMask.from_pattern(text, 256, 256)
        with self.assertRaisesRegex(ValueError, "alignment"):
            heed.BlockMask.from_pattern("64", 256, 256, alignment="left")
        with self.assertRaisesRegex(ValueError, "more than 268435456 numbers"):
            heed.BlockMask.from_pattern("64/window1", 1 << 21, 1 << 20)
        with self.assertRaisesRegex(ValueError, "more than 268435456 numbers"):
            heed.BlockMask.from_pattern("64/window1/bh", 1 << 20, 1 << 20, heads=2, batch=2)
        with self.assertRaisesRegex(ValueError, "len_k 0"):
            heed.BlockMask.from_pattern("64", 256, 0)


if __name__ == "__main__":
    unittest.main()

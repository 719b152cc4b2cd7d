"""The mask function of attn_implementation="heed": positions say the same as Transformers' own mask tensors."""

import copy
import itertools
import unittest

import torch
from attention_cases import require_programs
from transformers_models import require_transformers


def setUpModule():
    require_programs()
    require_transformers()
    global masks, masking_utils
    from heed import transformers_masks as masks
    from transformers import masking_utils


def padded(length, *hidden):
    """A 2-D mask of two rows, the first of which hides some keys."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, list(hidden)] = False
    return mask


# q_length, kv_length, q_offset, kv_offset: a prompt, a decode step, a chunk behind a cache, one with room left at its end, caches of the
# last keys of a window of 4.
SPANS = [(6, 6, 0, 0), (1, 7, 6, 0), (3, 8, 5, 0), (3, 9, 2, 0), (1, 9, 4, 0), (1, 4, 9, 6), (2, 5, 9, 6), (6, 9, 0, 0)]


class Masks(unittest.TestCase):
    def check(self, arguments, **skips):
        """Compares with Transformers' own tensor. Returns what the mask function makes."""
        made = masks.mask(batch_size=2, **arguments, **skips)
        whole = masking_utils.sdpa_mask(batch_size=2, **arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        if made is None:
            self.assertEqual(arguments["q_length"], 1)
            self.assertTrue(whole.all())
        else:
            self.assertEqual((made.shape, made.dtype, made.device), (whole.shape, whole.dtype, whole.device))
            self.assertTrue(torch.equal(made.dense() if isinstance(made, masks.PositionMask) else made, whole))
        return made

    def test_causal_masks_and_windows(self):
        for (len_q, len_k, q_offset, kv_offset), window in itertools.product(SPANS, (None, 1, 4, 100)):
            function = masking_utils.causal_mask_function if window is None else masking_utils.sliding_window_causal_mask_function(window)
            arguments = {"q_length": len_q, "kv_length": len_k, "q_offset": q_offset, "kv_offset": kv_offset}
            arguments |= {"mask_function": function, "local_size": window}
            length = q_offset + len_q
            for attention_mask in (None, padded(length), padded(length, 0, 1), padded(length, q_offset), padded(20), padded(20, 19)):
                with self.subTest(span=(len_q, len_k, q_offset, kv_offset), window=window, attention_mask=attention_mask):
                    made = self.check({**arguments, "attention_mask": attention_mask})
                    if attention_mask is None:
                        self.assertNotEqual(type(made), torch.Tensor)
                    # A caller may ask for a tensor.
                    self.assertIs(type(self.check({**arguments, "attention_mask": attention_mask}, allow_is_causal_skip=False)), torch.Tensor)

    def test_masks_that_see_both_ways(self):
        for (len_q, len_k), window in itertools.product([(6, 6), (1, 7), (9, 9)], (None, 1, 4, 100)):
            function = masking_utils.bidirectional_mask_function if window is None else masking_utils.sliding_window_bidirectional_mask_function(window)
            for attention_mask in (None, padded(len_k), padded(len_k, len_k - 1)):
                with self.subTest(len_q=len_q, len_k=len_k, window=window, attention_mask=attention_mask):
                    arguments = {"q_length": len_q, "kv_length": len_k, "mask_function": function, "local_size": window, "attention_mask": attention_mask}
                    made = self.check(arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=True)
                    if attention_mask is None and (len_q == len_k or window is None):
                        self.assertNotEqual(type(made), torch.Tensor)

    def test_other_masks_are_tensors(self):
        sizes = {"q_length": 6, "kv_length": 6}
        chunks = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))
        self.assertIs(type(self.check({**sizes, "mask_function": chunks, "local_size": 4})), torch.Tensor)
        # A window's function beside the size of another.
        window = masking_utils.sliding_window_causal_mask_function(3)
        self.assertIs(type(self.check({**sizes, "mask_function": window, "local_size": 4})), torch.Tensor)
        self.assertIs(type(self.check({**sizes, "mask_function": window})), torch.Tensor)

    def test_a_length_that_is_on_the_device(self):
        # A static cache: the prompt is plain, and a mask for later queries is a tensor.
        for q_offset, kind in ((0, masks.PositionMask), (3, torch.Tensor)):
            made = self.check({"q_length": 4, "kv_length": 12, "q_offset": torch.tensor(q_offset)})
            self.assertIs(type(made), kind)

    def test_functions_are_compared_by_what_they_enclose(self):
        window = masking_utils.sliding_window_causal_mask_function
        self.assertTrue(masks.is_same(window(3), window(3)))
        for other in (window(4), masking_utils.causal_mask_function, masking_utils.sliding_window_bidirectional_mask_function(3), masking_utils.and_masks()):
            self.assertFalse(masks.is_same(window(3), other))

    def test_a_model_that_needs_masks_of_numbers(self):
        import transformers

        with self.assertRaisesRegex(NotImplementedError, "deepseek_v4 joins numbers"):
            masks.mask(1, 4, 4, config=transformers.DeepseekV4Config())


class PositionMasks(unittest.TestCase):
    def setUp(self):
        self.mask = masks.mask(1, 5, 9, q_offset=4)
        self.whole = masking_utils.sdpa_mask(1, 5, 9, q_offset=4)

    def test_operators_get_the_whole_tensor_and_end_the_fast_path(self):
        operations = {
            "slice": lambda mask: mask[:, :, 1:3, :-1],
            "invert": lambda mask: ~mask,
            "join": lambda mask: torch.cat((mask, torch.zeros(1, 1, 5, 2, dtype=torch.bool)), -1),
            "numbers": lambda mask: torch.where(mask, 0.0, -1.0),
            "expand": lambda mask: mask.expand(3, 2, 5, 9),
            "other type": lambda mask: mask.to(torch.float16),
            "as an index": lambda mask: torch.arange(45).view(1, 1, 5, 9)[mask],
        }
        for name, operation in operations.items():
            with self.subTest(name):
                mask = masks.mask(1, 5, 9, q_offset=4)
                actual = operation(mask)
                self.assertIs(type(actual), torch.Tensor)
                self.assertTrue(torch.equal(actual, operation(self.whole)))
                self.assertIsNone(mask.visible)

    def test_a_change_in_place_holds(self):
        self.mask[..., 0] = False
        self.whole[..., 0] = False
        self.assertIsNone(self.mask.visible)
        self.assertTrue(torch.equal(self.mask.dense(), self.whole))

    def test_it_is_a_mask_of_pytorchs_attention(self):
        import heed

        q, k, v = torch.randn(1, 2, 5, 32), torch.randn(1, 2, 9, 32), torch.randn(1, 2, 9, 32)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, self.whole)
        for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with self.subTest(mode=mode.__name__), mode(), heed.sdpa():
                mask = masks.mask(1, 5, 9, q_offset=4)
                torch.testing.assert_close(torch.nn.functional.scaled_dot_product_attention(q, k, v, mask), wanted, atol=1e-5, rtol=1e-4)

    def test_what_reads_no_element_keeps_it(self):
        self.assertEqual((self.mask.shape, self.mask.dim(), self.mask.device.type), ((1, 1, 5, 9), 4, "cpu"))
        self.assertIs(self.mask.to("cpu"), self.mask)
        self.assertIn("own=4", repr(self.mask))
        self.assertEqual(self.mask.detach().visible, self.mask.visible)
        self.assertIsNotNone(self.mask.visible)

    def test_a_copy(self):
        self.assertEqual(copy.deepcopy(self.mask).visible, self.mask.visible)
        self.mask.logical_not()
        self.assertTrue(torch.equal(copy.deepcopy(self.mask), self.whole))


if __name__ == "__main__":
    unittest.main()

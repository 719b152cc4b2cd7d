"""Dropout of heed.attention: by position, the same in every kernel and in a gradient."""

import math
import unittest

import torch
from attention_cases import DEVICES, DTYPES, assert_close, require_programs, tensors

HEADS, LENGTHS = 4, (70, 131)
SEED, OFFSET = (1 << 64) - 3, 1 << 40
GIVEN = {"dropout_seed": SEED, "dropout_offset": OFFSET}


def setUpModule():
    require_programs()
    global heed, dropout
    import heed
    from heed import dropout


def definition(q, k, v, kept, hidden=None):
    """O in float64, and the log-sum-exp."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return (torch.softmax(scores, -1) * kept) @ v, torch.logsumexp(scores, -1)


class Generator(unittest.TestCase):
    def test_known_answers(self):
        # Of Random123: kat_vectors, philox4x32 with 7 and 10 rounds.
        digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
        for counter, key, rounds, words in (
            ((0, 0, 0, 0), (0, 0), 7, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
            ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 7, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
            (digits, (0xA4093822, 0x299F31D0), 7, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
            (digits, (0xA4093822, 0x299F31D0), 10, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
        ):
            self.assertEqual(dropout._philox(counter, key, rounds), words)
            self.assertEqual(tuple(int(word) for word in dropout._philox([torch.tensor(word) for word in counter], key, rounds)), words)

    def test_offsets_carry(self):
        # Head 1 begins 32 behind head 0, and entry 1 behind all heads: the numbers of an offset near 2^32 carry into its upper word.
        kept = heed.dropout_mask(0.5, 3, (1 << 32) - 40, (2, 2, 40, 70))
        for entry, head in ((0, 1), (1, 0), (1, 1)):
            self.assertTrue(torch.equal(kept[entry, head], heed.dropout_mask(0.5, 3, (1 << 32) - 40 + 32 * (2 * entry + head), (1, 1, 40, 70))[0, 0]))
        self.assertFalse(torch.equal(kept[1, 1], heed.dropout_mask(0.5, 3, 56, (1, 1, 40, 70))[0, 0]))

    def test_shares(self):
        for wanted, p in ((0.1, 26 / 256), (0.5, 0.5), (0.99, 253 / 256)):
            kept = heed.dropout_mask(wanted, 3, 4, (2, 3, 200, 300))
            self.assertLess(abs(kept.double().mean().item() - (1 - p)), 5 * math.sqrt(p * (1 - p) / kept.numel()))
        self.assertFalse(heed.dropout_mask(1.0, 3, 4, (1, 1, 5, 5)).any())
        self.assertTrue(heed.dropout_mask(0.0, 3, 4, (1, 1, 5, 5)).all())
        with self.assertRaisesRegex(ValueError, r"sizes are \(3, 3\); they must be four"):
            heed.dropout_mask(0.1, 3, 4, (3, 3))


class Kernels(unittest.TestCase):
    def test_what_is_kept_is_scaled_and_what_is_dropped_is_not_there(self):
        row, key = torch.arange(LENGTHS[0]).view(-1, 1), torch.arange(LENGTHS[1])
        for device in DEVICES:
            for dtype in DTYPES[device]:
                for dim in (64, 40):
                    q, k, v = tensors((2, HEADS, 2, *LENGTHS, dim, dim), dtype, device)
                    for p in (0.1, 0.5, 1.0):
                        kept = dropout.kept(p, SEED, OFFSET, (2, HEADS, *LENGTHS), device)
                        for masking, hidden in (
                            ({}, None),
                            ({"causal": True, "alignment": "bottom_right"}, key > row + 61),
                            ({"window": (20, 5), "alignment": "bottom_right"}, (key > row + 66) | (key < row + 41)),
                        ):
                            with self.subTest(device=device, dtype=dtype, dim=dim, p=p, **masking):
                                o, lse = heed.attention(q, k, v, dropout_p=p, **GIVEN, **masking, return_lse=True)
                                wanted = definition(q, k, v, kept, None if hidden is None else hidden.to(device))
                                assert_close(self, o, wanted[0], dtype)
                                torch.testing.assert_close(lse.double(), wanted[1], atol=2e-3, rtol=1e-3)

    def test_entries_of_a_ragged_batch_and_features_beside_it(self):
        for device in DEVICES:
            dtype = DTYPES[device][0]
            q, k, v = (torch.randn(200, HEADS, 64, device=device, dtype=dtype) for _ in range(3))
            begins = torch.tensor([0, 70, 200], device=device)
            o = heed.attention_varlen(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins, max_len_q=130, max_len_k=130, dropout_p=0.3, **GIVEN)
            for entry, (begin, end) in enumerate(((0, 70), (70, 200))):
                one = [tensor[begin:end].transpose(0, 1).unsqueeze(0) for tensor in (q, k, v)]
                kept = dropout.kept(0.3, SEED, OFFSET, (1, HEADS, end - begin, end - begin), device, entry)
                assert_close(self, o[begin:end], definition(*one, kept)[0][0].transpose(0, 1), dtype)

    def test_numbers_alone_decide(self):
        for device in DEVICES:
            q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), DTYPES[device][0], device)

            def call(p=0.2, seed=5, offset=6):
                return heed.attention(q, k, v, dropout_p=p, dropout_seed=seed, dropout_offset=offset)

            before = torch.get_rng_state()
            first = call()
            self.assertTrue(torch.equal(first, call()))
            self.assertTrue(torch.equal(before, torch.get_rng_state()))
            for other in (call(seed=6), call(offset=5), call(seed=5 + (1 << 32)), call(p=0.3)):
                self.assertFalse(torch.equal(first, other))
            self.assertTrue(torch.equal(heed.attention(q, k, v, dropout_p=0.0), heed.attention(q, k, v)))
            self.assertTrue(torch.equal(call(seed=-1), call(seed=(1 << 64) - 1)))

    def test_gradients_have_the_same_dropout(self):
        for device in DEVICES:
            learned = [tensor.half().requires_grad_() for tensor in tensors((2, 4, 2, 9, 11, 16, 16), torch.float32, device)]
            o = heed.attention(*learned, dropout_p=0.4, **GIVEN)
            weight = torch.randn_like(o)
            got = torch.autograd.grad((o * weight).float().sum(), learned)
            exact = [tensor.detach().double().requires_grad_() for tensor in learned]
            wanted, _ = definition(*exact, dropout.kept(0.4, SEED, OFFSET, (2, 4, 9, 11), device))
            for one, other in zip(got, torch.autograd.grad((wanted * weight.double()).sum(), exact)):
                torch.testing.assert_close(one.double(), other, atol=2e-2, rtol=2e-2)

    def test_a_trace_has_its_dropout(self):
        for device in DEVICES:
            q, k, v = tensors((2, HEADS, 2, 16, 20, 64, 64), DTYPES[device][0], device)

            def call(q, k, v, seed):
                return heed.attention(q, k, v, dropout_p=0.2, dropout_seed=seed) * 2

            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            with torch.no_grad():
                for seed in (3, 4, 1 << 62):
                    torch.testing.assert_close(compiled(q, k, v, seed), call(q, k, v, seed))

    def test_the_operator_is_sound(self):
        q, k, v = tensors((2, 4, 2, 9, 11, 64, 64), torch.float32, "cpu")
        for needs_gradient in (False, True):
            learned = [tensor.clone().requires_grad_(needs_gradient) for tensor in (q, k, v)]
            torch.library.opcheck(torch.ops.heed.forward_features.default, learned, {"dropout_p": 0.5, "dropout_seed": -7})


class Refusals(unittest.TestCase):
    def test_numbers_that_cannot_be_are_named(self):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float32, "cpu")
        for error, words, given in (
            (ValueError, "dropout_p is -0.1; it must be a probability", {"dropout_p": -0.1}),
            (ValueError, "dropout_p is 1.5", {"dropout_p": 1.5}),
            (ValueError, "dropout_p is nan", {"dropout_p": math.nan}),
            (ValueError, "dropout_p is half", {"dropout_p": "half"}),
            (ValueError, "dropout_seed is 18446744073709551616; it must have 64 bits", {"dropout_p": 0.1, "dropout_seed": 1 << 64}),
            (TypeError, "dropout_offset must be an int, not float", {"dropout_p": 0.1, "dropout_offset": 0.5}),
            (ValueError, "dropout_seed is 3 and there is no dropout", {"dropout_seed": 3}),
        ):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                heed.attention(q, k, v, **given)

    def test_explain_spells_it(self):
        q, k, v = tensors((2, HEADS, 2, *LENGTHS, 64, 64), torch.float32, "cpu")
        self.assertRegex(heed.explain(q, k, v, dropout_p=0.1, dropout_seed=3), ":dropout=0.1\n(.*\n)*runs      fwd_cpu")


if __name__ == "__main__":
    unittest.main()

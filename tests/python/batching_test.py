"""torch.vmap of heed.scaled_dot_product_attention, beside that of PyTorch's function."""

import itertools
import math
import unittest

import torch
import torch.nn.functional as F
from attention_cases import require_programs


def setUpModule():
    require_programs()
    global heed
    import heed


def randn(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Batching(unittest.TestCase):
    def assert_same(self, wrapped, *tensors):
        """`wrapped`: from a function to one of these tensors."""
        torch.testing.assert_close(wrapped(heed.scaled_dot_product_attention)(*tensors), wrapped(F.scaled_dot_product_attention)(*tensors), atol=1e-5, rtol=1e-5)

    def test_every_rank_and_mask(self):
        vmap = torch.vmap
        for rank, mask_rank, enable_gqa in itertools.product((2, 3, 4), (None, 2, 3, 4), (False, True)):
            if (mask_rank or 0) > rank or (enable_gqa and rank == 2):
                continue
            with self.subTest(rank=rank, mask_rank=mask_rank, enable_gqa=enable_gqa):
                outer = (2, 4)[4 - rank :]
                q, (k, v) = randn(3, 2, *outer, 9, 8), (randn(3, 2, *(2, 2 if enable_gqa else 4)[4 - rank :], 7, 8, seed=seed) for seed in (1, 2))
                outer_of_mask = outer[rank - mask_rank :] if mask_rank else ()
                masks = (randn(3, 2, *outer_of_mask, 9, 7, seed=3) > -0.5,) if mask_rank else ()
                one = [tensor[0] for tensor in (q, k, v, *masks)]

                def wrap(f):
                    return lambda *tensors: f(*tensors, enable_gqa=enable_gqa)

                self.assert_same(lambda f: vmap(vmap(wrap(f))), q, k, v, *masks)
                self.assert_same(lambda f: vmap(wrap(f)), *one)
                self.assert_same(lambda f: vmap(wrap(f), (0, *(None,) * (len(one) - 1))), one[0], *(tensor[0] for tensor in one[1:]))
                self.assert_same(lambda f: vmap(wrap(f), (None, 1, 0, *(0,) * len(masks))), one[0][0], one[1].movedim(0, 1), *one[2:])
                if masks:
                    self.assert_same(lambda f: vmap(wrap(f), (None, None, None, 0)), *(tensor[0] for tensor in one[:3]), one[3])

    def test_a_mask_of_more_entries(self):
        self.assert_same(torch.vmap, *(randn(3, 1, 1, 9, 8),) * 3, randn(3, 2, 4, 9, 9))

    def test_broadcasts(self):
        q, one, three = randn(3, 2, 4, 9, 8), randn(3, 1, 4, 7, 8, seed=1), randn(3, 4, 7, 8, seed=2)
        self.assert_same(torch.vmap, q, one, one)
        self.assert_same(torch.vmap, q, three, three)
        self.assert_same(torch.vmap, q, randn(3, 2, 1, 7, 8), randn(3, 2, 1, 7, 8, seed=4))

    def test_compiled(self):
        x = randn(3, 9, 8)
        compiled = torch.compile(torch.vmap(lambda a: heed.scaled_dot_product_attention(a, a, a)), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), F.scaled_dot_product_attention(x, x, x), atol=1e-5, rtol=1e-5)

    def test_gradients(self):
        x = randn(3, 9, 8)

        def gradient(f):
            leaf = x.clone().requires_grad_()
            return torch.autograd.grad(torch.vmap(lambda a: f(a, a, a, is_causal=True))(leaf).square().sum(), leaf)[0]

        torch.testing.assert_close(gradient(heed.scaled_dot_product_attention), gradient(F.scaled_dot_product_attention), atol=1e-5, rtol=1e-4)


class Randomness(unittest.TestCase):
    def dropped(self, x, randomness, p=0.5, **given):
        return torch.vmap(lambda a: heed.scaled_dot_product_attention(a, a, a, dropout_p=p, **given), randomness=randomness)(x)

    def test_error(self):
        x = randn(3, 4, 9, 8)
        with self.assertRaisesRegex(RuntimeError, "randomness error mode"):
            self.dropped(x, "error")
        self.assertEqual(self.dropped(x, "error", p=0.0).shape, x.shape)

    def test_same_and_different(self):
        for sizes in ((9, 8), (4, 9, 8), (2, 4, 9, 8)):
            x = randn(1, *sizes).expand(3, *sizes)
            with self.subTest(sizes=sizes):
                o = self.dropped(x, "different")
                self.assertGreater((o[0] - o[1]).abs().max(), 0.1)
                o = self.dropped(x, "same")
                self.assertEqual((o - o[:1]).abs().max(), 0)
                self.assertGreater((o[0] - self.dropped(x, "same")[0]).abs().max(), 0.1)
                self.assertEqual(self.dropped(x, "same", p=1.0).abs().max(), 0)

    def test_what_the_same_dropout_computes(self):
        """The mean over many drawings is that without dropout."""
        q, k, v = (randn(1, 4, 5, 8, seed=seed) for seed in (1, 2, 3))
        p, drawings = 0.3, 4000
        # A row of one key is V times what was drawn over 1 - p: no entry deviates more. Five standard deviations.
        atol = 5 * v.abs().max().item() * math.sqrt(p / (1 - p) / drawings)
        for given in ({}, {"is_causal": True}, {"attn_mask": randn(5, 5)}, {"attn_mask": randn(5, 5) > -0.3, "scale": 0.5}):
            f = torch.vmap(lambda q, k, v: heed.scaled_dot_product_attention(q, k, v, dropout_p=p, **given), randomness="same")
            many = f(*(tensor[None].expand(2, drawings, *tensor.shape[1:]) for tensor in (q, k, v)))
            wanted = F.scaled_dot_product_attention(q, k, v, **given)
            torch.testing.assert_close(many.mean(1), wanted.expand(2, *wanted.shape[1:]), atol=atol, rtol=0)


if __name__ == "__main__":
    unittest.main()

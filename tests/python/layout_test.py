"""The layout of O: on a CPU that of PyTorch's kernels, with which code that takes views of it runs; in a trace the same as without."""

import itertools
import unittest

import torch
import torch.nn.functional as F
from attention_cases import require_programs

DIM = 8
# (batch, heads, len_q, len_k): dimensions of one element too, whose strides say nothing.
SIZES = ((2, 4, 5, 7), (1, 4, 5, 5), (2, 1, 5, 5), (2, 4, 1, 7))
# Q as a view of memory in which its dimensions lie in another order, or with gaps.
LAYOUTS = {
    "bhld": lambda b, h, l, d: torch.randn(b, h, l, d),
    "blhd": lambda b, h, l, d: torch.randn(b, l, h, d).transpose(1, 2),
    "lbhd": lambda b, h, l, d: torch.randn(l, b, h, d).permute(1, 2, 0, 3),  # of torch.nn.MultiheadAttention
    "packed": lambda b, h, l, d: torch.randn(b, l, h, 3, d)[:, :, :, 0].transpose(1, 2),
    "hbld": lambda b, h, l, d: torch.randn(h, b, l, d).transpose(0, 1),
}
CALLS = {
    "plain": {},
    "mask": {"attn_mask": torch.ones(1, 1, dtype=torch.bool)},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "dim_v": {},
    "shared heads": {"enable_gqa": True},
    "negative scale": {"scale": -1.0},
}


def setUpModule():
    require_programs()
    global heed
    import heed


def strides(tensor):
    """Of dimensions that have more than one element."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]


def cases():
    """Q, K, V and the other arguments of every layout, kind of call and number of dimensions."""
    for layout, sizes, kind, rank in itertools.product(LAYOUTS, SIZES, CALLS, (4, 3)):
        if rank == 3 and kind == "shared heads":
            continue
        batch, heads, len_q, len_k = sizes
        heads_kv = max(1, heads // 2) if kind == "shared heads" else heads
        make = LAYOUTS[layout]
        inputs = make(batch, heads, len_q, DIM), make(batch, heads_kv, len_k, DIM), make(batch, heads_kv, len_k, 2 * DIM if kind == "dim_v" else DIM)
        yield (layout, sizes, kind, rank), inputs if rank == 4 else tuple(tensor[:, 0] for tensor in inputs), CALLS[kind]


class Layouts(unittest.TestCase):
    def test_output_lies_as_pytorchs(self):
        for dtype, needs_gradient in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            for name, inputs, rest in cases():
                with self.subTest(dtype=dtype, needs_gradient=needs_gradient, case=name):
                    inputs = [tensor.to(dtype).requires_grad_(needs_gradient) for tensor in inputs]
                    wanted = F.scaled_dot_product_attention(*inputs, **rest)
                    with heed.sdpa():
                        heed.reset_report()
                        got = F.scaled_dot_product_attention(*inputs, **rest)
                        self.assertEqual(heed.report().served, 1, str(heed.report()))
                    self.assertEqual(strides(got), strides(wanted))

    def test_traces_know_the_layout(self):
        of_one_size = [case for case in cases() if case[0][1] == SIZES[0]]
        for i, (name, inputs, rest) in enumerate(of_one_size):
            dynamic, needs_gradient = ((False, True), (True, False), (False, False))[i % 3]
            with self.subTest(case=name, dynamic=dynamic, needs_gradient=needs_gradient):
                torch._dynamo.reset()
                inputs = [tensor.requires_grad_(needs_gradient) for tensor in inputs]
                with heed.sdpa():
                    eager = F.scaled_dot_product_attention(*inputs, **rest)
                    traced = torch.compile(lambda *qkv, rest=rest: F.scaled_dot_product_attention(*qkv, **rest), backend="aot_eager", dynamic=dynamic)(*inputs)
                self.assertEqual(strides(traced), strides(eager))

    def test_views_that_pytorchs_layout_allows(self):
        x = torch.randn(5, 3, 4 * DIM)  # (length, batch, embedding)
        with heed.sdpa():
            q = x.view(5, 3, 4, DIM).permute(1, 2, 0, 3)
            self.assertEqual(F.scaled_dot_product_attention(q, q, q).permute(2, 0, 1, 3).view(15, 4 * DIM).shape, (15, 32))
            q = x.transpose(0, 1)
            self.assertEqual(F.scaled_dot_product_attention(q, q, q).view(3, 5 * 4 * DIM).shape, (3, 160))
            self.assertEqual(heed.scaled_dot_product_attention(q, q, q).view(3, 5 * 4 * DIM).shape, (3, 160))

    def test_a_tensor_without_memory(self):
        q = torch.randn(1, 2, 5, DIM)
        zeros = torch._efficientzerotensor(q.shape)
        with heed.sdpa():
            heed.reset_report()
            torch.testing.assert_close(F.scaled_dot_product_attention(zeros, q, q), q.mean(2, keepdim=True).expand_as(q))
            self.assertEqual(heed.report().served, 1, str(heed.report()))


if __name__ == "__main__":
    unittest.main()

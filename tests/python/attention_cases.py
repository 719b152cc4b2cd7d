"""Calls of attention that the tests of the operator share, each beside what it should give."""

import math
import os
import unittest

import torch

# HEED_TEST_DEVICES=cuda leaves the CPU out, for a file of programs for GPUs alone.
DEVICES = os.environ.get("HEED_TEST_DEVICES", "cpu,cuda" if torch.cuda.is_available() else "cpu").split(",")
DTYPES = {"cpu": [torch.float32, torch.bfloat16, torch.float16], "cuda": [torch.bfloat16, torch.float16, torch.float32]}

# batch, heads, heads_kv, len_q, len_k, dim, dim_v
SIZES = [
    (1, 1, 1, 1, 1, 64, 64),
    (2, 4, 4, 33, 33, 64, 64),
    (1, 8, 2, 64, 80, 128, 128),
    (2, 6, 1, 1, 77, 64, 64),
    (3, 2, 2, 50, 7, 64, 64),
    (1, 2, 2, 40, 40, 80, 80),
    (1, 4, 2, 17, 65, 96, 32),
]


def require_programs():
    """Skips where there is no file of programs to serve calls from."""
    from heed import libraries

    try:
        beside = libraries.folder() / "heed.programs"
    except libraries.LibraryMissing as error:
        raise unittest.SkipTest(str(error)) from error
    if not os.environ.get("HEED_PROGRAMS") and not beside.is_file():
        raise unittest.SkipTest(f"there is no {beside}; the target `programs` builds it")


def tensors(sizes, dtype, device, layout="bhld", seed=0, spread=1.0):
    """Q, K and V of N(0, spread^2). layout: "bhld" dense, "blhd" transposed views of (batch, length, head, dim), "packed" views of
    one tensor that holds all three side by side, "strided" every other element."""
    batch, heads, heads_kv, len_q, len_k, dim, dim_v = sizes
    generator = torch.Generator().manual_seed(seed)

    def one(heads, length, dim):
        shape = (batch, heads, length, dim)
        if layout == "blhd":
            tensor = torch.randn(batch, length, heads, dim, generator=generator).transpose(1, 2)
        elif layout == "packed":
            tensor = torch.randn(batch, length, heads, 3 * dim, generator=generator)[..., dim : 2 * dim].transpose(1, 2)
        elif layout == "strided":
            tensor = torch.randn(batch, heads, length, 2 * dim, generator=generator)[..., ::2]
        else:
            tensor = torch.randn(shape, generator=generator)
        # .to keeps no gaps: the strides are put back.
        moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
        return moved.copy_((tensor * spread).to(dtype))

    return one(heads, len_q, dim), one(heads_kv, len_k, dim), one(heads_kv, len_k, dim_v)


def expected(q, k, v, causal=False, window=None, alignment="top_left", scale=None):
    """O and log-sum-exp in float64, written apart from Heed's own formulas: a loop over nothing, a mask by indices."""
    q, k, v = (tensor.detach().double().cpu() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    rows, columns = torch.meshgrid(torch.arange(q.shape[2]), torch.arange(k.shape[2]), indexing="ij")
    distance = columns - rows - (k.shape[2] - q.shape[2] if alignment == "bottom_right" else 0)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance > 0
    if window is not None:
        left, right = window
        if left is not None:
            hidden |= distance < -left
        if right is not None:
            hidden |= distance > right
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse.isneginf().unsqueeze(-1), 0.0, torch.exp(scores - lse.unsqueeze(-1)))
    return weights @ v, lse


# Absolute and relative error of an output of N(0, 1) inputs: rounding of O, of P before the second product, and some room.
TOLERANCES = {torch.float32: (3e-5, 3e-5), torch.float16: (3e-3, 3e-3), torch.bfloat16: (2.5e-2, 2.5e-2)}


def assert_close(test, actual, wanted, dtype, message=""):
    """Compares with float64 values."""
    absolute, relative = TOLERANCES[dtype]
    torch.testing.assert_close(actual.detach().double().cpu(), wanted.cpu(), atol=absolute, rtol=relative, equal_nan=True, msg=lambda text: f"{message}: {text}")
    test.assertTrue(True)

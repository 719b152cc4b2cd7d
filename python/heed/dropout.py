"""Which probabilities dropout leaves out: Philox4x32 with seven rounds by position, as kernels/attention/dropout.hpp has it, in PyTorch's operators."""

import ctypes

import torch

_WORD = 0xFFFFFFFF


def _philox(counter, key, rounds=7):
    """Philox4x32 (Salmon et al., SC 2011) of words of 32 bits in int64 tensors or ints, which broadcast."""
    a, b, c, d = counter
    low, high = key
    for _ in range(rounds):
        # Products may leave 63 bits; what is kept of them is what wraps around.
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (second >> 32) & _WORD ^ b ^ low, (first >> 32) & _WORD ^ d ^ high
        b, d = second & _WORD, first & _WORD
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return a, b, c, d


def _most_kept(dropout_p):
    """The largest byte that is kept: in float32 as kernels compute it."""
    return int(ctypes.c_float(1 - ctypes.c_float(dropout_p).value).value * 255.0)


def is_kept(dropout_p, dropout_seed, dropout_offset, sizes, device="cpu", first_entry=0, first_row=0):
    """Which probabilities dropout keeps: a boolean tensor of `sizes` (batch, heads, len_q, len_k).

    first_entry: what the first batch entry counts as. first_row: what the first row counts as, a multiple of 16.
    """
    if dropout_p >= 1 or dropout_p <= 0:
        return torch.full(sizes, dropout_p <= 0, device=device)
    batch, heads, len_q, len_k = sizes

    def places(count, dim, first=0):
        return torch.arange(first, first + count, device=device).view([-1 if i == dim else 1 for i in range(5)])

    # A call for 16 rows, 32 keys and a lane of a warp, which has two rows and two of 8 keys, in four tiles.
    rows, keys = -(-len_q // 16), -(-len_k // 32)
    lanes = places(batch, 0, first_entry) * heads + places(heads, 1)
    lanes = lanes * 32 + places(32, 4)
    low = (dropout_offset & _WORD) + (lanes & _WORD)  # of a sum of 64 bits, which may wrap around
    high = ((dropout_offset >> 32) & _WORD) + (lanes >> 32) + (low >> 32)
    seed = dropout_seed & _WORD, (dropout_seed >> 32) & _WORD
    words = _philox((low & _WORD, high & _WORD, places(rows, 2, first_row // 16), places(keys, 3)), seed)
    # (batch, heads, 16 rows, 32 keys, row of 8, two keys of 8, tile of 8 keys, row or the eighth behind it, key of the two)
    of_calls = [word.expand(batch, heads, rows, keys, 32).unflatten(-1, (8, 4)) for word in words]
    shifts = torch.tensor([[0, 8], [16, 24]], device=device)
    number = (torch.stack(of_calls, -1)[..., None, None] >> shifts) & 0xFF
    number = number.permute(0, 1, 2, 7, 4, 3, 6, 5, 8).reshape(batch, heads, 16 * rows, 32 * keys)
    return number[:, :, :len_q, :len_k] <= _most_kept(dropout_p)


def kept(dropout_p, dropout_seed, dropout_offset, sizes, device="cpu", first_entry=0):
    """What dropout multiplies probabilities by: float64 of `sizes` (batch, heads, len_q, len_k), 0 or 1 / (1 - dropout_p).

    first_entry: that of `is_kept`.
    """
    shown = is_kept(dropout_p, dropout_seed, dropout_offset, sizes, device, first_entry)
    return shown.double() if dropout_p >= 1 else shown / (1 - torch.tensor(dropout_p, dtype=torch.float64, device=device))


def dropout_mask(dropout_p, dropout_seed, dropout_offset, sizes, device="cpu"):
    """What heed.attention with this dropout keeps: a boolean tensor of `sizes` (batch, heads, len_q, len_k).

    Of a ragged batch (heed.attention_varlen) rows and keys are counted from each entry's own first. Raises ValueError for other sizes.
    """
    if len(sizes) != 4:
        raise ValueError(f"heed.dropout_mask(): sizes are {tuple(sizes)}; they must be four, (batch, heads, len_q, len_k)")
    return is_kept(dropout_p, dropout_seed, dropout_offset, sizes, device)

"""Which probabilities dropout leaves out: Philox4x32-10 by position, as kernels/attention/dropout.hpp has it, in PyTorch's operators."""

import torch

_WORD = 0xFFFFFFFF


def _philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011) of words of 32 bits in int64 tensors or ints, which broadcast."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        # Products may leave 63 bits; what is kept of them is what wraps around.
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (second >> 32) & _WORD ^ b ^ low, (first >> 32) & _WORD ^ d ^ high
        b, d = second & _WORD, first & _WORD
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return a, b, c, d


def is_kept(dropout_p, dropout_seed, dropout_offset, sizes, device="cpu", first_entry=0, first_row=0):
    """Which probabilities dropout keeps: a boolean tensor of `sizes` (batch, heads, len_q, len_k).

    first_entry: what the first batch entry counts as. first_row: what the first row counts as, a multiple of 16.
    """
    if dropout_p >= 1:
        return torch.zeros(sizes, dtype=torch.bool, device=device)
    batch, heads, len_q, len_k = sizes

    def places(count, dim, first=0):
        return torch.arange(first, first + count, device=device).view([-1 if i == dim else 1 for i in range(4)])

    def words(number):
        return number & _WORD, (number >> 32) & _WORD

    of_head = _philox((*words(dropout_offset), places(batch, 0, first_entry), places(heads, 1)), words(dropout_seed))
    # The four words of a counter are those of rows r and r + 8 of 16 and of two keys.
    blocks, pairs = -(-len_q // 16), -(-len_k // 2)
    four = _philox((places(pairs, 3), places(8 * blocks, 2, first_row // 2), of_head[2], of_head[3]), of_head[:2])
    words_of = torch.stack([word.expand(batch, heads, 8 * blocks, pairs) for word in four], -1).view(batch, heads, blocks, 8, pairs, 2, 2)
    number = words_of.permute(0, 1, 2, 5, 3, 4, 6).reshape(batch, heads, 16 * blocks, 2 * pairs)[:, :, :len_q, :len_k]
    return number >= int(dropout_p * (1 << 32))


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

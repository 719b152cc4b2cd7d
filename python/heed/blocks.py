"""Lists of the blocks of keys that blocks of rows see: the block_mask of heed.attention, from the forms that others have.

Everything but named patterns is computed on the tensors' device, and nothing waits for it.
"""

from dataclasses import dataclass

import torch

SIZES = (64, 128)


@dataclass
class BlockMask:
    """For each block of rows a list of the blocks of keys that it sees.

    counts   (batch or 1, heads or 1, blocks of rows), int32: how many numbers of a list count
    indices  (batch or 1, heads or 1, blocks of rows, numbers), int32: the list, each block once. In the order of keys, blocks that a
             causal mask hides cost nothing.
    rows, keys   of a block: 64 or 128

    Masks, windows and biases of the call hide what they hide of listed blocks too.
    """

    counts: torch.Tensor
    indices: torch.Tensor
    rows: int = 128
    keys: int = 128

    def __post_init__(self):
        for name, tensor, dims in (("counts", self.counts, 3), ("indices", self.indices, 4)):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != dims or tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise ValueError(f"heed.BlockMask: {name} must be a Tensor of integers with {dims} dimensions")
        if self.counts.shape != self.indices.shape[:3] or self.counts.device != self.indices.device or self.indices.shape[3] == 0:
            raise ValueError(f"heed.BlockMask: counts {tuple(self.counts.shape)} and indices {tuple(self.indices.shape)} must have the same lists, with room for a number, on one device")
        for size in (self.rows, self.keys):
            if size not in SIZES:
                raise ValueError(f"heed.BlockMask: blocks have 64 or 128 rows and as many keys, not {self.rows} and {self.keys}")
        self.counts = self.counts.to(torch.int32).contiguous()
        self.indices = self.indices.to(torch.int32).contiguous()

    @classmethod
    def from_blocks(cls, blocks, block_size=128):
        """From a boolean tensor that is True where a block of rows sees a block of keys.

        blocks      (blocks of rows, blocks of keys), with heads or batch and heads before them
        block_size  64, 128, or (rows, keys)
        """
        if not isinstance(blocks, torch.Tensor) or blocks.dtype != torch.bool or not 2 <= blocks.dim() <= 4 or 0 in blocks.shape:
            raise ValueError("heed.BlockMask: blocks must be a boolean Tensor (batch, heads, blocks of rows, blocks of keys), or without the first dimensions")
        blocks = blocks.reshape((1,) * (4 - blocks.dim()) + tuple(blocks.shape))
        # True first, in the order of keys.
        indices = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
        return cls(blocks.sum(-1), indices, *_sizes(block_size))

    @classmethod
    def from_bsr(cls, indptr, indices, key_blocks, block_size=128):
        """From block-sparse rows, as FlashInfer and scipy.sparse.bsr_matrix have them.

        indptr      (blocks of rows + 1), with heads or batch and heads before it: list r is indices[indptr[r] : indptr[r + 1]]
        indices     (all numbers of all lists), in the order of keys within each
        key_blocks  blocks of keys that there are: no list is longer
        """
        for name, tensor in (("indptr", indptr), ("indices", indices)):
            if not isinstance(tensor, torch.Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise ValueError(f"heed.BlockMask: {name} must be a Tensor of integers")
        if not 1 <= indptr.dim() <= 3 or indptr.shape[-1] < 2 or indices.dim() != 1 or indptr.device != indices.device or key_blocks < 1:
            raise ValueError("heed.BlockMask: indptr must be (batch, heads, blocks of rows + 1), or without the first dimensions, indices (numbers), on one device, and key_blocks positive")
        indptr = indptr.reshape((1,) * (3 - indptr.dim()) + tuple(indptr.shape)).long()
        if indices.shape[0] == 0:
            indices = indices.new_zeros(1)
        places = indptr[..., :-1, None] + torch.arange(key_blocks, device=indptr.device)
        return cls(indptr.diff(dim=-1).clamp(min=0), indices[places.clamp(0, indices.shape[0] - 1)], *_sizes(block_size))

    @classmethod
    def from_pattern(cls, pattern, len_q, len_k, *, alignment="bottom_right", batch=1, heads=1, device="cpu"):
        """From the text of a pattern, "SIZE/PARTS" as a workload has it behind `blocks=`: "64/longformer", "128/bigbird@7", "64x128/dilated2x3+global1".

        pattern      SIZE is 64, 128, or rows x keys; PARTS are windowN (N blocks on either side of the own ones), dilatedNxM (every M-th), globalN (the first N blocks
                     for all rows, and all for the first N blocks of rows), randomN (N drawn for each block of rows), strideN, wavefrontN (anti-diagonals) and
                     densityP, joined by +; longformer is window4+global1, bigbird window1+global2+random3. @SEED follows drawn ones, and /b, /h or /bh gives
                     entries or heads lists of their own
        len_q, len_k rows and keys
        alignment    "bottom_right" or "top_left": which key is a row's own
        batch, heads of the call, where the pattern has lists for each

        A seed draws the same blocks on every machine and in `heed verify --shape ..:blocks=..`. Raises ValueError for a text that is no pattern.
        """
        from heed import block_patterns

        if alignment not in ("bottom_right", "top_left"):
            raise ValueError(f'heed.BlockMask: alignment must be "bottom_right" or "top_left", not {alignment!r}')
        if min(len_q, len_k, batch, heads) < 1:
            raise ValueError(f"heed.BlockMask: len_q {len_q}, len_k {len_k}, batch {batch} and heads {heads} must be 1 or more")
        parsed = block_patterns.parse(pattern)
        blocks = block_patterns.blocks_of(parsed, len_q, len_k, alignment, batch, heads)
        return cls.from_blocks(blocks.to(device), (parsed.rows, parsed.keys))

    @classmethod
    def from_flex(cls, block_mask):
        """From a BlockMask of torch.nn.attention.flex_attention: full blocks and partial ones in one list, in the order of keys.

        The function that hides scores of partial blocks is left out; `mask_of` computes what it hides.
        """
        counts, indices = block_mask.kv_num_blocks, block_mask.kv_indices
        full_counts, full_indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
        place = torch.arange(indices.shape[-1], device=indices.device)
        end = torch.iinfo(torch.int32).max
        listed = torch.where(place < counts[..., None], indices, end)
        if full_counts is not None:
            full = torch.where(place < full_counts[..., None], full_indices, end)
            # A block is partial or full: together the lists have no more numbers than one has room for.
            listed, counts = torch.cat([listed, full], -1), counts + full_counts
        return cls(counts, listed.sort(-1).values[..., : indices.shape[-1]], *_sizes(block_mask.BLOCK_SIZE))

    def listed(self, key_blocks):
        """The same as a boolean tensor (batch or 1, heads or 1, blocks of rows, key_blocks)."""
        return listed(self.counts, self.indices, key_blocks)


def mask_of(block_mask, len_q, len_k):
    """What the function of a BlockMask of flex_attention shows: (batch or 1, heads or 1, len_q, len_k), boolean; None where it shows all."""
    from torch.nn.attention.flex_attention import create_mask, noop_mask

    if block_mask.mask_mod is noop_mask:
        return None
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    return create_mask(block_mask.mask_mod, batch, heads, len_q, len_k, device=block_mask.kv_num_blocks.device)


def listed(counts, indices, key_blocks):
    """Which of `key_blocks` blocks of keys lists have: (.., key_blocks), boolean. Numbers that stand for none show nothing."""
    place = torch.arange(indices.shape[-1], device=indices.device)
    counted = (place < counts[..., None]) & (indices >= 0) & (indices < key_blocks)
    found = torch.zeros(*indices.shape[:-1], key_blocks + 1, dtype=torch.bool, device=indices.device)
    return found.scatter(-1, torch.where(counted, indices, key_blocks).long(), True)[..., :key_blocks]


def _sizes(block_size):
    return block_size if isinstance(block_size, tuple) else (block_size, block_size)

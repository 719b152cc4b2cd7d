"""Rules of torch.vmap for heed::forward, heed::forward_lse and heed::scaled_dot_product_attention: entries become a batch.

https://docs.pytorch.org/docs/stable/library.html#torch.library.register_vmap
"""

import math

import torch

from heed import operators
from heed.operators import library


def _fold(size, tensor, dim):
    """A tensor with one more dimension, `size` long, as (size * batch, heads, length, dim)."""
    tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _batched(operator, results):
    def rule(info, in_dims, query, key, value, *rest):
        folded = [_fold(info.batch_size, tensor, dim) for tensor, dim in zip((query, key, value), in_dims)]
        output = operator(*folded, *rest)
        if results == 1:
            return output.unflatten(0, (info.batch_size, -1)), 0
        return tuple(tensor.unflatten(0, (info.batch_size, -1)) for tensor in output), (0,) * results

    return rule


def _raised(tensor, dim, rank):
    """A view of a tensor of at most `rank` dimensions as (size, ...) of `rank` + 1; (1, ...) where it is one for all entries."""
    tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    return tensor[(slice(None), *(None,) * (rank + 1 - tensor.dim()))]


SAME_DROPOUT = "dropout that is the same for all entries of torch.vmap"


def _dropped_alike(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """O (size, ...) in PyTorch's operators, with one drawing for all of the first dimension. Softmax is taken in float32."""
    operators.note_refusal(SAME_DROPOUT, query, key, value)
    if enable_gqa:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
    scores = (query @ key.transpose(-1, -2)).float() * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    kept = torch.rand((1, *scores.shape[1:]), device=scores.device) >= dropout_p
    weights = torch._safe_softmax(scores, -1) * kept / (1 - dropout_p)  # rows that see no key are zeros
    return weights.to(value.dtype) @ value


def _batched_sdpa(info, in_dims, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """The entries as a first dimension, in front of as many dimensions for each tensor: three at the least, for of two the first is rows."""
    if dropout_p > 0 and info.randomness == "error":
        raise RuntimeError(
            "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness flags on vmap or "
            "perform the randomness operation out of vmap"
        )
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    dims = in_dims[: len(tensors)]
    ranks = [tensor.dim() - (dim is not None) for tensor, dim in zip(tensors, dims)]
    rank = max(3, *ranks)
    query, key, value, *mask = (_raised(tensor, dim, rank) for tensor, dim in zip(tensors, dims))
    # Entries of all: also where the mask alone has some, or more than they.
    query = query.expand(info.batch_size, *torch.broadcast_shapes(*(tensor.shape[1:-2] for tensor in (query, *mask))), -1, -1)
    arguments = query, key, value, *(mask or (None,)), dropout_p, is_causal
    if info.randomness == "same" and 0 < dropout_p < 1:
        o = _dropped_alike(*arguments, scale, enable_gqa)
    else:
        o = torch.ops.heed.scaled_dot_product_attention(*arguments, scale=scale, enable_gqa=enable_gqa)
    return (o.squeeze(1) if max(ranks) == 2 else o), 0


torch.library.register_vmap("heed::forward", _batched(torch.ops.heed.forward.default, 1), lib=library)
torch.library.register_vmap("heed::forward_lse", _batched(torch.ops.heed.forward_lse.default, 2), lib=library)
torch.library.register_vmap("heed::scaled_dot_product_attention", _batched_sdpa, lib=library)

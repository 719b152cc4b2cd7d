"""Attention written with PyTorch's operators, scores and all: what runs where Heed has no program, and its gradient.

Memory grows with len_q * len_k. Sums are taken in float32, or in float64 for float64 tensors.
"""

import math

import torch

from heed import blocks, dropout, key_span, layout, output
from heed.relative_bias import relative_buckets

HIDING_BIAS = -torch.finfo(torch.float32).max / math.log2(math.e)  # in kernels minus infinity: times log2(e) it is beyond float32
NONE, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT, WINDOW_TOP_LEFT, WINDOW_BOTTOM_RIGHT = range(5)


def bounds(mask, window_left, window_right):
    """(left, right) of key_span.sees. The arguments are those of heed_problem."""
    if mask == NONE:
        return key_span.ALL, key_span.ALL
    return window_left, 0 if mask in (CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT) else window_right


def is_aligned_to_end(mask):
    """Whether the last query's own key is the last key."""
    return mask in (CAUSAL_BOTTOM_RIGHT, WINDOW_BOTTOM_RIGHT)


def visible(mask, window_left, window_right, len_q, len_k, device):
    """Which keys a query sees: (len_q, len_k), or None where each sees all. The arguments are those of heed_problem."""
    left, right = bounds(mask, window_left, window_right)
    if left == right == key_span.ALL:
        return None
    own = torch.arange(len_q, device=device).unsqueeze(1) + key_span.own_offset(is_aligned_to_end(mask), len_q, len_k)
    return key_span.sees(own, torch.arange(len_k, device=device).unsqueeze(0), left, right)


def grouped(q, k, v):
    """Q, K and V as (batch, heads_kv, heads / heads_kv or 1, length, dim), in the type that sums are taken in."""
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    heads_kv = k.shape[1]
    q = q.unflatten(1, (heads_kv, q.shape[1] // heads_kv))
    return q.to(exact), k.unsqueeze(2).to(exact), v.unsqueeze(2).to(exact)


def forward(q, k, v, mask=NONE, window_left=-1, window_right=-1, scale=None):
    """O (batch, heads, len_q, dim_v) and the log-sum-exp of each row (batch, heads, len_q) in float32; a row that sees no key is
    zeros and minus infinity."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    exact_q, exact_k, exact_v = grouped(q, k, v)
    scores = exact_q @ exact_k.transpose(-1, -2) * scale
    seen = visible(mask, window_left, window_right, q.shape[2], k.shape[2], q.device)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse).unsqueeze(-1))
    o = (weights @ exact_v).flatten(1, 2).to(q.dtype)
    return layout.like_queries(o, q), lse.flatten(1, 2).to(torch.float32)


def forward_features(
    q, k, v, mask=NONE, window_left=-1, window_right=-1, scale=None, softcap=0.0, bias=None, sinks=None, alibi_slopes=None, key_lengths=None,
    cu_seqlens_q=None, cu_seqlens_k=None, page_table=None, block_counts=None, block_indices=None, prefix_lengths=None, max_len_q=0, max_len_k=0, block_rows=0, block_keys=0,
    dropout_p=0.0, dropout_seed=0, dropout_offset=0, relative_bias=None, relative_max_distance=0, relative_bidirectional=True,
    out_gate=None, out_norm_weight=None, out_norm_eps=0.0,
):  # fmt: skip
    """The arguments and results of heed::forward_features. Differentiable in its tensors of numbers; where entries are ragged or keys lie
    in pages it waits for the device."""
    common = {"mask": mask, "window_left": window_left, "window_right": window_right, "scale": scale, "softcap": softcap, "sinks": sinks}
    common["drop"] = dropout_p, dropout_seed, dropout_offset
    common["relative"] = None if relative_bias is None else (relative_bias, relative_max_distance, relative_bidirectional)
    lists = None if block_counts is None else (block_counts, block_indices, block_rows, block_keys)
    end = out_gate, out_norm_weight, out_norm_eps
    if cu_seqlens_q is None and page_table is None:
        o, lse = _dense_features(q, k, v, bias=bias, alibi_slopes=alibi_slopes, key_lengths=key_lengths, lists=lists, prefix_lengths=prefix_lengths, **common)
        return layout.like_queries(output.finished(o, *end), q), lse
    results = []
    for entry, of_qkv, of_entry in entries(q, k, v, bias, alibi_slopes, key_lengths, prefix_lengths, cu_seqlens_q, cu_seqlens_k, page_table, max_len_q, max_len_k):
        of_lists = lists
        if lists is not None and block_counts.shape[0] > 1:
            of_lists = block_counts[entry : entry + 1], block_indices[entry : entry + 1], block_rows, block_keys
        results.append(_dense_features(*of_qkv, lists=of_lists, first_entry=entry, **of_entry, **common))
    return joined(results, q, end)


def entries(q, k, v, bias, alibi_slopes, key_lengths, prefix_lengths, cu_seqlens_q, cu_seqlens_k, page_table, max_len_q, max_len_k):
    """Of each entry of a ragged batch or one of keys in pages: its number, its dense Q, K and V with a batch of 1, and its part of a bias, of slopes and of
    prefixes by name. It waits for the device."""
    for entry in range(page_table.shape[0] if page_table is not None else cu_seqlens_q.shape[0] - 1):
        of_qkv = _entry(entry, q, k, v, key_lengths, cu_seqlens_q, cu_seqlens_k, page_table, max_len_q, max_len_k)
        yield entry, of_qkv, {
            "bias": None if bias is None else _of_entry(bias, entry, of_qkv[0].shape[2], of_qkv[1].shape[2]),
            "alibi_slopes": alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[entry],
            "prefix_lengths": None if prefix_lengths is None else prefix_lengths[entry : entry + 1],
        }


def joined(results, q, end):
    """O and the log-sum-exp of a batch whose entries have these ones, O normed and gated by `end`, the last arguments of `forward_features`."""
    if q.dim() == 4:
        return layout.like_queries(output.finished(torch.cat([o for o, _ in results]), *end), q), torch.cat([lse for _, lse in results])
    ragged = output.finished(torch.cat([o[0].transpose(0, 1) for o, _ in results]), *end, is_ragged=True)
    return ragged.contiguous(), torch.cat([lse[0] for _, lse in results], dim=1).contiguous()


def _of_entry(bias, entry, len_q, len_k):
    """The part of a bias that one entry's scores are given."""
    bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    bias = bias[entry : entry + 1] if bias.shape[0] > 1 else bias
    return bias[:, :, : len_q if bias.shape[2] > 1 else 1, : len_k if bias.shape[3] > 1 else 1]


def _entry(entry, q, k, v, key_lengths, cu_seqlens_q, cu_seqlens_k, page_table, max_len_q, max_len_k):
    """Q, K and V of one entry, with a batch of 1."""

    def rows(tensor, cu_seqlens, most):
        begin, end = cu_seqlens[entry : entry + 2].tolist()
        return tensor[begin : begin + max(0, min(end - begin, most))].transpose(0, 1).unsqueeze(0)

    of_q = rows(q, cu_seqlens_q, max_len_q) if cu_seqlens_q is not None else q[entry : entry + 1]
    if page_table is None:
        return of_q, rows(k, cu_seqlens_k, max_len_k), rows(v, cu_seqlens_k, max_len_k)
    length = max_len_k if key_lengths is None else max(0, min(int(key_lengths[entry]), max_len_k))
    pages = page_table[entry, : -(-length // k.shape[2])].long().clamp(0, k.shape[0] - 1)
    # (pages, heads_kv, page_size, dim) to (1, heads_kv, keys, dim)
    of_k, of_v = (pool[pages].transpose(0, 1).flatten(1, 2)[:, :length].unsqueeze(0) for pool in (k, v))
    return of_q, of_k, of_v


def _dense_features(q, k, v, mask, window_left, window_right, scale, softcap, bias, sinks, alibi_slopes, drop, relative, key_lengths=None, lists=None, prefix_lengths=None,
                    first_entry=0):  # fmt: skip
    batch, heads, len_q, _ = q.shape
    len_k, heads_kv = k.shape[2], k.shape[1]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    exact_q, exact_k, exact_v = grouped(q, k, v)
    scores = (exact_q @ exact_k.transpose(-1, -2)).flatten(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    lengths = torch.full((1,), len_k, device=q.device) if key_lengths is None else key_lengths.long().clamp(0, len_k)
    lengths = lengths.view(-1, 1, 1, 1)
    row = torch.arange(len_q, device=q.device).view(1, 1, -1, 1)
    key = torch.arange(len_k, device=q.device).view(1, 1, 1, -1)
    seen = key < lengths
    if bias is not None and bias.dtype == torch.bool:
        seen = seen & bias
    elif bias is not None:
        seen = seen & (bias > max(torch.finfo(bias.dtype).min, HIDING_BIAS))
        scores = scores + bias.to(scores.dtype)
    if lists is not None:
        counts, indices, rows, keys = lists
        of_blocks = blocks.listed(counts, indices, -(-len_k // keys))
        seen = seen & of_blocks.repeat_interleave(rows, 2)[:, :, :len_q].repeat_interleave(keys, 3)[..., :len_k]
    if relative is not None:
        table, max_distance, bidirectional = relative
        of_scores = relative_buckets(key - (row + (lengths - len_q)), bidirectional, table.shape[1], max_distance)
        scores = scores + table.to(scores.dtype)[:, of_scores.squeeze(1)].transpose(0, 1)
    if alibi_slopes is not None:
        slopes = alibi_slopes.view(-1, heads, 1, 1)
        scores = scores - slopes * (row + (lengths - len_q) - key).abs()
    own = row + key_span.own_offset(is_aligned_to_end(mask), len_q, lengths)
    prefix = None if prefix_lengths is None else prefix_lengths.view(-1, 1, 1, 1)
    seen = seen & key_span.sees(own, key, *bounds(mask, window_left, window_right), prefix)
    seen = seen.expand(batch, heads, len_q, len_k)
    # Rows that see no key are computed as if they saw all, so that no gradient is NaN, and are left out afterwards.
    sees_none = ~seen.any(-1)
    scores = scores.masked_fill(~seen & ~sees_none.unsqueeze(-1), -math.inf).masked_fill(sees_none.unsqueeze(-1), 0.0)
    lse = torch.logsumexp(scores, dim=-1) if len_k else torch.zeros((batch, heads, len_q), dtype=scores.dtype, device=q.device)
    nothing = torch.full_like(lse, -math.inf)
    if sinks is not None:
        sink = sinks.to(lse.dtype).view(1, -1, 1)
        lse_of_scores, lse, nothing = lse, torch.logaddexp(lse, sink), sink.expand_as(lse)
    # Not by the log-sum-exp, which has no room for what tells keys apart that are all biased by a number such as -1e9.
    weights = torch.softmax(scores, dim=-1)
    if sinks is not None:
        weights = weights * torch.exp(lse_of_scores - lse).unsqueeze(-1)
    weights = weights.masked_fill(sees_none.unsqueeze(-1), 0.0)
    if drop[0] > 0:
        weights = weights * dropout.kept(*drop, weights.shape, weights.device, first_entry).to(weights.dtype)
    o = (weights.unflatten(1, (heads_kv, heads // heads_kv)) @ exact_v).flatten(1, 2).to(q.dtype)
    return layout.like_queries(o, q), torch.where(sees_none, nothing, lse).to(torch.float32)


def backward(grad_o, grad_lse, q, k, v, o, lse, mask=NONE, window_left=-1, window_right=-1, scale=None):
    """Gradients of Q, K and V by the formula of FlashAttention (arXiv 2205.14135, algorithm 4), all scores at once. `grad_lse` may be
    None. It is differentiable in turn. Rows that see no key get zeros, and give none."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    exact_q, exact_k, exact_v = grouped(q, k, v)
    heads_kv, group = k.shape[1], q.shape[1] // k.shape[1]

    def in_groups(tensor):
        return tensor.to(exact_q.dtype).unflatten(1, (heads_kv, group))

    lse, grad_o, o = in_groups(lse), in_groups(grad_o), in_groups(o)
    scores = exact_q @ exact_k.transpose(-1, -2) * scale
    sees_none = lse == -math.inf
    weights = torch.exp(scores - torch.where(sees_none, 0.0, lse).unsqueeze(-1))
    seen = visible(mask, window_left, window_right, q.shape[2], k.shape[2], q.device)
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    weights = weights.masked_fill(sees_none.unsqueeze(-1), 0.0)
    grad_v = (weights.transpose(-1, -2) @ grad_o).sum(2)
    grad_weights = grad_o @ exact_v.transpose(-1, -2)
    row = (grad_o * o).sum(-1)
    if grad_lse is not None:
        row = row - in_groups(grad_lse)
    # A weight of 0 beside a product that overflowed is 0, not NaN.
    grad_scores = torch.where(weights == 0, 0.0, weights * (grad_weights - row.unsqueeze(-1))) * scale
    grad_q = (grad_scores @ exact_k).flatten(1, 2)
    grad_k = (grad_scores.transpose(-1, -2) @ exact_q).sum(2)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)

"""Attention written with PyTorch's operators, scores and all: what runs where Heed has no program, and its gradient.

Memory grows with len_q * len_k. Sums are taken in float32, or in float64 for float64 tensors.
"""

import math

import torch

NONE, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT, WINDOW_TOP_LEFT, WINDOW_BOTTOM_RIGHT = range(5)


def visible(mask, window_left, window_right, len_q, len_k, device):
    """Which keys a query sees: (len_q, len_k), or None where each sees all. The arguments are those of heed_problem."""
    left = window_left if mask != NONE else -1
    right = 0 if mask in (CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT) else window_right if mask != NONE else -1
    if left < 0 and right < 0:
        return None
    shift = len_k - len_q if mask in (CAUSAL_BOTTOM_RIGHT, WINDOW_BOTTOM_RIGHT) else 0
    own = torch.arange(len_q, device=device).unsqueeze(1) + shift
    key = torch.arange(len_k, device=device).unsqueeze(0)
    seen = torch.ones(len_q, len_k, dtype=torch.bool, device=device)
    if left >= 0:
        seen = seen & (key >= own - left)
    if right >= 0:
        seen = seen & (key <= own + right)
    return seen


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
    return like_queries(o, q), lse.flatten(1, 2).to(torch.float32)


def like_queries(o, q):
    """`o` with the layout of an operator's output: (batch, length, head, dim) in memory where `q` lies so, else dense."""
    return o.transpose(1, 2).contiguous().transpose(1, 2) if is_length_outer(q) else o.contiguous()


def is_length_outer(q):
    """Whether heads of one position lie closer together than positions of one head: PyTorch's (batch, length, head, dim), transposed."""
    return q.shape[1] > 1 and q.shape[2] > 1 and q.stride(2) > q.stride(1)


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

"""Calls of scaled_dot_product_attention that are other calls: of more than four dimensions, with a scale of zero or less, with dropout, without elements.

PyTorch computes the least usual of them by torch.matmul, whose rules of broadcasting hold here.
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import contextlib
import dataclasses
import math

import torch

from heed import layout


@dataclasses.dataclass
class Form:
    """A call of at most four dimensions, all tensors of as many, whose scale is a positive number or None. `sizes` are those in front of O's last three."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None
    scale: float | None
    sizes: tuple

    def unfolded(self, o):
        """O (batch, heads, len_q, dim_v) as the user's call has it."""
        if self.sizes:
            return o.unflatten(0, self.sizes)
        return o[(0,) * (4 - self.query.dim())] if self.query.dim() < 4 else o


def plain(query, key, value, attn_mask, scale, enable_gqa):
    """The Form of a call, which shares memory with its tensors where it can; None where it has none. Differentiable."""
    tensors = query, key, value
    rank = max(tensor.dim() for tensor in tensors)
    if min(tensor.dim() for tensor in tensors) < 2 + enable_gqa or (attn_mask is not None and not 2 <= attn_mask.dim() <= rank):
        return None
    if scale is not None and not (isinstance(scale, float) and math.isfinite(scale)):
        return None
    query, key, value = (tensor[(None,) * (rank - tensor.dim())] if tensor.dim() < rank else tensor for tensor in tensors)
    sizes = ()
    if rank > 4:
        try:
            sizes = tuple(torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in (query, key, value))))
        except RuntimeError:
            return None
        query, key, value = (_folded(tensor, sizes) for tensor in (query, key, value))
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (rank - attn_mask.dim())]
            if any(size not in (1, wanted) for size, wanted in zip(attn_mask.shape, sizes)):
                return None
            attn_mask = _folded(attn_mask, sizes)
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        heads = query.shape[-3]
        if any(tensor.shape[-3] == 0 or heads % tensor.shape[-3] != 0 for tensor in (key, value)):
            return None
        key, value = (tensor.repeat_interleave(heads // tensor.shape[-3], dim=-3) for tensor in (key, value))
    if query.shape[-1] == key.shape[-1] == 0:
        # All scores are 0, whatever the scale.
        query, key, scale = torch.nn.functional.pad(query, (0, 1)), torch.nn.functional.pad(key, (0, 1)), 1.0
    if scale is not None and scale <= 0:
        # Products of negated numbers are the negated ones to the last bit.
        query, scale = (-query, -scale) if scale < 0 else (query * 0, 1.0)
    return Form(query, key, value, attn_mask, scale, sizes)


def _folded(tensor, sizes):
    """A tensor whose dimensions before the last three are one: of size 1 where each of them is, else as long as all `sizes` together."""
    if any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*sizes, *tensor.shape[-3:])
    return tensor.flatten(0, -4)


def takes_mask_beside_causal(query, key, value, attn_mask, dropout_p, scale, enable_gqa):
    """Whether PyTorch computes a call that has both a mask tensor and is_causal: its fused kernels hide what either hides, its other one refuses them. False in a
    trace whose sizes are symbols."""
    tensors = query, key, value, attn_mask
    is_traced = type(query).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if is_traced and not all(isinstance(size, int) for tensor in tensors for size in tensor.shape):
        return False
    try:
        with torch._C._DisableTorchDispatch() if is_traced else contextlib.nullcontext():
            # Asked of traced tensors PyTorch says nothing of its kernels: of tensors of these sizes with one row's memory it does.
            if is_traced:
                tensors = [torch.empty(tensor.shape[-1:], dtype=tensor.dtype, device=tensor.device).expand(tensor.shape) for tensor in tensors]
            return torch._fused_sdp_choice(*tensors, dropout_p, True, scale=scale, enable_gqa=enable_gqa) > 0
    except (RuntimeError, IndexError):  # of a mask of one dimension: its own error is PyTorch's to raise
        return False


class WithoutElements(torch.autograd.Function):
    """O of queries that have no key, or that are none themselves: zeros, and gradients of zeros. PyTorch broadcasts Q then
    where the keys alone are none."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask):
        ctx.save_for_backward(query, key, value, attn_mask)
        ctx.set_materialize_grads(False)
        sizes = query.shape[:-2]
        if query.numel() > 0 and value.numel() > 0:
            sizes = torch.broadcast_shapes(sizes, key.shape[:-2], value.shape[:-2])
        o = query.new_zeros(*sizes, query.shape[-2], value.shape[-1])
        return layout.like_queries(o, query) if query.dim() == 4 else o

    @staticmethod
    def backward(ctx, grad_o):
        needed = zip(ctx.saved_tensors, ctx.needs_input_grad)
        return tuple(torch.zeros_like(tensor) if needs and grad_o is not None else None for tensor, needs in needed)

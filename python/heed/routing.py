"""Scaled-dot-product attention above autograd: which calls Heed serves where gradients, traces and transforms are still to come.

Below it, where nothing but devices is left, bindings/torch/router.cpp decides. Here is Python, for an exception that passes through
LibTorch's C functions loses its type, and hooks of saved tensors raise exceptions that must keep theirs (torch.utils.checkpoint).
"""

import functools
import math

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from heed import operators, unfused

_refusal = torch.ops.heed.refusal.default
_forward = torch.ops.heed.forward.default
_forward_lse = torch.ops.heed.forward_lse.default
_below_autograd = torch._C._after_autograd_keyset
_TRACED = (FakeTensor, FunctionalTensor)


@functools.cache
def _is_plain(kind):
    """Whether tensors of this class do what PyTorch's own do."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_served_in_trace(query, key, value, attn_mask, dropout_p, scale, enable_gqa):
    """The conditions of bindings/torch/call.cpp, for tensors without memory, whose sizes may be symbols. Where libheed has no program
    for the sizes of a run, heed::forward computes it by heed::unfused."""
    return (
        attn_mask is None
        and dropout_p == 0
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and query.dtype in ((torch.float16, torch.bfloat16, torch.float32) if query.device.type == "cpu" else (torch.float16, torch.bfloat16))
        and (scale is None or (isinstance(scale, float) and 0 < scale < math.inf))
        and query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1] == value.shape[1]
        and key.shape[2] == value.shape[2]
        and query.shape[3] == key.shape[3]
        and (query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0))
        and query.shape[3] <= 256
        and value.shape[3] <= 256
    )


def route(operator, keys, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """A call that reached the autograd keys. `operator` is the one that was called, with the dispatch keys that are left."""
    inputs = query, key, value
    needs_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    rest = attn_mask, dropout_p, is_causal, scale, enable_gqa
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return operators.hand_back(*inputs, *rest, "a transform of torch.func, or forward-mode differentiation")
    is_plain = all(_is_plain(type(tensor)) for tensor in inputs)
    if is_plain and torch._C._len_torch_dispatch_stack() == 0:
        if not needs_gradient and not (attn_mask is not None and attn_mask.requires_grad):
            return operator.redispatch(keys & _below_autograd, *inputs, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        reason = _refusal(*inputs, *rest, needs_gradient)
        if reason:
            return operators.hand_back(*inputs, *rest, reason)
    elif not (is_plain or all(isinstance(tensor, _TRACED) for tensor in inputs)):
        return operators.hand_back(*inputs, *rest, "a subclass of torch.Tensor")
    elif not is_served_in_trace(*inputs, attn_mask, dropout_p, scale, enable_gqa):
        return operators.hand_back(*inputs, *rest, "arguments that a trace does not serve")
    masking = unfused.CAUSAL_TOP_LEFT if is_causal else unfused.NONE, -1, -1, scale
    return _forward_lse(*inputs, *masking)[0] if needs_gradient else _forward(*inputs, *masking)


def register(library, operator):
    """Puts `route` at the autograd keys of an operator with the schema of scaled_dot_product_attention."""

    def kernel(keys, *arguments, **named):
        return route(operator, keys, *arguments, **named)

    for key in ("AutogradCPU", "AutogradCUDA"):
        library.impl(operator, kernel, key, with_keyset=True)


register(operators.library, torch.ops.heed.scaled_dot_product_attention.default)

"""Heed in the fast path of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer: aten::_native_multi_head_attention, which computes
projections and attention without scaled_dot_product_attention, for inference alone.

While Heed is installed, the operator's kernels for dense tensors are the function here: attention by Heed between two matrix products. What Heed does not
serve, weights that are wanted and malformed calls go on to PyTorch's own kernel, which its keys for nested tensors hold too. Encoders that turn padded
batches into nested tensors reach that kernel past this one.
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/attention.cpp
"""

import functools
import warnings

import torch

from heed import operators, routing

_NAME = "_native_multi_head_attention"
_operator = torch.ops.aten._native_multi_head_attention.default
_sdpa = torch.ops.heed.scaled_dot_product_attention.default
_refusal = torch.ops.heed.refusal.default
_OWN_KERNEL = {"cpu": torch._C.DispatchKey.NestedTensorCPU, "cuda": torch._C.DispatchKey.NestedTensorCUDA}
# Values of mask_type.
_OF_SCORES, _OF_KEYS, _OF_ALL = range(3)


def _visible(mask, mask_type, batch, heads, length):
    """The mask as booleans that broadcast to (batch, heads, length, length), True for a visible key, or None where PyTorch's kernel refuses it. In
    `mask` a number other than 0 hides."""
    sizes = {_OF_SCORES: (length, length), _OF_KEYS: (batch, length), _OF_ALL: (batch, heads, length, length)}
    if sizes.get(mask_type) != tuple(mask.shape):
        return None
    return (mask[:, None, None] if mask_type == _OF_KEYS else mask) == 0


def _is_well_formed(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias):
    """Whether a call is self-attention of dense tensors, of sizes and types that PyTorch's kernel takes."""
    tensors = query, qkv_weight, qkv_bias, proj_weight, proj_bias
    return (
        query is key is value
        and query.dim() == 3
        and query.numel() > 0
        and query.shape[2] == embed_dim
        and num_head > 0
        and embed_dim % num_head == 0
        and [tuple(tensor.shape) for tensor in tensors[1:]] == [(3 * embed_dim, embed_dim), (3 * embed_dim,), (embed_dim, embed_dim), (embed_dim,)]
        and all(tensor.layout == torch.strided and tensor.dtype == query.dtype and tensor.device == query.device for tensor in tensors)
    )


def attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None, need_weights=True, average_attn_weights=True, mask_type=None,
    *, attend=None
):  # fmt: skip
    """The operator: (batch, length, embed_dim) projected by `qkv_weight` (3 * embed_dim, embed_dim), attention of `num_head` heads, projected by `proj_weight`.

    mask         of any type, what is not 0 hides: (length, length), (batch, length) or (batch, num_head, length, length) for mask_type 0, 1, 2.
    attend       attention of q, k, v and a mask of booleans or None, in the place of Heed's.

    Returns the output and, in the place of weights, None where Heed computes it. A row that sees no key is zeros before the last projection, where
    PyTorch's kernel gives NaN.
    """

    def by_pytorch():
        return _operator._op_dk(_OWN_KERNEL[query.device.type], query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                mask, need_weights, average_attn_weights, mask_type)  # fmt: skip

    if need_weights or not _is_well_formed(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias):
        return by_pytorch()
    batch, length, _ = query.shape
    seen = None if mask is None else _visible(mask, mask_type, batch, num_head, length)
    if mask is not None and seen is None:
        return by_pytorch()
    projected = torch.nn.functional.linear(query, qkv_weight, qkv_bias)
    q, k, v = projected.unflatten(-1, (3, num_head, embed_dim // num_head)).permute(2, 0, 3, 1, 4)
    reason = 0 if attend else routing.unseen_selection() or _refusal(q, k, v, seen)
    if reason:
        operators.note_refusal(reason, q, k, v)
        return by_pytorch()
    o = (attend or _sdpa)(q, k, v, seen).transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(o, proj_weight, proj_bias), None


def install(with_cuda, attend=None):
    """Puts `attention` in the place of the operator's kernels. @return torch.library.Library, which takes it back when it is destroyed."""
    library = torch.library.Library("aten", "IMPL")
    kernel = attention if attend is None else functools.partial(attention, attend=attend)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for key in ("CPU", "CUDA") if with_cuda else ("CPU",):
            library.impl(_NAME, kernel, key)
    return library

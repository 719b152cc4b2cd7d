"""Arguments of heed.attention and heed.attention_varlen beside masks: what most calls do not have.

The order of what is done to a score, and what hides one, is that of include/heed/heed.h: scaled, capped, biased, masked.
"""

import ctypes
import math
import numbers
from dataclasses import dataclass

import torch

from heed import blocks, c_api, contexts, output, relative_bias

_WIDER = (torch.int64, torch.uint32, torch.uint64)
BIAS_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.bool: 6}


@dataclass
class Features:
    """The last arguments of heed::forward_features, in order."""

    softcap: float = 0.0
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    key_lengths: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    block_counts: torch.Tensor | None = None
    block_indices: torch.Tensor | None = None
    prefix_lengths: torch.Tensor | None = None
    max_len_q: int = 0
    max_len_k: int = 0
    block_rows: int = 0
    block_keys: int = 0
    dropout_p: float = 0.0
    dropout_seed: int = 0
    dropout_offset: int = 0
    relative_bias: torch.Tensor | None = None
    relative_max_distance: int = 0
    relative_bidirectional: bool = True
    out_gate: torch.Tensor | None = None
    out_norm_weight: torch.Tensor | None = None
    out_norm_eps: float = 0.0

    def is_none(self):
        """Whether a call has none of them."""
        tensors = (self.bias, self.sinks, self.alibi_slopes, self.key_lengths, self.cu_seqlens_q, self.cu_seqlens_k, self.page_table, self.block_counts, self.prefix_lengths, self.relative_bias,
                   self.out_gate, self.out_norm_weight)  # fmt: skip
        return self.softcap == 0 and self.dropout_p == 0 and all(tensor is None for tensor in tensors)

    def arguments(self):
        return (self.softcap, self.bias, self.sinks, self.alibi_slopes, self.key_lengths, self.cu_seqlens_q, self.cu_seqlens_k,
                self.page_table, self.block_counts, self.block_indices, self.prefix_lengths, self.max_len_q, self.max_len_k, self.block_rows, self.block_keys,
                self.dropout_p, self.dropout_seed, self.dropout_offset, self.relative_bias, self.relative_max_distance, self.relative_bidirectional,
                self.out_gate, self.out_norm_weight, self.out_norm_eps)  # fmt: skip


def checked(name, query, sizes, features):
    """Features whose tensors have the types, sizes and devices that they must have; float and int tensors are converted and made dense.

    sizes: (batch, heads, len_q, len_k) of the scores. Raises TypeError and ValueError, whose sentences begin with `name`.
    """
    batch, heads, len_q, len_k = sizes
    f = features
    # Comparisons and no function of `math`: a trace may have a symbol in the place of a number.
    f.softcap = number(f.softcap)
    if not (isinstance(f.softcap, (int, float)) and 0 <= f.softcap < math.inf):
        raise ValueError(f"{name}: softcap is {f.softcap!r}; it must be a positive number, or 0 for none")
    _check_dropout(name, f)
    if f.is_none():
        return f
    arrays = {"sinks": (torch.float32, ((heads,),)), "alibi_slopes": (torch.float32, ((heads,), (batch, heads))), "key_lengths": (torch.int32, ((batch,),))}
    arrays["prefix_lengths"] = torch.int32, ((batch,),)
    arrays["cu_seqlens_q"] = arrays["cu_seqlens_k"] = torch.int32, ((batch + 1,),)
    if f.relative_bias is not None:
        relative_bias.check(name, f)
        arrays["relative_bias"] = torch.float32, ((heads, f.relative_bias.shape[1]),)
    for argument in ("bias", *arrays, "page_table", "block_counts"):
        tensor = getattr(f, argument)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {argument} must be a Tensor, not {type(tensor).__name__}")
        check_dense(name, argument, tensor)
        if tensor.device != query.device:
            raise ValueError(f"{name}: {argument.replace('block_counts', 'block_mask')} is on {tensor.device} and query on {query.device}; they must be on one device")
    for argument, (dtype, shapes) in arrays.items():
        tensor = getattr(f, argument)
        if tensor is None:
            continue
        # Size by size, which a trace compares where sizes are symbols.
        if not any(tensor.dim() == len(shape) and all(size == wanted for size, wanted in zip(tensor.shape, shape)) for shape in shapes):
            raise ValueError(f"{name}: {argument} is {tuple(tensor.shape)}; it must be {' or '.join(map(str, shapes))}")
        setattr(f, argument, converted(name, argument, tensor, dtype))
    if f.bias is not None:
        if f.bias.dtype not in BIAS_DTYPES:
            raise ValueError(f"{name}: the bias is of {f.bias.dtype}; it must be bool, float16, bfloat16 or float32")
        try:
            f.bias.expand(batch, heads, len_q, len_k)
        except RuntimeError:
            raise ValueError(f"{name}: the bias is {tuple(f.bias.shape)}; it must broadcast to the scores, {(batch, heads, len_q, len_k)}") from None
    if f.block_counts is not None:
        wanted = batch, heads, -(-len_q // f.block_rows)
        shape = tuple(f.block_counts.shape)
        if not (shape[0] in (1, batch) and shape[1] in (1, heads) and shape[2] == wanted[2]):
            raise ValueError(f"{name}: block_mask has lists {shape}; {len_q} rows in blocks of {f.block_rows} take {wanted}, or 1 in the place of batch or heads")
    if f.page_table is not None:
        f.page_table = converted(name, "page_table", f.page_table, torch.int32)
        if f.page_table.dim() != 2 or f.page_table.shape[0] != batch:
            raise ValueError(f"{name}: page_table is {tuple(f.page_table.shape)}; it must be ({batch}, pages of an entry)")
    return f


def number(given):
    """A float in the place of another type's real number, NumPy's; what is none is as it was."""
    return given if isinstance(given, (int, float)) or not isinstance(given, numbers.Real) else float(given)


def check_dense(name, argument, tensor):
    """Raises NotImplementedError for a sparse tensor and a nested one."""
    if tensor.is_nested:
        raise NotImplementedError(f"{name}: {argument} is a nested tensor; it must be a dense one: heed.attention_varlen takes entries of several lengths as rows of one tensor")
    if tensor.layout != torch.strided:
        raise NotImplementedError(f"{name}: {argument} is {tensor.layout}; it must be a dense tensor: {argument}.to_dense() makes one")


def _check_dropout(name, f):
    """Words of 64 bits become what an operator takes: those of a signed number."""
    f.dropout_p = number(f.dropout_p)
    if not (isinstance(f.dropout_p, (int, float)) and 0 <= f.dropout_p <= 1):
        raise ValueError(f"{name}: dropout_p is {f.dropout_p}; it must be a probability from 0 to 1, 0 for none")
    f.dropout_p = float(f.dropout_p)
    for argument in ("dropout_seed", "dropout_offset"):
        word = getattr(f, argument)
        if not isinstance(word, int):
            raise TypeError(f"{name}: {argument} must be an int, not {type(word).__name__}")
        if not -(1 << 63) <= word < 1 << 64:
            raise ValueError(f"{name}: {argument} is {word}; it must have 64 bits")
        if f.dropout_p == 0 and word != 0:
            raise ValueError(f"{name}: {argument} is {word} and there is no dropout; give dropout_p too, or leave it out")
        setattr(f, argument, word - (1 << 64) if word >= 1 << 63 else word)


def converted(name, argument, tensor, dtype):
    """A tensor of float32 or int32, dense; integers beyond int32 are its least or largest. Raises ValueError for one of another kind."""
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{name}: {argument} is of {tensor.dtype}; it must be {dtype}, or another type of {'floating point' if dtype.is_floating_point else 'integers'}")
    if dtype == torch.int32 and tensor.dtype in _WIDER:
        # 2^32 is more than there is of anything, and not 0.
        tensor = tensor.long().clamp(-(1 << 31), (1 << 31) - 1)
    return tensor.to(dtype).contiguous()


def set_block_mask(name, block_mask, sizes, f):
    """Takes lists of blocks into `f`: those of a heed.BlockMask, or of one of flex_attention with what its function hides as the bias.

    sizes: (len_q, len_k). Raises TypeError and ValueError.
    """
    if block_mask is None:
        return
    if not isinstance(block_mask, blocks.BlockMask):
        if not all(hasattr(block_mask, part) for part in ("kv_num_blocks", "kv_indices", "mask_mod", "BLOCK_SIZE")):
            raise TypeError(f"{name}: block_mask must be a heed.BlockMask or a BlockMask of torch.nn.attention.flex_attention, not {type(block_mask).__name__}")
        hidden = blocks.mask_of(block_mask, *sizes)
        if hidden is not None and f.bias is not None:
            raise ValueError(f"{name}: the function of block_mask and bias both change scores; give what both show as one bias beside heed.BlockMask.from_flex(block_mask)")
        f.bias = f.bias if hidden is None else hidden
        block_mask = blocks.BlockMask.from_flex(block_mask)
    f.block_counts, f.block_indices, f.block_rows, f.block_keys = block_mask.counts, block_mask.indices, block_mask.rows, block_mask.keys


def set_relative_bias(name, given, f):
    """Takes the table of a heed.RelativeBias into `f`. Raises TypeError."""
    if given is None:
        return
    if not isinstance(given, relative_bias.RelativeBias):
        raise TypeError(f"{name}: relative_bias must be a heed.RelativeBias, not {type(given).__name__}")
    f.relative_bias, f.relative_max_distance, f.relative_bidirectional = given.table, given.max_distance, given.bidirectional


def pages_of(name, key, value, layout):
    """Pools of pages as (pages, heads_kv, page_size, dim), of the two orders that serving engines use."""
    if layout not in ("NHD", "HND"):
        raise ValueError(f'{name}: page_layout is {layout!r}; it must be "NHD" (pages, page_size, heads_kv, dim) or "HND" (pages, heads_kv, page_size, dim)')
    return (key, value) if layout == "HND" else (key.transpose(1, 2), value.transpose(1, 2))


def fill(problem, query, key, value, f):
    """Sizes, strides and flags of heed_problem for a call with features, as bindings/torch/call.cpp has them."""

    def strides(tensor):
        return c_api.Strides(0, tensor.stride(1), tensor.stride(0), tensor.stride(2)) if tensor.dim() == 3 else c_api.strides_of(tensor)

    p = problem
    p.heads, p.dim = query.shape[1], query.shape[-1]
    p.heads_kv, p.dim_v = key.shape[1], value.shape[-1]
    p.q_strides, p.k_strides, p.v_strides = strides(query), strides(key), strides(value)
    if query.dim() == 3:
        p.batch, p.len_q, p.total_q = f.cu_seqlens_q.shape[0] - 1, f.max_len_q, query.shape[0]
        p.o_strides = c_api.Strides(0, p.dim_v, p.heads * p.dim_v, 1)
        p.flags |= c_api.RAGGED
    if f.page_table is not None:
        p.pages, p.page_size, p.len_k = key.shape[0], key.shape[2], f.max_len_k
        p.page_table_stride = max(f.page_table.stride(0), f.page_table.shape[1])
        p.flags |= c_api.PAGED
    elif query.dim() == 3:
        p.len_k, p.total_k = f.max_len_k, key.shape[0]
    p.softcap = f.softcap
    p.dropout = f.dropout_p
    if f.relative_bias is not None:
        p.relative_buckets, p.relative_max_distance = f.relative_bias.shape[1], f.relative_max_distance
        p.flags |= c_api.HAS_RELATIVE_BIAS | (0 if f.relative_bidirectional else c_api.RELATIVE_PAST)
    output.fill(p, f, c_api)
    if f.sinks is not None:
        p.flags |= c_api.HAS_SINKS
    if f.alibi_slopes is not None:
        p.flags |= c_api.HAS_ALIBI | (c_api.ALIBI_BY_BATCH if f.alibi_slopes.dim() == 2 else 0)
    if f.key_lengths is not None:
        p.flags |= c_api.KEY_LENGTHS
    if f.prefix_lengths is not None:
        p.flags |= c_api.HAS_PREFIX
    if f.block_counts is not None:
        p.flags |= c_api.HAS_BLOCKS
        p.block_rows, p.block_keys, p.block_most = f.block_rows, f.block_keys, f.block_indices.shape[3]

        def shared(tensor, dim):
            strides = (0 if size == 1 else stride for size, stride in zip(tensor.shape[:2], tensor.stride()))
            return c_api.Strides(*strides, tensor.stride(2), dim)

        p.block_count_strides, p.block_index_strides = shared(f.block_counts, 0), shared(f.block_indices, 1)
    if f.bias is not None:
        bias = f.bias.expand(p.batch, p.heads, p.len_q, p.len_k)
        p.flags |= c_api.HAS_BIAS
        p.dtype_bias = BIAS_DTYPES[f.bias.dtype]
        p.bias_strides = c_api.Strides(*(0 if size == 1 else stride for size, stride in zip(bias.shape, bias.stride())))
    return p


def needs_gradient(query, key, value, f):
    """Whether any tensor of a call is one that a gradient is wanted of."""
    return contexts.wants_gradient(query, key, value, f.bias, f.sinks, f.alibi_slopes, f.relative_bias, f.out_gate, f.out_norm_weight)


def text_of(problem):
    """The problem as the command line of Heed spells it."""
    from heed import libraries

    library = c_api.library(str(libraries.folder() / "libheed.so")).lib
    library.heed_problem_text.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(512)
    library.heed_problem_text(ctypes.byref(problem), text, ctypes.c_size_t(len(text)))
    return text.value.decode()

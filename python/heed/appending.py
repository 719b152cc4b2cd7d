"""heed.append_kv: new keys and values written into a cache, in pages or in one tensor, before the attention that reads them.

As flash_attn_with_kvcache(k=, v=) of FlashAttention, append_paged_kv_cache of FlashInfer and reshape_and_cache of vLLM do. The launch is its own: docs/library.md
says why.
"""

import torch

from heed import features, operators, quantised

_WIDE = (torch.float16, torch.bfloat16, torch.float32)


def append_kv(key, value, key_cache, value_cache, lengths, *, page_table=None, page_layout="NHD", cu_seqlens=None, max_len=None, lengths_are_after=False,
              k_scale=None, v_scale=None, scale_rows=None):  # fmt: skip
    """Writes new keys and values behind those that a cache holds, in place, and returns how many keys there are then: what `heed.attention` takes as key_lengths.

    key, value       (batch, heads_kv, len_new, dim) and (.., dim_v), float16, bfloat16 or float32, any strides; with cu_seqlens (total, heads_kv, dim)
    key_cache, value_cache (batch, heads_kv, room, dim) and (.., dim_v), of the dtype of `key`, or torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8 each; with
                     page_table pools of pages, as heed.attention takes them
    lengths          (batch), integers: keys that entries have before the append; row i of entry b becomes key lengths[b] + i
    page_table       (batch, pages of an entry), integers, and page_layout "NHD" or "HND": as heed.attention takes them
    cu_seqlens       (batch + 1), integers: entry b gets the rows cu_seqlens[b] to cu_seqlens[b + 1] - 1 of `key`
    max_len          with cu_seqlens: rows that one entry gets at most; as many as there are by default
    lengths_are_after whether `lengths` count the new keys already, as serving engines keep them: row i becomes key lengths[b] - len_new + i
    k_scale, v_scale scale factors of caches of 8 bits, as heed.attention takes them. A value becomes value / factor, to nearest even, beyond the largest element the largest.
                     Where each row has a factor of its own ((batch or pages, heads_kv, rows), float32, in memory of the caller), that is the largest magnitude of
                     the row over the largest element, and is written.
    scale_rows       rows that share a factor, one number or two, of keys and values; 1 by default

    Returns (batch,), int32. It has no gradient, and one that is computed later from what the cache held is a RuntimeError, as after any change in place. It works under torch.compile and in CUDA graphs, and on a GPU it is one launch, which waits for nothing.

    Raises TypeError and ValueError for tensors that do not fit each other. On a CPU numbers that do not fit (lengths below 0 or beyond the cache, pages that there
    are not, cu_seqlens that decrease) are a RuntimeError, and nothing is written; on a GPU the rows concerned are not written, nor is anything where
    cu_seqlens decrease.
    """
    name = "heed.append_kv()"
    ragged = cu_seqlens is not None
    tensors = {"key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    for argument, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {argument} must be a Tensor, not {type(tensor).__name__}")
        dims = 3 if ragged and argument in ("key", "value") else 4
        if tensor.dim() != dims:
            raise ValueError(f"{name}: {argument} has {tensor.dim()} dimensions; it must have {dims}")
        if tensor.device != key_cache.device:
            raise ValueError(f"{name}: {argument} is on {tensor.device} and key_cache on {key_cache.device}; they must be on one device")
    if key.dtype not in _WIDE or value.dtype != key.dtype:
        raise ValueError(f"{name}: key and value must have one dtype, torch.float16, torch.bfloat16 or torch.float32, not {key.dtype} and {value.dtype}")
    for argument in ("key_cache", "value_cache"):
        if tensors[argument].dtype != key.dtype and not quantised.is_quantised(tensors[argument]):
            raise ValueError(f"{name}: {argument} is of {tensors[argument].dtype}; it must be of {key.dtype}, as key is, or of 8 bits: {', '.join(map(str, quantised.CODES.keys() - set(_WIDE)))}")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        raise NotImplementedError(f"{name}: an append has no gradient; call it under torch.no_grad(), with detached tensors")
    paged = page_table is not None
    if paged:
        key_cache, value_cache = features.pages_of(name, key_cache, value_cache, page_layout)
    lengths = _numbers(name, "lengths", lengths, key_cache, 1)
    batch = lengths.shape[0]
    if ragged:
        cu_seqlens = _numbers(name, "cu_seqlens", cu_seqlens, key_cache, 1)
        if cu_seqlens.shape[0] != batch + 1:
            raise ValueError(f"{name}: cu_seqlens is {tuple(cu_seqlens.shape)}; with lengths {tuple(lengths.shape)} it must be ({batch + 1},)")
        max_len = key.shape[0] if max_len is None else max_len
        if not 0 <= max_len <= key.shape[0]:
            raise ValueError(f"{name}: max_len is {max_len}; with {key.shape[0]} new rows it must be 0 to {key.shape[0]}")
    elif max_len is not None:
        raise ValueError(f"{name}: max_len is of calls with cu_seqlens; leave it out")
    if paged:
        page_table = _numbers(name, "page_table", page_table, key_cache, 2)
        if page_table.shape[0] != batch:
            raise ValueError(f"{name}: page_table is {tuple(page_table.shape)}; it must be ({batch}, pages of an entry)")
    _check_sizes(name, tensors, key_cache, value_cache, batch, ragged, paged)
    rows = quantised.rows_of(name, scale_rows, ("keys", "values"))
    k_scale = _factors(name, "k_scale", k_scale, "key_cache", key_cache, batch, rows[0], 1, paged)
    v_scale = _factors(name, "v_scale", v_scale, "value_cache", value_cache, batch, rows[1], value_cache.shape[3], paged)
    after = operators.append_kv(key, value, key_cache, value_cache, lengths, page_table, cu_seqlens, max_len or 0, lengths_are_after, k_scale, v_scale, *rows)
    if not torch.compiler.is_compiling():  # a trace sees the change by the operator's schema
        of_rows = [scale for scale, per in zip((k_scale, v_scale), rows) if scale is not None and per == 1 and scale.shape[2] > 1]
        torch.autograd.graph.increment_version([tensors["key_cache"], tensors["value_cache"], *of_rows])
    return after


def _numbers(name, argument, tensor, cache, dims):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {argument} must be a Tensor, not {type(tensor).__name__}")
    if tensor.device != cache.device:
        raise ValueError(f"{name}: {argument} is on {tensor.device} and key_cache on {cache.device}; they must be on one device")
    if tensor.dim() != dims:
        raise ValueError(f"{name}: {argument} has {tensor.dim()} dimensions; it must have {dims}")
    return features.converted(name, argument, tensor, torch.int32)


def _check_sizes(name, tensors, key_cache, value_cache, batch, ragged, paged):
    parts, heads, rows, dim = key_cache.shape
    if not paged and parts != batch:
        raise ValueError(f"{name}: key_cache is {tuple(key_cache.shape)}; with {batch} lengths it must be ({batch}, heads_kv, room, dim)")
    dim_v = value_cache.shape[3]
    if tuple(value_cache.shape[:3]) != (parts, heads, rows):
        raise ValueError(f"{name}: value_cache is {tuple(tensors['value_cache'].shape)}; beside key_cache {tuple(tensors['key_cache'].shape)} it may differ in its last dimension alone")
    key, value = tensors["key"], tensors["value"]
    wanted = (key.shape[0], heads, dim) if ragged else (batch, heads, key.shape[2], dim)
    for argument, tensor, expected in (("key", key, wanted), ("value", value, (*wanted[:-1], dim_v))):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: {argument} is {tuple(tensor.shape)}; beside key_cache {tuple(tensors['key_cache'].shape)} and {batch} lengths it must be {expected}")


def _factors(name, argument, scale, of, cache, batch, rows, columns, paged):
    """Factors as four dimensions: of the caller's own memory where they are written."""
    if not quantised.is_quantised(cache):
        if scale is not None:
            raise ValueError(f"{name}: {argument} is given, and {of} is of {cache.dtype}; leave it out")
        return None
    if scale is None:
        raise ValueError(f"{name}: {of} is of {cache.dtype}, which is nothing without scale factors; give {argument}")
    parts, heads, length, _ = cache.shape
    if isinstance(scale, torch.Tensor) and scale.dim() == 3 and rows == 1 and length > 1 and scale.shape[2] == length:
        if scale.dtype != torch.float32 or scale.device != cache.device or tuple(scale.shape) != (parts, heads, length):
            raise ValueError(f"{name}: {argument} is {tuple(scale.shape)} of {scale.dtype} on {scale.device}; factors of rows are written, and must be {(parts, heads, length)} of torch.float32 on {cache.device}")
        return scale[:, :, :, None]
    return quantised.four(name, argument, scale, cache, (batch, parts), heads, -(-length // rows), columns, paged)

"""Arguments of heed.attention and heed.attention_varlen made into those of the operators, or refused with a sentence.

Where the numbers of a ragged batch lie in memory of this process, on a CPU and outside of traces, they are read too.
"""

import math

import torch

from heed import contexts, features, output, quantised
from heed.masks import masking


def call(query, key, value, causal, window, alignment, scale, f, page_layout, max_len_k, block_mask, relative_bias, of_output, of_scales):
    """The tensors, with pools as (pages, heads_kv, page_size, dim), (mask, window_left, window_right, scale), and quantised.Scales or None."""
    name = "heed.attention()"
    query, key, value, of_output = contexts.autocast(query, key, value, of_output)
    _check_tensors(name, query, key, value, 4, 4)
    query, scale = of_positive_scale(name, query, scale)
    batch, heads, len_q, dim = query.shape
    if f.page_table is None:
        if max_len_k is not None:
            raise ValueError(f"{name}: max_len_k is for keys in pages; give page_table too, or leave it out")
        if key.shape[0] != batch:
            raise ValueError(f"{name}: key is {tuple(key.shape)}; beside query {tuple(query.shape)} it must have {batch} batch entries")
    else:
        key, value = features.pages_of(name, key, value, page_layout)
        room = _room(name, f.page_table, key)
        f.max_len_k = room if max_len_k is None else max_len_k
        _check_bound(name, "max_len_k", f.max_len_k)
    heads_kv, len_k = key.shape[1], key.shape[2] if f.page_table is None else f.max_len_k
    _check_sizes(name, query, key, value, (key.shape[0], heads_kv, key.shape[2]))
    features.set_block_mask(name, block_mask, (len_q, len_k), f)
    if f.page_table is not None:
        f.max_len_k = len_k = min(len_k, room)
        _narrow_scores(f, (len_q, len_k if max_len_k is None else max_len_k), (len_q, len_k))
    features.set_relative_bias(name, relative_bias, f)
    output.set_output(name, query, value, *of_output, f)
    features.checked(name, query, (batch, heads, len_q, len_k), f)
    scales = quantised.checked(name, query, key, value, *of_scales, (batch, heads, len_q, len_k), f)
    same_lengths = len_q == len_k and f.key_lengths is None and f.page_table is None
    return query, key, value, masking(name, len_q, len_k, same_lengths, causal, window, alignment, scale), scales


def ragged_call(query, key, value, causal, window, alignment, scale, f, page_layout, block_mask, relative_bias, of_output, of_scales):
    """The same of a ragged batch, with `max_len_q` and `max_len_k` of `f` no larger than the tensors are. On a CPU the queries are those that an entry has, and
    `with_all_rows` puts their rows of O among the others: a last result, (first row of an entry, rows of the given queries), or None where all have one."""
    name = "heed.attention_varlen()"
    paged = f.page_table is not None
    query, key, value, of_output = contexts.autocast(query, key, value, of_output)
    _check_tensors(name, query, key, value, 3, 4 if paged else 3)
    query, scale = of_positive_scale(name, query, scale)
    if paged != (f.cu_seqlens_k is None):
        raise ValueError(f"{name}: keys are found by cu_seqlens_k or by page_table; give one of them")
    if f.key_lengths is not None and not paged:
        raise ValueError(f"{name}: cu_seqlens_k says how many keys an entry has; leave key_lengths out")
    _check_bound(name, "max_len_q", f.max_len_q)
    _check_bound(name, "max_len_k", f.max_len_k)
    if not isinstance(f.cu_seqlens_q, torch.Tensor) or f.cu_seqlens_q.dim() != 1 or f.cu_seqlens_q.shape[0] < 2:
        raise ValueError(f"{name}: cu_seqlens_q must be a Tensor (batch + 1)")
    if paged:
        key, value = features.pages_of(name, key, value, page_layout)
    _check_sizes(name, query, key, value, (key.shape[0], key.shape[1]) + ((key.shape[2],) if paged else ()))
    given = f.max_len_q, f.max_len_k
    features.set_block_mask(name, block_mask, (f.max_len_q or 1, f.max_len_k or 1), f)
    # A bound of a batch whose entries are all empty is 0, where any one holds; that of pages without keys stays 0, as a call without them.
    f.max_len_q = min(f.max_len_q, query.shape[0]) or 1
    f.max_len_k = min(f.max_len_k, _room(name, f.page_table, key)) if paged else min(f.max_len_k, key.shape[0]) or 1
    _narrow_scores(f, given, (f.max_len_q, f.max_len_k))
    features.set_relative_bias(name, relative_bias, f)
    output.set_output(name, query, value, *of_output, f)
    sizes = f.cu_seqlens_q.shape[0] - 1, query.shape[1], f.max_len_q, f.max_len_k
    begins_q, begins_k = f.cu_seqlens_q, f.cu_seqlens_k
    features.checked(name, query, sizes, f)
    scales = quantised.checked(name, query, key, value, *of_scales, sizes, f)
    masks = masking(name, f.max_len_q, f.max_len_k, False, causal, window, alignment, scale)
    covered = None
    if _is_readable(begins_q):
        begin, end = _check_places(name, "q", begins_q, query, given[0])
        if (begin, end) != (0, query.shape[0]):
            covered = begin, query.shape[0]
            if f.out_gate is not None and f.out_gate.shape[0] > 1:
                f.out_gate = f.out_gate[begin:end]
            query, f.cu_seqlens_q = query[begin:end], f.cu_seqlens_q - begin
            most = f.max_len_q
            f.max_len_q = min(most, end - begin) or 1
            _narrow_scores(f, (most, f.max_len_k), (f.max_len_q, f.max_len_k))
    if begins_k is not None and _is_readable(begins_k):
        _check_places(name, "k", begins_k, key, given[1])
    return query, key, value, masks, scales, covered


def with_all_rows(result, covered, return_lse):
    """The result of a ragged call with rows of zeros, and a log-sum-exp of minus infinity, for queries that no entry has. covered: of `ragged_call`."""
    if covered is None:
        return result
    o, lse = result if return_lse else (result, None)
    begin, total = covered
    after = total - begin - o.shape[0]
    o = torch.nn.functional.pad(o, (0, 0, 0, 0, begin, after))
    return (o, torch.nn.functional.pad(lse, (begin, after), value=-math.inf)) if return_lse else o


def _is_readable(tensor):
    """Whether a tensor has numbers that are read at no cost."""
    is_plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not torch.compiler.is_compiling()
    return is_plain and not torch._C._functorch.is_batchedtensor(tensor)


def _check_places(name, letter, begins, tensor, most):
    """The first row of an entry and the one behind the last. Raises ValueError for offsets that are none, and for entries of more rows than `most`."""
    begins, total = begins.tolist(), tensor.shape[0]
    lengths = [end - begin for begin, end in zip(begins, begins[1:])]
    if begins[0] >= 0 and begins[-1] <= total and min(lengths) >= 0 and max(lengths) <= most:
        return begins[0], begins[-1]
    argument, rows = f"cu_seqlens_{letter}", "rows" if letter == "q" else "keys"
    for entry, begin in enumerate(begins):
        if not 0 <= begin <= total:
            raise ValueError(f"{name}: {argument}[{entry}] is {begin}; with {total} {rows} it must be 0 to {total}")
        if entry and begin < begins[entry - 1]:
            raise ValueError(f"{name}: {argument}[{entry}] is {begin} and the number before it {begins[entry - 1]}; they must not decrease")
    entry = lengths.index(max(lengths))
    raise ValueError(f"{name}: max_len_{letter} is {most}, and entry {entry} has {lengths[entry]} {rows} by {argument}; it must be {lengths[entry]} or more")


def _check_bound(name, argument, length):
    if not (isinstance(length, (int, torch.SymInt)) and length >= 0):
        raise ValueError(f"{name}: {argument} is {length}; it must be a whole number, 0 or more")


def _room(name, page_table, key):
    """Keys that a row of a page table has room for."""
    if not isinstance(page_table, torch.Tensor) or page_table.dim() != 2:
        given = tuple(page_table.shape) if isinstance(page_table, torch.Tensor) else type(page_table).__name__
        kind = ValueError if isinstance(page_table, torch.Tensor) else TypeError
        raise kind(f"{name}: page_table is {given}; it must be a Tensor (batch, pages of an entry)")
    return page_table.shape[1] * key.shape[2]


def _narrow_scores(f, given, lengths):
    """Takes what a bias and lists of blocks have for rows and keys beyond those that there are, where they have the sizes of the given bounds, off."""
    for dim, bound, length in zip((-2, -1), given, lengths):
        if isinstance(f.bias, torch.Tensor) and f.bias.dim() >= -dim and length < bound == f.bias.shape[dim]:
            f.bias = f.bias.narrow(dim, 0, length)
    if f.block_counts is not None and lengths[0] < given[0]:
        lists, wanted = (-(-length // f.block_rows) for length in (given[0], lengths[0]))
        if f.block_counts.shape[2] == lists:
            f.block_counts, f.block_indices = (tensor[:, :, :wanted] for tensor in (f.block_counts, f.block_indices))


def of_positive_scale(name, query, scale):
    """Queries and a scale above zero of the same scores, where the scale is zero or less: products of negated numbers are the negated ones to the last bit."""
    if isinstance(scale, (str, complex, list, tuple)):
        raise TypeError(f"{name}: the scale is {scale!r}; it must be a number, or None for 1 / sqrt(dim)")
    if isinstance(scale, torch.Tensor) and (scale.requires_grad or scale.numel() != 1):
        why = "requires a gradient, and a scale has none: multiply the queries by it" if scale.requires_grad else f"has {scale.numel()} elements"
        raise TypeError(f"{name}: the scale is a Tensor that {why}; it must be a number, or None for 1 / sqrt(dim)")
    if scale is None or not -math.inf < scale <= 0 or quantised.is_quantised(query):
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0, 1.0)


def _check_tensors(name, query, key, value, dims, key_dims):
    shapes = {3: "(total rows, heads, dim)", 4: "(batch, heads, length, dim)"}
    for argument, tensor, dim in (("query", query, dims), ("key", key, key_dims), ("value", value, key_dims)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {argument} must be a Tensor, not {type(tensor).__name__}")
        features.check_dense(name, argument, tensor)
        if tensor.dim() != dim:
            raise ValueError(f"{name}: {argument} has {tensor.dim()} dimensions; it must have {dim}: {shapes[dim]}")
    if not query.dtype == key.dtype == value.dtype and not any(quantised.is_quantised(tensor) for tensor in (query, key, value)):
        raise ValueError(f"{name}: query, key and value must have one dtype, not {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(f"{name}: query, key and value must be on one device, not {query.device}, {key.device} and {value.device}")


def _check_sizes(name, query, key, value, size):
    """@param size that key and value must have, without the last dimension"""
    for argument, tensor, expected in (("key", key, (*size, query.shape[-1])), ("value", value, (*size, value.shape[-1]))):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: {argument} is {tuple(tensor.shape)}; beside query {tuple(query.shape)} and key {tuple(key.shape)} it must be {expected}")
    heads, heads_kv = query.shape[1], key.shape[1]
    if heads_kv == 0 or heads % heads_kv != 0:
        raise ValueError(f"{name}: {heads} query heads do not divide among {heads_kv} key heads; the first must be a multiple of the second")

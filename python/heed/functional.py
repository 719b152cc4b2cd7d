"""Attention as functions of tensors (batch, heads, length, dim)."""

import ctypes
import math

import torch

from heed import c_api, checks, contexts, features, host_kv, layout, libraries, operators, precision_entries, quantised, unfused
from heed import precision as precisions
from heed import routing as _routing  # noqa: F401: what stands at the operators' autograd keys
from heed.features import Features

precisions.modes()  # read here once, where no trace looks for a library
_sdpa = torch.ops.heed.scaled_dot_product_attention.default
_has_torch_function = torch.overrides.has_torch_function_variadic
recording = None  # of heed.recording, while one is made


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention, served by Heed where Heed has a program for the call and by PyTorch elsewhere.

    Arguments, results and errors are PyTorch's, but for what dropout drops of one seed: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    `heed.report()` says which calls were served, and why others were not.
    """
    are_kinds = isinstance(is_causal, bool) and isinstance(enable_gqa, bool) and not (isinstance(scale, torch.Tensor) and (scale.requires_grad or scale.dim() > 0))
    if not are_kinds or (_has_torch_function(query, key, value, attn_mask) and contexts.has_own_rules(query, key, value, attn_mask)):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    try:
        if recording is not None:
            return recording.sdpa(_sdpa, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    except (RuntimeError, AttributeError) as error:
        # An operator reports arguments of a wrong type as RuntimeError; PyTorch's function says which, as TypeError.
        are_tensors = all(isinstance(tensor, torch.Tensor) for tensor in (query, key, value)) and isinstance(attn_mask, (torch.Tensor, type(None)))
        if are_tensors and "Expected a value of type" not in str(error):
            raise
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)


def attention(
    query, key, value, *, causal=False, window=None, alignment=None, scale=None, softcap=0.0, bias=None, sinks=None, alibi_slopes=None,
    key_lengths=None, page_table=None, page_layout="NHD", max_len_k=None, block_mask=None, prefix_lengths=None,
    dropout_p=0.0, dropout_seed=0, dropout_offset=0, relative_bias=None, out_gate=None, out_norm_weight=None, out_norm_eps=None, kv=None, precision=None,
    q_scale=None, k_scale=None, v_scale=None, scale_rows=None, out_dtype=None, return_lse=False,
):  # fmt: skip
    """softmax(scale * Q K^T + mask) V by a kernel of Heed, or an error that says why there is none.

    query        (batch, heads, len_q, dim); float16, bfloat16 or float32 (on a GPU of dims up to 128). Any strides.
    key, value   (batch, heads_kv, len_k, dim) and (batch, heads_kv, len_k, dim_v). `heads` is a multiple of `heads_kv`: query head h
                 reads key head h // (heads // heads_kv). Head dims up to 512, on a GPU 256.
    causal       whether a query sees no key after its own.
    window       (left, right): how many keys before its own and after it a query sees; None or -1 for all.
    alignment    which key is a query's own, where len_q and len_k differ and there is a mask: "top_left" (key i for query i, as
                 is_causal of PyTorch has it) or "bottom_right" (key i + len_k - len_q, as FlashAttention has it). With key_lengths, len_k
                 is each entry's own.
    scale        of the scores; 1 / sqrt(dim) by default. One of zero or less takes a copy of the queries.
    softcap      scaled scores become softcap * tanh(score / softcap); 0 for none.
    bias         added to the capped scores, or a boolean mask that is True for a visible key: bool, float16, bfloat16 or float32, of sizes
                 that broadcast to (batch, heads, len_q, len_k), any strides. Minus infinity, the least finite number of its type and what is at or
                 below -2.36e38 hide; from 2.36e38 on a row is NaN.
                 V must hold finite numbers also for keys that a bias hides.
    sinks        (heads): a score of each row that joins the softmax without a value.
    alibi_slopes (heads) or (batch, heads): scores are biased by -slope * |i + len_k - len_q - j|, of query i and key j.
    key_lengths  (batch), integers: how many of an entry's keys are used, the first ones.
    page_table   (batch, pages of an entry), integers: key j is row j % page_size of page page_table[b, j // page_size]. `key` and `value`
                 are pools then: (pages, page_size, heads_kv, dim), or (pages, heads_kv, page_size, dim) with page_layout="HND".
    max_len_k    with page_table: keys of an entry at most; as many as the table has by default, and never more.
    block_mask   a heed.BlockMask, or a BlockMask of torch.nn.attention.flex_attention: which blocks of keys a block of rows sees, of 64 or
                 128 each. Other blocks are not read. The function of a BlockMask of flex_attention is computed for all scores at once, as
                 a boolean bias of len_q x len_k bytes for each of the entries and heads that it has, unless it is noop_mask: where it is a
                 causal mask or a window, give `causal` or `window` beside heed.BlockMask.from_flex(block_mask).
    prefix_lengths (batch), integers: rows also see, of so many first keys of their entry, what `causal` or the right side of `window` hides:
                 a prefix LM.
    relative_bias a heed.RelativeBias: scores are biased by the bucket of the distance from query i's own key, i + len_k - len_q, to key j,
                 as in T5. No tensor of all scores is made.
    dropout_p    the probability that a probability is set to zero, after the softmax; the others are divided by 1 - dropout_p. The
                 log-sum-exp is that without dropout.
    dropout_seed, dropout_offset of 64 bits each: together with batch entry, head, query and key they alone decide what is dropped, so
                 that a call gives the same again, on a GPU and on a CPU alike, and what FlashAttention-2 drops with them. heed.dropout_mask
                 says what. Offsets of calls that drop independently are 32 * batch * heads apart. PyTorch's generators are neither read nor advanced.
    out_norm_weight (dim_v) or (heads, dim_v), of floating point: rows of O are normed, o / sqrt(mean of o^2 + out_norm_eps) * weight, in float32.
    out_norm_eps positive; 1e-5 by default. A row of zeros stays one.
    out_gate     of the sizes of O, or 1 in the place of any, in its dtype, any strides: O is multiplied by its sigmoid, after the norm. The log-sum-exp is that
                 without norm and gate.
    kv           a heed.HostKV or a layer of one: the call is over the keys that it holds in host memory, behind which `key` and `value` are
                 put first (None and None: no new ones). The last row's own key is the last one. Beside it there are causal, window
                 (left, 0), scale, softcap, sinks and return_lse; no gradients.
    precision    a mode that quantises Q, K and V to 8 bits (docs/low-precision.md): "fp8", "int8", "fp8_smooth" and others; None for tensors as
                 they are. heed.explain says what a mode costs. Such a call has no gradient.
    q_scale, k_scale, v_scale of those of query, key and value that are torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8, which may differ in dtype: a
                 number is element times factor, of floating point, positive and finite. A number or a Tensor for all; (heads,); (batch, heads);
                 (batch, heads, blocks of rows), for pages (pages, heads_kv, blocks of a page); of v_scale also (batch, heads_kv, 1, dim_v); 1 in the place of
                 any that is shared. Rows must be contiguous. Such a call has no gradient. heed.quantise makes elements.
    scale_rows   rows that share a factor where there are blocks of them: one number or three, of query, key and value; 1 by default.
    out_dtype    of O, where the query has 8 bits; elsewhere it is the query's.
    return_lse   whether the log-sum-exp of each row's scores is returned too: float32 (batch, heads, len_q), natural logarithm, minus
                 infinity, or its sink, for a row that sees no key.

    Returns O (batch, heads, len_q, dim_v), in memory as `query` lies, or (O, log-sum-exp). A row that sees no key is zeros. Both
    results have gradients; those of a call with softcap or anything below it are computed with all scores at once, but those of Q, K and V beside a bias
    alone on a CPU.

    Raises TypeError and ValueError for arguments that no attention can have, and NotImplementedError, with the nearest thing that
    there is, for what no kernel computes. It never falls back.
    """
    if kv is not None:
        others = {"bias": bias, "alibi_slopes": alibi_slopes, "key_lengths": key_lengths, "page_table": page_table, "max_len_k": max_len_k, "block_mask": block_mask}
        others |= {"prefix_lengths": prefix_lengths, "relative_bias": relative_bias, "page_layout": None if page_layout == "NHD" else page_layout}
        others |= {"dropout_p": dropout_p or None, "dropout_seed": dropout_seed or None, "dropout_offset": dropout_offset or None}
        others |= {"out_gate": out_gate, "out_norm_weight": out_norm_weight, "out_norm_eps": out_norm_eps, "precision": precision}
        others |= {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "scale_rows": scale_rows, "out_dtype": out_dtype}
        contexts.refuse_tangents("heed.attention()", query, key, value, sinks)
        return host_kv.attention("heed.attention()", query, key, value, kv, causal, window, alignment, scale, softcap, sinks, return_lse, others)
    f = Features(softcap, bias, sinks, alibi_slopes, key_lengths, None, None, page_table, prefix_lengths=prefix_lengths,
                 dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset)  # fmt: skip
    query, key, value, masking, scales = checks.call(query, key, value, causal, window, alignment, scale, f, page_layout, max_len_k, block_mask, relative_bias, (out_gate, out_norm_weight, out_norm_eps),
                                                         ((q_scale, k_scale, v_scale), scale_rows, out_dtype))  # fmt: skip
    return _run("heed.attention()", query, key, value, masking, f, scales, precision, return_lse)


def attention_varlen(
    query, key, value, *, cu_seqlens_q, cu_seqlens_k=None, max_len_q, max_len_k, causal=False, window=None, alignment="bottom_right", scale=None,
    softcap=0.0, bias=None, sinks=None, alibi_slopes=None, key_lengths=None, page_table=None, page_layout="NHD", block_mask=None,
    prefix_lengths=None, dropout_p=0.0, dropout_seed=0, dropout_offset=0, relative_bias=None, out_gate=None, out_norm_weight=None, out_norm_eps=None,
    precision=None, q_scale=None, k_scale=None, v_scale=None, scale_rows=None, out_dtype=None, return_lse=False,
):  # fmt: skip
    """heed.attention of a ragged batch: entries of different lengths, whose rows follow each other in one tensor.

    query         (total_q, heads, dim)
    key, value    (total_k, heads_kv, dim) and (total_k, heads_kv, dim_v); pools of pages with page_table, as heed.attention takes them
    cu_seqlens_q  (batch + 1), integers: entry b has the rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of `query`
    cu_seqlens_k  (batch + 1), integers: its keys; None with page_table, where key_lengths says how many there are
    max_len_q     rows of the longest entry, or more; max_len_k: its keys, or keys of a row of the page table, or more
    alignment     of masks, to each entry's own lengths

    The other arguments are those of heed.attention, where a bias and a block_mask count from each entry's own first row and key; scale factors of rows are of
    pages alone. Returns O (total_q, heads, dim_v), or (O, log-sum-exp) with the log-sum-exp as (heads, total_q). Raises as heed.attention does.

    On a CPU, outside of traces, offsets that decrease or are none of the tensor, and entries longer than max_len_q or max_len_k, are a ValueError, and rows that no
    entry has are zeros, with a log-sum-exp of minus infinity. On a GPU, which is not waited for, and in traces such rows, and those beyond max_len_q of an
    entry, are not written.
    """
    f = Features(softcap, bias, sinks, alibi_slopes, key_lengths, cu_seqlens_q, cu_seqlens_k, page_table, prefix_lengths=prefix_lengths, max_len_q=max_len_q, max_len_k=max_len_k,
                 dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset)  # fmt: skip
    query, key, value, masking, scales, covered = checks.ragged_call(
        query, key, value, causal, window, alignment, scale, f, page_layout, block_mask, relative_bias, (out_gate, out_norm_weight, out_norm_eps),
        ((q_scale, k_scale, v_scale), scale_rows, out_dtype),
    )  # fmt: skip
    result = _run("heed.attention_varlen()", query, key, value, masking, f, scales, precision, return_lse)
    return checks.with_all_rows(result, covered, return_lse)


def _run(name, query, key, value, masking, f, scales, precision, return_lse):
    tensors = query, key, value, f.bias, f.sinks, f.alibi_slopes, f.relative_bias, f.out_gate, f.out_norm_weight
    contexts.refuse_tangents(name, *tensors)
    contexts.refuse_gradients_of_transforms(name, *tensors)
    number = _precision_number(name, precision, query, key, value, f, scales)
    if scales is not None:
        return _scaled(name, query, key, value, masking, f, scales, return_lse)
    if recording is not None:
        return recording.call(workload(query, key, value, masking, f), "", (query, key, value), lambda: _attention(query, key, value, masking, f, return_lse, number))
    return _attention(query, key, value, masking, f, return_lse, number)


def _precision_number(name, precision, query, key, value, f, scales):
    number = precisions.number_of(name, precision)
    if number and scales is not None:
        raise ValueError(f"{name}: precision={precision!r} quantises tensors of 16 or 32 bits, and here some have 8 already; leave precision out")
    if number and features.needs_gradient(query, key, value, f):
        raise NotImplementedError(f"{name}: a call with precision={precision!r} has no gradient; call it under torch.no_grad(), or leave precision out")
    return number


def _scaled(name, query, key, value, masking, f, scales, return_lse):
    if features.needs_gradient(query, key, value, f):
        raise NotImplementedError(f"{name}: a call with tensors of 8 bits has no gradient; call it under torch.no_grad()")
    if _is_nothing(query, key, value, f):
        o, lse = _of_nothing(query, key, value, f, _DTYPE_OF_CODE[scales.out_dtype] if scales.out_dtype >= 0 else query.dtype)
        return (o, lse) if return_lse else o
    try:
        o, lse = operators.forward_scaled(query, key, value, *masking, *f.arguments(), *scales.arguments())
        return (o, lse) if return_lse else o
    except RuntimeError as error:
        if query.is_meta or type(query) is not torch.Tensor:
            raise
        refused = _refusal(query, key, value, masking, True, f, scales=scales)
        if refused is None:
            raise
        raise NotImplementedError(refused) from error


def _attention(query, key, value, masking, f, return_lse, precision=0):
    if f.page_table is not None and f.max_len_k == 0:
        o, lse = _of_nothing(query, key, value, f)
        return (o, lse) if return_lse else o
    try:
        if precision:
            o, lse = operators.forward_precision(query, key, value, *masking, *f.arguments(), precision)
            return (o, lse) if return_lse else o
        if not f.is_none():
            o, lse = _forward_features(query, key, value, masking, f)
            return (o, lse) if return_lse else o
        if return_lse or features.needs_gradient(query, key, value, f):
            o, lse = operators.forward_lse(query, key, value, *masking, False)
            return (o, lse) if return_lse else o
        return operators.forward(query, key, value, *masking, False)
    except RuntimeError as error:
        if query.is_meta or type(query) is not torch.Tensor:
            raise
        if _is_nothing(query, key, value, f):
            o, lse = _of_nothing(query, key, value, f)
            return (o, lse) if return_lse else o
        refused = _refusal(query, key, value, masking, True, f, precision)
        if refused is None:
            raise
        if precision and precision_entries.serves(query, f):
            o, lse = _precision_by_entries(query, key, value, masking, f, precision)
            return (o, lse) if return_lse else o
        raise NotImplementedError(refused) from error


def _is_nothing(query, key, value, f):
    """Whether a call is without elements, or its pages without keys."""
    return 0 in (query.numel(), key.numel(), value.numel()) or (f.page_table is not None and f.max_len_k == 0)


def _of_nothing(query, key, value, f, dtype=None):
    """(O, log-sum-exp) of a call that is nothing: rows of zeros, if any, which see no key. Gradients are zeros too. dtype: of O; the query's by default."""
    o = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=dtype or query.dtype)
    if query.dim() == 4:
        o = layout.like_queries(o, query)
    heads_first = query.shape[:-1] if query.dim() == 4 else (query.shape[1], query.shape[0])
    lse = query.new_full(heads_first, -math.inf, dtype=torch.float32)
    if f.sinks is not None:
        lse = f.sinks.float().unsqueeze(-1).expand(heads_first).clone()
    # Sums of no elements: what autograd follows.
    return o + sum(tensor[..., :0].sum() for tensor in (query, key, value) if not quantised.is_quantised(tensor)), lse


def _precision_by_entries(query, key, value, masking, f, precision):
    try:
        return precision_entries.forward(query, key, value, masking, f, precision)
    except RuntimeError as error:
        raise NotImplementedError(str(error)) from error


def _forward_features(query, key, value, masking, f):
    arguments = query, key, value, *masking, *f.arguments(), False
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None or features.needs_gradient(query, key, value, f):
        return operators.forward_features(*arguments)
    # Half the host time: the kernel of the autograd keys is a function of Python.
    with torch._C._AutoDispatchBelowAutograd():
        return operators.forward_features(*arguments)


def explain(query, key, value, *, causal=False, window=None, alignment=None, scale=None, softcap=0.0, bias=None, sinks=None, alibi_slopes=None,
            key_lengths=None, page_table=None, page_layout="NHD", max_len_k=None, block_mask=None, prefix_lengths=None,
            dropout_p=0.0, dropout_seed=0, dropout_offset=0, relative_bias=None, out_gate=None, out_norm_weight=None, out_norm_eps=None, precision=None,
            q_scale=None, k_scale=None, v_scale=None, scale_rows=None, out_dtype=None, return_lse=False):  # fmt: skip
    """What `attention` with these arguments would run, where its program is from, and why it is this one; or why it is refused.

    Returns lines of text. Raises as `attention` does for arguments that no attention can have. Nothing runs.
    """
    f = Features(softcap, bias, sinks, alibi_slopes, key_lengths, None, None, page_table, prefix_lengths=prefix_lengths,
                 dropout_p=dropout_p, dropout_seed=dropout_seed, dropout_offset=dropout_offset)  # fmt: skip
    query, key, value, masking, scales = checks.call(query, key, value, causal, window, alignment, scale, f, page_layout, max_len_k, block_mask, relative_bias, (out_gate, out_norm_weight, out_norm_eps),
                                                         ((q_scale, k_scale, v_scale), scale_rows, out_dtype))  # fmt: skip
    number = precisions.number_of("heed.explain()", precision)
    if number and precision_entries.serves(query, f) and _refusal(query, key, value, masking, return_lse, f, number):
        calls = list(precision_entries.calls(query, key, value, f))
        of_qkv, of_entry = max(calls, key=lambda call: call[0][1].shape[2])
        return f"entries   {len(calls)} dense calls, one after the other; that of most keys:\n" + _explained(_problem(*of_qkv, masking, return_lse, of_entry), query, precision)
    return _explained(_problem(query, key, value, masking, return_lse, f, scales), query, precision)


def _explained(problem, query, precision):
    options = c_api.Options(struct_size=ctypes.sizeof(c_api.Options), threads=torch.get_num_threads() if query.device.type == "cpu" else 0,
                            precision=precision.encode() if precision else None)  # fmt: skip
    library = c_api.library(str(libraries.folder() / "libheed.so")).lib
    library.heed_explain.restype = ctypes.c_size_t
    arguments = ctypes.byref(problem), ctypes.byref(options)
    text = ctypes.create_string_buffer(library.heed_explain(*arguments, None, ctypes.c_size_t(0)) + 1)
    library.heed_explain(*arguments, text, ctypes.c_size_t(len(text)))
    return text.value.decode()


_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_DTYPE_OF_CODE = {code: dtype for dtype, code in _DTYPES.items()}


def _problem(query, key, value, masking, wants_lse, f=None, scales=None):
    """heed_problem of a call."""
    if (query.dtype not in _DTYPES and scales is None) or query.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"no kernel of Heed computes {query.dtype} on a {query.device.type} device; there are float16, bfloat16 and float32, on a CPU and on NVIDIA GPUs")
    p = c_api.Problem(struct_size=ctypes.sizeof(c_api.Problem), abi_version=c_api.ABI_VERSION)
    p.device_type = c_api.CUDA if query.device.type == "cuda" else c_api.CPU
    p.device = query.device.index or 0
    if scales is None:
        p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = _DTYPES[query.dtype]
    else:
        quantised.fill(p, query, key, value, scales, c_api)
    p.mask, p.window_left, p.window_right, scale = masking
    p.scale = scale or 0
    p.flags |= c_api.WANTS_LSE if wants_lse else 0
    if query.dim() == 4:
        p.batch, p.len_q, p.len_k = query.shape[0], query.shape[2], key.shape[2]
        p.o_strides = c_api.strides_of(layout.like_queries(torch.empty(query.shape[:3] + value.shape[3:], device="meta"), query))
    return features.fill(p, query, key, value, f or Features())


def refusal(query, key, value):
    """libheed's sentence for a call without a mask that it refuses; None for one that it runs."""
    return _refusal(query, key, value, (unfused.NONE, -1, -1, None), False, Features())


def _refusal(query, key, value, masking, wants_lse, f, precision=0, scales=None):
    """libheed's sentence for a call that it refuses; None for one that it runs."""
    problem = _problem(query, key, value, masking, wants_lse, f, scales)
    library = c_api.library(str(libraries.folder() / "libheed.so"))
    options = c_api.Options(struct_size=ctypes.sizeof(c_api.Options), precision=precisions.modes()[precision - 1].encode() if precision else None)
    plan = ctypes.c_void_p()
    if library.lib.heed_plan_create(ctypes.byref(problem), ctypes.byref(options), ctypes.byref(plan)):
        return library.lib.heed_last_error().decode()
    library.lib.heed_plan_destroy(plan)
    return None


def workload(query, key, value, masking=(unfused.NONE, -1, -1, None), f=None):
    """A call as the command line of Heed spells it, or "" where no kernel has its types or sizes, or it has no elements. `masking`: as heed::forward has it."""
    if 0 in (query.numel(), key.numel(), value.numel()):
        return ""
    try:
        return features.text_of(_problem(query, key, value, masking, False, f))
    except (NotImplementedError, ValueError):
        return ""

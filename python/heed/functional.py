"""Attention as functions of tensors (batch, heads, length, dim)."""

import ctypes
import math

import torch

from heed import c_api, libraries, operators, unfused

_sdpa = torch.ops.heed.scaled_dot_product_attention.default
recording = None  # of heed.recording, while one is made


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention, served by Heed where Heed has a program for the call and by PyTorch elsewhere.

    Arguments, results and errors are PyTorch's: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    `heed.report()` says which calls were served, and why others were not.
    """
    try:
        if recording is not None:
            return recording.sdpa(_sdpa, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    except (RuntimeError, AttributeError):
        # An operator reports arguments of a wrong type as RuntimeError; PyTorch's function says which, as TypeError.
        if all(isinstance(tensor, torch.Tensor) for tensor in (query, key, value)) and isinstance(attn_mask, (torch.Tensor, type(None))):
            raise
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# What no kernel of this version computes, by the name of its argument.
_NOT_SERVED = {
    "softcap": "softcap (scores through softcap * tanh(score / softcap))",
    "sinks": "sinks (a logit for each head that joins the softmax)",
    "bias": "a bias (a tensor that is added to the scores)",
    "attn_mask": "a mask tensor",
    "cu_seqlens_q": "sequences packed by cu_seqlens_q",
    "cu_seqlens_k": "sequences packed by cu_seqlens_k",
    "dropout_p": "dropout",
}


def attention(query, key, value, *, causal=False, window=None, alignment=None, scale=None, return_lse=False, **others):
    """softmax(scale * Q K^T + mask) V by a kernel of Heed, or an error that says why there is none.

    query        (batch, heads, len_q, dim); float16, bfloat16 or, on a CPU, float32. Any strides.
    key, value   (batch, heads_kv, len_k, dim) and (batch, heads_kv, len_k, dim_v). `heads` is a multiple of `heads_kv`: query head h
                 reads key head h // (heads // heads_kv). Head dims up to 256.
    causal       whether a query sees no key after its own.
    window       (left, right): how many keys before its own and after it a query sees; None or -1 for all.
    alignment    which key is a query's own, where len_q and len_k differ and there is a mask: "top_left" (key i for query i, as
                 is_causal of PyTorch has it) or "bottom_right" (key i + len_k - len_q, as FlashAttention has it).
    scale        of the scores; 1 / sqrt(dim) by default.
    return_lse   whether the log-sum-exp of each row's scores is returned too: float32 (batch, heads, len_q), natural logarithm, minus
                 infinity for a row that sees no key.

    Returns O (batch, heads, len_q, dim_v), in memory as `query` lies, or (O, log-sum-exp). A row that sees no key is zeros. Both
    results have gradients.

    Raises TypeError and ValueError for arguments that no attention can have, and NotImplementedError, with the nearest thing that
    there is, for what no kernel computes. It never falls back.
    """
    masking = _masking(query, key, value, causal, window, alignment, scale, others)
    if recording is not None:
        return recording.call(workload(query, key, value, masking), "", (query, key, value), lambda: _attention(query, key, value, masking, return_lse))
    return _attention(query, key, value, masking, return_lse)


def _attention(query, key, value, masking, return_lse):
    needs_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    try:
        if return_lse or needs_gradient:
            o, lse = operators.forward_lse(query, key, value, *masking, False)
            return (o, lse) if return_lse else o
        return operators.forward(query, key, value, *masking, False)
    except RuntimeError as error:
        if query.is_meta or type(query) is not torch.Tensor:
            raise
        refused = _refusal(query, key, value, masking, return_lse or needs_gradient)
        if refused is None:
            raise
        raise NotImplementedError(refused) from error


def explain(query, key, value, *, causal=False, window=None, alignment=None, scale=None, return_lse=False, **others):
    """What `attention` with these arguments would run, where its program is from, and why it is this one; or why it is refused.

    Returns lines of text. Raises as `attention` does for arguments that no attention can have. Nothing runs.
    """
    try:
        masking = _masking(query, key, value, causal, window, alignment, scale, others)
    except NotImplementedError as error:
        return f"refused   {error}\n"
    problem = _problem(query, key, value, masking, return_lse)
    options = c_api.Options(struct_size=ctypes.sizeof(c_api.Options), threads=torch.get_num_threads() if query.device.type == "cpu" else 0)
    library = c_api.library(str(libraries.folder() / "libheed.so")).lib
    library.heed_explain.restype = ctypes.c_size_t
    arguments = ctypes.byref(problem), ctypes.byref(options)
    text = ctypes.create_string_buffer(library.heed_explain(*arguments, None, ctypes.c_size_t(0)) + 1)
    library.heed_explain(*arguments, text, ctypes.c_size_t(len(text)))
    return text.value.decode()


def _masking(query, key, value, causal, window, alignment, scale, others):
    """(mask, window_left, window_right, scale) of heed::forward. Raises TypeError, ValueError and NotImplementedError."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"heed.attention(): {name} must be a Tensor, not {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise ValueError(f"heed.attention(): {name} has {tensor.dim()} dimensions; it must have 4: (batch, heads, length, dim)")
    for name, given in others.items():
        if name not in _NOT_SERVED:
            raise TypeError(f"heed.attention() got an unexpected keyword argument '{name}'")
        if given is not None and not (isinstance(given, (int, float)) and given == 0):
            raise NotImplementedError(f"heed.attention(): no kernel of this version computes {_NOT_SERVED[name]}; leave {name} out")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"heed.attention(): query, key and value must have one dtype, not {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(f"heed.attention(): query, key and value must be on one device, not {query.device}, {key.device} and {value.device}")
    batch, heads, len_q, dim = query.shape
    heads_kv, len_k = key.shape[1:3]
    for name, tensor, size in (("key", key, (batch, heads_kv, len_k, dim)), ("value", value, (batch, heads_kv, len_k, value.shape[3]))):
        if tuple(tensor.shape) != size:
            raise ValueError(f"heed.attention(): {name} is {tuple(tensor.shape)}; beside query {tuple(query.shape)} and key {tuple(key.shape)} it must be {size}")
    if heads_kv == 0 or heads % heads_kv != 0:
        raise ValueError(f"heed.attention(): {heads} query heads do not divide among {heads_kv} key heads; the first must be a multiple of the second")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"heed.attention(): the scale is {scale}; it must be a positive number, or None for 1 / sqrt(dim)")
    left, right = (-1 if bound is None else bound for bound in (window or (None, None)))
    if left < -1 or right < -1:
        raise ValueError(f"heed.attention(): window is {window}; both numbers of keys must be 0 or more, or None for all")
    if alignment not in (None, "top_left", "bottom_right"):
        raise ValueError(f'heed.attention(): alignment is {alignment!r}; it must be "top_left" or "bottom_right"')
    if causal and right > 0:
        raise ValueError(f"heed.attention(): a causal mask ends with a query's own key, so that a window cannot show {right} keys after it; give 0 or None")
    if not causal and left < 0 and right < 0:
        return unfused.NONE, -1, -1, scale
    if alignment is None:
        if len_q != len_k:
            raise ValueError(f'heed.attention(): with {len_q} queries and {len_k} keys a mask needs alignment="top_left" (PyTorch\'s is_causal) or "bottom_right" (FlashAttention\'s)')
        alignment = "top_left"
    if causal:
        return (unfused.CAUSAL_TOP_LEFT if alignment == "top_left" else unfused.CAUSAL_BOTTOM_RIGHT), left, -1, scale
    return (unfused.WINDOW_TOP_LEFT if alignment == "top_left" else unfused.WINDOW_BOTTOM_RIGHT), left, right, scale


_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


def _problem(query, key, value, masking, wants_lse):
    """heed_problem of a call."""
    if query.dtype not in _DTYPES or query.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"no kernel of Heed computes {query.dtype} on a {query.device.type} device; there are float16 and bfloat16, and on a CPU float32")
    p = c_api.Problem(struct_size=ctypes.sizeof(c_api.Problem), abi_version=c_api.ABI_VERSION)
    p.device_type = c_api.CUDA if query.device.type == "cuda" else c_api.CPU
    p.device = query.device.index or 0
    p.batch, p.heads, p.len_q, p.dim = query.shape
    p.heads_kv, p.len_k, p.dim_v = key.shape[1], key.shape[2], value.shape[3]
    p.dtype_q = p.dtype_kv = p.dtype_o = _DTYPES[query.dtype]
    p.mask, p.window_left, p.window_right, scale = masking
    p.scale = scale or 0
    p.q_strides, p.k_strides, p.v_strides = (c_api.strides_of(tensor) for tensor in (query, key, value))
    o = torch.empty(query.shape[:3] + value.shape[3:], device="meta")
    p.o_strides = c_api.strides_of(o if not unfused.is_length_outer(query) else o.transpose(1, 2).contiguous().transpose(1, 2))
    p.flags = c_api.WANTS_LSE if wants_lse else 0
    return p


def refusal(query, key, value):
    """libheed's sentence for a call without a mask that it refuses; None for one that it runs."""
    return _refusal(query, key, value, (unfused.NONE, -1, -1, None), False)


def _refusal(query, key, value, masking, wants_lse):
    """libheed's sentence for a call that it refuses; None for one that it runs."""
    problem = _problem(query, key, value, masking, wants_lse)
    library = c_api.library(str(libraries.folder() / "libheed.so"))
    plan = ctypes.c_void_p()
    if library.lib.heed_plan_create(ctypes.byref(problem), None, ctypes.byref(plan)):
        return library.lib.heed_last_error().decode()
    library.lib.heed_plan_destroy(plan)
    return None


def workload(query, key, value, masking=(unfused.NONE, -1, -1, None)):
    """A call as the command line of Heed spells it, or "" where no kernel has its types or sizes. `masking`: as heed::forward has it."""
    try:
        problem = _problem(query, key, value, masking, False)
    except (NotImplementedError, ValueError):
        return ""
    library = c_api.library(str(libraries.folder() / "libheed.so")).lib
    library.heed_problem_text.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(256)
    library.heed_problem_text(ctypes.byref(problem), text, ctypes.c_size_t(len(text)))
    return text.value.decode()

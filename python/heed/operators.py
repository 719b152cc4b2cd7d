"""The operators of the namespace `heed`, which this module registers with PyTorch when it is imported.

| operator | does |
| --- | --- |
| heed::forward | attention by a plan of libheed; no gradient |
| heed::forward_lse | the same and the log-sum-exp of each row, with a gradient |
| heed::scaled_dot_product_attention | PyTorch's signature; calls one of these, or hands back |
| heed::refusal | whether Heed serves a call of that signature, by number |
| heed::in_other_form | O of a call of that signature that has another form, and nothing for others |
| heed::hand_back | PyTorch's own scaled_dot_product_attention, whatever is installed in its place |
| heed::forward_precision | forward_features of inputs that a mode quantises (heed.precision), or as they are where it serves them not; no gradient |
| heed::forward_scaled | forward_features of tensors of 8 bits with scale factors (heed.quantised); no gradient |
| heed::forward_features | forward_lse with what most calls do not have: biases, relative-position biases, a softcap, sinks, lengths, pages, lists of blocks, prefixes, dropout, norms and gates of rows of O; with a gradient |
| heed::forward_dropout, heed::dropout_backward | attention whose dropout PyTorch's generator draws (heed.dropout_calls), and its gradient |
| heed::append_kv | new keys and values written into a cache, in place; no gradient |
| heed::unfused, heed::unfused_features | attention in PyTorch's operators, where libheed has no program for what forward was called with |

Kernels for CPUs and GPUs are in libheed_torch.so (bindings/torch); shapes of traced tensors and autocast are here. Gradients are registered by
heed.gradients and heed.dropout_calls, rules of torch.vmap by heed.batching, what stands at the autograd keys by heed.routing, which imports these;
heed.functional imports it.
https://docs.pytorch.org/docs/stable/library.html
"""

from pathlib import Path

import torch

from heed import layout, libraries, unfused

OLDEST_TORCH = (2, 10)
if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
    raise ImportError(f"Heed takes PyTorch {'.'.join(map(str, OLDEST_TORCH))} or newer; this is {torch.__version__}")

_SDPA = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False"
_FORWARD = "Tensor query, Tensor key, Tensor value, int mask=0, int window_left=-1, int window_right=-1, float? scale=None"

_FEATURES = (
    _FORWARD + ", float softcap=0.0, Tensor? bias=None, Tensor? sinks=None, Tensor? alibi_slopes=None, Tensor? key_lengths=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? page_table=None, Tensor? block_counts=None, Tensor? block_indices=None, Tensor? prefix_lengths=None, "
    "int max_len_q=0, int max_len_k=0, int block_rows=0, int block_keys=0, float dropout_p=0.0, int dropout_seed=0, int dropout_offset=0, "
    "Tensor? relative_bias=None, int relative_max_distance=0, bool relative_bidirectional=True, "
    "Tensor? out_gate=None, Tensor? out_norm_weight=None, float out_norm_eps=0.0"
)

native = libraries.operator_library()
_tag = torch.Tag.pt2_compliant_tag
_draws = (_tag, torch.Tag.nondeterministic_seeded)  # two calls alike are two: with dropout PyTorch's generator is drawn from
try:
    library = torch.library.Library("heed", "DEF")
except RuntimeError as error:
    raise ImportError("another copy of Heed is loaded in this process, and has its operators: load one alone") from error
library.define(f"forward({_FORWARD}, bool or_unfused=True) -> Tensor", tags=_tag)
library.define(f"forward_lse({_FORWARD}, bool or_unfused=True) -> (Tensor, Tensor)", tags=_tag)
library.define(f"forward_features({_FEATURES}, bool or_unfused=True) -> (Tensor, Tensor)", tags=_tag)
library.define(f"forward_precision({_FEATURES}, int precision=0, bool or_plain=False) -> (Tensor, Tensor)", tags=_tag)
library.define(
    f"forward_scaled({_FEATURES}, Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "int q_scale_rows=1, int k_scale_rows=1, int v_scale_rows=1, int out_dtype=-1) -> (Tensor, Tensor)",
    tags=_tag,
)
library.define(
    "append_kv(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor lengths, Tensor? page_table=None, Tensor? cu_seqlens=None, int max_len=0, "
    "bool lengths_are_after=False, Tensor(c!)? k_scale=None, Tensor(d!)? v_scale=None, int k_scale_rows=1, int v_scale_rows=1) -> Tensor",
    tags=_tag,
)
library.define(f"unfused_features({_FEATURES}) -> (Tensor, Tensor)", tags=_tag)
library.define(f"unfused({_FORWARD}) -> (Tensor, Tensor)", tags=_tag)
library.define(f"scaled_dot_product_attention({_SDPA}) -> Tensor", tags=_draws)
library.define(f"hand_back({_SDPA.replace(' *,', '')}, int reason=0) -> Tensor", tags=_draws)
library.define(f"refusal({_SDPA.replace(' *,', '')}, bool wants_lse=False, bool is_other_form=False) -> int", tags=_tag)
library.define(f"in_other_form({_SDPA.replace(' *,', '')}) -> Tensor?", tags=_draws)
library.define(
    "forward_dropout(Tensor query, Tensor key, Tensor value, int mask=0, float? scale=None, Tensor? bias=None, float dropout_p=0.0) -> (Tensor, Tensor, Tensor)", tags=_draws
)
library.define(
    "dropout_backward(Tensor grad_o, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? o, Tensor? lse, Tensor numbers, int mask, float? scale, float dropout_p, bool of_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tag,
)

# A key that no tensor has: Python's kernel of aten::scaled_dot_product_attention is there for the library to find.
PYTHON_KEY = torch._C.DispatchKey.AutogradPrivateUse3
libraries.check(native.heed_torch_register(str(Path(torch.__file__).parent / "lib" / "libtorch.so").encode(), torch._C.DispatchKeySet(PYTHON_KEY).raw_repr()))

forward = torch.ops.heed.forward.default
forward_lse = torch.ops.heed.forward_lse.default
forward_features = torch.ops.heed.forward_features.default
forward_precision = torch.ops.heed.forward_precision.default
forward_scaled = torch.ops.heed.forward_scaled.default
append_kv = torch.ops.heed.append_kv.default

# ------------------------------------------------------------------------------------------------ shapes


def _check_shapes(query, key, value):
    """What a trace would otherwise find out when it runs."""
    torch._check(query.dim() == key.dim() == value.dim() == 4, lambda: "heed::forward takes tensors (batch, heads, length, dim)")


@torch.library.register_fake("heed::forward", lib=library)
def _(query, key, value, mask=0, window_left=-1, window_right=-1, scale=None, or_unfused=True):
    _check_shapes(query, key, value)
    return layout.empty_like_queries(query, (*query.shape[:3], value.shape[3]))


@torch.library.register_fake("heed::forward_lse", lib=library)
def _(query, key, value, mask=0, window_left=-1, window_right=-1, scale=None, or_unfused=True):
    _check_shapes(query, key, value)
    return layout.empty_like_queries(query, (*query.shape[:3], value.shape[3])), query.new_empty(query.shape[:3], dtype=torch.float32)


def shapes_of_features(query, key, value, mask=0, window_left=-1, window_right=-1, scale=None, softcap=0.0, bias=None, sinks=None, alibi_slopes=None, key_lengths=None,
      cu_seqlens_q=None, cu_seqlens_k=None, page_table=None, block_counts=None, block_indices=None, prefix_lengths=None, max_len_q=0, max_len_k=0, block_rows=0, block_keys=0,
      dropout_p=0.0, dropout_seed=0, dropout_offset=0, relative_bias=None, relative_max_distance=0, relative_bidirectional=True,
      out_gate=None, out_norm_weight=None, out_norm_eps=0.0, last=None):  # fmt: skip
    """O and the log-sum-exp of a call with features, without memory."""
    if cu_seqlens_q is not None:
        torch._check(query.dim() == 3, lambda: "queries of entries with cu_seqlens_q are (total, heads, dim)")
        total, heads, _ = query.shape
        return query.new_empty((total, heads, value.shape[-1])), query.new_empty((heads, total), dtype=torch.float32)
    _check_shapes(query, key, value)
    return layout.empty_like_queries(query, (*query.shape[:3], value.shape[3])), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.register_fake("heed::forward_features", lib=library)
def _(query, key, value, *rest, or_unfused=True, **named):
    return shapes_of_features(query, key, value, *rest, **named)


@torch.library.register_fake("heed::forward_precision", lib=library)
def _(query, key, value, *rest, precision=0, or_plain=False, **named):
    return shapes_of_features(query, key, value, *rest[:28], **named)


_WIDE = (torch.float16, torch.bfloat16, torch.float32)  # by heed_dtype


@torch.library.register_fake("heed::forward_scaled", lib=library)
def _(query, key, value, *rest, q_scale=None, k_scale=None, v_scale=None, q_scale_rows=1, k_scale_rows=1, v_scale_rows=1, out_dtype=-1, **named):
    o, lse = shapes_of_features(query, key, value, *rest[:28], **named)
    wide = rest[34] if len(rest) > 34 else out_dtype
    return (o if wide < 0 else torch.empty_like(o, dtype=_WIDE[wide])), lse


@torch.library.register_fake("heed::append_kv", lib=library)
def _(key, value, key_cache, value_cache, lengths, *rest, **named):
    return torch.empty_like(lengths, dtype=torch.int32)


# ------------------------------------------------------------------------------------------------ what is not fused

library.impl("unfused", unfused.forward, "CompositeExplicitAutograd")
library.impl("unfused_features", unfused.forward_features, "CompositeExplicitAutograd")
_composite = torch._C.DispatchKey.CompositeImplicitAutograd
_sdpa = torch.ops.aten.scaled_dot_product_attention.default

UNSUPPORTED = next(number for number in range(64) if native.heed_torch_refusal(number).startswith(b"no program"))
# Refusals of calls that heed::in_other_form may have an O of: heed::refusal has not counted them.
MAY_HAVE_OTHER_FORM = frozenset(number for number in range(64) if native.heed_torch_may_have_other_form(number))


def phrase(reason):
    """What a number of heed::refusal stands for."""
    return native.heed_torch_refusal(reason).decode()


# Set by heed.override: raises instead of handing back.
refuse = None


def torch_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """PyTorch's own scaled_dot_product_attention, past an override."""
    return _sdpa._op_dk(_composite, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def note_refusal(reason, query, key, value):
    """Counts a call that goes on to PyTorch; an exception in strict mode. `reason` is what heed::refusal said, which counted it, or a phrase."""
    if isinstance(reason, str):
        native.heed_torch_count(False, b"", reason.encode())
    if refuse is not None:
        refuse(reason, query, key, value)


def hand_back(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, reason=0):
    """torch_attention, or an exception in strict mode. `reason` is that of `note_refusal`."""
    note_refusal(reason, query, key, value)
    return torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _hand_back_of_library(*arguments):
    try:
        return hand_back(*arguments)
    except Exception as error:
        native.heed_torch_note_exception(str(error).encode())
        raise


library.impl("hand_back", _hand_back_of_library, "CompositeImplicitAutograd")


def _other_devices(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


library.impl("scaled_dot_product_attention", _other_devices, "CompositeImplicitAutograd")

# ------------------------------------------------------------------------------------------------ autocast


def _autocast(name, key, device_type):
    """Casts query, key and value as autocast does for PyTorch's own attention: to the lower precision."""
    operator = getattr(torch.ops.heed, name).default
    keys = torch._C.DispatchKeySet(key)

    def cast(query, key, value, *rest, **named):
        dtype = torch.get_autocast_dtype(device_type)
        eligible = all(tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in (query, key, value))
        if eligible:
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if rest and isinstance(rest[0], torch.Tensor) and rest[0].is_floating_point():
            rest = (rest[0].to(dtype), *rest[1:])
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(query, key, value, *rest, **named)

    library.impl(name, cast, key.name)


for _name in ("forward", "forward_lse", "forward_features", "forward_precision", "scaled_dot_product_attention"):
    _autocast(_name, torch._C.DispatchKey.AutocastCPU, "cpu")
    _autocast(_name, torch._C.DispatchKey.AutocastCUDA, "cuda")

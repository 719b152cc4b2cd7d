"""Scaled-dot-product attention above autograd: which calls Heed serves where gradients, traces and transforms are still to come.

Where nothing but devices is left, bindings/torch/router.cpp decides, and calls this for the rest. Here is Python, for an exception
that passes through LibTorch's C functions loses its type, and hooks of saved tensors raise exceptions that must keep theirs
(torch.utils.checkpoint).
"""

import functools
import math

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from heed import batching as _batching  # noqa: F401: rules of torch.vmap
from heed import dropout_calls, forms, gradients, operators, unfused
from heed import precision as precisions

_refusal = torch.ops.heed.refusal.default
_forward = torch.ops.heed.forward.default
_forward_lse = torch.ops.heed.forward_lse.default
_forward_features = torch.ops.heed.forward_features.default
_forward_precision = torch.ops.heed.forward_precision.default
_forward_dropout = torch.ops.heed.forward_dropout.default
_FLOATS_OF_MASKS = (torch.bool, torch.float32)  # beside queries of any type
_sdpa = torch.ops.heed.scaled_dot_product_attention.default
_DEVICES = {"cpu": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)}
_TRACED = (FakeTensor, FunctionalTensor)
_MOST_DIMS = {"cpu": 512, "cuda": 256}  # of a head, of families


@functools.cache
def _is_plain(kind):
    """Whether tensors of this class do what PyTorch's own do."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def lifted(query, key, value, attn_mask, enable_gqa):
    """Q, K and V as views of four dimensions, of one batch size and one number of key heads, which may be one head for all of Q: what
    Lifting of bindings/torch/call.cpp does. None where torch.matmul would not broadcast them so, or a mask has more dimensions than they."""
    tensors, rank = (query, key, value), query.dim()
    if not 3 - (not enable_gqa) <= rank <= 4 or not rank == key.dim() == value.dim() or (attn_mask is not None and attn_mask.dim() > rank):
        return None
    tensors = [tensor[(None,) * (4 - rank)] for tensor in tensors] if rank < 4 else tensors
    has_one_key_head = tensors[1].shape[1] == tensors[2].shape[1] == 1
    for dim in (0,) if enable_gqa or has_one_key_head else (0, 1):
        size = next((tensor.shape[dim] for tensor in tensors if tensor.shape[dim] != 1), 1)
        if any(tensor.shape[dim] not in (1, size) for tensor in tensors):
            return None
        if any(tensor.shape[dim] != size for tensor in tensors):
            tensors = [tensor.expand(*(size if at == dim else -1 for at in range(4))) for tensor in tensors]
    return tensors


def dense_where_unfused(query, key, value, rank, dropout_p):
    """Lifted tensors of a call with queries of `rank` dimensions, Q copied where it is not dense and PyTorch's own kernels are unfused, whose output is dense
    whatever Q is: for other than four dimensions, and on a CPU for dropout and where V has another head dim than K. Operators give O the layout of Q."""
    if rank != 4 or (query.device.type == "cpu" and (dropout_p > 0 or query.shape[3] != value.shape[3])):
        query = query.contiguous()
    return query, key, value


def is_served_in_trace(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, needs_gradient):
    """The conditions of bindings/torch/call.cpp, for lifted tensors without memory, whose sizes may be symbols. Where libheed has no
    program for the sizes of a run, heed::forward computes it by heed::unfused."""
    return (
        0 <= dropout_p <= 1
        and query.dtype == key.dtype == value.dtype
        and query.device == key.device == value.device
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and (scale is None or (isinstance(scale, float) and 0 < scale < math.inf))
        and query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1] == value.shape[1]
        and key.shape[2] == value.shape[2]
        and query.shape[3] == key.shape[3]
        and (query.shape[1] == key.shape[1] or key.shape[1] == 1 or (enable_gqa and query.shape[1] % key.shape[1] == 0))
        and not (dropout_p > 0 and dropout_calls.is_left_to_torch(query, key, value, attn_mask, is_causal))
        and max(query.shape[3], value.shape[3]) <= _MOST_DIMS.get(query.device.type, 0)
        and (attn_mask is None or _is_bias(attn_mask, query, (*query.shape[:3], key.shape[2])))
        and (attn_mask is None or not is_causal or forms.takes_mask_beside_causal(query, key, value, attn_mask, dropout_p, scale, enable_gqa))
    )


def _is_bias(mask, query, sizes):
    """Whether a tensor may be added to scores of these sizes, or hide some."""
    return (
        (mask.dtype in _FLOATS_OF_MASKS or mask.dtype == query.dtype)
        and mask.device == query.device
        and 2 <= mask.dim() <= 4
        and all(size == 1 or size == of_scores for size, of_scores in zip(reversed(mask.shape), reversed(sizes)))
    )


def _is_as_in_memory(tensor):
    """Whether a tensor's numbers are those that its memory has: not with the other sign, nor zeros without memory (torch._efficientzerotensor), which
    PyTorch's own kernels read from anywhere."""
    return not tensor.is_neg() and not tensor._is_zerotensor()


def _in_memory(tensor):
    """A tensor with these numbers in memory, where it has others the copy that PyTorch makes at a key that is passed by here."""
    return tensor + torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device) if tensor._is_zerotensor() else tensor.resolve_neg()


EVERY_BACKEND = (True,) * 4  # of selected_backends: nobody's choice, also where Heed was installed under sdpa_kernel
usual_backends = None  # those that were enabled when Heed was put in the place of PyTorch's function
is_flash = False  # whether Heed is PyTorch's implementation of FlashAttention


def selected_backends():
    """Which of PyTorch's kernels may be chosen."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()


def _unlifted(o, query):
    """O without the dimensions that `lifted` put in front of the queries'."""
    return o if query.dim() == 4 else o[(0,) * (4 - query.dim())]


def backend_selection():
    """Why a call goes to a kernel of PyTorch that somebody chose; "" where nobody did."""
    if usual_backends is None or selected_backends() in (usual_backends, EVERY_BACKEND) or (is_flash and torch.backends.cuda.flash_sdp_enabled()):
        return ""
    return "a selection of backends (torch.nn.attention.sdpa_kernel)"


def unseen_selection():
    """The same; "" where the library sees it, as heed::refusal says."""
    return "" if HAS_SYMBOLS else backend_selection()


def route(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """A call that reached the autograd keys."""
    inputs = query, key, value
    rest = attn_mask, dropout_p, is_causal, scale, enable_gqa
    tensors = inputs if attn_mask is None else (*inputs, attn_mask)
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return operators.hand_back(*inputs, *rest, "a transform of torch.func, or forward-mode differentiation")
    if selection := unseen_selection():
        return operators.hand_back(*inputs, *rest, selection)
    masking = unfused.CAUSAL_TOP_LEFT if is_causal else unfused.NONE, -1, -1, scale
    is_plain = all(_is_plain(type(tensor)) for tensor in tensors)
    if is_plain and torch._C._len_torch_dispatch_stack() == 0:
        if not all(_is_as_in_memory(tensor) for tensor in tensors):
            inputs = tuple(_in_memory(tensor) for tensor in inputs)
            attn_mask = None if attn_mask is None else _in_memory(attn_mask)
            rest = attn_mask, *rest[1:]
        # In strict mode the library calls this for what it would hand back: heed.NotServed would be a RuntimeError of its.
        reason = _refusal(*inputs, *rest, needs_gradient) if needs_gradient or operators.refuse is not None else 0
        if reason:
            if reason in operators.MAY_HAVE_OTHER_FORM:
                o = in_other_form(*inputs, *rest, needs_gradient=needs_gradient)
                if o is not None:
                    return o
                reason = operators.phrase(reason)
            return operators.hand_back(*inputs, *rest, reason)
        if not needs_gradient:
            return _sdpa.redispatch(_DEVICES[query.device.type], *inputs, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        of_four = dense_where_unfused(*lifted(*inputs, attn_mask, enable_gqa), query.dim(), dropout_p)
        return _unlifted((Attention.apply(*of_four, *masking) if attn_mask is None else BiasedAttention.apply(*of_four, attn_mask, *masking))[0], query)
    if not all(_is_plain(type(tensor)) or isinstance(tensor, _TRACED) for tensor in tensors):
        return operators.hand_back(*inputs, *rest, "a subclass of torch.Tensor")
    if selection := backend_selection():  # no tensor of a trace comes to the library
        return operators.hand_back(*inputs, *rest, selection)
    form = forms.plain(*inputs, attn_mask, scale, enable_gqa)
    of_four = form and lifted(form.query, form.key, form.value, form.attn_mask, enable_gqa)
    if not of_four or not is_served_in_trace(*of_four, form.attn_mask, dropout_p, is_causal, form.scale, enable_gqa, needs_gradient):
        return operators.hand_back(*inputs, *rest, "arguments that a trace does not serve")
    of_four = dense_where_unfused(*of_four, query.dim(), dropout_p)
    masking = *masking[:3], form.scale
    if dropout_p > 0:
        return form.unfolded(_forward_dropout(*of_four, masking[0], form.scale, form.attn_mask, dropout_p)[0])
    if (precision := precisions.in_traces()) and not needs_gradient:
        return form.unfolded(_forward_precision(*of_four, *masking, bias=form.attn_mask, precision=precision, or_plain=True)[0])
    if attn_mask is not None:
        return form.unfolded(_forward_features(*of_four, *masking, bias=form.attn_mask)[0])
    return form.unfolded(_forward_lse(*of_four, *masking)[0] if needs_gradient else _forward(*of_four, *masking))


def in_other_form(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, needs_gradient=False):
    """O of a call of scaled_dot_product_attention that is refused as it is and has another form (heed.forms): by Heed, or by PyTorch where Heed has no kernel for
    that form either, and counted so. None, and not counted, where it has no other form."""
    call = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    if unseen_selection() or not 0 <= dropout_p <= 1:
        return None
    if attn_mask is not None and is_causal and not forms.takes_mask_beside_causal(query, key, value, attn_mask, dropout_p, scale, enable_gqa):
        return None
    form = forms.plain(query, key, value, attn_mask, scale, enable_gqa)
    of_four = form and lifted(form.query, form.key, form.value, form.attn_mask, enable_gqa)
    if not of_four:
        return None
    q, k, v = of_four
    mask = form.attn_mask
    if 0 in (*q.shape[:3], k.shape[2], v.shape[3]):
        if not _fits(q, k, v, mask, enable_gqa):
            return None
        operators.native.heed_torch_count(True, b"", b"tensors without elements")
        return forms.WithoutElements.apply(query, key, value, attn_mask)
    has_both = mask is not None and is_causal
    if dropout_p > 0 and dropout_calls.is_left_to_torch(q, k, v, mask, is_causal):
        return operators.hand_back(*call, dropout_calls.ON_A_GPU)
    if dropout_p > 0 and dropout_calls.is_capturing(q.device):
        return operators.hand_back(*call, dropout_calls.IN_A_CAPTURE)
    reason = _refusal(q, k, v, mask, dropout_p, is_causal, form.scale, enable_gqa, needs_gradient or has_both or dropout_p > 0, True)
    if reason:
        return None if reason in operators.MAY_HAVE_OTHER_FORM else operators.hand_back(*call, reason)
    masking = unfused.CAUSAL_TOP_LEFT if is_causal else unfused.NONE, -1, -1, form.scale
    q, k, v = dense_where_unfused(q, k, v, query.dim(), dropout_p)
    if dropout_p > 0:
        return form.unfolded(_forward_dropout(q, k, v, masking[0], form.scale, mask, dropout_p)[0])
    if needs_gradient:
        return form.unfolded((Attention.apply(q, k, v, *masking) if mask is None else BiasedAttention.apply(q, k, v, mask, *masking))[0])
    if has_both:
        return form.unfolded(_forward_features(q, k, v, *masking, bias=mask)[0])
    return form.unfolded(_sdpa(q, k, v, mask, 0.0, is_causal, scale=form.scale, enable_gqa=enable_gqa))


def _fits(q, k, v, mask, enable_gqa):
    """Whether lifted tensors, some of them without elements, have the sizes of attention."""
    heads, heads_kv = q.shape[1], k.shape[1]
    return (
        k.shape == (q.shape[0], heads_kv, k.shape[2], q.shape[3])
        and v.shape[:3] == k.shape[:3]
        and (heads_kv > 0 and heads % heads_kv == 0 if enable_gqa else heads_kv in (1, heads))
        and (mask is None or _is_bias(mask, q, (*q.shape[:3], k.shape[2])))
    )


def _in_other_form_of_library(*arguments):
    try:
        return in_other_form(*arguments)
    except Exception as error:
        operators.native.heed_torch_note_exception(str(error).encode())
        raise


operators.library.impl("in_other_form", _in_other_form_of_library, "CompositeImplicitAutograd")


class Attention(torch.autograd.Function):
    """heed::forward_lse with its gradient for tensors of a device: half the host time of what torch.library registers, which traces
    take."""

    @staticmethod
    def forward(ctx, query, key, value, mask, window_left, window_right, scale):
        o, lse = _forward_lse.redispatch(_DEVICES[query.device.type], query, key, value, mask, window_left, window_right, scale, True)
        gradients.save(ctx, query, key, value, o, lse, mask, window_left, window_right, scale)
        return o, lse

    backward = staticmethod(lambda ctx, *grads: gradients.backward(ctx, *grads)[:7])


class BiasedAttention(torch.autograd.Function):
    """The same of heed::forward_features with a mask tensor alone."""

    @staticmethod
    def forward(ctx, query, key, value, bias, mask, window_left, window_right, scale):
        o, lse = _forward_features.redispatch(_DEVICES[query.device.type], query, key, value, mask, window_left, window_right, scale, 0.0, bias)
        gradients.save_biased(ctx, query, key, value, bias, o, lse, (mask, window_left, window_right, scale))
        return o, lse

    backward = staticmethod(lambda ctx, *grads: (*gradients.backward_biased(ctx, *grads), *(None,) * 4))


def register(library, operator, keys):
    """Puts `route` at dispatch keys of an operator with the schema of scaled_dot_product_attention."""
    for key in keys:
        library.impl(operator, route, key)


HAS_SYMBOLS = bool(operators.native.heed_torch_has_native_symbols())
AUTOGRAD_KEYS = ("AutogradCPU", "AutogradCUDA")
if not HAS_SYMBOLS:
    register(operators.library, _sdpa, AUTOGRAD_KEYS)
_aten = torch.library.Library("aten", "IMPL")
register(_aten, torch.ops.aten.scaled_dot_product_attention.default, (operators.PYTHON_KEY.name,))

"""The gradients of heed::forward_lse and heed::forward_features, and formulas of FLOP counters.

A gradient is computed by PyTorch's own kernels, given Heed's O and log-sum-exp, where they compute this one right; else by
heed.unfused. https://docs.pytorch.org/docs/stable/library.html#torch.library.register_autograd
"""

import math

import torch
from torch.utils.flop_counter import register_flop_formula

from heed import unfused
from heed.operators import library

FLASH_HEAD_DIMS = 256  # of PyTorch's FlashAttention kernels, at most
DROPOUT_HEAD_DIMS = 192  # of them with dropout; more on GPUs with as much shared memory as an A100 has, by compute capability
LARGE_GPUS = ((8, 0), (9, 0), (10, 0))


def save(ctx, query, key, value, o, lse, mask, window_left, window_right, scale):
    """Keeps on `ctx` what `backward` reads."""
    ctx.mask, ctx.window_left, ctx.window_right, ctx.scale = mask, window_left, window_right, scale
    ctx.save_for_backward(query, key, value, o, lse)
    ctx.set_materialize_grads(False)


def _setup(ctx, inputs, output):
    save(ctx, *inputs[:3], *output, *inputs[3:7])


def repeated_heads(tensor, group):
    """(batch, heads_kv, ...) with each head `group` times."""
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)


def summed_heads(grad, group):
    """The gradient of a tensor whose heads were repeated."""
    return grad if group == 1 else grad.unflatten(1, (-1, group)).sum(2)


def _with_dense_rows(*tensors):
    """Tensors whose elements of a row follow each other: PyTorch's kernels read no others, and on a CPU do not refuse them."""
    return [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors]


def backward_on_cpu(grad_o, q, k, v, o, lse, mask, scale, bias=None):
    """By aten::_scaled_dot_product_flash_attention_for_cpu_backward. `mask`: none or causal, aligned to the top left."""
    group = q.shape[1] // k.shape[1]
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_o, q, repeated_heads(k, group), repeated_heads(v, group), o, lse, 0.0, mask == unfused.CAUSAL_TOP_LEFT, attn_mask=bias, scale=scale
    )
    return dq, summed_heads(dk, group), summed_heads(dv, group)


def _random_state(device, numbers):
    """What PyTorch's kernels are given of random numbers: a seed and an offset where there is dropout, and what they do not read. Not kept: torch.compile traces
    a gradient with tensors of one trace alone."""
    unread = torch.empty((), dtype=torch.uint64, device=device)
    return torch.empty(2, dtype=torch.uint64, device=device) if numbers is None else numbers.to(device).view(torch.uint64), unread


def backward_by_flash_attention(grad_o, q, k, v, o, lse, causal, window_left, window_right, scale, dropout_p=0.0, numbers=None):
    """By aten::_scaled_dot_product_flash_attention_backward, or for windows aten::_flash_attention_backward, whose masks are aligned to
    the bottom right. numbers: with dropout its seed and offset, two of int64."""
    state, offset = _random_state(q.device, numbers)
    if window_left < 0 and window_right < 0:
        return torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
            grad_o, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], dropout_p, causal, state, offset, scale=scale
        )
    # Its tensors are (batch, length, head, dim).
    lengths_first = [tensor.transpose(1, 2) for tensor in (grad_o, q, k, v, o)]
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *lengths_first, lse, None, None, q.shape[2], k.shape[2], dropout_p, causal, state, offset,
        scale=scale, window_size_left=window_left, window_size_right=window_right,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


_efficient_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
MOST_ENTRIES = (1 << 16) - 1  # that the kernel takes at once: of more PyTorch adds gradients of the bias of parts that have other sizes


def _is_on_gpu(tensor):
    return tensor.device.type == "cuda"


def _aligned(tensor):
    """A tensor that PyTorch's memory-efficient kernels can read: dense rows that begin at multiples of 16 bytes."""
    is_aligned = tensor.stride(-1) == 1 and all(stride % 8 == 0 for stride in tensor.stride()[:-1]) and tensor.data_ptr() % 16 == 0
    return tensor if is_aligned else tensor.clone(memory_format=torch.contiguous_format)


def _bias_for_efficient_attention(bias, batch, heads, len_q, len_k):
    """A bias as PyTorch's memory-efficient kernels read it: of all sizes, with rows at multiples of 16 elements. Repeated elements of an expanded bias are one
    again: the copy is of what lies in memory."""
    for dim in range(3):
        if bias.stride(dim) == 0:
            bias = bias.narrow(dim, 0, 1)
    bias = torch.nn.functional.pad(bias.expand(*bias.shape[:3], len_k).contiguous(), (0, -len_k % 16))
    return bias[..., :len_k].expand(batch, heads, len_q, len_k)


def backward_by_efficient_attention(grad_o, q, k, v, o, lse, bias, causal, scale, bias_needs_gradient=False):
    """By aten::_scaled_dot_product_efficient_attention_backward, whose causal mask is aligned to the top left. bias: None, or of Q's type, broadcasts to (batch,
    heads, len_q, len_k). Returns gradients of Q, K, V and of the bias as if it had all of these sizes, or None in the place of the last.
    https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/attention_backward.cu"""
    batch, heads, len_q, _ = q.shape
    len_k, group = k.shape[2], heads // k.shape[1]
    if bias is not None:
        bias = _bias_for_efficient_attention(bias, batch, heads, len_q, len_k)
    lse = torch.nn.functional.pad(lse, (0, -len_q % 32), value=math.inf)
    # The kernel of half types reads O as (batch, len_q, heads, dim), whatever the strides of O are.
    o = o.transpose(1, 2).contiguous().transpose(1, 2)
    k, v = repeated_heads(k, group), repeated_heads(v, group)
    seed = torch.zeros((), dtype=torch.int64)  # of a dropout that there is not
    dq, dk, dv, of_bias = _efficient_backward(
        *(_aligned(tensor) for tensor in (grad_o, q, k, v)), bias, o, lse, seed, seed, 0.0, [True, True, True, bias_needs_gradient], causal, scale=scale
    )
    return dq, summed_heads(dk, group), summed_heads(dv, group), of_bias if bias_needs_gradient else None


def kernel_for(device, dtype, head_dim, len_q, len_k, mask, left, right):
    """Which kernel of PyTorch computes the gradient of a call with this mask right: "cpu", "efficient", "flash", or None. device: "cpu" or "cuda"; mask and its
    bounds as heed::forward_lse takes them.

    Causal masks of PyTorch's CPU kernel and of the memory-efficient one are aligned to the top left, FlashAttention's masks to the bottom right; for as many
    queries as keys these are one."""
    is_square, has_window = len_q == len_k, left >= 0 or right >= 0
    is_unmasked = mask == unfused.NONE
    is_causal_top_left = not has_window and (mask == unfused.CAUSAL_TOP_LEFT or (mask == unfused.CAUSAL_BOTTOM_RIGHT and is_square))
    if device == "cpu":
        return "cpu" if is_unmasked or (mask == unfused.CAUSAL_TOP_LEFT and left < 0) else None
    if device != "cuda" or head_dim % 8 != 0:
        return None
    if dtype == torch.float32:
        return "efficient" if is_unmasked or is_causal_top_left else None
    at_bottom_right = is_unmasked or is_square or mask in (unfused.CAUSAL_BOTTOM_RIGHT, unfused.WINDOW_BOTTOM_RIGHT)
    return "flash" if at_bottom_right and head_dim <= FLASH_HEAD_DIMS else None


def flash_attention_takes_dropout(query, key, value, mask, left=-1, right=-1):
    """Whether PyTorch's FlashAttention for GPUs computes the gradient of a call with this mask and dropout."""
    dim = query.shape[3]
    kernel = kernel_for(query.device.type, query.dtype, dim, query.shape[2], key.shape[2], mask, left, right)
    if kernel != "flash" or dim != value.shape[3]:
        return False
    return dim <= DROPOUT_HEAD_DIMS or torch.cuda.get_device_capability(query.device) in LARGE_GPUS


def by_flash_attention(grad_o, q, k, v, o, lse, mask, left, right, scale, dropout_p=0.0, numbers=None):
    """backward_by_flash_attention of a call with a mask and bounds as heed::forward_lse takes them."""
    is_causal = mask in (unfused.CAUSAL_TOP_LEFT, unfused.CAUSAL_BOTTOM_RIGHT)
    right = (0 if left >= 0 else -1) if is_causal else right
    tensors = _with_dense_rows(grad_o, q, k, v, o)
    return backward_by_flash_attention(*tensors, lse, is_causal and left < 0, left, right, scale, dropout_p, numbers)


def backward(ctx, grad_o, grad_lse):
    """Gradients of the arguments of heed::forward_lse, of which Q, K and V have one."""
    q, k, v, o, lse = ctx.saved_tensors
    mask, left, right = ctx.mask, ctx.window_left, ctx.window_right
    rest = (None,) * 5
    if grad_o is None and grad_lse is None:
        return None, None, None, *rest
    if grad_o is None:
        grad_o = torch.zeros_like(o)
    scale = 1 / math.sqrt(q.shape[-1]) if ctx.scale is None else ctx.scale
    is_causal = mask in (unfused.CAUSAL_TOP_LEFT, unfused.CAUSAL_BOTTOM_RIGHT)
    # PyTorch's kernels have no gradient of their own: not where one of this gradient may be wanted (create_graph=True).
    is_final = grad_lse is None and q.shape[3] == v.shape[3] and not torch.is_grad_enabled()
    kernel = kernel_for(q.device.type, q.dtype, q.shape[3], q.shape[2], k.shape[2], mask, left, right) if is_final else None
    if kernel == "cpu":
        return *backward_on_cpu(*_with_dense_rows(grad_o, q, k, v, o), lse, mask, scale), *rest
    if kernel == "efficient" and lse.numel() > 0:
        return *backward_by_efficient_attention(grad_o, q, k, v, o, lse, None, is_causal, scale)[:3], *rest
    if kernel == "flash":
        return *by_flash_attention(grad_o, q, k, v, o, lse, mask, left, right, scale), *rest
    return *unfused.backward(grad_o, grad_lse, q, k, v, o, lse, mask, left, right, scale), *rest


torch.library.register_autograd("heed::forward_lse", backward, setup_context=_setup, lib=library)


# ------------------------------------------------------------------------------------------------ of calls with features


_BIAS, _DROPOUT = 8, 22  # places among the arguments of heed::forward_features; behind that of dropout_p are those of its seed and offset
_MOST_NATS = 1024.0  # of a log-sum-exp that is right to 6e-5, in float32
_HIDDEN_NATS = -float(1 << 20)  # rows of a GPU below it are rounded to a sixteenth, and count as rows that see no key: nothing waits for the device to tell


def _setup_features(ctx, inputs, output):
    ctx.arguments = [None if isinstance(given, torch.Tensor) else given for given in inputs[:-1]]
    ctx.places = [place for place, given in enumerate(inputs) if isinstance(given, torch.Tensor)]
    softcap, dropout_p = inputs[7], inputs[_DROPOUT]
    # O and the log-sum-exp are of use to kernels of PyTorch alone.
    has_bias_alone = ctx.places == [0, 1, 2, _BIAS] and softcap == 0 and dropout_p == 0
    ctx.has_dropout_alone = ctx.places == [0, 1, 2] and softcap == 0 and 0 < dropout_p < 1 and flash_attention_takes_dropout(*inputs[:6])
    outputs = output if has_bias_alone or ctx.has_dropout_alone else ()
    ctx.save_for_backward(*(inputs[place] for place in ctx.places), *outputs)
    ctx.set_materialize_grads(False)


def backward_features(ctx, *grads):
    """Gradients of Q, K, V, bias, sinks and slopes of heed::forward_features: by PyTorch's kernel where a bias, or dropout, is all that a call has and the kernel has
    a gradient for it, else by PyTorch's operators with all scores at once, differentiable in turn."""
    saved = ctx.saved_tensors  # torch.utils.checkpoint lets them be read once
    tensors, outputs = saved[: len(ctx.places)], saved[len(ctx.places) :]
    arguments = list(ctx.arguments)
    for place, tensor in zip(ctx.places, tensors):
        arguments[place] = tensor
    if ctx.has_dropout_alone:
        if grads[0] is not None and grads[1] is None and not torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None:
            mask, left, right, scale = arguments[3:7]
            scale = 1 / math.sqrt(tensors[0].shape[-1]) if scale is None else scale
            dropout_p, *numbers = arguments[_DROPOUT : _DROPOUT + 3]
            of_qkv = by_flash_attention(grads[0], *tensors, *outputs, mask, left, right, scale, dropout_p, torch.tensor(numbers, dtype=torch.int64))
            return *of_qkv, *(None,) * (len(arguments) - 2)
        outputs = ()
    lse = _lse_for_kernel(*tensors, outputs[1], *grads, arguments[3:6], ctx.needs_input_grad[_BIAS]) if outputs else None
    if lse is not None:
        *of_qkv, of_bias = _by_kernel(*tensors, outputs[0], lse, grads[0], arguments[3], arguments[6], ctx.needs_input_grad[_BIAS])
        return *of_qkv, *(None,) * (_BIAS - 3), of_bias, *(None,) * (len(arguments) - _BIAS)
    return *by_operators(arguments, ctx.needs_input_grad, grads), None


def save_biased(ctx, query, key, value, bias, o, lse, masking):
    """Keeps on `ctx` what `backward_biased` reads. masking: (mask, window_left, window_right, scale)."""
    ctx.masking = masking
    ctx.save_for_backward(query, key, value, bias, o, lse)
    ctx.set_materialize_grads(False)


def backward_biased(ctx, *grads):
    """Gradients of Q, K, V and the bias of a call that has a bias alone, as those of `backward_features`."""
    *tensors, o, lse = ctx.saved_tensors
    mask, left, right, scale = ctx.masking
    q_needs, k_needs, v_needs, bias_needs = ctx.needs_input_grad[:4]
    lse = _lse_for_kernel(*tensors, lse, *grads, (mask, left, right), bias_needs)
    if lse is not None:
        return _by_kernel(*tensors, o, lse, grads[0], mask, scale, bias_needs)
    q, k, v, bias = tensors
    found = by_operators([q, k, v, *ctx.masking, 0.0, bias], (q_needs, k_needs, v_needs, *(False,) * 5, bias_needs), grads)
    return *found[:3], found[_BIAS]


def _lse_for_kernel(q, k, v, bias, lse, grad_o, grad_lse, masking, bias_needs_gradient):
    """The log-sum-exp that `_by_kernel` takes, infinite for rows that see no key; None where it has not the gradients that are wanted, and in a trace, for numbers
    decide it."""
    mask, left, _ = masking
    if not (mask == unfused.NONE or (mask == unfused.CAUSAL_TOP_LEFT and left < 0)):
        return None
    if _is_on_gpu(q):
        if bias.dtype not in (torch.bool, q.dtype) or q.shape[3] % 8 != 0 or v.shape[3] % 8 != 0 or (bias_needs_gradient and q.shape[0] > MOST_ENTRIES):
            return None
    elif bias_needs_gradient or q.shape[3] != v.shape[3]:
        return None
    # The kernel has no gradient of its own.
    if grad_o is None or grad_lse is not None or torch.is_grad_enabled() or lse.numel() == 0:
        return None
    if torch._C._len_torch_dispatch_stack() > 0 or type(q).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    # Gradients of many outputs at once (is_grads_batched) come as one tensor of torch.vmap.
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if _is_on_gpu(q):
        return lse.masked_fill(lse < _HIDDEN_NATS, math.inf)
    # Rows whose keys are all biased by a number such as -1e9 have a log-sum-exp that is rounded to tens of nats.
    least, most = (bound.item() for bound in torch.aminmax(lse))
    if least == -math.inf:
        lse = lse.masked_fill(lse == -math.inf, math.inf)
        least = lse.amin().item()
    return lse if -_MOST_NATS < least and most < _MOST_NATS else None


def _by_kernel(q, k, v, bias, o, lse, grad_o, mask, scale, bias_needs_gradient):
    """Gradients of Q, K and V by PyTorch's kernel for CPUs, or of the bias too by that for GPUs. Rows that see no key get zeros, and give none."""
    sizes = bias.shape
    bias = bias[(None,) * (4 - bias.dim())]
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(~bias, -math.inf)
    if not _is_on_gpu(q):
        return *backward_on_cpu(*_with_dense_rows(grad_o, q, k, v, o), lse, mask, scale, *_with_dense_rows(bias)), None
    *of_qkv, of_bias = backward_by_efficient_attention(grad_o, q, k, v, o, lse, bias, mask == unfused.CAUSAL_TOP_LEFT, scale, bias_needs_gradient)
    return *of_qkv, of_bias.sum_to_size(sizes) if bias_needs_gradient else None


def by_operators(arguments, needs, grads):
    """Gradients of the first arguments of heed::forward_features that need one, and None for the others. Differentiable in turn."""
    is_differentiable = torch.is_grad_enabled()
    arguments, wanted = list(arguments), {}
    for place, needed in enumerate(needs[: len(arguments)]):
        if needed:
            tensor = arguments[place]
            # A name of its own: an input may be made of another one.
            arguments[place] = wanted[place] = tensor.view_as(tensor) if is_differentiable else tensor.detach().requires_grad_()
    of_arguments = [None] * len(arguments)
    with torch.enable_grad():
        results = unfused.forward_features(*arguments)
        used = [(result, grad) for result, grad in zip(results, grads) if grad is not None and result.requires_grad]
        if used:
            of_results, grads = zip(*used)
            found = torch.autograd.grad(of_results, tuple(wanted.values()), grads, create_graph=is_differentiable, allow_unused=True)
            for place, grad in zip(wanted, found):
                of_arguments[place] = grad
    return of_arguments


torch.library.register_autograd("heed::forward_features", backward_features, setup_context=_setup_features, lib=library)

# ------------------------------------------------------------------------------------------------ FLOPs of torch.utils.flop_counter


def _flops(query_shape, key_shape, value_shape, *_, **__):
    """Of both products, over all scores, as PyTorch counts its own attention."""
    batch, heads, len_q, dim = query_shape
    return 2 * batch * heads * len_q * key_shape[2] * (dim + value_shape[3])


def _flops_of_gradients(_, query_shape, key_shape, value_shape, *__, **___):
    """Of the four products of gradients, without scores that are computed anew."""
    return 2 * _flops(query_shape, key_shape, value_shape)


register_flop_formula([torch.ops.heed.forward, torch.ops.heed.forward_lse, torch.ops.heed.forward_dropout, torch.ops.heed.scaled_dot_product_attention])(_flops)
register_flop_formula(torch.ops.heed.dropout_backward)(_flops_of_gradients)

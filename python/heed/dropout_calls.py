"""scaled_dot_product_attention's dropout_p: numbers from PyTorch's generators, the operator that takes them, and its gradient.

heed::forward_dropout draws a seed and an offset as PyTorch's own kernels do, when it runs: torch.manual_seed, a new mask a call and torch.utils.checkpoint hold
in traces too. The two numbers are its last result, a tensor of a CPU; a gradient computes with them what the call dropped.

On a GPU a seed and an offset drop what they drop in PyTorch's FlashAttention (kernels/attention/dropout.hpp), whose kernel computes the gradient: calls that
it does not take are PyTorch's whole, for torch.utils.checkpoint runs a call a second time with a gradient.
"""

import math
import threading

import torch

from heed import dropout, gradients, operators, unfused

ON_A_GPU = "dropout on a GPU in a call that PyTorch's FlashAttention has no gradient for (a mask tensor, float32, some sizes)"
IN_A_CAPTURE = "dropout while a CUDA graph is captured, which would drop the same in each of its replays"
MOST_SCORES = 1 << 24  # of a gradient at a time: 64 MiB in float32, of some ten such tensors
_LANES = 32  # what PyTorch's FlashAttention counts a generator's offset up by for each head of each entry
_DEVICES = ("CPU", "CUDA")
_drawing = threading.Lock()  # two threads would draw one offset


def is_capturing(device):
    """Whether what the device's current stream is given is recorded in a CUDA graph and not run. device: a torch.device"""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def is_left_to_torch(query, key, value, attn_mask, is_causal):
    """Whether a call with dropout is handed back, whatever else holds: on a GPU where PyTorch's FlashAttention has no gradient for it."""
    if query.device.type == "cpu":
        return False
    mask = unfused.CAUSAL_TOP_LEFT if is_causal else unfused.NONE
    return attn_mask is not None or not gradients.flash_attention_takes_dropout(query, key, value, mask)


def drawn(device, heads):
    """(dropout_seed, dropout_offset) of a call on a torch.device, of PyTorch's generator for it, which is advanced: words of 64 bits, signed.

    heads: of all batch entries together.

    Raises RuntimeError while a CUDA graph is captured.
    """
    if device.type != "cuda":
        return int(torch.randint(2**62, (), dtype=torch.int64, device="cpu")), 0
    if is_capturing(device):
        raise RuntimeError(f"Heed does not serve a call because of {IN_A_CAPTURE}; capture it without dropout, or outside of heed.sdpa()")
    torch.cuda.init()
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    with _drawing:
        seed, offset = generator.initial_seed() & (1 << 64) - 1, generator.get_offset()
        generator.set_offset(offset + _LANES * heads)
    return seed - (1 << 64) if seed >= 1 << 63 else seed, offset


def _forward(query, key, value, mask=unfused.NONE, scale=None, bias=None, dropout_p=0.0):
    seed, offset = drawn(query.device, query.shape[0] * query.shape[1])
    o, lse = operators.forward_features(query, key, value, mask, -1, -1, scale, bias=bias, dropout_p=dropout_p, dropout_seed=seed, dropout_offset=offset)
    return o, lse, torch.tensor([seed, offset], dtype=torch.int64)


def backward(grad_o, query, key, value, bias, o, lse, numbers, mask, scale, dropout_p, of_bias):
    """Gradients of Q, K, V and of a bias (of no elements unless `of_bias`): by PyTorch's FlashAttention, or in blocks of rows of at most MOST_SCORES scores.

    With Z what is kept, 0 or 1 / (1 - dropout_p), of probabilities P: dV = (P Z)^T dO, dP = Z (dO V^T), dS = P (dP - rows of sum(P dP)).
    """
    batch, heads, len_q, _ = query.shape
    len_k, heads_kv = key.shape[2], key.shape[1]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if o is not None and bias is None and dropout_p < 1:
        of_qkv = gradients.by_flash_attention(grad_o, query, key, value, o, lse, mask, -1, -1, scale, dropout_p, numbers)
        return *of_qkv, torch.zeros(0, dtype=torch.float32, device=query.device)
    seed, offset = numbers.tolist()
    dq, dk, dv = (torch.zeros(tensor.shape, dtype=torch.float32, device=query.device) for tensor in (query, key, value))
    full_bias = None if bias is None else bias[(None,) * (4 - bias.dim())]
    d_bias = torch.zeros(full_bias.shape if of_bias else (0,), dtype=torch.float32, device=query.device)
    rows = min(len_q, max(1, MOST_SCORES // max(1, 16 * heads * len_k)) * 16)
    entries = max(1, MOST_SCORES // max(1, rows * heads * len_k))
    for entry in range(0, batch, entries):
        of_entries = slice(entry, entry + entries)
        k, v = key[of_entries].float().unsqueeze(2), value[of_entries].float().unsqueeze(2)
        for row in range(0, len_q, rows):
            of_rows = slice(row, row + rows)
            # (entries, heads_kv, heads / heads_kv, rows, dim)
            q, grad = (tensor[of_entries, :, of_rows].float().unflatten(1, (heads_kv, -1)) for tensor in (query, grad_o))
            scores = (q @ k.transpose(-1, -2) * scale).flatten(1, 2)
            seen = unfused.visible(mask, -1, -1, len_q, len_k, query.device)
            seen = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=query.device) if seen is None else seen[of_rows]
            part = None if full_bias is None else _part(full_bias, of_entries, of_rows)
            if part is not None:
                seen = seen & (part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min)
                scores = scores if part.dtype == torch.bool else scores + part
            # Rows that see no key have weights of zero, and get and give no gradient.
            weights = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1).masked_fill(~seen, 0.0)
            shown = dropout.is_kept(dropout_p, seed, offset, weights.shape, query.device, entry, row)
            kept = shown.float() / (1 - dropout_p) if dropout_p < 1 else shown.float()
            grad_weights = (grad @ v.transpose(-1, -2)).flatten(1, 2) * kept
            kept *= weights
            dv[of_entries] += (kept.unflatten(1, (heads_kv, -1)).transpose(-1, -2) @ grad).sum(2)
            # A weight of 0 beside a product that overflowed is 0, not NaN.
            products = torch.where(weights == 0, 0.0, weights * grad_weights)
            grad_scores = products.sub_(weights * products.sum(-1, keepdim=True))
            if of_bias:
                _part(d_bias, of_entries, of_rows).add_(grad_scores.sum_to_size(part.shape))
            grad_scores = grad_scores.unflatten(1, (heads_kv, -1)) * scale
            dq[of_entries, :, of_rows] = (grad_scores @ k).flatten(1, 2)
            dk[of_entries] += (grad_scores.transpose(-1, -2) @ q).sum(2)
    d_bias = d_bias.view(bias.shape).to(bias.dtype) if of_bias else d_bias
    return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), d_bias


def _part(bias, entries, rows):
    """Those of a tensor that broadcasts to (batch, heads, len_q, len_k)."""
    bias = bias[entries] if bias.shape[0] > 1 else bias
    return bias[:, :, rows] if bias.shape[2] > 1 else bias


def _setup(ctx, inputs, output):
    query, key, value, ctx.mask, ctx.scale, bias, ctx.dropout_p = inputs
    outputs = output[:2] if bias is None and gradients.flash_attention_takes_dropout(query, key, value, ctx.mask) else (None, None)  # others are computed anew
    ctx.save_for_backward(query, key, value, bias, *outputs, output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad_o, grad_lse, _):
    saved = ctx.saved_tensors  # torch.utils.checkpoint lets them be read once
    grad_is_final = grad_lse is None and not torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None
    of_bias = ctx.needs_input_grad[5]
    # The operator has no gradient of its own, none of a log-sum-exp, and no rule for many gradients at once (is_grads_batched).
    if not grad_is_final:
        return _differentiable(ctx, saved, grad_o, grad_lse)
    if grad_o is None:
        return (None,) * 7
    dq, dk, dv, d_bias = torch.ops.heed.dropout_backward(grad_o, *saved, ctx.mask, ctx.scale, ctx.dropout_p, of_bias)
    return dq, dk, dv, None, None, d_bias if of_bias else None, None


def _differentiable(ctx, saved, *grads):
    """The same with all scores at once, differentiable in turn."""
    query, key, value, bias, _, _, numbers = saved
    arguments = query, key, value, ctx.mask, -1, -1, ctx.scale, 0.0, bias, *(None,) * 9, 0, 0, 0, 0, ctx.dropout_p, *numbers.tolist()
    found = gradients.by_operators(arguments, (*ctx.needs_input_grad[:3], *(False,) * 5, ctx.needs_input_grad[5]), grads)
    return *found[:3], None, None, found[8], None


for _key in _DEVICES:
    operators.library.impl("forward_dropout", _forward, _key)
    operators.library.impl("dropout_backward", backward, _key)


@torch.library.register_fake("heed::forward_dropout", lib=operators.library)
def _(query, key, value, mask=0, scale=None, bias=None, dropout_p=0.0):
    o, lse = operators.shapes_of_features(query, key, value)
    return o, lse, torch.empty(2, dtype=torch.int64, device="cpu")


@torch.library.register_fake("heed::dropout_backward", lib=operators.library)
def _(grad_o, query, key, value, bias, o, lse, numbers, mask, scale, dropout_p, of_bias):
    dq, dk, dv = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return dq, dk, dv, bias.new_empty(bias.shape) if of_bias else query.new_empty((0,), dtype=torch.float32)


torch.library.register_autograd("heed::forward_dropout", _gradients, setup_context=_setup, lib=operators.library)

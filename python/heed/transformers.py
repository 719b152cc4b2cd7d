"""Heed as an attention implementation of Transformers.

    import heed.transformers

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed")     # or model.set_attn_implementation("heed")

Importing this module registers it: the attention function and the mask function, without which padding would be ignored.
https://huggingface.co/docs/transformers/attention_interface

| a call with | is computed by |
| --- | --- |
| no mask, a causal mask, a window, chunks of a prefill | a kernel of Heed |
| padding, packed sequences, a user's mask or a position bias, as a tensor | the same, where no gradient is wanted |
| softcap or sinks beside any of these | the same; a gradient is computed by PyTorch's operators |
| dropout | heed.scaled_dot_product_attention: on a CPU Heed, on a GPU PyTorch |
| dropout beside softcap or sinks | PyTorch's operators, as "eager" does |

heed.report() counts the last one, and what goes to PyTorch, as handed back.
"""

import inspect
import warnings

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from heed import contexts, dropout_calls, features, functional, masks, operators, reports, transformers_cache
from heed.features import Features
from heed.gradients import repeated_heads
from heed.transformers_masks import PositionMask, Visible, mask

NAME = "heed"

# Tensors that models pass on to every attention function and that change no result of one: positions are in Q, K and the mask by then.
_IGNORED_TENSORS = {"position_ids", "cache_position", "num_items_in_batch", "encoder_hidden_states", "labels", "shift_labels"}


def register():
    """Registers attn_implementation="heed"; once more changes nothing. Raises ImportError for a Transformers whose mask functions take
    other arguments."""
    if not {"q_offset", "kv_offset"} <= set(inspect.signature(masking_utils.sdpa_mask).parameters):
        raise ImportError("heed.transformers needs a Transformers whose mask functions take q_offset and kv_offset, as those of 5.24 do; update it")
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, softcap=None, s_aux=None, **others
):
    """The attention function of Transformers.

    query           (batch, heads, len_q, dim)
    key, value      (batch, heads_kv, len_k, dim) and (batch, heads_kv, len_k, dim_v), heads a multiple of heads_kv
    attention_mask  from the mask function or a user: None, a PositionMask, booleans that are True for a visible key, or numbers
                    that are added to the scores; the tensors broadcast to (batch, heads, len_q, len_k)
    is_causal       of a call with a mask of None; the module's attribute by default
    position_bias   numbers that are added to the scores, as a tensor that broadcasts likewise
    softcap         scores go through softcap * tanh(score / softcap)
    s_aux           sinks (heads): a logit for each head that joins the softmax and has no value

    Returns O (batch, len_q, heads, dim_v), contiguous, and None for the weights. Raises NotImplementedError for a tensor of another name.
    """
    _refuse_tensors(module, others)
    if others.get("output_attentions"):
        warnings.warn('attn_implementation="heed" returns no attention weights; set it to "eager" for output_attentions=True', stacklevel=2)
    host = transformers_cache.layer_of(key)
    if host is not None:
        if dropout or position_bias is not None:
            raise NotImplementedError("HostCache: with keys in host memory there is no dropout and no position bias")
        o = transformers_cache.attention(module, host, query, key, value, attention_mask, is_causal, scaling, softcap, s_aux)
        return o.transpose(1, 2).contiguous(), None
    visible, dense = _mask_of(module, query, key, attention_mask, is_causal)
    if visible is not None:
        begin, end = visible.interval()
        if (begin, end) != (0, key.shape[2]):
            key, value, visible = key[:, :, begin:end], value[:, :, begin:end], visible.narrowed()
            position_bias = None if position_bias is None else position_bias[..., begin:end]
    o = None
    if visible is not None and position_bias is None:
        o = _by_positions(query, key, value, visible, dropout, scaling, softcap, s_aux)
    if o is None:
        if visible is not None and not visible.is_all():
            dense = visible.dense(query.device)
        if position_bias is not None:
            dense = _biased(position_bias, dense, query.dtype)
        has_scores_of_its_own = softcap is not None or s_aux is not None
        dropped = _dropped(query, dropout) if has_scores_of_its_own else {} if dropout == 0 else None
        if dropped is not None and (has_scores_of_its_own or (dense is not None and not contexts.wants_gradient(query, key, value, dense))):
            o = _heed(query, key, value, {}, scaling, softcap=softcap, sinks=s_aux, bias=dense, **dropped)
        if o is not None:
            pass
        elif not has_scores_of_its_own:
            o = _by_sdpa(query, key, value, dense, dropout, scaling)
        else:
            o = _by_operators(query, key, value, dense, dropout, scaling, softcap, s_aux)
    return o.transpose(1, 2).contiguous(), None


def _refuse_tensors(module, others):
    for name, given in others.items():
        parts = given if isinstance(given, (tuple, list)) else given.values() if isinstance(given, dict) else (given,)
        if name not in _IGNORED_TENSORS and any(isinstance(part, torch.Tensor) for part in parts):
            raise NotImplementedError(
                f'attn_implementation="heed" does not know the tensor {name} that {type(module).__name__} passes to its attention function; '
                f'use attn_implementation="sdpa" or "eager" for this model, or leave {name} out'
            )


def _mask_of(module, query, key, mask, is_causal):
    """(Visible, None), or (None, a tensor)."""
    len_q, len_k = query.shape[2], key.shape[2]
    if isinstance(mask, Visible):
        # A mask for other keys than these is PyTorch's to refuse.
        return (mask, None) if (mask.len_q, mask.len_k) == (len_q, len_k) else (None, mask.dense(query.device))
    if isinstance(mask, PositionMask):
        visible = mask.visible
        return (visible, None) if visible is not None and (visible.len_q, visible.len_k) == (len_q, len_k) else (None, mask.dense())
    if mask is not None:
        return None, mask
    if len_q == 1:
        return Visible(len_q, len_k, 0, None, None), None
    # The model made no mask: several queries see the keys of an empty cache, which may have room for more at the end, or all keys.
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    if is_causal is None:
        name = type(module).__name__
        raise NotImplementedError(f'{name} calls its attention function without a mask and has no attribute is_causal; use "eager" for this model')
    return Visible(len_q, len_k, 0, None, 0 if is_causal else None), None


def _by_positions(query, key, value, visible, dropout, scaling, softcap, sinks):
    """O by a kernel of Heed, or by PyTorch's scaled_dot_product_attention where that can say the same, which counts the call; None
    where it takes a mask tensor."""
    is_all = visible.is_all()
    if sinks is None and softcap is None and (is_all or visible.is_causal()):
        return functional.scaled_dot_product_attention(
            query, key, value, None, dropout, not is_all, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    if dropout != 0:
        return None
    if is_all:
        masking = {}
    elif visible.right == 0 and visible.own + visible.len_q == visible.len_k:
        masking = {"causal": True, "window": (visible.left, None), "alignment": "bottom_right"}
    elif visible.own == 0:
        masking = {"window": (visible.left, visible.right), "alignment": "top_left"}
    else:
        return None
    return _heed(query, key, value, masking, scaling, softcap=softcap, sinks=sinks)


def _dropped(query, dropout):
    """The arguments of heed.attention for dropout whose numbers PyTorch's generator draws now; None in a trace and a capture, which would keep them, and where dropout is PyTorch's."""
    if dropout == 0:
        return {}
    if torch.compiler.is_compiling() or query.device.type != "cpu":
        return None
    seed, offset = dropout_calls.drawn(query.device, query.shape[0] * query.shape[1])
    return {"dropout_p": dropout, "dropout_seed": seed, "dropout_offset": offset}


def _heed(query, key, value, masking, scaling, **given):
    """O by heed.attention, or None for a call that no kernel computes."""
    given = {name: argument for name, argument in given.items() if argument is not None}
    try:
        if not torch.compiler.is_compiling():
            return functional.attention(query, key, value, **masking, scale=scaling, **given)
        # Whether a kernel computes a traced call is found out when it runs: it must not fail then.
        f = Features(**given)
        same = query.shape[2] == key.shape[2]
        names = (masking.get(name) for name in ("causal", "window", "alignment"))
        codes = masks.masking("heed.attention()", query.shape[2], key.shape[2], same, *names, scaling)
        if f.is_none():
            return operators.forward_lse(query, key, value, *codes, True)[0]
        features.checked("heed.attention()", query, (*query.shape[:3], key.shape[2]), f)
        return operators.forward_features(query, key, value, *codes, *f.arguments(), True)[0]
    except (NotImplementedError, ValueError):
        # ValueError: batches that broadcast, which PyTorch's attention takes.
        return None


def _biased(position_bias, mask, dtype):
    """A mask that is added to the scores, of a bias and a mask that may be None."""
    if mask is None:
        return position_bias.to(dtype)
    # The least number and not minus infinity: a row that sees no key has a mean then, as in "eager", and not NaN.
    return (torch.where(mask, position_bias, torch.finfo(dtype).min) if mask.dtype == torch.bool else position_bias + mask).to(dtype)


def _by_sdpa(query, key, value, mask, dropout, scaling):
    """O by PyTorch, through Heed's operator, which counts the call."""
    heads, len_q = query.shape[1:3]
    group = heads // key.shape[1]
    if group > 1 and mask is not None:
        # PyTorch's fused kernels for GPUs take a mask, or heads that share keys, and not both.
        if len_q == 1 and mask.dim() == 4 and mask.shape[1] == 1:
            o = functional.scaled_dot_product_attention(query.reshape(query.shape[0], -1, group, query.shape[3]), key, value, mask, dropout, scale=scaling)
            return o.reshape(o.shape[0], heads, 1, o.shape[3])
        key, value = repeated_heads(key, group), repeated_heads(value, group)
    return functional.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])


def _by_operators(query, key, value, mask, dropout, scaling, softcap, sinks):
    """O by PyTorch's operators with all scores at once, for arguments that PyTorch's attention has not. Softmax is taken in float32."""
    reason = "softcap" if softcap is not None else "sinks"
    if operators.refuse is not None:
        operators.refuse(reason, query, key, value)
    if not torch.compiler.is_compiling():
        reports.count_handed_back(functional.workload(query, key, value), reason)
    heads, heads_kv = query.shape[1], key.shape[1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    # (batch, heads_kv, heads / heads_kv, len_q, len_k)
    scores = (query.unflatten(1, (heads_kv, heads // heads_kv)) @ key.unsqueeze(2).transpose(-1, -2)).flatten(1, 2).float() * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    weights = torch.nn.functional.dropout(weights, dropout).to(query.dtype)
    return (weights.unflatten(1, (heads_kv, heads // heads_kv)) @ value.unsqueeze(2)).flatten(1, 2)


register()

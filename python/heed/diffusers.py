"""Heed in Diffusers: an attention backend and attention processors.

    import heed.diffusers

    model.set_attention_backend("heed")                                  # models that dispatch attention: Flux, Wan, Qwen-Image
    model.set_attn_processor(heed.diffusers.processors(model))           # models of Attention modules: UNets, VAEs, SD3, PixArt

Importing this module registers the backend. https://huggingface.co/docs/diffusers/optimization/attention_backends
https://huggingface.co/docs/diffusers/api/attnprocessor

Calls are computed by a kernel of Heed where there is one for them; a call that no kernel computes goes to PyTorch's scaled_dot_product_attention. heed.report() counts both.
"""

import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_processor import Attention, AttnAddedKVProcessor2_0, AttnProcessor2_0, JointAttnProcessor2_0

from heed import functional

NAME = "heed"


def register():
    """Registers the backend "heed"; once more changes nothing. Raises ImportError for a Diffusers without a registry of backends."""
    names, registry = attention_dispatch.AttentionBackendName, getattr(attention_dispatch, "_AttentionBackendRegistry", None)
    if registry is None or not hasattr(registry, "register"):
        raise ImportError("heed.diffusers needs a Diffusers with a registry of attention backends, as 0.42 has; update it")
    if NAME not in names.__members__.values():
        # The registry's keys are members of an enumeration, which has no way to add one: these are the tables that Python keeps of it.
        # https://docs.python.org/3/howto/enum.html
        member = str.__new__(names, NAME)
        member._name_, member._value_, member._sort_order_ = NAME.upper(), NAME, len(names.__members__)
        names._member_names_.append(member._name_)
        names._member_map_[member._name_] = names._value2member_map_[NAME] = member
        type.__setattr__(names, member._name_, member)
    checks = [attention_dispatch._check_device, attention_dispatch._check_shape]
    registry.register(names(NAME), constraints=checks)(attention)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, return_lse=False, _parallel_config=None):
    """The backend: attention of tensors (batch, length, heads, dim).

    attn_mask   (batch, len_k), or what broadcasts to (batch, heads, len_q, len_k); booleans that are True for a visible key, or numbers
                that are added to the scores
    return_lse  whether the log-sum-exp of each row's scores is returned too, as float32 (batch, len_q, heads)

    The other arguments are those of torch.nn.functional.scaled_dot_product_attention. Raises NotImplementedError for context parallelism,
    and for a log-sum-exp beside a mask tensor or dropout.
    """
    if _parallel_config is not None:
        raise NotImplementedError('the attention backend "heed" does not run in context parallelism; set "native"')
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if return_lse:
        if attn_mask is not None or dropout_p != 0:
            raise NotImplementedError('the attention backend "heed" returns no log-sum-exp beside a mask tensor or dropout')
        masking = {"causal": True, "alignment": "top_left"} if is_causal else {}
        o, lse = functional.attention(query, key, value, **masking, scale=scale, return_lse=True)
        return o.transpose(1, 2), lse.transpose(1, 2)
    if attn_mask is not None and attn_mask.dim() == 2 and attn_mask.shape == (query.shape[0], key.shape[2]):
        attn_mask = attn_mask[:, None, None, :]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)


class HeedAttnProcessor:
    """Processor of an Attention module, in the place of AttnProcessor2_0, AttnAddedKVProcessor2_0 or JointAttnProcessor2_0: which of them
    follows from the projections that the module has.

    Raises TypeError for a module of another class, and NotImplementedError for arguments of processors that do more than these three:
    `processors` leaves those processors as they are.
    """

    # Diffusers drops arguments that a processor has no parameter for: those that change a result are parameters, to be refused.
    def __call__(
        self,
        attn,
        hidden_states,
        encoder_hidden_states=None,
        attention_mask=None,
        temb=None,
        image_rotary_emb=None,
        rotary_emb=None,
        query_rotary_emb=None,
        key_rotary_emb=None,
        freqs_cis=None,
        hidden_states_masks=None,
        encoder_hidden_states_mask=None,
        ip_hidden_states=None,
        ip_adapter_masks=None,
        **others,
    ):
        """hidden_states (batch, length, channels) or (batch, channels, height, width), encoder_hidden_states (batch, len_k, channels),
        attention_mask as Attention.prepare_attention_mask takes it. Returns what the processor in whose place this one is returns."""
        if not isinstance(attn, Attention):
            raise TypeError(f'HeedAttnProcessor computes Attention modules, not {type(attn).__name__}; use set_attention_backend("heed") for this model')
        refused = {
            **{"image_rotary_emb": image_rotary_emb, "rotary_emb": rotary_emb, "query_rotary_emb": query_rotary_emb, "key_rotary_emb": key_rotary_emb},
            **{"freqs_cis": freqs_cis, "hidden_states_masks": hidden_states_masks, "encoder_hidden_states_mask": encoder_hidden_states_mask},
            **{"ip_hidden_states": ip_hidden_states, "ip_adapter_masks": ip_adapter_masks},
        }
        refused.update((name, given) for name, given in others.items() if isinstance(given, torch.Tensor))
        for name, given in refused.items():
            if given is not None:
                raise NotImplementedError(f"HeedAttnProcessor does not compute {name}; heed.diffusers.processors(model) leaves a processor that does in place")
        if attn.add_k_proj is None:
            return _plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
        if getattr(attn, "add_q_proj", None) is None:
            return _added(attn, hidden_states, encoder_hidden_states, attention_mask)
        if attention_mask is not None:
            raise NotImplementedError("HeedAttnProcessor computes joint attention without a mask")
        return _joint(attn, hidden_states, encoder_hidden_states)


_REPLACED = (AttnProcessor2_0, AttnAddedKVProcessor2_0, JointAttnProcessor2_0)


def processors(model):
    """Processors by name, for model.set_attn_processor: HeedAttnProcessor in the place of those that call PyTorch's attention and no more
    than that, all others as they are."""
    ours = HeedAttnProcessor()
    return {name: ours if type(processor) in _REPLACED else processor for name, processor in model.attn_processors.items()}


def _attend(attn, query, key, value, mask=None):
    """Attention of projections (batch, length, heads * dim), as (batch, len_q, heads * dim)."""
    dim = query.shape[-1] // attn.heads
    query, key, value = (tensor.unflatten(-1, (-1, dim)).transpose(1, 2) for tensor in (query, key, value))
    query, key = (tensor if norm is None else norm(tensor) for tensor, norm in ((query, attn.norm_q), (key, attn.norm_k)))
    return _attend_heads(attn, query, key, value, mask)


def _attend_heads(attn, query, key, value, mask=None):
    """Attention of heads (batch, heads, length, dim), as (batch, len_q, heads * dim)."""
    o = functional.scaled_dot_product_attention(query, key, value, mask, scale=attn.scale, enable_gqa=query.shape[1] != key.shape[1])
    return o.transpose(1, 2).flatten(2).to(query.dtype)


def _projected(attn, hidden_states):
    linear, dropout = attn.to_out
    return dropout(linear(hidden_states))


def _plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb):
    """Self-attention, or attention to `encoder_hidden_states`, within a residual block."""
    residual = hidden_states
    if attn.spatial_norm is not None:
        hidden_states = attn.spatial_norm(hidden_states, temb)
    size = hidden_states.shape
    if hidden_states.dim() == 4:
        hidden_states = hidden_states.flatten(2).transpose(1, 2)
    context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
    mask = None
    if attention_mask is not None:
        mask = attn.prepare_attention_mask(attention_mask, context.shape[1], context.shape[0]).unflatten(0, (-1, attn.heads))
    if attn.group_norm is not None:
        hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
    if encoder_hidden_states is None:
        context = hidden_states
    elif attn.norm_cross is not None:
        context = attn.norm_encoder_hidden_states(encoder_hidden_states)
    o = _projected(attn, _attend(attn, attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context), mask))
    if len(size) == 4:
        o = o.transpose(1, 2).reshape(size)
    if attn.residual_connection:
        o = o + residual
    return o / attn.rescale_output_factor


def _added(attn, hidden_states, encoder_hidden_states, attention_mask):
    """Attention of an image to a text and, unless only_cross_attention, itself, within a residual block."""
    residual = hidden_states
    hidden_states = hidden_states.flatten(2).transpose(1, 2)
    mask = attn.prepare_attention_mask(attention_mask, hidden_states.shape[1], hidden_states.shape[0], out_dim=4)
    context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
    if encoder_hidden_states is not None and attn.norm_cross is not None:
        context = attn.norm_encoder_hidden_states(encoder_hidden_states)
    hidden_states = attn.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
    key, value = attn.add_k_proj(context), attn.add_v_proj(context)
    if not attn.only_cross_attention:
        key, value = torch.cat((key, attn.to_k(hidden_states)), 1), torch.cat((value, attn.to_v(hidden_states)), 1)
    dim = attn.inner_dim // attn.heads
    query, key, value = (tensor.unflatten(-1, (-1, dim)).transpose(1, 2) for tensor in (attn.to_q(hidden_states), key, value))
    o = _projected(attn, _attend_heads(attn, query, key, value, mask))
    return o.transpose(1, 2).reshape(residual.shape) + residual


def _joint(attn, hidden_states, encoder_hidden_states):
    """Attention of an image and a text, each with projections of its own, to both."""

    def heads(projections, norms, tensor):
        query, key, value = (project(tensor).unflatten(-1, (attn.heads, -1)).transpose(1, 2) for project in projections)
        query, key = (one if norm is None else norm(one) for one, norm in zip((query, key), norms))
        return query, key, value

    image = heads((attn.to_q, attn.to_k, attn.to_v), (attn.norm_q, attn.norm_k), hidden_states)
    if encoder_hidden_states is None:
        return _projected(attn, _attend_heads(attn, *image))
    text = heads((attn.add_q_proj, attn.add_k_proj, attn.add_v_proj), (attn.norm_added_q, attn.norm_added_k), encoder_hidden_states)
    o = _attend_heads(attn, *(torch.cat(pair, 2) for pair in zip(image, text)))
    image, text = o.split((hidden_states.shape[1], encoder_hidden_states.shape[1]), 1)
    return _projected(attn, image), text if attn.context_pre_only else attn.to_add_out(text)


register()

"""heed.transformers_cache.HostCache: a cache of Transformers whose keys and values lie in host memory.

    import heed.transformers
    from heed.transformers_cache import HostCache

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed").cuda()
    cache = HostCache(model.config, host_tokens=1 << 20, device_tokens=1 << 16)
    model.generate(tokens, cache=cache)

A layer's new keys go to the pool in its attention, together with the rows that attend to all of them: `update` hands the new keys on with a
note of where the others are, which attn_implementation="heed" reads.
https://huggingface.co/docs/transformers/kv_cache
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from heed.host_kv import HostKV
from heed.transformers_masks import PositionMask, Visible

_NOTE = "heed_host_layer"  # of a tensor of new keys


class HostCacheLayer(CacheLayerMixin):
    """Keys and values of one layer of a HostCache."""

    is_sliding = False
    is_croppable = False

    def __init__(self, cache, index):
        super().__init__()
        self.cache, self.index = cache, index
        self.pending = 0  # new keys that `update` handed on and no attention took

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Notes on the new keys where the others are. Raises RuntimeError where earlier ones were not attended to."""
        self.cache.require_taken(self.index)
        self.cache.pool_for(key_states, value_states)
        self.is_initialized = True
        self.pending = key_states.shape[-2]
        # A tensor of its own: models keep the one that they gave.
        key_states = key_states.view(key_states.shape)
        setattr(key_states, _NOTE, self)
        return key_states, value_states

    def get_seq_length(self):
        return 0 if self.cache.kv is None else self.cache.kv.length(self.index) + self.pending

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    def get_max_length(self):
        return -1

    def reset(self):
        self.pending = 0
        self.is_initialized = False
        self.cache.clear()

    def _refuse(self, what):
        raise NotImplementedError(f"HostCache: {what} would copy sequences in host memory, which a pool does not; generate without it, or with DynamicCache")

    def reorder_cache(self, beam_idx):
        self._refuse("a search with beams")

    def batch_repeat_interleave(self, repeats):
        self._refuse("repeating the batch")

    def batch_select_indices(self, indices):
        self._refuse("selecting of the batch")

    def crop(self, tokens_to_remove):
        if tokens_to_remove != 0:
            self._refuse("cutting tokens off")


class HostCache(Cache):
    """A Cache whose memory on the GPU is granted, and whose length host memory bounds.

    config         of the model, with attn_implementation="heed"
    host_tokens    keys that host memory has room for, of all sequences together
    device_tokens  keys that the GPU holds besides
    options        the other arguments of heed.HostKV: sink_tokens, page_size, kv_dtype, k_scale, v_scale, streamed_share, threads, ...

    Batches without padding; no beams, no assisted generation. copy.deepcopy takes another pool, as large, with the same keys. Raises ValueError for
    a model with another attention implementation, and for one whose layers are no attention over all keys; what heed.HostKV raises when the
    first keys come.
    """

    def __init__(self, config, *, host_tokens, device_tokens=0, **options):
        text = config.get_text_config(decoder=True)
        if text._attn_implementation != "heed":
            raise ValueError(f'HostCache: the model attends by "{text._attn_implementation}", which reads keys from a tensor; load it with attn_implementation="heed" (import heed.transformers)')
        kinds = set(getattr(text, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
        if kinds:
            raise ValueError(f"HostCache: layers of {sorted(kinds)[0]} keep other states than keys; there are full_attention and sliding_attention")
        self.kv = None
        self._heads = text.num_attention_heads
        self._options = {"host_tokens": host_tokens, "device_tokens": device_tokens, **options}
        super().__init__(layers=[HostCacheLayer(self, index) for index in range(text.num_hidden_layers)])

    def pool_for(self, key, value):
        """The heed.HostKV, made when the first keys say what they are. Raises ValueError for a batch of another size."""
        if self.kv is None:
            self.kv = HostKV(
                heads=self._heads, heads_kv=key.shape[1], dim=key.shape[3], dim_v=value.shape[3], layers=len(self.layers), batch=key.shape[0], dtype=key.dtype,
                device=key.device, **self._options,
            )  # fmt: skip
        if key.shape[0] != self.kv.batch:
            raise ValueError(f"HostCache: it holds {self.kv.batch} sequences, and a call has {key.shape[0]}; make another cache, or reset this one")
        return self.kv

    def clear(self):
        """Takes all keys out; the memory is given back."""
        self.kv = None

    def require_taken(self, index):
        """Raises RuntimeError where new keys of this layer, or of the one before, went to an attention that did not know them."""
        for layer in {index, max(0, index - 1)}:
            if self.layers[layer].pending:
                raise RuntimeError(
                    f'HostCache: layer {layer} attended without its keys in host memory; the model must attend by attn_implementation="heed", with the key tensor that the cache returned'
                )


def layer_of(key):
    """The HostCacheLayer that new keys belong to, None for other keys."""
    return getattr(key, _NOTE, None)


def attention(module, layer, query, key, value, mask, is_causal, scaling, softcap, sinks):
    """Attention of Transformers over a HostCacheLayer, as (batch, heads, len_q, dim). Raises NotImplementedError for masks beside causal
    ones and windows: padding, packed sequences."""
    try:
        kv = layer.cache.kv
        len_q, len_k = query.shape[2], kv.length(layer.index) + key.shape[2]
        visible = _visible(module, mask, is_causal, len_q, len_k)
        left = None if visible.left is None or visible.left >= len_k else visible.left
        scores = {"scale": scaling, "softcap": softcap or 0.0, "sinks": sinks}
        return kv.attend(query, key, value, layer=layer.index, causal=visible.right is not None, window_left=left, **scores)
    finally:
        layer.pending = 0  # also of keys that were refused: they are no longer on their way


def _visible(module, mask, is_causal, len_q, len_k):
    visible = mask.visible if isinstance(mask, PositionMask) else mask
    if visible is None and mask is None:
        if len_q == 1:
            return Visible(1, len_k, len_k - 1, None, 0)
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        if not is_causal or len_q == len_k:
            return Visible(len_q, len_k, len_k - len_q, None, 0 if is_causal else None)
    if not isinstance(visible, Visible) or visible.len_q != len_q or visible.len_k != len_k:
        raise NotImplementedError("HostCache: a call has a mask tensor (padding, packed sequences, a user's mask); give a batch of sequences of one length, without padding")
    if visible.is_all() and visible.right is None:
        return visible
    if visible.own + len_q != len_k or visible.right != 0:
        raise NotImplementedError(f"HostCache: rows see other keys than those up to their own, {visible}; there are causal masks and windows")
    return visible

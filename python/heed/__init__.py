"""Heed: fused attention kernels for PyTorch, in the place of scaled_dot_product_attention or called by name.

    import heed

    o = heed.scaled_dot_product_attention(q, k, v, is_causal=True)   # the signature of torch.nn.functional's
    o = heed.attention(q, k, v, window=(1023, 0), sinks=sinks)       # what that one cannot say
    o = heed.attention_varlen(q, k, v, cu_seqlens_q=...)             # of sequences of different lengths, or keys in pages

    lengths = heed.append_kv(k, v, k_cache, v_cache, lengths)        # keys of a step, behind those of a cache

    with heed.sdpa():            # every call of scaled_dot_product_attention below, whoever makes it
        model(tokens)
    print(heed.report())

    print(heed.tune(lambda: model(tokens)))      # kernels for the calls that this model makes

Importing this package imports neither PyTorch nor a compiled library: each name below is loaded when it is first used.
`python -m heed` says what there is; `python -m heed.arena` measures kernels side by side.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "attention": "functional",
    "append_kv": "appending",
    "BlockMask": "blocks",
    "HostKV": "host_kv",
    "dropout_mask": "dropout",
    "RelativeBias": "relative_bias",
    "attention_varlen": "functional",
    "scaled_dot_product_attention": "functional",
    "explain": "functional",
    "quantise": "quantised",
    "install": "override",
    "sdpa": "override",
    "uninstall": "override",
    "NotServed": "override",
    "Precision": "precision",
    "record": "recording",
    "tune": "tuning",
    "report": "reports",
    "reset_report": "reports",
    "Report": "reports",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'heed' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"heed.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_HOMES))

"""FlashInfer in the arena's suites of calls with features, where it can be imported: ragged batches, keys in pages, blocks of keys.

https://docs.flashinfer.ai (0.7). Its kernels are compiled when a plan is made, which takes nvcc; masks are aligned to the bottom right. A plan is made once, outside of what
is timed, as Heed's is.
"""

import importlib

import torch

from heed.contenders import Refused
from heed.feature_calls import BLOCK
from heed.reference import DTYPES

WORKSPACE_BYTES = 128 << 20  # as its documentation recommends


class FlashInfer:
    """A contender of heed.feature_contenders. Wrappers take rows of all entries behind each other, (rows, heads, dim)."""

    name = "flashinfer"

    def prepare(self, t):
        w = t.call
        try:
            module = importlib.import_module("flashinfer")
        except ImportError as error:
            raise Refused(f"flashinfer cannot be imported: {error}") from error
        for feature in ("bias", "alibi", "prefix", "sinks", "dropout"):
            if getattr(w, feature):
                raise Refused(f"these wrappers take no {feature}")
        if w.masked and w.len_q != w.len_k and not w.mask.endswith("bottom_right"):
            raise Refused("its masks are aligned to the bottom right")
        if w.key_lengths and not w.page:
            raise Refused("it takes lengths of ragged batches and of pages")
        if w.blocks:
            return _blocks(module, t)
        return _pages(module, t) if w.page else _rows(module, t)


def _common(w):
    dtype = DTYPES[w.dtype]
    return {"sm_scale": w.scale, "logits_soft_cap": w.softcap or None, "q_data_type": dtype, "kv_data_type": dtype}


def _workspace(t):
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=t.device)


def _begins(lengths, device):
    return torch.nn.functional.pad(torch.as_tensor(lengths).cumsum(0), (1, 0)).to(torch.int32).to(device)


def _together(x):
    """(batch, heads, length, dim) as (batch * length, heads, dim)."""
    return x.transpose(1, 2).flatten(0, 1)


def _apart(o, w):
    return o.unflatten(0, (w.batch, w.len_q)).transpose(1, 2)


def _rows(module, t):
    w = t.call
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(_workspace(t), "NHD")
    queries = t.lengths_q if w.ragged else torch.full((w.batch,), w.len_q)
    keys = t.lengths_k if w.ragged else torch.full((w.batch,), w.len_k)
    wrapper.plan(_begins(queries, t.device), _begins(keys, t.device), w.heads, w.heads_kv, w.dim, causal=w.mask.startswith("causal"), window_left=w.left, **_common(w))
    if w.ragged:
        return lambda q, k, v: wrapper.run(q, k, v)
    return lambda q, k, v: _apart(wrapper.run(_together(q), _together(k), _together(v)), w)


def _pages(module, t):
    w = t.call
    used = [-(-int(length) // w.page) for length in t.lengths_k]
    begins = _begins(used, t.device)
    numbers = torch.cat([t.page_table[b, :count] for b, count in enumerate(used)]).to(torch.int32)
    last = torch.tensor([(int(length) - 1) % w.page + 1 for length in t.lengths_k], dtype=torch.int32, device=t.device)
    if w.len_q == 1:
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(_workspace(t), "NHD", use_tensor_cores=w.heads > w.heads_kv)
        wrapper.plan(begins, numbers, last, w.heads, w.heads_kv, w.dim, w.page, window_left=w.left, **_common(w))
        return lambda q, k, v: wrapper.run(q[:, :, 0], (k, v))[:, :, None]
    wrapper = module.BatchPrefillWithPagedKVCacheWrapper(_workspace(t), "NHD")
    queries = _begins(torch.full((w.batch,), w.len_q), t.device)
    wrapper.plan(queries, begins, numbers, last, w.heads, w.heads_kv, w.dim, w.page, causal=w.mask.startswith("causal"), window_left=w.left, **_common(w))
    return lambda q, k, v: _apart(wrapper.run(_together(q), (k, v)), w)


def _blocks(module, t):
    w = t.call
    by_head = t.listed.shape[1] > 1
    if w.batch != 1:
        raise Refused("its lists of blocks are those of one entry")
    if by_head and w.heads != w.heads_kv:
        raise Refused("its lists of blocks are those of a head of keys")
    if w.len_q % BLOCK or w.len_k % BLOCK:
        raise Refused(f"its lists are of whole blocks of {BLOCK} rows and keys")
    if w.masked:
        raise Refused("the arena gives it lists of blocks without a mask")
    if by_head:
        listed = t.listed[0]
        rows, keys = (torch.full((w.heads, blocks), BLOCK, dtype=torch.int32, device=t.device) for blocks in listed.shape[1:])
        wrapper = module.VariableBlockSparseAttentionWrapper(_workspace(t))
        wrapper.plan(listed, rows, keys, w.heads, w.heads_kv, w.dim, **_common(w))
        return lambda q, k, v: wrapper.run(q[0], k[0], v[0])[None]
    listed = t.listed[0, 0].cpu()
    wrapper = module.BlockSparseAttentionWrapper(_workspace(t))
    wrapper.plan(_begins(listed.sum(-1), t.device), listed.nonzero()[:, 1].to(torch.int32).to(t.device), w.len_q, w.len_k, BLOCK, BLOCK, w.heads, w.heads_kv, w.dim,
                 **_common(w), o_data_type=DTYPES[w.dtype])  # fmt: skip
    return lambda q, k, v: _apart(wrapper.run(_together(q), _together(k), _together(v)), w)

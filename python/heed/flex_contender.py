"""FlexAttention in the arena's suites of calls with features: masks as functions and lists of blocks, keys in pages by PagedAttention.

https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html, and torch.nn.attention.experimental._paged_attention, which translates lists of
blocks and functions of logical keys to those of pages. Lists are made once, outside of what is timed, as Heed's are.
"""

import torch

from heed.contenders import Refused
from heed.feature_calls import BLOCK

ROWS = 128  # of a block of its lists, its default
LEAST_PAGE = 16  # keys a product of Triton takes at least
# Of free memory, for a score of a mask that is evaluated as it stands; compiled, that of 16,384 rows and keys took over two minutes on an H200.
BYTES_A_SCORE = 16


class Flex:
    """torch.nn.attention.flex_attention compiled: a contender of heed.feature_contenders. A sink comes by the log-sum-exp it returns."""

    name = "triton_flex"

    def prepare(self, t):
        from torch.nn.attention import flex_attention as flex

        w = t.call
        if w.dropout:
            raise Refused("it has no dropout")
        if w.page and (w.page < LEAST_PAGE or w.page & (w.page - 1)):
            raise Refused(f"pages are its blocks of keys: a power of two from {LEAST_PAGE} keys on")
        torch._dynamo.reset()
        len_q = int(t.lengths_q.sum()) if w.ragged else w.len_q
        len_k = len_q if w.ragged else w.len_k
        mask, scores = _mask_of(t), _scores_of(t)
        block_mask = None
        if t.listed is not None and not (w.masked or t.key_lengths is not None or _hides(t.bias) or len_q % BLOCK or len_k % BLOCK):
            block_mask = _lists_of(t, mask, flex)
        elif mask is not None:
            by_entry = t.key_lengths is not None or (_hides(t.bias) and t.bias.shape[0] > 1)
            by_head = (t.listed is not None and t.listed.shape[1] > 1) or (_hides(t.bias) and t.bias.shape[1] > 1)
            batch, heads = w.batch if by_entry or w.page else None, w.heads if by_head else None
            at_once = (batch or 1) * (heads or 1) * len_q * len_k * BYTES_A_SCORE <= _free_bytes(t.device)
            block_mask = flex.create_block_mask(mask, batch, heads, len_q, len_k, device=t.device, BLOCK_SIZE=(ROWS, w.page or ROWS), _compile=not at_once)
        if w.page:
            pages = _pages_of(t)
            block_mask = pages.convert_logical_block_mask(block_mask, kv_len=t.key_lengths)
            scores = scores and pages.get_score_mod(scores, kv_len=t.key_lengths)
        options = {"BLOCK_N": w.page} if w.page and w.page < ROWS else None
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        sinks = t.sinks

        def call(q, k, v):
            if w.ragged:
                q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            if w.page:
                k, v = (pool.flatten(0, 1).transpose(0, 1)[None] for pool in (k, v))
            o = compiled(
                q, k, v, score_mod=scores, block_mask=block_mask, scale=w.scale, enable_gqa=w.heads != w.heads_kv, return_lse=sinks is not None, kernel_options=options
            )
            if sinks is not None:
                o, lse = o
                o = o * torch.sigmoid(lse - sinks[None, :, None])[..., None].to(o.dtype)
            return o[0].transpose(0, 1) if w.ragged else o

        return call


def _free_bytes(device):
    return torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else 2**32


def _hides(bias):
    return bias is not None and bias.dtype == torch.bool


def _lists_of(t, mask, flex):
    """The lists of a call that hides no score of a listed block: all of them are full blocks."""
    listed = t.listed[0, None]
    counts = listed.sum(-1, dtype=torch.int32)
    numbers = listed.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return flex.BlockMask.from_kv_blocks(
        torch.zeros_like(counts), torch.zeros_like(numbers), counts, numbers, BLOCK_SIZE=BLOCK, mask_mod=mask, seq_lengths=(t.call.len_q, t.call.len_k)
    )


def _offsets_of(t):
    """By how many keys row i of an entry is ahead of key i: (batch,) int32, or one number for all entries."""
    w = t.call
    return t.key_lengths - w.len_q if t.key_lengths is not None else w.len_k - w.len_q


def _mask_of(t):
    """mask_mod(b, h, i, j) of a call, or None where each row sees all keys."""
    w = t.call
    lengths, listed, bias = t.key_lengths, t.listed, t.bias
    entry = torch.repeat_interleave(torch.arange(w.batch), t.lengths_q).to(t.device) if w.ragged else None
    ahead = _offsets_of(t) if w.mask.endswith("bottom_right") else 0
    if not (w.masked or w.page or lengths is not None or entry is not None or listed is not None or _hides(bias)):
        return None

    def mask_mod(b, h, i, j):
        own = i + (ahead[b] if isinstance(ahead, torch.Tensor) else ahead)
        seen = i >= 0
        if w.mask.startswith("causal"):
            seen = (j <= own) if not w.prefix else (j <= own) | (j < w.prefix)
        if w.left >= 0:
            seen = seen & (j >= own - w.left)
        if lengths is not None:
            seen = seen & (j < lengths[b])
        if entry is not None:
            seen = seen & (entry[i] == entry[j])
        if listed is not None:
            seen = seen & listed[0, h if listed.shape[1] > 1 else 0, i // BLOCK, j // BLOCK]
        if _hides(bias):
            seen = seen & bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0, i if bias.shape[2] > 1 else 0, j]
        return seen

    return mask_mod


def _scores_of(t):
    """score_mod(score, b, h, i, j) of a call, or None where scores stay as they are."""
    w = t.call
    bias, slopes = None if _hides(t.bias) else t.bias, t.slopes
    ahead = _offsets_of(t)
    if not w.softcap and bias is None and slopes is None:
        return None

    def score_mod(score, b, h, i, j):
        if w.softcap:
            score = w.softcap * torch.tanh(score / w.softcap)
        if bias is not None:
            score = score + bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0, i, j]
        if slopes is not None:
            own = i + (ahead[b] if isinstance(ahead, torch.Tensor) else ahead)
            score = score - slopes[h] * (own - j).abs()
        return score

    return score_mod


def _pages_of(t):
    """PagedAttention whose table is that of a call."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention

    w = t.call
    pages = PagedAttention(t.pages, w.page, w.batch, device=str(t.device))
    table = t.page_table.long()
    pages.page_table[:, : table.shape[1]] = table
    pages.physical_to_logical.scatter_(1, table, torch.arange(table.shape[1], device=table.device).expand_as(table).contiguous())
    return pages

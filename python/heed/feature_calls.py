"""Tensors and the float64 reference of calls with features (heed.feature_suites)."""

import math

import torch

from heed import blocks, dropout, key_span
from heed.reference import DTYPES, FACTOR, SLACK

ROWS = 256  # compared of a call, over all entries and heads
BLOCK = 128  # rows and keys of a block
DROPOUT_SEED, DROPOUT_OFFSET = 5, 1024  # of a call with dropout, for all sets of tensors


class CallTensors:
    """What a call's features take beside Q, K and V; lengths, tables and lists are drawn by the seed."""

    def __init__(self, call, device, seed):
        self.call, self.device = call, device
        w, g = call, torch.Generator(device="cpu").manual_seed(seed)
        self.lengths_q = torch.tensor(w.ragged) if w.ragged else torch.full((w.batch,), w.len_q)
        if w.ragged:
            self.lengths_k = self.lengths_q
        elif w.key_lengths == "uniform":
            # Under a mask no entry has rows that see nothing.
            self.lengths_k = torch.randint(w.len_q if w.masked else 1, w.len_k + 1, (w.batch,), generator=g)
        else:
            self.lengths_k = torch.full((w.batch,), w.len_k)

        def put(tensor, dtype=torch.int32):
            return tensor.to(device=device, dtype=dtype)

        self.cu_seqlens = put(torch.cat([torch.zeros(1, dtype=torch.long), self.lengths_q.cumsum(0)])) if w.ragged else None
        self.key_lengths = put(self.lengths_k) if w.key_lengths else None
        self.prefix_lengths = put(torch.full((w.batch,), w.prefix)) if w.prefix else None
        # About as much weight as all keys together: a smaller sink could be left out unseen.
        self.sinks = put(math.log(w.len_k) + torch.randn(w.heads, generator=g), torch.float32) if w.sinks else None
        self.slopes = put(2.0 ** (-8.0 * torch.arange(1, w.heads + 1) / w.heads), torch.float32) if w.alibi else None
        self.bias = self._bias(g) if w.bias else None
        self.page_table = self.pages = None
        if w.page:
            count = -(-w.len_k // w.page)
            self.pages = w.batch * count
            self.page_table = put(torch.randperm(self.pages, generator=g).view(w.batch, count))
        self.listed = put(self._blocks(g), torch.bool) if w.blocks else None
        self.block_mask = blocks.BlockMask.from_blocks(self.listed, BLOCK) if w.blocks else None

    def _bias(self, generator):
        dtype, dims = self.call.bias.split("/")
        w = self.call
        shape = [size if letter in dims else 1 for letter, size in zip("bhlk", (w.batch, w.heads, w.len_q, w.len_k))]
        if dtype == "bool":
            visible = torch.rand(shape, generator=generator) < 0.7
            visible[..., 0] = True  # no row is without a key
            return visible.to(self.device)
        return torch.randn(shape, generator=generator).to(device=self.device, dtype=DTYPES[dtype])

    def _blocks(self, generator):
        """(1, heads or 1, blocks of rows, blocks of keys), boolean. Each row of blocks has its own diagonal block."""
        w = self.call
        rows, keys = -(-w.len_q // BLOCK), -(-w.len_k // BLOCK)
        own = torch.arange(rows)[:, None] == torch.arange(keys)[None, :]
        distance = (torch.arange(rows)[:, None] - torch.arange(keys)[None, :]).abs()
        if w.blocks.startswith("density"):
            drawn = torch.rand(1, w.heads, rows, keys, generator=generator) < float(w.blocks.removeprefix("density"))
            return drawn | own
        if w.blocks == "window_global":  # Longformer (Beltagy et al. 2020): 512 keys to either side, one global block
            listed = distance <= 4
            listed[:, 0] = listed[0, :] = True
            return listed[None, None]
        if w.blocks == "bigbird":  # Zaheer et al. 2020: a window of 3 blocks, 2 global and 3 random ones
            listed = distance <= 1
            listed[:, :2] = listed[:2, :] = True
            random = torch.rand(rows, keys, generator=generator).argsort(-1) < 3
            return (listed | random)[None, None]
        raise ValueError(f"there is no pattern {w.blocks}")

    def new_set(self, generator):
        """(q, k, v) from N(0, 1): (batch, heads, length, dim), ragged (total, heads, dim), pools (pages, page, heads, dim)."""
        w = self.call

        def tensor(*shape):
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(DTYPES[w.dtype])

        if w.ragged:
            total = int(self.lengths_q.sum())
            return tuple(tensor(total, heads, w.dim) for heads in (w.heads, w.heads_kv, w.heads_kv))
        q = tensor(w.batch, w.heads, w.len_q, w.dim)
        shape = (self.pages, w.page, w.heads_kv, w.dim) if w.page else (w.batch, w.heads_kv, w.len_k, w.dim)
        return q, tensor(*shape), tensor(*shape)

    def entry(self, q, k, v, b):
        """(q, k, v) of an entry: (heads, length, dim)."""
        w, n = self.call, int(self.lengths_k[b])
        if w.ragged:
            begin = int(self.lengths_q[:b].sum())
            return tuple(x[begin : begin + n].transpose(0, 1) for x in (q, k, v))
        if w.page:
            keys, values = (pool[self.page_table[b].long()].flatten(0, 1)[:n].transpose(0, 1) for pool in (k, v))
            return q[b], keys, values
        return q[b], k[b, :, :n], v[b, :, :n]

    def output_rows(self, o, b, h, rows):
        """Rows of an output, (rows, dim)."""
        if self.call.ragged:
            return o[int(self.lengths_q[:b].sum()) + rows, h]
        return o[b, h, rows]

    def visible(self, b, h, rows):
        """(rows, keys of the entry), true where a row sees a key; `rows` on the device."""
        w, n = self.call, int(self.lengths_k[b])
        keys = torch.arange(n, device=rows.device)[None, :]
        own = rows[:, None] + key_span.own_offset(w.mask.endswith("bottom_right"), int(self.lengths_q[b]), n)
        seen = torch.ones(len(rows), n, dtype=torch.bool, device=rows.device)
        seen &= key_span.sees(own, keys, w.left, 0 if w.mask.startswith("causal") else key_span.ALL, w.prefix)
        if self.bias is not None and self.bias.dtype == torch.bool:
            seen &= self.bias_of(b, h, rows)[:, :n]
        if self.listed is not None:
            head = h if self.listed.shape[1] > 1 else 0
            seen &= self.listed[0, head][rows[:, None] // BLOCK, keys // BLOCK]
        return seen

    def bias_of(self, b, h, rows):
        """(rows, len_k) of the bias."""
        bias = self.bias.expand(self.call.batch, self.call.heads, self.call.len_q, self.call.len_k)
        return bias[b, h, rows]

    def reference_rows(self, q, k, v, b, h, rows, unfused=False):
        """Attention of chosen rows in float64; `unfused`: step by step in the call's dtype, softmax in fp32."""
        w = self.call
        qe, ke, ve = self.entry(q, k, v, b)
        group = h * w.heads_kv // w.heads
        keys, values, queries = ke[group], ve[group], qe[h, rows]
        scores = (queries @ keys.transpose(0, 1)).float() * w.scale if unfused else (queries.double() @ keys.double().transpose(0, 1)) * w.scale
        if w.softcap:
            scores = w.softcap * torch.tanh(scores / w.softcap)
        n = keys.shape[0]
        if self.bias is not None and self.bias.dtype != torch.bool:
            scores = scores + self.bias_of(b, h, rows)[:, :n].to(scores.dtype)
        if self.slopes is not None:
            own = rows[:, None] + n - int(self.lengths_q[b])
            scores = scores - self.slopes[h].to(scores.dtype) * (own - torch.arange(n, device=rows.device)[None, :]).abs()
        scores = scores.masked_fill(~self.visible(b, h, rows), -math.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks[h].to(scores.dtype).expand(len(rows), 1)], -1)
        p = torch.softmax(scores, -1).nan_to_num(0.0)[:, :n]
        if w.dropout:
            p = p * self.kept(b, h, n)[rows]
        return ((p.to(values.dtype) if unfused else p) @ (values if unfused else values.double())).double()

    def kept(self, b, h, len_k):
        """(len_q, len_k) of one head: what dropout multiplies probabilities with."""
        offset = DROPOUT_OFFSET + 32 * (b * self.call.heads + h)
        return dropout.kept(self.call.dropout, DROPOUT_SEED, offset, (1, 1, int(self.lengths_q[b]), len_k), self.device)[0, 0]

    def seen(self):
        """Scores that the features and masks leave, over all entries and heads."""
        w, total = self.call, 0
        by_head = w.heads if self.listed is not None and self.listed.shape[1] > 1 or (self.bias is not None and self.bias.shape[1] > 1) else 1
        for b in range(w.batch if self.entries_differ() else 1):
            for h in range(by_head):
                for rows in torch.arange(int(self.lengths_q[b]), device=self.device).split(1 + (1 << 24) // max(1, int(self.lengths_k[b]))):
                    total += int(self.visible(b, h, rows).sum())
        return total * (w.heads // by_head) * (1 if self.entries_differ() else w.batch)

    def entries_differ(self):
        """Whether what is seen differs from entry to entry."""
        return bool(self.call.ragged or self.call.key_lengths or (self.bias is not None and self.bias.shape[0] > 1))


class Reference:
    """What a call's output must be on chosen rows of one set of tensors."""

    def __init__(self, tensors, q, k, v, seed):
        w, g = tensors.call, torch.Generator().manual_seed(seed)
        self.tensors = tensors
        picks = {(int(b), int(h)) for b, h in zip(torch.randint(w.batch, (8,), generator=g), torch.randint(w.heads, (8,), generator=g))}
        self.rows = []
        for b, h in sorted(picks | {(0, 0), (w.batch - 1, w.heads - 1)}):
            n = int(tensors.lengths_q[b])
            rows = torch.cat([torch.tensor([0, n - 1]), torch.randint(n, (ROWS // len(picks),), generator=g)]).unique()
            self.rows.append((b, h, rows.to(q.device)))
        self.expected = torch.cat([tensors.reference_rows(q, k, v, *at) for at in self.rows])
        unfused = torch.cat([tensors.reference_rows(q, k, v, *at, unfused=True) for at in self.rows])
        self.norm = self.expected.square().mean().sqrt().item()
        self.limit = FACTOR * (unfused - self.expected).abs().max().item() + SLACK

    def judge(self, o):
        """As heed.reference.Reference.judge."""
        difference = torch.cat([self.tensors.output_rows(o, *at).double() for at in self.rows]) - self.expected
        largest, rms = difference.abs().max().item(), difference.square().mean().sqrt().item()
        whole = math.isfinite(largest) and bool(torch.isfinite(o).all())
        return {
            "max_abs": largest if math.isfinite(largest) else None,
            "rel_rms": rms / self.norm if math.isfinite(rms) and self.norm > 0 else None,
            "rows": len(self.expected),
            "limit": self.limit,
            "pass": whole and largest <= self.limit,
        }

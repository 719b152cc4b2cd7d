"""Tensors, contenders and the float64 reference of calls with features (heed.feature_suites)."""

import ctypes
import functools
import math

import torch

from heed import blocks, c_api, features, launch
from heed.contenders import Refused
from heed.reference import DTYPES, FACTOR, SLACK

ROWS = 256  # compared of a call, over all entries and heads
MOST_MASK_BYTES = 2**32  # of a dense mask that is made for a contender
BLOCK = 128  # rows and keys of a block


class CallTensors:
    """What a call's features take beside Q, K and V; lengths, tables and lists are drawn by the seed."""

    def __init__(self, call, device, seed):
        self.call, self.device = call, device
        w, g = call, torch.Generator(device="cpu").manual_seed(seed)
        self.lengths_q = torch.tensor(w.ragged) if w.ragged else torch.full((w.batch,), w.len_q)
        if w.ragged:
            self.lengths_k = self.lengths_q
        elif w.key_lengths == "uniform":
            self.lengths_k = torch.randint(w.len_q, w.len_k + 1, (w.batch,), generator=g)
        else:
            self.lengths_k = torch.full((w.batch,), w.len_k)

        def put(tensor, dtype=torch.int32):
            return tensor.to(device=device, dtype=dtype)

        self.cu_seqlens = put(torch.cat([torch.zeros(1, dtype=torch.long), self.lengths_q.cumsum(0)])) if w.ragged else None
        self.key_lengths = put(self.lengths_k) if w.key_lengths else None
        self.prefix_lengths = put(torch.full((w.batch,), w.prefix)) if w.prefix else None
        self.sinks = put(torch.randn(w.heads, generator=g), torch.float32) if w.sinks else None
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
        own = rows[:, None] + (n - int(self.lengths_q[b]) if w.mask.endswith("bottom_right") else 0)
        seen = torch.ones(len(rows), n, dtype=torch.bool, device=rows.device)
        if w.mask.startswith("causal"):
            seen &= (keys <= own) | (keys < w.prefix)
        if w.left >= 0:
            seen &= keys >= own - w.left
        if self.bias is not None and self.bias.dtype == torch.bool:
            seen &= self._bias_of(b, h, rows)[:, :n]
        if self.listed is not None:
            head = h if self.listed.shape[1] > 1 else 0
            seen &= self.listed[0, head][rows[:, None] // BLOCK, keys // BLOCK]
        return seen

    def _bias_of(self, b, h, rows):
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
            scores = scores + self._bias_of(b, h, rows)[:, :n].to(scores.dtype)
        if self.slopes is not None:
            own = rows[:, None] + n - int(self.lengths_q[b])
            scores = scores - self.slopes[h].to(scores.dtype) * (own - torch.arange(n, device=rows.device)[None, :]).abs()
        scores = scores.masked_fill(~self.visible(b, h, rows), -math.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks[h].to(scores.dtype).expand(len(rows), 1)], -1)
        p = torch.softmax(scores, -1).nan_to_num(0.0)[:, :n]
        return ((p.to(values.dtype) if unfused else p) @ (values if unfused else values.double())).double()

    def seen(self):
        """Scores that the features and masks leave, over all entries and heads."""
        w, total = self.call, 0
        by_head = w.heads if self.listed is not None and self.listed.shape[1] > 1 or (self.bias is not None and self.bias.shape[1] > 1) else 1
        for b in range(w.batch if self._entries_differ() else 1):
            for h in range(by_head):
                for rows in torch.arange(int(self.lengths_q[b]), device=self.device).split(1 + (1 << 24) // max(1, int(self.lengths_k[b]))):
                    total += int(self.visible(b, h, rows).sum())
        return total * (w.heads // by_head) * (1 if self._entries_differ() else w.batch)

    def _entries_differ(self):
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


class Heed:
    """Heed's variant for a call, as `heed build` answered for its text."""

    name = "heed"

    def __init__(self, binaries):
        self.binaries = binaries

    def prepare(self, t):
        binary = self.binaries.get(t.call.text, {"refused": "it was not built"})
        if "refused" in binary:
            raise Refused(binary["refused"])
        return _HeedCall(binary, t)


class _HeedCall:
    def __init__(self, binary, t):
        w = t.call
        self.t, self.binary, self.plan = t, binary, None
        with open(binary["file"], "rb") as file:
            self.image = file.read()
        self.features = features.Features(
            softcap=w.softcap, bias=t.bias, sinks=t.sinks, alibi_slopes=t.slopes, key_lengths=t.key_lengths, cu_seqlens_q=t.cu_seqlens,
            cu_seqlens_k=t.cu_seqlens, page_table=t.page_table, prefix_lengths=t.prefix_lengths, max_len_q=w.len_q, max_len_k=w.len_k,
        )  # fmt: skip
        features.set_block_mask("heed", t.block_mask, (w.len_q, w.len_k), self.features)
        self.launch = c_api.Tensors(struct_size=ctypes.sizeof(c_api.Tensors))
        f = self.features
        for field, tensor in (("bias", f.bias), ("sinks", f.sinks), ("alibi_slopes", f.alibi_slopes), ("cu_seqlens_q", f.cu_seqlens_q), ("cu_seqlens_k", f.cu_seqlens_k),
                              ("seqused_k", f.key_lengths), ("page_table", f.page_table), ("block_counts", f.block_counts), ("block_indices", f.block_indices),
                              ("prefix_lengths", f.prefix_lengths)):  # fmt: skip
            if tensor is not None:
                setattr(self.launch, field, tensor.data_ptr())

    def _plan(self, q, k, v, o):
        w = self.t.call
        p = c_api.Problem(struct_size=ctypes.sizeof(c_api.Problem), abi_version=c_api.ABI_VERSION, device_type=c_api.CUDA if q.is_cuda else c_api.CPU, device=q.device.index or 0)
        p.dtype_q = p.dtype_kv = p.dtype_o = c_api.DTYPES[w.dtype]
        p.mask, p.window_left, p.window_right = c_api.MASKS[w.mask], w.left, w.right
        if q.dim() == 4:
            p.batch, p.len_q, p.len_k, p.o_strides = w.batch, w.len_q, w.len_k, c_api.strides_of(o)
        features.fill(p, q, k.transpose(1, 2) if w.page else k, v.transpose(1, 2) if w.page else v, self.features)
        self.plan = launch.Plan(self.binary, self.image, p)
        info = self.plan.info
        self.workspace = None
        if info.workspace_bytes:
            self.workspace = torch.empty(info.workspace_bytes + info.workspace_alignment, dtype=torch.uint8, device=q.device)
            self.workspace = self.workspace[-self.workspace.data_ptr() % info.workspace_alignment :]
            self.plan.prepare(self.workspace.data_ptr(), self._stream(q))

    @staticmethod
    def _stream(q):
        return torch.cuda.current_stream().cuda_stream if q.is_cuda else None

    def __call__(self, q, k, v):
        o = torch.empty_like(q)
        if self.plan is None:
            self._plan(q, k, v, o)
        a = self.launch
        a.q, a.k, a.v, a.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        self.plan.run(a, 1, self.workspace.data_ptr() if self.workspace is not None else None, self._stream(q))
        return o


class HeedDense:
    """Heed without features on tensors of the same sizes: what a call would take if all of it were seen. It has another result."""

    name = "heed_dense"

    def __init__(self, binaries):
        self.binaries = binaries

    def prepare(self, t):
        w = t.call
        if w.ragged and len(set(w.ragged)) > 1:
            raise Refused("entries of different lengths are no dense problem")
        if w.text == str(w.dense()):
            raise Refused("the call itself")
        call = launch.HeedAttention(self.binaries[str(w.dense())], w.dense())

        def run(q, k, v):
            if w.ragged:
                q, k, v = (x.view(w.batch, w.len_q, -1, w.dim).transpose(1, 2) for x in (q, k, v))
            elif w.page:  # as many bytes, in the order of the pool
                k, v = (x.view(w.batch, -1, w.heads_kv, w.dim)[:, : w.len_k].transpose(1, 2) for x in (k, v))
            return call(q, k, v)

        run.other_result = True
        return run


class SdpaMask:
    """scaled_dot_product_attention by one backend with all that hides as one mask tensor."""

    def __init__(self, backend):
        self.name = f"sdpa_{backend.lower().removesuffix('_attention')}"
        self.backend = backend

    def prepare(self, t):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        w = t.call
        for feature in ("softcap", "sinks", "ragged", "page"):
            if getattr(w, feature):
                raise Refused(f"it has no {feature}")
        arguments = {"scale": w.scale, "enable_gqa": w.heads != w.heads_kv}
        plain = not (w.bias or w.alibi or w.key_lengths or w.prefix or w.blocks or w.left >= 0)
        if plain and w.causal and (w.len_q == w.len_k or not w.mask.endswith("bottom_right")):
            arguments["is_causal"] = True
        elif not plain or w.masked:
            arguments["attn_mask"] = dense_mask(t)

        def call(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)

        call.context = lambda: sdpa_kernel(getattr(SDPBackend, self.backend))
        return call


def dense_mask(t):
    """All that hides or is added, as (batch or 1, heads or 1, len_q, len_k): boolean, or of the call's dtype. Raises Refused where it is too large."""
    w = t.call
    batch = w.batch if t._entries_differ() else 1
    heads = w.heads if w.alibi or (t.bias is not None and t.bias.shape[1] > 1) or (t.listed is not None and t.listed.shape[1] > 1) else 1
    adds = w.alibi or (t.bias is not None and t.bias.dtype != torch.bool)
    if batch * heads * w.len_q * w.len_k * (2 if adds else 1) > MOST_MASK_BYTES:
        raise Refused(f"its mask tensor would take {batch * heads * w.len_q * w.len_k * (2 if adds else 1) / 2**30:.0f} GiB")
    mask = torch.zeros(batch, heads, w.len_q, w.len_k, dtype=DTYPES[w.dtype] if adds else torch.bool, device=t.device)
    rows = torch.arange(w.len_q, device=t.device)
    for b in range(batch):
        for h in range(heads):
            n = int(t.lengths_k[b])
            seen = t.visible(b, h, rows)
            if not adds:
                mask[b, h, :, :n] = seen
                continue
            mask[b, h] = -math.inf
            added = torch.zeros(w.len_q, n, device=t.device)
            if t.bias is not None:
                added += t._bias_of(b, h, rows)[:, :n]
            if w.alibi:
                own = rows[:, None] + n - w.len_q
                added -= t.slopes[h] * (own - torch.arange(n, device=t.device)[None, :]).abs()
            mask[b, h, :, :n] = added.masked_fill(~seen, -math.inf).to(mask.dtype)
    return mask


class Flex:
    """torch.nn.attention.flex_attention compiled, its mask as functions and lists of blocks; a sink by the log-sum-exp it returns.

    https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """

    name = "triton_flex"

    def prepare(self, t):
        from torch.nn.attention import flex_attention as flex

        w = t.call
        if w.page:
            raise Refused("keys in pages are not given to it by the arena")
        torch._dynamo.reset()
        entry = torch.repeat_interleave(torch.arange(w.batch), t.lengths_q).to(t.device) if w.ragged else None
        len_q = int(t.lengths_q.sum()) if w.ragged else w.len_q
        len_k = len_q if w.ragged else w.len_k
        offset = w.len_k - w.len_q if w.mask.endswith("bottom_right") else 0
        lengths, listed, bias, slopes = t.key_lengths, t.listed, t.bias, t.slopes

        def mask_mod(b, h, i, j):
            seen = i >= 0
            if w.mask.startswith("causal"):
                seen = (j <= i + offset) if not w.prefix else (j <= i + offset) | (j < w.prefix)
            if w.left >= 0:
                seen = seen & (j >= i + offset - w.left)
            if lengths is not None:
                seen = seen & (j < lengths[b])
            if entry is not None:
                seen = seen & (entry[i] == entry[j])
            if listed is not None:
                seen = seen & listed[0, h if listed.shape[1] > 1 else 0, i // BLOCK, j // BLOCK]
            if bias is not None and bias.dtype == torch.bool:
                seen = seen & bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0, i if bias.shape[2] > 1 else 0, j]
            return seen

        def score_mod(score, b, h, i, j):
            if w.softcap:
                score = w.softcap * torch.tanh(score / w.softcap)
            if bias is not None and bias.dtype != torch.bool:
                score = score + bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0, i, j]
            if slopes is not None:
                score = score - slopes[h] * (i + w.len_k - w.len_q - j).abs()
            return score

        scores = score_mod if w.softcap or slopes is not None or (bias is not None and bias.dtype != torch.bool) else None
        masked = w.masked or lengths is not None or entry is not None or listed is not None or (bias is not None and bias.dtype == torch.bool)
        block_mask = None
        if masked:
            by_batch = w.batch if lengths is not None or (bias is not None and bias.shape[0] > 1) else None
            by_head = w.heads if (listed is not None and listed.shape[1] > 1) or (bias is not None and bias.dtype == torch.bool and bias.shape[1] > 1) else None
            block_mask = flex.create_block_mask(mask_mod, by_batch, by_head, len_q, len_k, device=t.device, _compile=True)
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        sinks = t.sinks

        def call(q, k, v):
            if w.ragged:
                q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            o = compiled(q, k, v, score_mod=scores, block_mask=block_mask, scale=w.scale, enable_gqa=w.heads != w.heads_kv, return_lse=sinks is not None)
            if sinks is not None:
                o, lse = o
                o = o * torch.sigmoid(lse - sinks[None, :, None])[..., None].to(o.dtype)
            return o[0].transpose(0, 1) if w.ragged else o

        return call


class Varlen:
    """torch.nn.attention.varlen.varlen_attn: FlashAttention-2 of ragged batches, as PyTorch has it."""

    name = "torch_varlen"

    def prepare(self, t):
        import inspect

        from torch.nn.attention.varlen import varlen_attn

        w = t.call
        if not w.ragged:
            raise Refused("the arena gives it ragged batches alone")
        known = inspect.signature(varlen_attn).parameters
        arguments = {"scale": w.scale} if "scale" in known else {}
        if w.heads != w.heads_kv:
            if "enable_gqa" not in known:
                raise Refused("this version has no grouped heads")
            arguments["enable_gqa"] = True
        if w.masked:
            if "window_size" in known:
                arguments["window_size"] = (-1, 0)
            else:
                arguments["is_causal"] = True
        return lambda q, k, v: varlen_attn(q, k, v, t.cu_seqlens, t.cu_seqlens, w.len_q, w.len_q, **arguments)


def contenders(binaries):
    """Everything that takes part beside Heed."""
    return [HeedDense(binaries), *map(SdpaMask, ("MATH", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "FLASH_ATTENTION")), Flex(), Varlen()]


@functools.cache
def orders(calls):
    """Texts to build: those of the calls and of their dense problems."""
    return tuple(dict.fromkeys(text for call in calls for text in (call.text, str(call.dense()))))

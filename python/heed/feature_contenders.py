"""What the arena lets run on calls with features: Heed, PyTorch's backends with a mask tensor, FlexAttention, ragged attention, FlashInfer.

A contender has a name and `prepare(tensors)`, of heed.feature_calls.CallTensors: a function of (q, k, v) that returns o, or Refused.
"""

import ctypes
import math

import torch

from heed import c_api, features, flashinfer_contender, flex_contender, launch
from heed.contenders import Refused
from heed.feature_calls import DROPOUT_OFFSET, DROPOUT_SEED
from heed.reference import DTYPES

MOST_MASK_BYTES = 2**32  # of a dense mask that is made for a contender


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
            dropout_p=w.dropout,
        )  # fmt: skip
        features.set_block_mask("heed", t.block_mask, (w.len_q, w.len_k), self.features)
        self.launch = c_api.Tensors(struct_size=ctypes.sizeof(c_api.Tensors))
        if w.dropout:
            self.launch.dropout_seed, self.launch.dropout_offset = DROPOUT_SEED, DROPOUT_OFFSET
        f = self.features
        for field, tensor in (("bias", f.bias), ("sinks", f.sinks), ("alibi_slopes", f.alibi_slopes), ("cu_seqlens_q", f.cu_seqlens_q), ("cu_seqlens_k", f.cu_seqlens_k),
                              ("seqused_k", f.key_lengths), ("page_table", f.page_table), ("block_counts", f.block_counts), ("block_indices", f.block_indices),
                              ("prefix_lengths", f.prefix_lengths)):  # fmt: skip
            if tensor is not None:
                setattr(self.launch, field, tensor.data_ptr())

    def _plan(self, q, k, v, o):
        w = self.t.call
        p = c_api.Problem(struct_size=ctypes.sizeof(c_api.Problem), abi_version=c_api.ABI_VERSION, device_type=c_api.CUDA if q.is_cuda else c_api.CPU, device=q.device.index or 0)
        p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = c_api.DTYPES[w.dtype]
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
    """scaled_dot_product_attention by one backend with all that hides as one mask tensor.

    With dropout each call draws anew. What FlashAttention drops in its first one, of DROPOUT_SEED and DROPOUT_OFFSET, is what Heed drops; results of other
    backends are not compared."""

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
        if w.dropout:
            arguments["dropout_p"] = w.dropout
            call.draws_anew = True
            call.other_result = self.backend != "FLASH_ATTENTION"
            if torch.device(t.device).type == "cuda":
                generator = torch.cuda.default_generators[torch.cuda.current_device()]
                generator.manual_seed(DROPOUT_SEED)
                generator.set_offset(DROPOUT_OFFSET)
        return call


def dense_mask(t):
    """All that hides or is added, as (batch or 1, heads or 1, len_q, len_k): boolean, or of the call's dtype. Raises Refused where it is too large."""
    w = t.call
    batch = w.batch if t.entries_differ() else 1
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
                added += t.bias_of(b, h, rows)[:, :n]
            if w.alibi:
                own = rows[:, None] + n - w.len_q
                added -= t.slopes[h] * (own - torch.arange(n, device=t.device)[None, :]).abs()
            mask[b, h, :, :n] = added.masked_fill(~seen, -math.inf).to(mask.dtype)
    return mask


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
    return [HeedDense(binaries), *map(SdpaMask, ("MATH", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "FLASH_ATTENTION")), flex_contender.Flex(), Varlen(), flashinfer_contender.FlashInfer()]


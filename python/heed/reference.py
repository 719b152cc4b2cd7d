"""Inputs, the float64 reference, and how far a result is from it."""

import math

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
HARD_LIMIT = 2e-3  # max|error| for fp16 inputs from N(0,1)
FACTOR, SLACK = 2, 3e-5  # over the error of the same computation done unfused in the same dtype
ROWS_OF_A_HEAD = 64  # at least, of a head that is looked at when not every row is
CHUNK_ELEMENTS = 1 << 26  # scores held at a time


def make_sets(w, sets, device, seed):
    """[(q, k, v)], each (batch, head, length, dim) from N(0,1) in the workload's dtype and memory layout."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def tensor(heads, length):
        shape = (w.batch, heads, length, w.dim) if w.layout == "bhld" else (w.batch, length, heads, w.dim)
        x = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(DTYPES[w.dtype])
        return x if w.layout == "bhld" else x.transpose(1, 2)

    return [(tensor(w.heads, w.len_q), tensor(w.heads_kv, w.len_k), tensor(w.heads_kv, w.len_k)) for _ in range(sets)]


def choose_rows(w, budget_flops, seed):
    """[(batch, head, row indices)] that are compared: every row where the budget allows, else rows of several heads, the
    first and the last row of each among them."""
    heads = [(b, h) for b in range(w.batch) for h in range(w.heads)]
    per_row = 4 * w.dim * w.len_k
    if per_row * len(heads) * w.len_q <= budget_flops:
        return [(b, h, torch.arange(w.len_q)) for b, h in heads]
    generator = torch.Generator().manual_seed(seed)
    rows = max(ROWS_OF_A_HEAD, int(budget_flops / per_row))
    of_a_head = min(w.len_q, max(ROWS_OF_A_HEAD, rows // len(heads)))
    count = max(1, min(len(heads), rows // of_a_head))
    chosen = torch.randperm(len(heads), generator=generator)[:count].sort().values.tolist()
    picked = []
    for index in chosen:
        inner = torch.randperm(w.len_q, generator=generator)[:of_a_head]
        ends = torch.tensor([0, w.len_q - 1])
        picked.append((*heads[index], torch.cat([ends, inner]).unique()))
    return picked


def attention_rows(w, q, k, v, rows, unfused=False):
    """Attention of chosen rows, (rows, dim) in float64, row after row as `rows` lists them.

    With `unfused`, the same computation step by step in the workload's dtype: scores by a product in that dtype, softmax in
    fp32, probabilities rounded, then the second product. A row without a visible key is zeros.
    """
    group = w.heads // w.heads_kv
    keys = torch.arange(w.len_k, device=q.device)
    parts = []
    step = max(1, CHUNK_ELEMENTS // w.len_k)
    for b, h, indices in rows:
        kh, vh = k[b, h // group], v[b, h // group]
        if not unfused:
            kh, vh = kh.double(), vh.double()
        for chunk in indices.to(q.device).split(step):
            qh = q[b, h, chunk]
            if unfused:
                scores = (qh @ kh.transpose(0, 1)).float() * w.scale
            else:
                scores = (qh.double() @ kh.transpose(0, 1)) * w.scale
            if w.right_offset is not None:
                scores.masked_fill_(keys[None, :] > (chunk + w.right_offset)[:, None], -math.inf)
            if w.left_offset is not None:
                scores.masked_fill_(keys[None, :] < (chunk + w.left_offset)[:, None], -math.inf)
            p = torch.softmax(scores, -1).nan_to_num_(0.0)
            parts.append(((p.to(vh.dtype) if unfused else p) @ vh).double())
    return torch.cat(parts)


def rows_of(o, rows):
    """The same rows of an output, in float64."""
    return torch.cat([o[b, h, indices.to(o.device)].double() for b, h, indices in rows])


class Reference:
    """What a workload's result must be for one set of tensors, on chosen rows."""

    def __init__(self, w, q, k, v, budget_flops, seed):
        self.workload = w
        self.rows = choose_rows(w, budget_flops, seed)
        self.count = sum(len(indices) for _, _, indices in self.rows)
        self.expected = attention_rows(w, q, k, v, self.rows)
        self.norm = self.expected.square().mean().sqrt().item()
        self.unfused = (attention_rows(w, q, k, v, self.rows, unfused=True) - self.expected).abs().max().item()

    @property
    def limit(self):
        """Largest |error| that passes: the calibrated gate, and the hard limit for fp16."""
        calibrated = FACTOR * self.unfused + SLACK
        return min(HARD_LIMIT, calibrated) if self.workload.dtype == "fp16" else calibrated

    def judge(self, o):
        """{"max_abs", "rel_rms", "rows", "limit", "pass"}; NaN or infinity fails and is reported as None."""
        w = self.workload
        if tuple(o.shape) != (w.batch, w.heads, w.len_q, w.dim):
            return {"max_abs": None, "rel_rms": None, "rows": 0, "limit": self.limit, "pass": False}
        difference = rows_of(o, self.rows) - self.expected
        largest, rms = difference.abs().max().item(), difference.square().mean().sqrt().item()
        whole = math.isfinite(largest) and bool(torch.isfinite(o).all())
        return {
            "max_abs": largest if math.isfinite(largest) else None,
            "rel_rms": rms / self.norm if math.isfinite(rms) and self.norm > 0 else None,
            "rows": self.count,
            "limit": self.limit,
            "pass": whole and largest <= self.limit,
        }

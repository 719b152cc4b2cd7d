"""Tensors of quantised calls (heed.precision_suites), and what their outputs must be: errors against the values before they were quantised."""

import math
from dataclasses import dataclass

import torch

from heed import reference

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0}
TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
# What quantising may cost before an output counts as wrong: a quarter of the reference's size. Values in e4m3 by heads are off by 4.6% at
# N(0, 1) and by 13% with outliers.
MOST_ERROR = 0.25
OUTLIER_SHARE, OUTLIER_DEVIATION = 0.001, 10.0


@dataclass(frozen=True)
class Quantised:
    """One tensor, (batch, heads, rows, dim): a number is element times factor."""

    elements: torch.Tensor
    factors: torch.Tensor  # fp32, dense: (1), (batch, heads), (batch, heads, blocks or rows), (batch, heads, dim)
    granularity: str
    rows: int = 0  # of a block

    @property
    def is_cuda(self):
        """Whether it lies on a GPU."""
        return self.elements.is_cuda

    def values(self):
        """The numbers that it stands for, in fp32."""
        x = self.elements.float()
        if self.granularity == "tensor":
            return x * self.factors
        if self.granularity == "head":
            return x * self.factors[:, :, None, None]
        if self.granularity == "channel":
            return x * self.factors[:, :, None, :]
        by_row = self.factors if self.granularity == "token" else self.factors.repeat_interleave(self.rows, -1)[..., : x.shape[2]]
        return x * by_row[..., None]


def quantise(x, form):
    """x, (batch, heads, rows, dim), as a heed.precision_suites.TensorFormat: factors are those of the largest magnitude, and 1 where all is
    zero; to nearest even."""
    x = x.float()
    size = x.abs()
    if form.granularity == "tensor":
        most = size.amax().reshape(1)
    elif form.granularity == "head":
        most = size.amax((2, 3))
    elif form.granularity == "channel":
        most = size.amax(2)
    else:
        most = size.amax(3)
        if form.granularity == "block":
            most = torch.nn.functional.pad(most, (0, -most.shape[2] % form.rows)).unflatten(2, (-1, form.rows)).amax(3)
    factors = torch.where(most > 0, most / LARGEST[form.dtype], torch.ones_like(most)).contiguous()
    scaled = x / Quantised(torch.ones_like(x), factors, form.granularity, form.rows).values()
    scaled = scaled.clamp(-LARGEST[form.dtype], LARGEST[form.dtype])
    elements = (scaled.round() if form.dtype == "int8" else scaled).to(TORCH[form.dtype]).contiguous()
    return Quantised(elements, factors, form.granularity, form.rows)


def given(call, q, k, v):
    """(q, k, v) as the kernel of a call takes them: Quantised, or as they are. Each depends on one tensor alone."""
    tensors = {"q": q, "k": k - k.float().mean(2, keepdim=True) if call.smooth else k, "v": v}
    return tuple(quantise(x, call.formats[name]) if name in call.formats else x.contiguous() for name, x in tensors.items())


def outlier_set(call, device, seed):
    """(q, k, v) of N(0, 1) with one number in 1000 of N(0, 100) on top, as FlashAttention-3 judges its accuracy (arXiv 2407.08608, 4.3)."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def tensor(heads, length):
        shape = (call.batch, heads, length, call.dim)
        x = torch.randn(shape, generator=generator, device=device)
        hit = torch.rand(shape, generator=generator, device=device) < OUTLIER_SHARE
        x += hit * OUTLIER_DEVIATION * torch.randn(shape, generator=generator, device=device)
        return x.to(reference.DTYPES[call.dtype])

    return tensor(call.heads, call.len_q), tensor(call.heads_kv, call.len_k), tensor(call.heads_kv, call.len_k)


class Reference(reference.Reference):
    """What a call's output must be, for one set of the values before they are quantised.

    `limit` stays that of the same computation in fp16: it judges what is not quantised, and whether a timed output is what an ordinary call
    gives.
    """

    @property
    def limit(self):
        """As heed.reference.Reference.limit, whose hard limit is that of values of N(0, 1): outputs among outliers are up to 40, where a unit in the last place of
        fp16 alone is more."""
        largest = self.expected.abs().max().item() if self.expected.numel() else 0.0
        calibrated = reference.FACTOR * self.unfused + reference.SLACK
        return min(reference.HARD_LIMIT * max(1.0, largest), calibrated) if self.workload.dtype == "fp16" else calibrated

    def judge_total(self, o):
        """The total error of a quantised call, as heed.reference.Reference.judge; what passes is finite and off by less than a quarter."""
        error = self.judge(o)
        off = error["rel_rms"]
        largest = self.expected.abs().max().item()
        whole = error["max_abs"] is not None and math.isfinite(error["max_abs"]) and bool(torch.isfinite(o.float()).all())
        return error | {"limit": MOST_ERROR * largest, "pass": whole and off is not None and off <= MOST_ERROR}

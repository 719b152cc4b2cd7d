"""The arena's suites of low precision: calls whose Q, K and V are quantised, as data. Nothing here needs PyTorch or a GPU.

A point's inputs are fp16. What is quantised, and how, is a mode of `heed calibrate`; tensors and contenders are in heed.precision_calls and
heed.precision_contenders.
"""

import re
from dataclasses import dataclass

from heed.suites import BYTES, DECODE, HIDDEN, TOKENS, BadWorkload, Suite, Workload, parse_workload

GRANULARITIES = ("tensor", "head", "token", "channel")  # and blockN
EIGHT_BITS = ("e4m3", "e5m2", "int8")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
DIMS = (64, 128, 256)
# {mode: (what is quantised, whether the mean of K is taken out before)}, as heed calibrate names them.
MODES = {"fp8": ("qkv/e4m3/head", False), "int8_smooth": ("q/int8/block32+k/int8/block64", True)}
# {cache: the same}, as heed programs build --precision names them: K and V that earlier steps quantised, and queries that are not.
CACHES = {"cache_e4m3": ("kv/e4m3/head", False), "cache_int8": ("kv/int8/head", False)}
FORMATS = MODES | CACHES
FEW_QUERIES = (*DECODE, "b16h32hkv8l1k4096d128:bf16", "b1h64hkv8l1k131072d128:bf16", "b8h32hkv8l5k4096d128:bf16:causal_bottom_right", "b8h32hkv8l1k8192d64")


@dataclass(frozen=True)
class TensorFormat:
    """How one tensor is quantised."""

    dtype: str  # e4m3, e5m2 or int8
    granularity: str  # of GRANULARITIES, or "block"
    rows: int = 0  # of a block


def parse_quantised(text):
    """{"q": TensorFormat, ...} of "qkv/e4m3/head" or "q/int8/block32+k/int8/block64". Raises BadWorkload."""
    formats = {}
    for part in text.split("+"):
        match = re.fullmatch(r"([qkv]+)/(\w+)/([a-z]+)(\d*)", part)
        if not match or match[2] not in EIGHT_BITS:
            raise BadWorkload(f'"{part}" says nothing of what is quantised; write for example qkv/e4m3/head')
        by, rows = match[3], int(match[4] or 0)
        if (by == "block") != (rows > 1) or (by != "block" and (rows or by not in GRANULARITIES)):
            raise BadWorkload(f'"{part}": "{by}{match[4]}" is no granularity; there are {", ".join(GRANULARITIES)} and blocks of 2 rows or more, as block64')
        if by == "channel" and match[1] != "v":
            raise BadWorkload(f'"{part}": factors by channel are of V alone, for a score sums over channels')
        for tensor in match[1]:
            if tensor in formats:
                raise BadWorkload(f'"{text}" names {tensor} twice')
            formats[tensor] = TensorFormat(match[2], by, rows)
    return formats


@dataclass(frozen=True)
class QuantisedCall(Workload):
    """A workload of fp16 or bf16 tensors that a mode of FORMATS quantises."""

    mode: str = "fp8"

    @property
    def formats(self):
        """{"q": TensorFormat, ...} of the tensors that are quantised."""
        return parse_quantised(FORMATS[self.mode][0])

    @property
    def smooth(self):
        """Whether the mean of K over keys is taken out before."""
        return FORMATS[self.mode][1]

    @property
    def text(self):
        """As the command line of Heed spells it."""
        return f"{self}:quantised={FORMATS[self.mode][0]}"

    @property
    def name(self):
        """The row's name."""
        return f"{self} ({self.mode})"

    @property
    def input_bytes(self):
        """Bytes of one set of inputs as the kernel reads them, without factors."""
        elements = {"q": self.heads * self.len_q, "k": self.heads_kv * self.len_k, "v": self.heads_kv * self.len_k}
        return sum(self.batch * count * self.dim * (1 if tensor in self.formats else BYTES[self.dtype]) for tensor, count in elements.items())

    def dense(self):
        """The same workload with fp16 inputs."""
        return Workload(self.batch, self.heads, self.heads_kv, self.len_q, self.len_k, self.dim, self.dtype, self.mask)


def _points(mode):
    return tuple(
        QuantisedCall(TOKENS // length, HIDDEN // dim, HIDDEN // dim, length, length, dim, "fp16", mask, mode=mode)
        for dim in DIMS
        for mask in ("none", "causal_top_left")
        for length in LENGTHS
    )


def _decode(cache):
    dense = [parse_workload(text) for text in FEW_QUERIES]
    return tuple(QuantisedCall(w.batch, w.heads, w.heads_kv, w.len_q, w.len_k, w.dim, w.dtype, w.mask, mode=cache) for w in dense)


def suites():
    """Every suite by name. `workloads` holds calls."""
    title = "16384 tokens, hidden 2048, full and causal: {}, beside fp16 and what else computes in low precision"
    caches = tuple(call for cache in CACHES for call in _decode(cache))
    every = (
        Suite("fp8", title.format("Q, K and V in e4m3"), _points("fp8"), ("graph_cold",), "TFLOP/s"),
        Suite("int8", title.format("Q and K in int8, V in fp16"), _points("int8_smooth"), ("graph_cold",), "TFLOP/s"),
        Suite("caches", "few queries against K and V in e4m3 and in int8, beside the same in 16 bits", caches, ("graph_cold",), "us"),
    )
    return {suite.name: suite for suite in every}

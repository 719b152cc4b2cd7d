"""The arena's suites of calls with features: masks and biases, ragged batches, keys in pages, lists of blocks.

A call is data here; its tensors, contenders and reference are in heed.feature_calls. Nothing here needs PyTorch or a GPU.
"""

from dataclasses import dataclass, replace

from heed.suites import Suite, Workload


@dataclass(frozen=True)
class Call(Workload):
    """A workload with features; see heed.attention for what each means."""

    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    bias: str = ""  # "DTYPE/DIMS": bool, fp16, bf16 or fp32, and which of b(atch), h(ead), l (row) and k(ey) it differs by
    key_lengths: str = ""  # how lengths are drawn: "uniform" from 1 to len_k, "full"
    prefix: int = 0  # keys that every row sees too
    ragged: tuple = ()  # rows of each entry, of queries as of keys; len_q and len_k are the longest
    page: int = 0  # keys of a page
    dropout: float = 0.0
    blocks: str = ""  # a pattern of 128 x 128 blocks: "densityX", "window_global" (Longformer), "bigbird"

    @property
    def text(self):
        """As the command line of Heed spells a problem with these features; lengths and lists are drawn, and have no spelling of their own."""
        parts = [str(self)]
        parts += [f"softcap={self.softcap:g}"] if self.softcap else []
        parts += [f"bias={self.bias}"] if self.bias else []
        parts += ["alibi"] if self.alibi else []
        parts += ["sinks"] if self.sinks else []
        parts += ["key_lengths"] if self.key_lengths else []
        parts += ["ragged"] if self.ragged else []
        parts += [f"page={self.page}"] if self.page else []
        parts += [f"prefix={self.prefix}"] if self.prefix else []
        parts += [f"dropout={self.dropout:g}"] if self.dropout else []
        parts += ["blocks=128/density0.25@1/h"] if self.blocks else []
        return ":".join(parts)

    @property
    def name(self):
        """The row's name: the text, with how lengths and lists are drawn."""
        drawn = [f"lengths {self.key_lengths}"] if self.key_lengths else []
        drawn += [f"{len(self.ragged)} lengths {min(self.ragged)} to {max(self.ragged)}"] if self.ragged else []
        drawn += [self.blocks] if self.blocks else []
        return self.text.replace("blocks=128/density0.25@1/h", "blocks=128") + "".join(f" ({what})" for what in drawn)

    @property
    def set_bytes(self):
        """Bytes of one set of inputs and its output; of a ragged batch the rows that there are."""
        if not self.ragged:
            return super().set_bytes
        return sum(self.ragged) * (self.heads + self.heads_kv) * 2 * self.dim * self.element_bytes

    @property
    def input_bytes(self):
        """Bytes of one set of inputs."""
        if not self.ragged:
            return super().input_bytes
        return sum(self.ragged) * (self.heads + 2 * self.heads_kv) * self.dim * self.element_bytes

    def dense(self):
        """The same tensors without features: what the same work would be where all of it is seen."""
        return Workload(self.batch, self.heads, self.heads_kv, self.len_q, self.len_k, self.dim, self.dtype, self.mask if self.causal else "none")


def _call(batch, heads, heads_kv, len_q, len_k, dim, mask="none", **rest):
    return Call(batch, heads, heads_kv, len_q, len_k, dim, "bf16", mask, **rest)


CAUSAL, BOTTOM = "causal_top_left", "causal_bottom_right"


def _masks():
    prefill = _call(1, 32, 8, 4096, 4096, 128, CAUSAL)
    encoder = _call(8, 16, 16, 1024, 1024, 64)
    decode = _call(16, 32, 8, 1, 4096, 128)
    return (
        prefill,
        replace(prefill, left=1023),
        replace(prefill, softcap=50.0),
        replace(prefill, dim=256, heads=16, softcap=50.0),  # Gemma-2
        replace(prefill, heads=64, dim=64, sinks=True),  # gpt-oss, both of its layers
        replace(prefill, heads=64, dim=64, sinks=True, left=127),
        replace(prefill, alibi=True),
        replace(prefill, prefix=1024),
        replace(prefill, dropout=0.1),
        encoder,
        replace(encoder, bias="bool/bk"),  # key padding as a mask tensor
        replace(encoder, key_lengths="uniform"),  # the same as lengths
        replace(encoder, bias="bool/blk"),
        replace(encoder, bias="bf16/hlk"),  # relative positions (T5, Swin)
        replace(encoder, bias="bf16/bhlk"),
        replace(encoder, dropout=0.1),
        decode,
        replace(decode, softcap=50.0),
        replace(decode, sinks=True),
        replace(decode, alibi=True),
        replace(decode, key_lengths="uniform"),
    )


def _skewed(count, least, most):
    """Lengths that fall as a power: few long ones, many short."""
    return tuple(round(least * (most / least) ** ((i / (count - 1)) ** 3)) for i in range(count))


def _ragged():
    calls = []
    for dim, heads, heads_kv in ((64, 16, 16), (128, 32, 8)):
        for lengths in ((2048,) * 8, _skewed(16, 64, 8192), _skewed(128, 16, 512)):
            for mask in ("none", CAUSAL):
                longest = max(lengths)
                calls.append(_call(len(lengths), heads, heads_kv, longest, longest, dim, mask, ragged=lengths))
    return tuple(calls)


def _paged():
    calls = []
    for batch, len_k in ((16, 4096), (64, 2048)):
        base = _call(batch, 32, 8, 1, len_k, 128)
        calls.append(base)
        calls += [replace(base, key_lengths=lengths, page=page) for lengths in ("full", "uniform") for page in (1, 16, 64, 256)]
    chunk = _call(4, 32, 8, 512, 8192, 128, BOTTOM)
    calls.append(chunk)
    calls += [replace(chunk, key_lengths="full", page=page) for page in (16, 64, 256)]
    return tuple(calls)


def _sparse():
    calls = []
    for length in (16384, 65536):
        base = _call(1, 8, 8, length, length, 128)
        calls.append(base)
        calls += [replace(base, blocks=pattern) for pattern in ("density0.1", "density0.25", "density0.5", "window_global", "bigbird")]
    return tuple(calls)


def suites():
    """Every suite of calls by name. `workloads` holds calls."""
    every = (
        Suite("masks", "masks, biases, softcap, sinks and lengths beside the call without, bf16", _masks(), ("graph_warm",), "us"),
        Suite("ragged", "batches of different lengths in one tensor, bf16", _ragged(), ("graph_warm",), "us"),
        Suite("paged", "keys in pages: decoding and a chunk of a prompt, beside keys in one tensor, bf16", _paged(), ("graph_warm",), "us"),
        Suite("sparse", "lists of 128 x 128 blocks beside all of them, bf16", _sparse(), ("graph_warm",), "us"),
    )
    return {suite.name: suite for suite in every}

"""The arena's fixed suites as data, and what a workload is: the same grammar as `heed --shape`.

Nothing here needs PyTorch or a GPU.
"""

import random
import re
from dataclasses import dataclass, replace

from heed.key_span import ALL, own_offset

DTYPES = ("fp16", "bf16", "fp32")
MASKS = ("none", "causal_top_left", "causal_bottom_right")
WINDOWS = {"window": "window_bottom_right", "window_top_left": "window_top_left"}  # grammar: mask
LAYOUTS = ("bhld", "blhd")
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


class BadWorkload(ValueError):
    """A text that is no workload; the message is a whole sentence."""


@dataclass(frozen=True)
class Workload:
    """One attention problem; see heed::Workload in include/heed/heed.hpp. Lengths and dims in elements."""

    batch: int
    heads: int
    heads_kv: int
    len_q: int
    len_k: int
    dim: int
    dtype: str = "fp16"
    mask: str = "none"
    layout: str = "bhld"
    scale_text: str = ""  # as it was written; empty: 1 / sqrt(dim)
    left: int = ALL  # keys before a query's own that it sees
    right: int = ALL  # keys after it; ALL under causal masks, which end with the own key

    @property
    def scale(self):
        """Factor of the scores before the softmax."""
        return float(self.scale_text) if self.scale_text else self.dim**-0.5

    @property
    def masked(self):
        """Whether keys are hidden from queries."""
        return self.mask != "none"

    @property
    def causal(self):
        """Whether a right bound is all that the mask has: what kernels for causal masks compute."""
        return self.right_offset is not None and self.left_offset is None

    @property
    def windowed(self):
        """Whether the mask is given as a window, or has a left bound."""
        return self.mask in WINDOWS.values() or self.left != ALL

    @property
    def own_offset(self):
        """Query i's own key is i + own_offset."""
        return own_offset(self.mask.endswith("bottom_right"), self.len_q, self.len_k)

    @property
    def right_offset(self):
        """Key j is visible to query i when j <= i + right_offset; None where the mask has no right bound."""
        if self.mask in WINDOWS.values():
            return None if self.right == ALL else self.own_offset + self.right
        return self.own_offset if self.masked else None

    @property
    def left_offset(self):
        """Key j is visible to query i when j >= i + left_offset; None where the mask has no left bound."""
        return None if self.left == ALL else self.own_offset - self.left

    def keys_of(self, row):
        """(first, end) of the keys that a query sees."""
        end = self.len_k if self.right_offset is None else min(max(row + self.right_offset + 1, 0), self.len_k)
        begin = 0 if self.left_offset is None else min(max(row + self.left_offset, 0), self.len_k)
        return begin, max(begin, end)

    @property
    def element_bytes(self):
        """Bytes of one number of a tensor."""
        return BYTES[self.dtype]

    @property
    def set_bytes(self):
        """Bytes of one set of inputs and its output."""
        return (self.batch * self.heads * self.len_q + self.batch * self.heads_kv * self.len_k) * 2 * self.dim * BYTES[self.dtype]

    @property
    def input_bytes(self):
        """Bytes of one set of inputs."""
        return (self.batch * self.heads * self.len_q + 2 * self.batch * self.heads_kv * self.len_k) * self.dim * BYTES[self.dtype]

    @property
    def flops(self):
        """Floating-point operations of both products over the scores that the mask leaves."""
        rows = self.len_q * self.len_k
        if self.masked:
            rows = sum(end - begin for begin, end in map(self.keys_of, range(self.len_q)))
        return 4 * self.dim * rows * self.batch * self.heads

    def __str__(self):
        text = f"b{self.batch}h{self.heads}"
        text += f"hkv{self.heads_kv}" if self.heads_kv != self.heads else ""
        text += f"l{self.len_q}"
        text += f"k{self.len_k}" if self.len_k != self.len_q else ""
        text += f"d{self.dim}:{self.dtype}"
        text += f":{self.mask}" if self.mask in MASKS and self.masked else ""
        if self.windowed:
            names = {mask: name for name, mask in WINDOWS.items()}
            text += f":{names.get(self.mask, 'window')}={self.left}" + (f"/{self.right}" if self.right != ALL else "")
        text += f":{self.layout}" if self.layout != "bhld" else ""
        return text + (f":scale={self.scale_text}" if self.scale_text else "")


def parse_workload(text):
    """The workload a text names, e.g. "b8h32hkv4l1k8192d128:bf16". Raises BadWorkload."""
    shape, *rest = text.split(":")
    if not re.fullmatch(r"(?:(?:hkv|dv|b|h|l|k|d)\d+)+", shape):
        raise BadWorkload(f'workload "{text}": "{shape}" is no shape; write for example b1h8l512d64')
    pairs = re.findall(r"(hkv|dv|b|h|l|k|d)(\d+)", shape)
    given = {key: int(value) for key, value in pairs}
    if len(given) != len(pairs):
        raise BadWorkload(f'workload "{text}": a dimension is given twice')
    if "l" not in given or "d" not in given:
        raise BadWorkload(f'workload "{text}": l and d are needed; write for example b1h8l512d64')
    if min(given.values()) < 1:
        raise BadWorkload(f'workload "{text}": every dimension is at least 1')
    if given.get("dv", given["d"]) != given["d"]:
        raise BadWorkload(f'workload "{text}": the arena takes equal head dims for keys and values')
    heads = given.get("h", 1)
    heads_kv = given.get("hkv", heads)
    if heads % heads_kv:
        raise BadWorkload(f'workload "{text}": h must be a multiple of hkv')
    options = {}
    window = None
    for part in rest:
        name, equals, numbers = part.partition("=")
        if equals and name in WINDOWS:
            if window:
                raise BadWorkload(f'workload "{text}": the window is given twice')
            window = name, *_window(text, numbers)
            continue
        field = "dtype" if part in DTYPES else "mask" if part in MASKS else "layout" if part in LAYOUTS else ""
        if part.startswith("scale="):
            field, part = "scale_text", part[6:]
            try:
                positive = 0 < float(part) < float("inf")
            except ValueError:
                positive = False
            if not positive:
                raise BadWorkload(f'workload "{text}": "{part}" is no finite positive scale')
        if not field or field in options:
            raise BadWorkload(f'workload "{text}": "{part}" is no dtype, mask, layout or scale=NUMBER, or one too many')
        options[field] = part
    plain = Workload(given.get("b", 1), heads, heads_kv, given["l"], given.get("k", given["l"]), given["d"], **options)
    return _with_window(text, plain, *window) if window else plain


def _window(text, numbers):
    """(left, right) of "LEFT" or "LEFT/RIGHT". Raises BadWorkload."""
    if not re.fullmatch(r"(-1|\d+)(/(-1|\d+))?", numbers):
        raise BadWorkload(f'workload "{text}": "{numbers}" is no window; write for example window=255 or window=128/128, with -1 for all keys')
    left, _, right = numbers.partition("/")
    return int(left), int(right or ALL)


def _with_window(text, w, name, left, right):
    """The workload with a window, without bounds that hide nothing, as heed::reduced has it. Raises BadWorkload."""
    if w.masked:
        if name != "window" or right not in (ALL, 0):
            raise BadWorkload(f'workload "{text}": {w.mask} says how the mask is aligned and that it ends with the own key; write window={left}')
        right = ALL
    else:
        w = replace(w, mask=WINDOWS[name] if w.len_q != w.len_k else WINDOWS["window"])
    if w.len_q - 1 + w.own_offset <= left:
        left = ALL
    if w.mask in MASKS:
        return replace(w, left=left)
    if right != ALL and w.own_offset + right + 1 >= w.len_k:
        right = ALL
    if right == 0:
        return replace(w, mask=w.mask.replace("window", "causal"), left=left)
    return replace(w, left=left, right=right, mask=w.mask if (left, right) != (ALL, ALL) else "none")


@dataclass(frozen=True)
class Suite:
    """A fixed list of workloads and how each is measured."""

    name: str
    title: str
    workloads: tuple
    modes: tuple  # of graph_warm, graph_cold, eager, acceptance
    unit: str  # of the chart: us, TFLOP/s or error
    copies: bool = False  # whether a copy of as many bytes is timed beside: where memory is the bound


def _both_masks(*shapes):
    return tuple(shape + mask for shape in shapes for mask in ("", ":causal_top_left"))


LATENCY = ("b1h8l512d64", "b4h16l512d64", "b1h8l1024d64", "b1h8l2048d64", "b1h16l256d128", "b1h32l1024d128", "b64h12l128d64")
TOKENS = 16384
HIDDEN = 2048
RANDOM_WORKLOADS = 100
RANDOM_CALLS = 200
MOST_CALL_FLOPS = 4e11  # of a random call: half a millisecond of an H100
MOST_CALL_BYTES = 2**28


def _throughput():
    return tuple(
        f"b{TOKENS // length}h{HIDDEN // dim}l{length}d{dim}:{dtype}{mask}"
        for dtype in ("fp16", "bf16")
        for dim in (64, 128, 256)
        for mask in ("", ":causal_top_left")
        for length in (512, 1024, 2048, 4096, 8192, 16384)
    )


def _cpu():
    dtypes = ("fp32", "bf16", "fp16")
    full = [f"b1h8l512d64:{dtype}{mask}" for dtype in dtypes for mask in ("", ":causal_top_left")]
    short = [f"b8h12l128d64:{dtype}" for dtype in dtypes]
    return (*full, *short, "b1h32hkv8l1k4096d128:bf16", "b1h8l2048d64:bf16")


def _windows():
    """Dense causal rows beside windows of as many keys as Gemma-2, Mistral and gpt-oss take, and one that looks both ways."""
    return tuple(
        f"b{TOKENS // length}h{HIDDEN // dim}l{length}d{dim}:bf16{mask}"
        for dim in (64, 128)
        for length in (4096, 16384)
        for mask in (":causal_top_left", ":causal_top_left:window=1023", ":causal_top_left:window=127", ":window=512/512")
    )


MODELS = (  # what each row is
    ("b1h8l512d64:fp16", "short, few heads"),
    ("b1h32hkv8l2048d128:bf16:causal_top_left", "Llama-3-8B prefill"),
    ("b16h32hkv8l1k4096d128:bf16", "Llama-3-8B decode, batch 16"),
    ("b4h14hkv2l1024d64:bf16:causal_top_left", "Qwen2.5-0.5B"),
    ("b1h16hkv8l4096d256:bf16:causal_top_left", "Gemma-2-9B, without softcap"),
    ("b32h12l384d64:fp16", "BERT-base, SQuAD"),
    ("b8h12l512d64:fp16", "BERT-base"),
    ("b64h16l257d64:fp16", "CLIP ViT-L/14"),
    ("b128h6l197d64:fp16", "DeiT-S"),
    ("b2h10l4096k77d64:fp16", "SDXL cross attention"),
    ("b2h10l4096d64:fp16", "SDXL self attention"),
    ("b2h20l1024d64:fp16", "SDXL self attention, inner"),
    ("b1h24l4608d128:bf16", "FLUX.1 joint attention"),
    ("b1h20l1500d64:fp16", "Whisper large encoder"),
    ("b1h20l448k1500d64:fp16", "Whisper cross attention, prefill"),
    ("b1h20l1k1500d64:fp16", "Whisper cross attention, decode"),
    ("b4h20l1022d64:fp16", "ESM-2"),
    ("b384h4l384d32:fp16", "AlphaFold row attention, without bias"),
    ("b1h32l2048d96:fp16:causal_top_left", "Phi-3-mini"),
    ("b2h8l4096d40:fp16", "Stable Diffusion 1.5"),
    ("b2h8l1024d80:fp16", "Stable Diffusion 1.5"),
    ("b2h8l256d160:fp16", "Stable Diffusion 1.5"),
    ("b8h32hkv8l5k4096d128:bf16:causal_bottom_right", "speculative decode, 5 tokens"),
    ("b1h32hkv8l512k8192d128:bf16:causal_bottom_right", "chunked prefill"),
    ("b8h12l1024d64:fp16:causal_top_left", "GPT-2"),
    ("b1h32hkv8l4096d128:bf16:causal_top_left", "Mixtral prefill"),
    ("b1h8l65536d64:fp16:causal_top_left", "long context"),
    ("b1h32hkv8l32768d128:bf16:causal_top_left", "Llama-3 at 32k"),
    ("b1h1l16d64:fp16", "tiny"),
    ("b1h8l100d64:fp16", "ragged and short"),
    ("b256h8l64d64:fp16", "many short sequences"),
    ("b1h64hkv8l1k131072d128:bf16", "Llama-3-70B decode at 128k"),
    ("b128h32hkv4l1k1024d128:bf16", "decode, batch 128"),
    ("b2h16l3000d128:bf16:blhd", "video tokens, (batch, length, head, dim)"),
    ("b1h128hkv1l1k4096d64:bf16", "one key head for 128 query heads"),
)


def random_workloads(seed, count=RANDOM_WORKLOADS):
    """Workloads that depend on the seed alone: small, ragged, grouped heads, both causal alignments, both layouts."""
    rng = random.Random(seed)
    chosen = []
    while len(chosen) < count:
        heads_kv = rng.choice((1, 2, 4, 8))
        heads = heads_kv * rng.choice([group for group in (1, 2, 4, 8) if heads_kv * group <= 8])
        len_q = rng.randint(1, 700)
        len_k = len_q if rng.random() < 0.5 else rng.randint(1, 700)
        workload = Workload(
            rng.randint(1, 4), heads, heads_kv, len_q, len_k, rng.choice((64, 128)), rng.choice(("fp16", "bf16")), rng.choice(MASKS), rng.choice(LAYOUTS)
        )
        if str(workload) not in chosen:
            chosen.append(str(workload))
    return tuple(chosen)


def random_calls(seed, count=RANDOM_CALLS):
    """Workloads of the kinds that models send, by the seed alone: prefill, decoding of one and of a few queries, cross attention and
    batches of short rows; head dims up to 256, groups up to 128, both layouts."""
    rng = random.Random(seed)
    chosen = {}
    while len(chosen) < count:
        kind = rng.choice(("prefill", "prefill", "decode", "speculative", "cross", "short"))
        dim = rng.choice((32, 40, 64, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256))
        heads_kv = rng.choice((1, 2, 4, 8, 16))
        heads = heads_kv * rng.choice((1, 1, 2, 4, 8, 16, 32, 64, 128))
        batch = rng.choice((1, 1, 2, 4, 8, 16, 64)) if kind != "short" else rng.choice((16, 32, 64, 128))
        length = round(2 ** rng.uniform(7, 14))
        len_q, len_k = {
            "prefill": (length, length),
            "decode": (1, length),
            "speculative": (rng.randint(2, 16), length),
            "cross": (length, round(2 ** rng.uniform(4, 12))),
            "short": (len_short := rng.randint(16, 256), len_short),
        }[kind]
        masks = {"decode": ("none",), "speculative": ("causal_bottom_right",), "cross": ("none", "none", "causal_bottom_right")}.get(kind, ("none", "causal_top_left"))
        w = Workload(batch, heads, heads_kv, len_q, len_k, dim, rng.choice(("fp16", "bf16")), rng.choice(masks), rng.choice(LAYOUTS))
        if heads <= 128 and 4 * w.dim * w.len_q * w.len_k * batch * heads <= MOST_CALL_FLOPS and w.set_bytes <= MOST_CALL_BYTES:
            chosen[str(w)] = None
    return tuple(chosen)


DECODE = ("b8h32hkv4l1k8192d128", "b1h32hkv8l1k32768d128", "b64h32hkv8l1k2048d128")


def suites(seed=1):
    """Every suite by name; the seed decides acceptance's and random's workloads."""
    acceptance = _both_masks("b1h8l512d64", "b2h8l2048d64", "b2h8l2048d128") + random_workloads(seed)
    # A set of throughput's or decode's inputs alone exceeds an L2: every call reads cold inputs, and there is no warm mode.
    every = (
        Suite("latency", "small and medium shapes, full and causal, fp16", _both_masks(*LATENCY), ("graph_warm", "graph_cold"), "us"),
        Suite("throughput", "16384 tokens, hidden 2048, full and causal, fp16 and bf16", _throughput(), ("graph_cold",), "TFLOP/s"),
        Suite("acceptance", f"six shapes and {RANDOM_WORKLOADS} random ones by seed: error against float64", acceptance, ("acceptance",), "error"),
        Suite("decode", "one query against a long cache of grouped heads, fp16", DECODE, ("graph_cold",), "us", copies=True),
        Suite("models", "calls of models in use: prefill, decoding, encoders, image and protein models", tuple(text for text, _ in MODELS), ("graph_warm",), "us"),
        Suite("random", f"{RANDOM_CALLS} calls of the kinds that models send, by seed: prefill, decoding, cross attention, short rows", random_calls(seed), ("graph_warm",), "us"),
        Suite("windows", "sliding windows of 1024 and 128 keys and of 512 to either side beside the dense causal mask, bf16", _windows(), ("graph_cold",), "TFLOP/s"),
        Suite("cpu", "a CPU: one shape in every dtype and mask, a batch of short rows, decoding, a long sequence", _cpu(), ("graph_warm",), "us"),
        Suite("eager", "host time per call, back to back and synchronised", tuple(LATENCY), ("eager",), "us"),
    )
    return {suite.name: suite for suite in every}


def custom(texts, modes):
    """A suite of the user's own workloads. Raises BadWorkload."""
    return Suite("shapes", "workloads of the command line", tuple(str(parse_workload(text)) for text in texts), tuple(modes), "us")

"""Everything the arena lets run, behind one small interface.

A contender has a name and prepares itself for a workload: `prepare(workload)` returns a function of (q, k, v), tensors of
shape (batch, head, length, dim), that returns o of q's shape; or raises Refused with the reason. Contenders of other
packages are taken in where the package can be imported.
"""

import contextlib
import importlib
import time
import warnings

import torch
from torch.nn.functional import scaled_dot_product_attention

from heed.launch import HeedAttention, HeedError


class Refused(RuntimeError):
    """A contender cannot run a workload; the message is the reason."""


def reason_of(error):
    """The first line of an exception, for a table."""
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]


def spoken_reason(error, warned):
    """Why SDPA refused: its exception only says that nothing was found, its warnings say why."""
    for warning in warned:
        text = str(warning.message).split(" (Triggered internally")[0].strip()
        if "not used because" not in text and "runtime disabled" not in text and "attention" in text.lower():
            return text.split("\n")[0][:300]
    return reason_of(error)


def first_call(call, tensors, synchronize):
    """Runs a prepared call once, to its end; returns its output. Raises Refused with the reason."""
    with warnings.catch_warnings(record=True) as warned, context_of(call):
        warnings.simplefilter("always")
        try:
            o = call(*tensors)
            synchronize()
            return o
        except Exception as error:  # each package raises its own types
            raise Refused(spoken_reason(error, warned)) from error


class Heed:
    """Heed's variant, as `heed build` answered for each workload (by text)."""

    name = "heed"

    def __init__(self, binaries):
        self.binaries = binaries

    def prepare(self, w):
        binary = self.binaries.get(str(w), {"refused": "it was not built"})
        if "refused" in binary:
            raise Refused(binary["refused"])
        try:
            return HeedAttention(binary, w)
        except HeedError as error:
            raise Refused(str(error)) from error


def seen_keys(w, device=None):
    """(len_q, len_k), true where a query sees a key."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    distance = torch.arange(w.len_k, device=device)[None, :] - torch.arange(w.len_q, device=device)[:, None]
    seen = torch.ones(w.len_q, w.len_k, dtype=torch.bool, device=device)
    if w.right_offset is not None:
        seen &= distance <= w.right_offset
    if w.left_offset is not None:
        seen &= distance >= w.left_offset
    return seen


def sdpa_arguments(w):
    """Keyword arguments of scaled_dot_product_attention for a workload."""
    arguments = {"scale": w.scale}
    if w.heads != w.heads_kv:
        arguments["enable_gqa"] = True
    if w.windowed:  # it has no window: an explicit boolean mask, which the flash backend refuses
        arguments["attn_mask"] = seen_keys(w)
    elif w.mask == "causal_top_left" or (w.masked and w.len_q == w.len_k):
        arguments["is_causal"] = True
    elif w.masked:
        from torch.nn.attention.bias import causal_lower_right

        with warnings.catch_warnings():  # it warns of NaN in rows without a key; the judge looks at those rows anyway
            warnings.simplefilter("ignore")
            arguments["attn_mask"] = causal_lower_right(w.len_q, w.len_k)
    return arguments


class Sdpa:
    """PyTorch's scaled_dot_product_attention: one backend by force, or whichever PyTorch chooses.

    https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
    """

    BACKENDS = {"sdpa_math": "MATH", "sdpa_flash": "FLASH_ATTENTION", "sdpa_efficient": "EFFICIENT_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION"}
    MATH_SHARE = 1 / 64  # of the device's memory: what the math backend's fp32 scores may take; it keeps copies and takes seconds a row

    def __init__(self, name, memory_bytes):
        self.name = name
        self.memory_bytes = memory_bytes

    def forced(self):
        """A context in which only this backend may run."""
        if self.name == "sdpa_default":
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(getattr(SDPBackend, self.BACKENDS[self.name]))

    def prepare(self, w):
        scores = 4 * w.batch * w.heads * w.len_q * w.len_k
        if self.name == "sdpa_math" and scores > self.MATH_SHARE * self.memory_bytes:
            raise Refused(f"left out by the arena: its fp32 scores alone take {scores / 2**30:.1f} GiB")
        arguments = sdpa_arguments(w)

        def call(q, k, v):
            return scaled_dot_product_attention(q, k, v, **arguments)

        call.context = self.forced
        return call


class TritonFlex:
    """torch.nn.attention.flex_attention compiled: a kernel that PyTorch's compiler generates as Triton.

    Compiling takes seconds a workload, so each suite has a budget of seconds; later workloads say that it was used up.
    https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """

    name = "triton_flex"

    def __init__(self, budget_s=45):
        self.flex = importlib.import_module("torch.nn.attention.flex_attention")
        self.budget_s = budget_s
        self.used_s = 0.0

    def new_suite(self):
        """The next suite has the whole budget again."""
        self.used_s = 0.0

    def prepare(self, w):
        if self.used_s > self.budget_s:
            raise Refused(f"not compiled: {self.budget_s} s of compiling in this suite were used up")
        begin = time.perf_counter()
        torch._dynamo.reset()  # else PyTorch refuses to compile the same function for an eighth shape
        right = w.len_k if w.right_offset is None else w.right_offset
        left = -w.len_q if w.left_offset is None else w.left_offset
        mask = None
        if w.masked:
            mask = self.flex.create_block_mask(lambda b, h, i, j: (j <= i + right) & (j >= i + left), None, None, w.len_q, w.len_k, device="cuda")
        compiled = torch.compile(self.flex.flex_attention, dynamic=False)

        def call(q, k, v):
            return compiled(q, k, v, block_mask=mask, scale=w.scale, enable_gqa=w.heads != w.heads_kv)

        try:
            shapes = [(w.batch, h, n, w.dim) for h, n in ((w.heads, w.len_q), (w.heads_kv, w.len_k), (w.heads_kv, w.len_k))]
            dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[w.dtype]
            tensors = [torch.zeros(s if w.layout == "bhld" else (s[0], s[2], s[1], s[3]), dtype=dtype, device="cuda") for s in shapes]
            call(*[x if w.layout == "bhld" else x.transpose(1, 2) for x in tensors])
        finally:
            self.used_s += time.perf_counter() - begin
        return call


class Foreign:
    """A function of another package that takes (batch, length, head, dim); imported when made."""

    layout_note = "(batch, length, head, dim)"

    def __init__(self, name, module, function, takes_windows=False):
        self.name = name
        self.takes_windows = takes_windows
        self.function = getattr(importlib.import_module(module), function)

    def prepare(self, w):
        if w.mask.endswith("top_left") and w.len_q != w.len_k:
            raise Refused("its masks are aligned to the bottom right")
        if w.windowed and not self.takes_windows:
            raise Refused("windows are not given to it by the arena")
        if w.dtype == "fp32":
            raise Refused("it computes fp16 and bf16")
        return self.bound(w)

    def bound(self, w):
        """FlashAttention's own signature, of versions 2, 3 and 4."""

        arguments = {"softmax_scale": w.scale, "causal": w.mask.startswith("causal")}
        if w.windowed:
            arguments["window_size"] = (w.left, w.right)

        def call(q, k, v):
            out = self.function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **arguments)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return call


class FlashInfer(Foreign):
    """flashinfer's single-request attention: (length, head, dim), no batch."""

    def bound(self, w):
        if w.batch != 1:
            raise Refused("its single-request interface has no batch")

        def call(q, k, v):
            q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
            return self.function(q, k, v, causal=w.masked, sm_scale=w.scale).transpose(0, 1)[None]

        return call


class XFormers(Foreign):
    """xformers.ops.memory_efficient_attention."""

    def bound(self, w):
        if w.heads != w.heads_kv:
            raise Refused("grouped heads are not given to it by the arena")
        bias = None
        if w.masked:
            masks = importlib.import_module("xformers.ops.fmha.attn_bias")
            bias = masks.LowerTriangularMask() if w.len_q == w.len_k else masks.LowerTriangularFromBottomRightMask()

        def call(q, k, v):
            return self.function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_bias=bias, scale=w.scale).transpose(1, 2)

        return call


SDPA_NAMES = (*Sdpa.BACKENDS, "sdpa_default")
FOREIGN = {
    "flash_attn_3": lambda: Foreign("flash_attn_3", "flash_attn_interface", "flash_attn_func", takes_windows=True),
    "flash_attn_2": lambda: Foreign("flash_attn_2", "flash_attn", "flash_attn_func", takes_windows=True),
    "flash_attn_4": lambda: Foreign("flash_attn_4", "flash_attn.cute.interface", "flash_attn_func"),
    "flashinfer": lambda: FlashInfer("flashinfer", "flashinfer", "single_prefill_with_kv_cache"),
    "xformers": lambda: XFormers("xformers", "xformers.ops", "memory_efficient_attention"),
    "triton_flex": TritonFlex,
}


def gather(wanted, cuda, memory_bytes):
    """Contenders by name, and {name: reason} of those that cannot be had here. `wanted` names them."""
    found, skipped = [], {}
    for name in wanted:
        if name in SDPA_NAMES:
            found.append(Sdpa(name, memory_bytes))
        elif not cuda:
            skipped[name] = "it needs a GPU"
        else:
            try:
                if name == "triton_flex":
                    importlib.import_module("triton")
                found.append(FOREIGN[name]())
            except Exception as error:  # a package that is broken raises anything when it is imported
                skipped[name] = reason_of(error)
    return found, skipped


def context_of(call):
    """The context in which a prepared call must run."""
    return getattr(call, "context", contextlib.nullcontext)()


def kernel_names(call, q, k, v):
    """Names of the device kernels (CPU: operators) that one call runs, at most 8. Empty where the profiler cannot say."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with context_of(call), profile(activities=[ProfilerActivity.CUDA if q.is_cuda else ProfilerActivity.CPU]) as p:
            call(q, k, v)
            if q.is_cuda:
                torch.cuda.synchronize()
        names = [e.name for e in p.events() if not q.is_cuda or str(e.device_type).endswith("CUDA")]
        return list(dict.fromkeys(names))[:8]
    except RuntimeError:  # no permission for the profiler
        return []

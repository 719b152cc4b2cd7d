"""What the arena lets run on quantised calls (heed.precision_suites): Heed by three ways, and what else computes attention in 8 bits.

A contender has a name and `prepare(call)`: a function of (q, k, v) that returns o, or Refused. Where it has `given`, that makes of fp16 (q, k, v)
what it takes, outside the time: inputs that are quantised already. Where it has `values`, that makes of o and v the numbers that o stands for, likewise.
Without `given` it takes fp16, and quantising is in its time.
"""

import ctypes
import importlib
import inspect
from dataclasses import dataclass

import torch

from heed import c_api, launch, precision_calls
from heed.contenders import Heed, Refused
from heed.launch import HeedAttention, HeedError
from heed.precision_suites import TensorFormat
from heed.reference import DTYPES

EIGHT_BITS = {"e4m3": 3, "e5m2": 4, "int8": 5}  # heed_dtype
SCALED = 1 << 5  # HEED_SCALED


def scales_of(tensor):
    """heed_scales of a Quantised tensor, whose factors are dense."""
    batch, heads, length, dim = tensor.elements.shape
    if tensor.granularity == "tensor":
        return c_api.Scales()
    if tensor.granularity == "head":
        return c_api.Scales(batch=heads, head=1)
    if tensor.granularity == "channel":
        return c_api.Scales(batch=heads * dim, head=dim, dim=1)
    blocks = tensor.factors.shape[2]
    return c_api.Scales(batch=heads * blocks, head=blocks, row=1, rows=tensor.rows or 1)


class HeedQuantised(Heed):
    """Heed's variant for a call whose inputs are quantised already, as `heed build` answered for its text."""

    def prepare(self, call):
        binary = self.binaries.get(call.text, {"refused": "it was not built"})
        if "refused" in binary:
            raise Refused(binary["refused"])
        return _QuantisedCall(binary, call)


class _QuantisedCall:
    def __init__(self, binary, call):
        self.binary, self.call, self.plan, self.workspace = binary, call, None, None
        self.formats = call.formats
        with open(binary["file"], "rb") as file:
            self.image = file.read()
        self.tensors = c_api.Tensors(struct_size=ctypes.sizeof(c_api.Tensors))

    def given(self, q, k, v):
        """The tensors as the call's mode quantises them."""
        return precision_calls.given(self.call, q, k, v)

    def _plan(self, tensors, o):
        elements = [getattr(tensor, "elements", tensor) for tensor in tensors]
        device = o.device.index or 0
        problem = launch.problem_of(self.call, o.is_cuda, device, *elements, o)
        for name, tensor in zip("qkv", tensors):
            if name in self.formats:
                setattr(problem, f"dtype_{name}", EIGHT_BITS[self.formats[name].dtype])
                setattr(problem, f"{name}_scales", scales_of(tensor))
        problem.flags |= SCALED
        self.plan = launch.Plan(self.binary, self.image, problem)
        info = self.plan.info
        if info.workspace_bytes:
            self.workspace = torch.empty(info.workspace_bytes + info.workspace_alignment, dtype=torch.uint8, device=o.device)
            self.workspace = self.workspace[-self.workspace.data_ptr() % info.workspace_alignment :]
            self.plan.prepare(self.workspace.data_ptr(), self._stream(o))

    @staticmethod
    def _stream(o):
        return torch.cuda.current_stream().cuda_stream if o.is_cuda else None

    def _output(self, tensors):
        w = self.call
        device = getattr(tensors[0], "elements", tensors[0]).device
        o = torch.empty((w.batch, w.heads, w.len_q, w.dim), dtype=DTYPES[w.dtype], device=device)
        if self.plan is None:
            self._plan(tensors, o)
        return o

    def _point(self, t, tensors, o):
        """heed_tensors of these tensors."""
        t.o = o.data_ptr()
        for name, tensor in zip("qkv", tensors):
            setattr(t, name, getattr(tensor, "elements", tensor).data_ptr())
            if name in self.formats:
                setattr(t, f"{name}_scale", tensor.factors.data_ptr())

    def _run(self, t, count, o, us=None):
        self.plan.run(t, count, self.workspace.data_ptr() if self.workspace is not None else None, self._stream(o), False, us)

    def __call__(self, *tensors):
        o = self._output(tensors)
        self._point(self.tensors, tensors, o)
        self._run(self.tensors, 1, o)
        return o

    def chain(self, arguments):
        """As heed.launch.HeedAttention.chain; None on a GPU."""
        outputs = [self._output(tensors) for tensors in arguments]
        if outputs[0].is_cuda:
            return None
        launches = (c_api.Tensors * len(arguments))()
        for one, tensors, o in zip(launches, arguments, outputs):
            one.struct_size = ctypes.sizeof(c_api.Tensors)
            self._point(one, tensors, o)
        us = ctypes.c_double()

        # The launches hold addresses alone: the tensors live as long as the function does.
        def run(held=(arguments, outputs)):
            self._run(launches, len(launches), held[1][-1], ctypes.byref(us))
            return us.value, held[1][-1]

        return run


class HeedHalf(Heed):
    """Heed's variant for the same tensors in fp16: what low precision is to be faster than."""

    name = "heed_fp16"
    is_exact = True  # as fp16 is: judged by its limits

    def prepare(self, call):
        binary = self.binaries.get(str(call.dense()), {"refused": "it was not built"})
        if "refused" in binary:
            raise Refused(binary["refused"])
        try:
            return HeedAttention(binary, call.dense())
        except HeedError as error:
            raise Refused(str(error)) from error


class HeedHalfSm80(HeedHalf):
    """The same by fwd_sm80, the family that computes in int8: what int8 gains on a GPU that has no other."""

    name = "heed_fp16_sm80"


class HeedCounted:
    """heed.attention with `precision=`: fp16 inputs, whose quantisation is in the time."""

    name = "heed_counted"

    def prepare(self, call):
        import heed

        def run(q, k, v):
            return heed.attention(q, k, v, causal=call.masked, scale=call.scale, precision=call.mode)

        return run


class Peer:
    """A function of another package."""

    def prepare(self, call):
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # a package that is broken raises anything when it is imported
            raise Refused(f"not importable: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
        return self.bound(module, call)


class FlashAttention3(Peer):
    """FlashAttention-3 on inputs in e4m3, a factor a head (arXiv 2407.08608): q, k and v of (batch, length, head, dim); o is bf16.

    https://github.com/Dao-AILab/flash-attention/blob/main/hopper/flash_attn_interface.py
    """

    name, module = "flash_attn_3_fp8", "flash_attn_interface"

    def bound(self, module, call):
        known = inspect.signature(module.flash_attn_func).parameters
        names = ["q_descale", "k_descale", "v_descale"] if "q_descale" in known else ["descale_q", "descale_k", "descale_v"]
        if names[0] not in known:
            raise Refused("this version takes no factors of inputs in 8 bits")

        def run(q, k, v):
            factors = dict(zip(names, (x.factors for x in (q, k, v))))
            out = module.flash_attn_func(*(x.elements for x in (q, k, v)), softmax_scale=call.scale, causal=call.masked, **factors)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        run.given = _by_head
        return run


def _by_head(q, k, v):
    """(q, k, v) in e4m3 by heads, (batch, length, head, dim)."""
    made = (precision_calls.quantise(x, TensorFormat("e4m3", "head")) for x in (q, k, v))
    return tuple(precision_calls.Quantised(x.elements.transpose(1, 2).contiguous(), x.factors, x.granularity) for x in made)


class SageAttention(Peer):
    """SageAttention 2 (arXiv 2411.10958): Q and K in int8, V in e4m3 or fp16 as it chooses for the GPU. It takes fp16: quantising is in its time.

    https://github.com/thu-ml/SageAttention
    """

    name, module = "sage_attention_2", "sageattention"

    def bound(self, module, call):
        def run(q, k, v):
            return module.sageattn(q, k, v, tensor_layout="HND", is_causal=call.masked, sm_scale=call.scale)

        return run


class CudnnFp8(Peer):
    """cuDNN's attention in e4m3 by its frontend: a factor a tensor, and O in e4m3 too.

    https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
    """

    name, module = "cudnn_fp8", "cudnn"

    def bound(self, module, call):
        return _CudnnCall(module, call)


@dataclass(frozen=True)
class _CudnnTensor(precision_calls.Quantised):
    inverse: torch.Tensor = None  # of the factor


class _CudnnCall:
    SCALARS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")

    def __init__(self, cudnn, call):
        self.cudnn, self.call = cudnn, call
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        float_type, e4m3 = cudnn.data_type.FLOAT, cudnn.data_type.FP8_E4M3
        graph = cudnn.pygraph(io_data_type=e4m3, intermediate_data_type=float_type, compute_data_type=float_type, handle=self.handle)
        self.sizes = {"q": (call.batch, call.heads, call.len_q, call.dim)}
        self.sizes |= dict.fromkeys("kv", (call.batch, call.heads_kv, call.len_k, call.dim))
        at = {name: graph.tensor(name=name, dim=list(size), stride=self._strides(size), data_type=e4m3) for name, size in self.sizes.items()}
        at |= {name: graph.tensor(name=name, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=float_type) for name in self.SCALARS}
        o, _, most_s, most_o = graph.sdpa_fp8(**at, is_inference=True, attn_scale=call.scale, use_causal_mask=call.masked)
        size = self.sizes["q"]
        o.set_output(True).set_dim(list(size)).set_stride(self._strides(size)).set_data_type(e4m3)
        for scalar in (most_s, most_o):
            scalar.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(float_type)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        self.graph, self.at, self.outputs = graph, at, (o, most_s, most_o)
        self.workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device="cuda")
        # Probabilities are at most 1.
        self.scale_s = torch.full((1, 1, 1, 1), precision_calls.LARGEST["e4m3"], device="cuda")
        self.descale_s = 1 / self.scale_s
        self.most = torch.zeros(2, 1, 1, 1, 1, device="cuda")

    @staticmethod
    def _strides(size):
        batch, heads, rows, dim = size
        return [heads * rows * dim, rows * dim, dim, 1]

    def given(self, q, k, v):
        """(q, k, v) in e4m3, a factor a tensor."""
        made = (precision_calls.quantise(x, TensorFormat("e4m3", "tensor")) for x in (q, k, v))
        return tuple(_CudnnTensor(x.elements, x.factors.view(1, 1, 1, 1), x.granularity, inverse=1 / x.factors.view(1, 1, 1, 1)) for x in made)

    def __call__(self, q, k, v):
        out = torch.empty(self.sizes["q"], dtype=torch.float8_e4m3fn, device="cuda")
        # O in e4m3 has V's factor: it is a mean of V, so that nothing saturates.
        factors = {"descale_q": q.factors, "descale_k": k.factors, "descale_v": v.factors}
        factors |= {"descale_s": self.descale_s, "scale_s": self.scale_s, "scale_o": v.inverse}
        pack = {self.at[name]: tensor for name, tensor in factors.items()}
        pack |= {self.at[name]: tensor.elements for name, tensor in (("q", q), ("k", k), ("v", v))}
        pack |= dict(zip(self.outputs, (out, self.most[0], self.most[1])))
        self.graph.execute(pack, self.workspace, handle=self.handle)
        return out

    @staticmethod
    def values(o, v):
        """The numbers of an output, whose factor is that of V."""
        return o.float() * v.factors


def contenders(suite, binaries, sm80):
    """What takes part beside Heed on the quantised inputs of a suite. `binaries` and `sm80` are answers of `heed build` by workload, the second ones
    of fwd_sm80 for the tensors in 16 bits."""
    if suite == "caches":
        return [HeedHalf(binaries)]
    peers = [HeedCounted(), HeedHalf(binaries), FlashAttention3(), SageAttention(), CudnnFp8()]
    return [*peers, HeedHalfSm80(sm80)] if suite == "int8" else peers

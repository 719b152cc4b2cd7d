"""Heed's binaries from Python: `heed build` makes them, ctypes loads and launches them.

On a GPU a cubin is launched through the driver API on PyTorch's current stream; a launch allocates nothing and waits for
nothing, so it can be captured in a CUDA graph. On a CPU the shared object's entry is called block by block from a few
threads (ctypes gives up Python's lock during each call).
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
"""

import ctypes
import itertools
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor


class HeedError(RuntimeError):
    """The heed program or a binary of it cannot be used; the message is a whole sentence."""


class TensorStrides(ctypes.Structure):
    """heed::TensorStrides of kernels/contract.hpp: elements; the head dim is contiguous."""

    _fields_ = [("batch", ctypes.c_longlong), ("head", ctypes.c_longlong), ("row", ctypes.c_longlong)]


class ForwardParams(ctypes.Structure):
    """heed::ForwardParams of kernels/contract.hpp."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "workspace", "counters")]
        + [(name, TensorStrides) for name in ("q_strides", "k_strides", "v_strides", "o_strides")]
        + [(name, ctypes.c_int) for name in ("batch", "heads", "heads_kv", "group_size", "len_q", "len_k", "causal_offset")]
        + [("scale", ctypes.c_float)]
    )


def check_contract(contract, struct=ForwardParams):
    """Compares the declaration above with what the heed program was compiled with. Raises HeedError."""
    here = {"size": ctypes.sizeof(struct), "offsets": {name: getattr(struct, name).offset for name, *_ in struct._fields_}}
    if here != {"size": contract["size"], "offsets": contract["offsets"]}:
        raise HeedError(f"this Python package declares kernel parameters of {here['size']} bytes that differ from the heed program's; take both from one version")


def build(heed, orders, folder, device, cache=None):
    """Builds [(workload text, variant text)] with one call of `heed build --list`.

    Returns its JSON: "device", "heed", "source_digest" and, in the order asked, "builds"; an entry that cannot be had
    holds "refused" with the reason. Raises HeedError.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        listing.writelines(f"{workload} {variant}\n" for workload, variant in orders)
        listing.flush()
        command = [heed, "build", "--list", listing.name, "--into", str(folder), "--device", device, "--json"]
        try:
            done = subprocess.run(command + (["--cache", str(cache)] if cache else []), capture_output=True, text=True, timeout=900)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HeedError(f"the heed program {heed} cannot be run: {error}") from error
    if done.returncode != 0:
        raise HeedError(f"heed build failed: {done.stderr.strip() or done.stdout.strip()[-500:]}")
    result = json.loads(done.stdout)
    check_contract(result["contract"])
    return result


# ------------------------------------------------------------------------------------------------ the driver

CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes that a cluster's dimensions start."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("dims", ctypes.c_uint * 3), ("rest", ctypes.c_ubyte * 52)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """The few driver calls that are needed, from libcuda.so.1. Raises HeedError where there is none."""

    def __init__(self, library="libcuda.so.1"):
        try:
            self.cuda = ctypes.CDLL(library)
        except OSError as error:
            raise HeedError(f"the NVIDIA driver cannot be loaded: {error}") from error
        pointer = ctypes.c_void_p
        self.cuda.cuModuleLoadData.argtypes = [ctypes.POINTER(pointer), ctypes.c_char_p]
        self.cuda.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
        self.cuda.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
        self.cuda.cuLaunchKernelEx.argtypes = [ctypes.POINTER(LaunchConfig), pointer, ctypes.POINTER(pointer), ctypes.POINTER(pointer)]

    def check(self, result, what):
        """Raises HeedError with the driver's words unless `result` is 0."""
        if result:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(result, ctypes.byref(text))
            raise HeedError(f"{what} failed: {(text.value or b'?').decode()} (CUDA error {result})")


_driver = None


def driver():
    """The one Driver of this process."""
    global _driver
    _driver = _driver or Driver()
    return _driver


class CudaKernel:
    """One cubin in PyTorch's context. `binary` is an entry of build()."""

    def __init__(self, binary):
        import torch

        self.torch = torch
        torch.cuda.current_stream().synchronize()  # the context is there and current
        api = driver()
        with open(binary["file"], "rb") as file:
            cubin = file.read()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        api.check(api.cuda.cuModuleLoadData(ctypes.byref(module), cubin), f"loading {binary['variant']}")
        api.check(api.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, binary["entry"].encode()), f"finding {binary['entry']}")
        api.check(
            api.cuda.cuFuncSetAttribute(self.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, binary["shared_bytes"]), "asking for shared memory"
        )
        self.config = LaunchConfig((ctypes.c_uint * 3)(*binary["grid"]), (ctypes.c_uint * 3)(binary["threads"], 1, 1), binary["shared_bytes"])
        if binary["cluster"] > 1:
            self.attribute = LaunchAttribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 3)(binary["cluster"], 1, 1))
            self.config.attributes = ctypes.pointer(self.attribute)
            self.config.attribute_count = 1
        self.device = torch.device("cuda")
        self.arguments = (ctypes.c_void_p * 1)()

    def launch(self, params):
        """Queues one launch on PyTorch's current stream; the driver copies the parameters before it returns."""
        self.config.stream = self.torch.cuda.current_stream().cuda_stream
        self.arguments[0] = ctypes.addressof(params)
        result = _driver.cuda.cuLaunchKernelEx(ctypes.byref(self.config), self.function, self.arguments, None)
        if result:
            _driver.check(result, "launching the kernel")


class CpuKernel:
    """One shared object, its blocks shared by a few threads. `binary` is an entry of build()."""

    ALIGNMENT = 64

    def __init__(self, binary):
        import torch

        self.device = torch.device("cpu")
        try:
            self.entry = getattr(ctypes.CDLL(binary["file"]), binary["entry"])
        except (OSError, AttributeError) as error:
            raise HeedError(f"{binary['file']} cannot be loaded: {error}") from error
        self.entry.argtypes = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p]
        self.entry.restype = None
        self.blocks = binary["grid"][0]
        self.threads = min(binary["threads"], self.blocks)
        self.memory = [ctypes.create_string_buffer(binary["shared_bytes"] + self.ALIGNMENT) for _ in range(self.threads)]
        self.scratch = [-(-ctypes.addressof(buffer) // self.ALIGNMENT) * self.ALIGNMENT for buffer in self.memory]
        self.pool = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def launch(self, params):
        """Runs every block; returns when all are done."""
        address = ctypes.addressof(params)
        turn = itertools.count()  # one step of it is atomic under Python's lock

        def work(scratch):
            block = next(turn)
            while block < self.blocks:
                self.entry(address, block, scratch)
                block = next(turn)

        others = [self.pool.submit(work, scratch) for scratch in self.scratch[1:]]
        work(self.scratch[0])
        for other in others:
            other.result()

    def __del__(self):
        if getattr(self, "pool", None):
            self.pool.shutdown(wait=False)


def strides_of(tensor):
    """Strides of a (batch, head, length, dim) tensor whose head dim is contiguous."""
    if tensor.stride(3) != 1:
        raise HeedError("the head dim of a tensor must be contiguous")
    return TensorStrides(tensor.stride(0), tensor.stride(1), tensor.stride(2))


class HeedAttention:
    """A built variant as a function of tensors, for one workload (suites.Workload)."""

    def __init__(self, binary, workload):
        import torch

        self.torch = torch
        self.workload = w = workload
        self.binary = binary
        self.kernel = CudaKernel(binary) if binary["file"].endswith(".cubin") else CpuKernel(binary)
        self.workspace = torch.zeros(max(1, binary["workspace_bytes"]), dtype=torch.uint8, device=self.kernel.device)
        params = self.params = ForwardParams()
        params.workspace = self.workspace.data_ptr() if binary["workspace_bytes"] else None
        params.batch, params.heads, params.heads_kv, params.group_size = w.batch, w.heads, w.heads_kv, w.heads // w.heads_kv
        params.len_q, params.len_k, params.causal_offset, params.scale = w.len_q, w.len_k, w.causal_offset, w.scale

    def into(self, q, k, v, o):
        """Launches with these (batch, head, length, dim) tensors; allocates nothing, waits for nothing on a GPU."""
        p = self.params
        p.q, p.k, p.v, p.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        p.q_strides, p.k_strides, p.v_strides, p.o_strides = strides_of(q), strides_of(k), strides_of(v), strides_of(o)
        self.kernel.launch(p)

    def __call__(self, q, k, v):
        o = self.torch.empty_like(q)  # from PyTorch's pool, as every other contender's output
        self.into(q, k, v, o)
        return o


def find_heed(path):
    """The heed program. Raises HeedError when there is none."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise HeedError(f"the heed program was not found at {path}; build it with `make` or name it with --heed PATH")
    return os.path.abspath(path)

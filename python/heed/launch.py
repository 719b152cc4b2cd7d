"""Heed's binaries from Python: `heed build` makes them, ctypes loads and launches them.

On a GPU a cubin is launched through the driver API on PyTorch's current stream; a launch allocates nothing and waits for
nothing, so it can be captured in a CUDA graph. On a CPU libheed_launch.so, which is built beside the heed program, runs the
shared object's blocks on pinned threads, as a worker of Heed does (lib/launch/cpu_launcher.hpp).
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
"""

import ctypes
import json
import os
import subprocess
import tempfile


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
        + [(name, ctypes.c_int) for name in ("batch", "heads", "heads_kv", "group_size", "len_q", "len_k", "right_offset")]
        + [("scale", ctypes.c_float), ("left_offset", ctypes.c_int)]
    )


def check_contract(contract, struct=ForwardParams):
    """Compares the declaration above with what the heed program was compiled with. Raises HeedError."""
    here = {"size": ctypes.sizeof(struct), "offsets": {name: getattr(struct, name).offset for name, *_ in struct._fields_}}
    if here != {"size": contract["size"], "offsets": contract["offsets"]}:
        raise HeedError(f"this Python package declares kernel parameters of {here['size']} bytes that differ from the heed program's; take both from one version")


def build(heed, orders, folder, device, cache=None):
    """Builds [(workload text, variant text)] with one call of `heed build --list`.

    Returns its JSON: "device", "heed", "source_digest", "family_digests" and, in the order asked, "builds"; an entry that cannot be had
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
    for entry in result["builds"]:
        entry["launcher"] = os.path.join(os.path.dirname(os.path.abspath(heed)), "libheed_launch.so")
    return result


# ------------------------------------------------------------------------------------------------ the driver

CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
CU_TENSOR_MAP_DATA_TYPE = {"fp16": 6, "bf16": 9}
CU_TENSOR_MAP_SWIZZLE = {32: 1, 64: 2, 128: 3}  # by the bytes of a box's row
CU_TENSOR_MAP_L2_PROMOTION = {0: 0, 64: 1, 128: 2, 256: 3}  # by the bytes that the L2 fetches at once
TENSOR_MAP_BYTES = 128
MOST_MAPS = 256  # parameter blocks whose tensor maps are kept


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes that a cluster's dimensions start, or a flag."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("dims", ctypes.c_uint * 3), ("rest", ctypes.c_ubyte * 52)]


class TensorMap(ctypes.Structure):
    """heed::TensorMap: an opaque CUtensorMap."""

    _fields_ = [("opaque", ctypes.c_ubyte * TENSOR_MAP_BYTES)]


class TensorMaps(ctypes.Structure):
    """heed::TensorMaps of kernels/contract.hpp. Its address must be a multiple of 128: see aligned_maps."""

    _fields_ = [(name, TensorMap) for name in ("q", "k", "v", "o")]


def aligned_maps():
    """Zero TensorMaps where the driver can encode them; they keep their memory alive."""
    memory = ctypes.create_string_buffer(ctypes.sizeof(TensorMaps) + TENSOR_MAP_BYTES)
    return TensorMaps.from_buffer(memory, -ctypes.addressof(memory) % TENSOR_MAP_BYTES)


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
        self.encode = getattr(self.cuda, "cuTensorMapEncodeTiled", None)  # only variants with bulk copies need it
        if self.encode:
            words, halves = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
            self.encode.argtypes = [pointer, ctypes.c_int, ctypes.c_uint32, pointer, words, words, halves, halves] + [ctypes.c_int] * 4

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


def map_shape(params, boxes, name):
    """What the map of tensor `name` (q, k, v or o) is encoded from: (address, extents, strides in bytes, box).

    Dimensions are (head dim, row, head, batch). The rows of k and v end with the last key that any query attends to; a
    dimension of size 1 gets a legal stride. `boxes` is that of build()'s entry. Raises HeedError, as heed::tensor_map_shape.
    """
    keys = params.len_k if boxes["mask"] == "none" else min(params.len_k, params.len_q + params.right_offset)
    rows, heads = (params.len_q, params.heads) if name in "qo" else (max(1, keys), params.heads_kv)
    address, strides = getattr(params, name) or 0, getattr(params, f"{name}_strides")
    if address == 0 or address % 16:
        raise HeedError(f"{name} lies at address {address:#x}; bulk copies need a multiple of 16 bytes")
    extents = (boxes["head_dim"], rows, heads, params.batch)
    in_bytes = []
    for dimension, size in zip(("row", "head", "batch"), extents[1:]):
        stride = getattr(strides, dimension)
        legal = stride > 0 and stride % 8 == 0
        if not legal and size > 1:
            raise HeedError(f"the {dimension} stride of {name} is {stride} elements; bulk copies need a positive multiple of 8 elements (16 bytes)")
        in_bytes.append(2 * (stride if legal else boxes["head_dim"]))
    columns = boxes["o_columns"] if name == "o" and boxes["o_columns"] else boxes["columns"]
    return address, extents, tuple(in_bytes), (columns, boxes[f"{name}_rows"], 1, 1)


def encode_maps(params, boxes):
    """TensorMaps of a launch; of a tensor without rows in `boxes` all zero. Raises HeedError."""
    api, maps = driver(), aligned_maps()
    if not api.encode:
        raise HeedError("the NVIDIA driver has no tensor maps (cuTensorMapEncodeTiled), which this variant's bulk copies need")
    for name in ("q", "k", "v", "o"):
        if not boxes[f"{name}_rows"]:
            continue
        address, extents, strides, box = map_shape(params, boxes, name)
        result = api.encode(
            ctypes.addressof(getattr(maps, name)),
            CU_TENSOR_MAP_DATA_TYPE[boxes["element"]],
            len(extents),
            address,
            (ctypes.c_uint64 * 4)(*extents),
            (ctypes.c_uint64 * 3)(*strides),
            (ctypes.c_uint32 * 4)(*box),
            (ctypes.c_uint32 * 4)(1, 1, 1, 1),
            0,  # not interleaved
            CU_TENSOR_MAP_SWIZZLE[2 * box[0]],
            CU_TENSOR_MAP_L2_PROMOTION[boxes["l2_bytes"]],
            0,  # what lies outside is read as zeros
        )
        api.check(result, f"encoding the tensor map of {name}")
    return maps


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
        attributes = []
        if binary["cluster"] > 1:
            attributes.append(LaunchAttribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 3)(binary["cluster"], 1, 1)))
        self.plain = len(attributes)
        attributes.append(LaunchAttribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_uint * 3)(1, 0, 0)))
        self.attributes = (LaunchAttribute * len(attributes))(*attributes)
        self.config.attributes = ctypes.cast(self.attributes, ctypes.POINTER(LaunchAttribute))
        self.boxes, self.maps = binary["boxes"], {}
        self.device = torch.device("cuda")
        self.arguments = (ctypes.c_void_p * (2 if self.boxes else 1))()

    def maps_of(self, params):
        """The TensorMaps of these parameters, encoded when they are first seen."""
        key = bytes(params)
        maps = self.maps.get(key)
        if maps is None:
            if len(self.maps) >= MOST_MAPS:
                self.maps.clear()
            maps = self.maps[key] = encode_maps(params, self.boxes)
        return maps

    def launch(self, params, dependent=False):
        """Queues one launch on PyTorch's current stream; the driver copies the parameters before it returns.

        `dependent`: as a programmatic dependent of the launch before it, for a variant whose plan allows it.
        """
        self.config.stream = self.torch.cuda.current_stream().cuda_stream
        self.config.attribute_count = self.plain + dependent
        self.arguments[0] = ctypes.addressof(params)
        if self.boxes:
            self.arguments[1] = ctypes.addressof(self.maps_of(params))
        result = _driver.cuda.cuLaunchKernelEx(ctypes.byref(self.config), self.function, self.arguments, None)
        if result:
            _driver.check(result, "launching the kernel")


class CpuKernel:
    """One shared object, its blocks shared by pinned threads. `binary` is an entry of build()."""

    def __init__(self, binary):
        import torch

        self.device = torch.device("cpu")
        self.launcher = None
        try:
            self.entry = ctypes.cast(getattr(ctypes.CDLL(binary["file"]), binary["entry"]), ctypes.c_void_p)
        except (OSError, AttributeError) as error:
            raise HeedError(f"{binary['file']} cannot be loaded: {error}") from error
        self.library = launcher_library(binary["launcher"])
        self.blocks = binary["grid"][0]
        self.launcher = self.library.heed_cpu_open(binary["threads"], binary["shared_bytes"])
        if not self.launcher:
            raise HeedError(f"{binary['threads']} threads with {binary['shared_bytes']} bytes of scratch each cannot be had")

    def run(self, params, launches=1):
        """Launches an array of parameters one after another; returns the microseconds they took together."""
        return self.library.heed_cpu_run(self.launcher, self.entry, ctypes.addressof(params), launches, self.blocks)

    def launch(self, params, dependent=False):
        """Runs every block; returns when all are done."""
        self.run(params)

    def __del__(self):
        if self.launcher:
            self.library.heed_cpu_close(self.launcher)


_launchers = {}


def launcher_library(path):
    """libheed_launch.so, loaded once. Raises HeedError."""
    if path not in _launchers:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise HeedError(f"{path}, which lies beside the heed program, cannot be loaded: {error}; build it with `make`") from error
        library.heed_cpu_open.argtypes, library.heed_cpu_open.restype = [ctypes.c_int, ctypes.c_longlong], ctypes.c_void_p
        library.heed_cpu_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong]
        library.heed_cpu_run.restype = ctypes.c_double
        library.heed_cpu_close.argtypes, library.heed_cpu_close.restype = [ctypes.c_void_p], None
        library.heed_trim_window.argtypes, library.heed_trim_window.restype = [ctypes.c_void_p, ctypes.c_int], None
        _launchers[path] = library
    return _launchers[path]


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
        self.counters = torch.zeros(max(1, binary["counters"]), dtype=torch.int32, device=self.kernel.device)  # launches leave them at zero
        self.o_strides = tuple(binary["o_strides"] or ())  # the only ones the program writes to; empty: any
        params = self.params = ForwardParams()
        params.workspace = self.workspace.data_ptr() if binary["workspace_bytes"] else None
        params.counters = self.counters.data_ptr() if binary["counters"] else None
        params.batch, params.heads, params.heads_kv, params.group_size = w.batch, w.heads, w.heads_kv, w.heads // w.heads_kv
        params.len_q, params.len_k, params.scale = w.len_q, w.len_k, w.scale
        params.left_offset = w.left_offset or 0
        params.right_offset = w.len_k if w.right_offset is None and w.left_offset is not None else w.right_offset or 0

    def into(self, q, k, v, o, dependent=False):
        """Launches with these (batch, head, length, dim) tensors; waits for nothing on a GPU, and but for the tensor maps of
        tensors not seen before allocates nothing. `dependent` as for CudaKernel.launch."""
        if self.o_strides and any(n > 1 and got != own for n, got, own in zip(o.shape, o.stride(), self.o_strides)):
            raise HeedError(f"an output with strides {o.stride()[:3]} was given to a variant that is built for {self.o_strides} "
                            "alone; give such an output, or build the variant with o_layout=strided")
        self._queue(q, k, v, o, dependent)

    def bind(self, q, k, v, o):
        """Parameters of a launch with these tensors: keys in front of the first that any query sees are no part of it."""
        p = self.params
        p.q, p.k, p.v, p.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        p.q_strides, p.k_strides, p.v_strides, p.o_strides = strides_of(q), strides_of(k), strides_of(v), strides_of(o)
        return self.trimmed(p) if self.workload.left_offset is not None else p

    def trimmed(self, params):
        """The same launch without those keys."""
        p = ForwardParams()
        ctypes.memmove(ctypes.addressof(p), ctypes.addressof(params), ctypes.sizeof(p))
        launcher_library(self.binary["launcher"]).heed_trim_window(ctypes.addressof(p), self.workload.element_bytes)
        return p

    def _queue(self, q, k, v, o, dependent=False):
        self.kernel.launch(self.bind(q, k, v, o), dependent)

    def chain(self, arguments):
        """On a CPU: a function that launches with each of these (q, k, v) in turn, without Python in between, and returns
        (microseconds, the last output). Outputs are made once, one for each q. None on a GPU."""
        if not isinstance(self.kernel, CpuKernel):
            return None
        outputs = {}
        launches = (ForwardParams * len(arguments))()
        for params, (q, k, v) in zip(launches, arguments):
            if q.data_ptr() not in outputs:
                outputs[q.data_ptr()] = self.output_for(q)
            bound = self.bind(q, k, v, outputs[q.data_ptr()])
            ctypes.memmove(ctypes.addressof(params), ctypes.addressof(bound), ctypes.sizeof(params))
        last = outputs[arguments[-1][0].data_ptr()]

        # The launches hold addresses alone: the tensors live as long as the function does.
        def run(held=(arguments, outputs)):
            return self.kernel.run(launches, len(launches)), last

        return run

    def output_for(self, q):
        """An output for these queries, from PyTorch's pool as every other contender's: laid out as they are, or by the strides that
        the variant is built for."""
        if self.o_strides:
            return self.torch.empty_strided(q.shape, (*self.o_strides, 1), dtype=q.dtype, device=q.device)
        return self.torch.empty_like(q)

    def __call__(self, q, k, v):
        o = self.output_for(q)
        self._queue(q, k, v, o)
        return o

    def as_dependent(self):
        """The same function, launched as a programmatic dependent of the launch before it; None where the plan does not allow it."""
        if not self.binary["dependent"]:
            return None

        def call(q, k, v):
            o = self.output_for(q)
            self._queue(q, k, v, o, dependent=True)
            return o

        return call


def find_heed(path):
    """The heed program. Raises HeedError when there is none."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise HeedError(f"the heed program was not found at {path}; build it with `make` or name it with --heed PATH")
    return os.path.abspath(path)

"""The structs and functions of libheed's C interface (include/heed/heed.h) in ctypes."""

import ctypes
import platform


class HeedError(RuntimeError):
    """The heed program, the library or a binary cannot be used; the message is a whole sentence."""


ABI_VERSION = 5
CPU, CUDA = 0, 1
DTYPES = {"fp16": 0, "bf16": 1, "fp32": 2}
MASKS = {"none": 0, "causal_top_left": 1, "causal_bottom_right": 2, "window_top_left": 3, "window_bottom_right": 4}
RUN_DEPENDENT = 1
WANTS_LSE = 1
HAS_BIAS, HAS_SINKS, RAGGED, PAGED, SCALED = 2, 4, 8, 16, 32
HAS_ALIBI, ALIBI_BY_BATCH, KEY_LENGTHS, HAS_BLOCKS, HAS_PREFIX = 64, 128, 256, 512, 1024
HAS_RELATIVE_BIAS, RELATIVE_PAST = 2048, 4096
HAS_OUT_GATE, HAS_OUT_NORM, OUT_NORM_BY_HEAD = 8192, 16384, 32768


class Strides(ctypes.Structure):
    """heed_strides: elements, of (batch, head, length, dim)."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row", "dim")]


class Scales(ctypes.Structure):
    """heed_scales: where the scale factors of a quantised tensor lie."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row", "dim", "rows")]


class Problem(ctypes.Structure):
    """heed_problem."""

    _fields_ = (
        [(name, ctypes.c_uint32) for name in ("struct_size", "abi_version")]
        + [(name, ctypes.c_int32) for name in ("device_type", "device")]
        + [(name, ctypes.c_int64) for name in ("batch", "heads", "heads_kv", "len_q", "len_k", "dim", "dim_v")]
        + [(name, ctypes.c_int32) for name in ("dtype_q", "dtype_k", "dtype_v", "dtype_o", "mask", "dtype_bias")]
        + [(name, ctypes.c_int64) for name in ("window_left", "window_right")]
        + [(name, ctypes.c_double) for name in ("scale", "softcap", "dropout", "out_norm_eps")]
        + [(name, Strides) for name in ("q_strides", "k_strides", "v_strides", "o_strides", "bias_strides")]
        + [(name, ctypes.c_int64) for name in ("total_q", "total_k", "page_size", "pages", "page_table_stride", "block_rows", "block_keys", "block_most")]
        + [(name, Strides) for name in ("block_count_strides", "block_index_strides")]
        + [(name, ctypes.c_int64) for name in ("relative_buckets", "relative_max_distance")]
        + [(name, Scales) for name in ("q_scales", "k_scales", "v_scales")]
        + [("out_gate_strides", Strides)]
        + [("flags", ctypes.c_uint32), ("reserved_flags", ctypes.c_uint32), ("reserved", ctypes.c_uint64 * 8)]
    )


class Tensors(ctypes.Structure):
    """heed_tensors."""

    _fields_ = (
        [(name, ctypes.c_uint32) for name in ("struct_size", "reserved_flags")]
        + [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "bias", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table", "block_counts", "block_indices", "prefix_lengths", "relative_bias")]
        + [(name, ctypes.c_void_p) for name in ("q_scale", "k_scale", "v_scale", "out_gate", "out_norm_weight")]
        + [(name, ctypes.c_uint64) for name in ("dropout_seed", "dropout_offset")]
        + [(name, ctypes.c_int32) for name in ("dropout_first_entry", "reserved_dropout")]
        + [("reserved", ctypes.c_uint64 * 8)]
    )


class Options(ctypes.Structure):
    """heed_options."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("programs", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("image", ctypes.c_char_p),
        ("image_bytes", ctypes.c_size_t),
        ("build", ctypes.c_int32),
        ("debug", ctypes.c_int32),
        ("book", ctypes.c_char_p),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_context", ctypes.c_void_p),
        ("precision", ctypes.c_char_p),
        ("l2", ctypes.c_int32),
        ("listing", ctypes.c_int32),
        ("reserved", ctypes.c_uint64 * 2),
    ]


class PlanInfo(ctypes.Structure):
    """heed_plan_info."""

    _fields_ = (
        [(name, ctypes.c_uint32) for name in ("struct_size", "can_be_dependent")]
        + [(name, ctypes.c_size_t) for name in ("workspace_bytes", "workspace_alignment", "workspace_zeroed")]
        + [(name, ctypes.c_char_p) for name in ("family", "variant", "origin", "reason")]
        + [("flops", ctypes.c_double), ("o_strides", Strides)]
        + [(name, ctypes.c_uint32) for name in ("is_building", "reserved_building")]
        + [("precision", ctypes.c_char_p)]
    )


class Library:
    """libheed.so. Raises HeedError where it cannot be loaded or a call fails."""

    def __init__(self, path):
        try:
            self.lib = ctypes.CDLL(path)
        except OSError as error:
            raise HeedError(f"{path} cannot be loaded: {error}; build it with `make`") from error
        pointer = ctypes.c_void_p
        self.lib.heed_last_error.restype = ctypes.c_char_p
        self.lib.heed_plan_create.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Options), ctypes.POINTER(pointer)]
        self.lib.heed_plan_get_info.argtypes = [pointer, ctypes.POINTER(PlanInfo)]
        self.lib.heed_plan_prepare.argtypes = [pointer, pointer, pointer]
        self.lib.heed_plan_run_many.argtypes = [pointer, ctypes.POINTER(Tensors), ctypes.c_size_t, pointer, pointer, ctypes.c_uint32, ctypes.POINTER(ctypes.c_double)]
        self.lib.heed_plan_destroy.argtypes = [pointer]
        self.lib.heed_plan_destroy.restype = None
        self.run_many = self.lib.heed_plan_run_many

    def check(self, status):
        """Raises HeedError with the library's sentence unless `status` is 0."""
        if status:
            raise HeedError(self.lib.heed_last_error().decode())


def of_this_machine(device):
    """What evidence says of where it was measured, on "cpu" or "cuda": device, arch, driver, and the digest of the kernels' sources.
    Takes PyTorch."""
    import torch

    from heed import libraries

    lib = library(str(libraries.folder() / "libheed.so")).lib
    lib.heed_source_digest.restype = ctypes.c_char_p
    on_gpu = device == "cuda"
    capability = torch.cuda.get_device_capability() if on_gpu else ()
    driver = ctypes.c_int()
    if on_gpu:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "arch": f"sm_{capability[0]}{capability[1]}{'a' if capability == (9, 0) else ''}" if on_gpu else platform.machine(),
        "driver": f"{driver.value // 1000}.{driver.value % 1000 // 10}" if on_gpu else platform.release(),
        "source_digest": lib.heed_source_digest().decode(),
    }


_libraries = {}


def library(path):
    """The Library of a path, loaded once."""
    if path not in _libraries:
        _libraries[path] = Library(path)
    return _libraries[path]


def with_strides(tensor):
    """The tensor, or a dense copy of one whose strides are all 0 (torch.zeros(()).expand(..)), for which heed_strides means a dense tensor."""
    return tensor if any(tensor.stride()) else tensor.contiguous()


def strides_of(tensor):
    """heed_strides of a (batch, head, length, dim) tensor that with_strides gave."""
    return Strides(*tensor.stride())

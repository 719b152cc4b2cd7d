"""The structs and functions of libheed's page pools (include/heed/offload.h) in ctypes."""

import ctypes

from heed import c_api, libraries

HND, NHD = 0, 1
NO_MASK, CAUSAL = 0, 2


class Config(ctypes.Structure):
    """heed_offload_config."""

    _fields_ = (
        [(name, ctypes.c_uint32) for name in ("struct_size", "abi_version")]
        + [(name, ctypes.c_int32) for name in ("device_type", "device", "dtype", "page_layout")]
        + [(name, ctypes.c_int64) for name in ("layers", "heads", "heads_kv", "dim", "dim_v", "page_size", "host_pages", "device_pages", "sink_pages", "chunk_pages", "chunks")]
        + [(name, ctypes.c_double) for name in ("link_rate", "host_rate", "device_rate", "device_flops", "streamed_share", "link_bandwidth", "link_latency")]
        + [(name, ctypes.c_int32) for name in ("threads", "dtype_kv")]
        + [("programs", ctypes.c_char_p)]
        + [("k_scales", ctypes.POINTER(ctypes.c_float)), ("k_scale_count", ctypes.c_int64)]
        + [("v_scales", ctypes.POINTER(ctypes.c_float)), ("v_scale_count", ctypes.c_int64)]
        + [("reserved", ctypes.c_uint64 * 4)]
    )


class Call(ctypes.Structure):
    """heed_offload_call."""

    _fields_ = (
        [("struct_size", ctypes.c_uint32), ("layer", ctypes.c_int32), ("batch", ctypes.c_int64), ("sequences", ctypes.POINTER(ctypes.c_int64))]
        + [("len_k", ctypes.c_int64), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p), ("k_strides", c_api.Strides), ("v_strides", c_api.Strides)]
        + [("len_q", ctypes.c_int64), ("q", ctypes.c_void_p), ("o", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("q_strides", c_api.Strides), ("o_strides", c_api.Strides)]
        + [("mask", ctypes.c_int32), ("dtype_kv", ctypes.c_int32), ("window_left", ctypes.c_int64), ("scale", ctypes.c_double), ("softcap", ctypes.c_double)]
        + [("sinks", ctypes.c_void_p), ("reserved", ctypes.c_uint64 * 8)]
    )


class Info(ctypes.Structure):
    """heed_offload_info."""

    _fields_ = (
        [("struct_size", ctypes.c_uint32)]
        + [(name, ctypes.c_int32) for name in ("host_node", "device_node", "reserved_node")]
        + [(name, ctypes.c_uint64) for name in ("host_bytes", "device_bytes")]
        + [(name, ctypes.c_int64) for name in ("host_pages_free", "device_pages_free", "remote_pages", "sequences")]
        + [(name, ctypes.c_double) for name in ("link_rate", "host_rate", "device_rate", "device_flops", "bytes_in", "bytes_out", "seconds_in", "seconds_compute", "seconds_host")]
        + [("reserved", ctypes.c_uint64 * 8)]
    )


def library():
    """libheed with the types of these functions set. Raises LibraryMissing, or HeedError where it has no page pools."""
    found = c_api.library(str(libraries.folder() / "libheed.so"))
    lib = found.lib
    if not hasattr(lib, "heed_offload_create"):
        raise c_api.HeedError("this libheed.so has no page pools; build it anew with `make`")
    pointer, numbers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
    lib.heed_offload_create.argtypes = [ctypes.POINTER(Config), ctypes.POINTER(pointer)]
    lib.heed_offload_destroy.argtypes, lib.heed_offload_destroy.restype = [pointer], None
    lib.heed_offload_get_info.argtypes = [pointer, ctypes.POINTER(Info)]
    lib.heed_offload_add.argtypes = [pointer, numbers]
    lib.heed_offload_remove.argtypes = [pointer, ctypes.c_int64]
    lib.heed_offload_length.argtypes = [pointer, ctypes.c_int64, ctypes.c_int32, numbers]
    for name in ("append", "prefill", "decode"):
        getattr(lib, f"heed_offload_{name}").argtypes = [pointer, ctypes.POINTER(Call), pointer]
    lib.heed_offload_pages.argtypes = [pointer, ctypes.c_int32, ctypes.POINTER(pointer), ctypes.POINTER(pointer)]
    lib.heed_offload_table.argtypes = [pointer, numbers, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32), ctypes.c_int64]
    lib.heed_offload_explain.argtypes = [pointer, numbers, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]
    lib.heed_offload_explain.restype = ctypes.c_size_t
    return found

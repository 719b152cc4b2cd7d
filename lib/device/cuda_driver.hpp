/// The CUDA driver through dlopen, so that one binary runs with and without a GPU.
/// https://docs.nvidia.com/cuda/cuda-driver-api/
/// Empty where Heed is built without cuda.h.
#pragma once

#ifdef HEED_WITH_CUDA

#include <cuda.h>

#include <cstddef>
#include <string>

namespace heed {

/// Entry points of libcuda.so.1, by the names that driver 12.4 and newer export.
struct CudaDriver {
  decltype(&::cuInit) init;
  decltype(&::cuDriverGetVersion) driver_get_version;
  decltype(&::cuGetErrorName) get_error_name;
  decltype(&::cuGetErrorString) get_error_string;
  decltype(&::cuDeviceGetCount) device_get_count;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetName) device_get_name;
  decltype(&::cuDeviceGetPCIBusId) device_get_pci_bus_id;
  decltype(&::cuDeviceGetAttribute) device_get_attribute;
  decltype(&::cuDeviceTotalMem) device_total_mem;
  decltype(&::cuDevicePrimaryCtxRetain) device_primary_ctx_retain;
  decltype(&::cuCtxSetCurrent) ctx_set_current;
  decltype(&::cuCtxGetCurrent) ctx_get_current;
  decltype(&::cuCtxGetDevice) ctx_get_device;
  CUresult (*ctx_get_id)(CUcontext, unsigned long long*);
  decltype(&::cuCtxGetLimit) ctx_get_limit;
  decltype(&::cuCtxSynchronize) ctx_synchronize;
  decltype(&::cuMemAlloc) mem_alloc;
  decltype(&::cuMemFree) mem_free;
  decltype(&::cuMemHostRegister) mem_host_register;
  decltype(&::cuMemHostUnregister) mem_host_unregister;
  decltype(&::cuMemcpyHtoDAsync) memcpy_htod_async;
  decltype(&::cuMemcpyDtoHAsync) memcpy_dtoh_async;
  decltype(&::cuMemsetD8Async) memset_d8_async;
  decltype(&::cuMemsetD32Async) memset_d32_async;
  decltype(&::cuMemsetD2D8Async) memset_d2d8_async;
  decltype(&::cuModuleLoadData) module_load_data;
  decltype(&::cuModuleUnload) module_unload;
  decltype(&::cuModuleGetFunction) module_get_function;
  decltype(&::cuFuncGetAttribute) func_get_attribute;
  decltype(&::cuFuncSetAttribute) func_set_attribute;
  decltype(&::cuLaunchKernelEx) launch_kernel_ex;
  decltype(&::cuStreamCreate) stream_create;
  CUresult (*stream_get_ctx)(CUstream, CUcontext*);
  decltype(&::cuStreamSynchronize) stream_synchronize;
  decltype(&::cuStreamDestroy) stream_destroy;
  CUresult (*stream_wait_event)(CUstream, CUevent, unsigned);
  CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*);
  CUresult (*stream_get_capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                                      std::size_t*);
  CUresult (*stream_update_capture_dependencies)(CUstream, CUgraphNode*, std::size_t, unsigned);
  CUresult (*launch_host_func)(CUstream, CUhostFn, void*);
  CUresult (*thread_exchange_stream_capture_mode)(CUstreamCaptureMode*);
  decltype(&::cuStreamBeginCapture) stream_begin_capture;
  decltype(&::cuStreamEndCapture) stream_end_capture;
  CUresult (*graph_instantiate)(CUgraphExec*, CUgraph, unsigned long long);
  decltype(&::cuGraphLaunch) graph_launch;
  decltype(&::cuGraphExecDestroy) graph_exec_destroy;
  decltype(&::cuGraphDestroy) graph_destroy;
  decltype(&::cuGraphRetainUserObject) graph_retain_user_object;
  decltype(&::cuUserObjectCreate) user_object_create;
  decltype(&::cuUserObjectRelease) user_object_release;
  decltype(&::cuEventCreate) event_create;
  decltype(&::cuEventRecord) event_record;
  decltype(&::cuEventSynchronize) event_synchronize;
  decltype(&::cuEventQuery) event_query;
  decltype(&::cuEventDestroy) event_destroy;
  CUresult (*event_elapsed_time)(float*, CUevent, CUevent);
  decltype(&::cuTensorMapEncodeTiled) tensor_map_encode_tiled;  ///< null where the driver lacks it
};

/// The driver, initialised. @throws Error(no_device) naming what is missing
const CudaDriver& cuda_driver();

/// "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
std::string cuda_error_text(CUresult result);

}  // namespace heed

#endif

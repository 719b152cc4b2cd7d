#include "device/cuda_driver.hpp"

#ifdef HEED_WITH_CUDA

#include <dlfcn.h>
#include <fmt/format.h>

#include "heed/heed.hpp"

namespace heed {
namespace {

CudaDriver load() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(ErrorCode::no_device, "no NVIDIA driver is installed (libcuda.so.1 was not found)");
  CudaDriver api{};
  const auto bind = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr)
      throw Error(ErrorCode::no_device,
                  fmt::format("the NVIDIA driver lacks {}; Heed needs driver 550 (CUDA 12.4) or newer", name));
  };
  bind("cuInit", api.init);
  bind("cuDriverGetVersion", api.driver_get_version);
  bind("cuGetErrorName", api.get_error_name);
  bind("cuGetErrorString", api.get_error_string);
  bind("cuDeviceGetCount", api.device_get_count);
  bind("cuDeviceGet", api.device_get);
  bind("cuDeviceGetName", api.device_get_name);
  bind("cuDeviceGetPCIBusId", api.device_get_pci_bus_id);
  bind("cuDeviceGetAttribute", api.device_get_attribute);
  bind("cuDeviceTotalMem_v2", api.device_total_mem);
  bind("cuDevicePrimaryCtxRetain", api.device_primary_ctx_retain);
  bind("cuCtxSetCurrent", api.ctx_set_current);
  bind("cuCtxGetCurrent", api.ctx_get_current);
  bind("cuCtxGetDevice", api.ctx_get_device);
  bind("cuCtxGetId", api.ctx_get_id);
  bind("cuCtxGetLimit", api.ctx_get_limit);
  bind("cuCtxSynchronize", api.ctx_synchronize);
  bind("cuMemAlloc_v2", api.mem_alloc);
  bind("cuMemFree_v2", api.mem_free);
  bind("cuMemHostRegister_v2", api.mem_host_register);
  bind("cuMemHostUnregister", api.mem_host_unregister);
  bind("cuMemcpyHtoDAsync_v2", api.memcpy_htod_async);
  bind("cuMemcpyDtoHAsync_v2", api.memcpy_dtoh_async);
  bind("cuMemsetD8Async", api.memset_d8_async);
  bind("cuMemsetD32Async", api.memset_d32_async);
  bind("cuMemsetD2D8Async", api.memset_d2d8_async);
  bind("cuModuleLoadData", api.module_load_data);
  bind("cuModuleUnload", api.module_unload);
  bind("cuModuleGetFunction", api.module_get_function);
  bind("cuFuncGetAttribute", api.func_get_attribute);
  bind("cuFuncSetAttribute", api.func_set_attribute);
  bind("cuLaunchKernelEx", api.launch_kernel_ex);
  bind("cuStreamCreate", api.stream_create);
  bind("cuStreamGetCtx", api.stream_get_ctx);
  bind("cuStreamSynchronize", api.stream_synchronize);
  bind("cuStreamDestroy_v2", api.stream_destroy);
  bind("cuStreamWaitEvent", api.stream_wait_event);
  bind("cuStreamIsCapturing", api.stream_is_capturing);
  bind("cuStreamGetCaptureInfo_v2", api.stream_get_capture_info);
  bind("cuStreamUpdateCaptureDependencies", api.stream_update_capture_dependencies);
  bind("cuLaunchHostFunc", api.launch_host_func);
  bind("cuThreadExchangeStreamCaptureMode", api.thread_exchange_stream_capture_mode);
  bind("cuStreamBeginCapture_v2", api.stream_begin_capture);
  bind("cuStreamEndCapture", api.stream_end_capture);
  bind("cuGraphInstantiateWithFlags", api.graph_instantiate);
  bind("cuGraphLaunch", api.graph_launch);
  bind("cuGraphExecDestroy", api.graph_exec_destroy);
  bind("cuGraphDestroy", api.graph_destroy);
  bind("cuGraphRetainUserObject", api.graph_retain_user_object);
  bind("cuUserObjectCreate", api.user_object_create);
  bind("cuUserObjectRelease", api.user_object_release);
  bind("cuEventCreate", api.event_create);
  bind("cuEventRecord", api.event_record);
  bind("cuEventSynchronize", api.event_synchronize);
  bind("cuEventQuery", api.event_query);
  bind("cuEventDestroy_v2", api.event_destroy);
  bind("cuEventElapsedTime", api.event_elapsed_time);
  api.tensor_map_encode_tiled = reinterpret_cast<decltype(api.tensor_map_encode_tiled)>(
      ::dlsym(library, "cuTensorMapEncodeTiled"));  // only variants with bulk copies need it
  if (const CUresult result = api.init(0); result != CUDA_SUCCESS) {
    const char* text = nullptr;
    api.get_error_string(result, &text);
    throw Error(ErrorCode::no_device,
                fmt::format("the NVIDIA driver cannot be used: {}", text == nullptr ? "unknown error" : text));
  }
  return api;
}

}  // namespace

const CudaDriver& cuda_driver() {
  static const CudaDriver api = load();
  return api;
}

std::string cuda_error_text(CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  cuda_driver().get_error_name(result, &name);
  cuda_driver().get_error_string(result, &text);
  return fmt::format("{}: {}", name == nullptr ? "unknown CUDA error" : name,
                     text == nullptr ? "no description" : text);
}

}  // namespace heed

#endif

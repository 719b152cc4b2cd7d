#include "libtorch.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace heed::torch {
namespace {

Libtorch found;

template <typename Function>
void find(void* library, Function& function, const char* name, bool is_needed) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr && is_needed)
    throw std::runtime_error(std::string("this PyTorch has no function ") + name +
                             " in its stable ABI; Heed takes PyTorch 2.10 or newer");
}

}  // namespace

void attach_libtorch(const std::string& path) {
  // PyTorch has loaded it, for itself alone: a search from its handle sees the libraries that it depends on.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(path + " is not loaded; import torch before the operator is taken");
  Libtorch t{};
  find(library, t.tensor_dim, "aoti_torch_get_dim", true);
  find(library, t.tensor_sizes, "aoti_torch_get_sizes", true);
  find(library, t.tensor_strides, "aoti_torch_get_strides", true);
  find(library, t.tensor_dtype, "aoti_torch_get_dtype", true);
  find(library, t.tensor_device_type, "aoti_torch_get_device_type", true);
  find(library, t.tensor_device_index, "aoti_torch_get_device_index", true);
  find(library, t.tensor_const_data, "torch_get_const_data_ptr", true);
  find(library, t.tensor_data, "torch_get_mutable_data_ptr", true);
  find(library, t.new_handle, "aoti_torch_new_tensor_handle", true);
  find(library, t.delete_tensor, "aoti_torch_delete_tensor_object", true);
  find(library, t.empty_strided, "aoti_torch_empty_strided", true);
  find(library, t.clone, "aoti_torch_clone", true);
  find(library, t.grad_mode_is_enabled, "aoti_torch_grad_mode_is_enabled", true);
  find(library, t.library_of_implementations, "aoti_torch_library_init_impl", true);
  find(library, t.library_implement, "torch_library_impl", true);
  find(library, t.delete_library, "aoti_torch_delete_library_object", true);
  find(library, t.call, "torch_call_dispatcher", true);
  find(library, t.parallel_for, "torch_parallel_for", true);
  find(library, t.thread_count, "torch_get_num_threads", true);
  find(library, t.dtype_float16, "aoti_torch_dtype_float16", true);
  find(library, t.dtype_bfloat16, "aoti_torch_dtype_bfloat16", true);
  find(library, t.dtype_float32, "aoti_torch_dtype_float32", true);
  find(library, t.dtype_uint8, "aoti_torch_dtype_uint8", true);
  find(library, t.dtype_bool, "aoti_torch_dtype_bool", true);
  find(library, t.dtype_int32, "aoti_torch_dtype_int32", true);
  find(library, t.dtype_int8, "aoti_torch_dtype_int8", true);
  find(library, t.dtype_float8_e4m3fn, "aoti_torch_dtype_float8_e4m3fn", true);
  find(library, t.dtype_float8_e5m2, "aoti_torch_dtype_float8_e5m2", true);
  find(library, t.device_type_cpu, "aoti_torch_device_type_cpu", true);
  find(library, t.device_type_cuda, "aoti_torch_device_type_cuda", true);

  find(library, t.current_cuda_stream, "aoti_torch_get_current_cuda_stream", false);
  find(library, t.new_device_guard, "aoti_torch_create_device_guard", false);
  find(library, t.delete_device_guard, "aoti_torch_delete_device_guard", false);
  find(library, t.current_device, "aoti_torch_get_current_device_index", false);
  find(library, t.last_exception, "torch_exception_get_what_without_backtrace", false);
  find(library, t.new_stable_value, "torch_new_stable_ivalue", false);
  find(library, t.delete_stable_value, "torch_delete_stable_ivalue", false);
  const char* const hidden = std::getenv("HEED_STABLE_ABI_ONLY");
  if (hidden != nullptr && hidden[0] == '1') {
    found = t;
    return;
  }
  find(library, t.sdpa, "_ZN2at6native28scaled_dot_product_attentionERKNS_6TensorES3_S3_RKSt8optionalIS1_EdbS4_IdEb",
       false);
  find(library, t.sdpa_redispatch,
       "_ZN2at4_ops28scaled_dot_product_attention10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_S6_"
       "RKSt8optionalIS4_EdbS7_IdEb",
       false);
  find(library, t.requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv", false);
  find(library, t.tensor_has_dispatch, "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE", false);
  find(library, t.is_neg, "_ZN2at6native6is_negERKNS_6TensorE", false);
  find(library, t.dispatch_mode_enabled, "_ZN3c104impl21dispatch_mode_enabledEv", false);
  find(library, t.forward_ad_level, "_ZN5torch8autograd14ForwardADLevel14try_get_by_idxEm", false);
  find(library, t.global_context, "_ZN2at13globalContextEv", false);
  find(library, t.enabled_flash, "_ZNK2at7Context19userEnabledFlashSDPEv", false);
  find(library, t.enabled_efficient, "_ZNK2at7Context26userEnabledMemEfficientSDPEv", false);
  find(library, t.enabled_math, "_ZNK2at7Context18userEnabledMathSDPEv", false);
  find(library, t.enabled_cudnn, "_ZNK2at7Context19userEnabledCuDNNSDPEv", false);
  found = t;
}

const Libtorch& libtorch() {
  return found;
}

bool has_native_symbols() {
  const Libtorch& t = found;
  return t.sdpa != nullptr && t.sdpa_redispatch != nullptr && t.requires_grad != nullptr &&
         t.tensor_has_dispatch != nullptr && t.is_neg != nullptr && t.dispatch_mode_enabled != nullptr &&
         t.forward_ad_level != nullptr && t.global_context != nullptr && t.enabled_flash != nullptr &&
         t.enabled_efficient != nullptr && t.enabled_math != nullptr && t.enabled_cudnn != nullptr;
}

}  // namespace heed::torch

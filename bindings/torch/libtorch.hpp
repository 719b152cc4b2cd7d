/// LibTorch's stable C ABI, found at run time: the operator includes no header of PyTorch and links none of its
/// libraries, so that one shared object serves every Python and every PyTorch from 2.10 on.
/// https://docs.pytorch.org/docs/stable/notes/libtorch_stable_abi.html; torch/csrc/stable/c/shim.h and
/// torch/csrc/inductor/aoti_torch/c/shim.h of PyTorch 2.10 declare these functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace heed::torch {

struct TensorOpaque;
struct LibraryOpaque;
struct DeviceGuardOpaque;
using TensorHandle = TensorOpaque*;    ///< an at::Tensor that the holder deletes
using LibraryHandle = LibraryOpaque*;  ///< registrations that end when it is deleted
using DeviceGuardHandle = DeviceGuardOpaque*;
/// One argument or result of an operator: a handle, a number, or for an optional argument a pointer to such a value on
/// the heap.
using StableValue = std::uint64_t;
/// Reads arguments from the stack, which it owns from then on, and leaves results there.
using BoxedKernel = void (*)(StableValue* stack, std::uint64_t arguments, std::uint64_t results);
using Status = std::int32_t;  ///< 0: success
/// at::Tensor, a pointer with a destructor, so that it is returned as one is. It owns nothing here.
struct NativeTensor {
  void* impl;
  ~NativeTensor() {}  // NOLINT(modernize-use-equals-default): a trivial one would be returned in a register
};
/// std::optional<at::Tensor>.
struct NativeOptionalTensor {
  void* impl = nullptr;
  bool has_value = false;
};
/// A std::shared_ptr that is returned.
struct NativeShared {
  std::shared_ptr<void> pointer;
};
using ParallelTask = void (*)(std::int64_t begin, std::int64_t end, void* context);

/// Functions of every PyTorch that is served, then those that may be missing and are null then.
struct Libtorch {
  Status (*tensor_dim)(TensorHandle, std::int64_t*);
  Status (*tensor_sizes)(TensorHandle, std::int64_t**);
  Status (*tensor_strides)(TensorHandle, std::int64_t**);
  Status (*tensor_dtype)(TensorHandle, std::int32_t*);
  Status (*tensor_device_type)(TensorHandle, std::int32_t*);
  Status (*tensor_device_index)(TensorHandle, std::int32_t*);
  Status (*tensor_const_data)(TensorHandle, const void**);
  Status (*tensor_data)(TensorHandle, void**);
  Status (*new_handle)(TensorHandle, TensorHandle*);
  Status (*delete_tensor)(TensorHandle);
  Status (*empty_strided)(std::int64_t, const std::int64_t*, const std::int64_t*, std::int32_t, std::int32_t,
                          std::int32_t, TensorHandle*);
  Status (*clone)(TensorHandle, TensorHandle*);
  bool (*grad_mode_is_enabled)();
  Status (*library_of_implementations)(const char* space, const char* key, const char* file, std::uint32_t line,
                                       LibraryHandle*);
  Status (*library_implement)(LibraryHandle, const char* name, BoxedKernel, std::uint64_t version);
  Status (*delete_library)(LibraryHandle);
  Status (*call)(const char* name, const char* overload, StableValue* stack, std::uint64_t version);
  Status (*parallel_for)(std::int64_t begin, std::int64_t end, std::int64_t grain, ParallelTask, void* context);
  Status (*thread_count)(std::uint32_t*);

  std::int32_t (*dtype_float16)();
  std::int32_t (*dtype_bfloat16)();
  std::int32_t (*dtype_float32)();
  std::int32_t (*dtype_uint8)();
  std::int32_t (*dtype_bool)();
  std::int32_t (*dtype_int32)();
  std::int32_t (*dtype_int8)();
  std::int32_t (*dtype_float8_e4m3fn)();
  std::int32_t (*dtype_float8_e5m2)();
  std::int32_t (*device_type_cpu)();
  std::int32_t (*device_type_cuda)();

  // Of builds with CUDA.
  Status (*current_cuda_stream)(std::int32_t device, void** stream);
  Status (*new_device_guard)(std::int32_t device, DeviceGuardHandle*);
  Status (*delete_device_guard)(DeviceGuardHandle);
  Status (*current_device)(std::int32_t*);
  // Of PyTorch 2.13 and newer.
  const char* (*last_exception)();
  Status (*new_stable_value)(StableValue**);
  Status (*delete_stable_value)(StableValue*);
  // C++ symbols, which no ABI promises. Their names spell the types of their arguments; where one is missing, a slower
  // way is taken.
  NativeTensor (*sdpa)(const NativeTensor& q, const NativeTensor& k, const NativeTensor& v,
                       const NativeOptionalTensor& mask, double dropout, bool is_causal, std::optional<double> scale,
                       bool enable_gqa);
  /// The same operator at other keys: what a dispatch key set is, Python says.
  NativeTensor (*sdpa_redispatch)(std::uint64_t keys, const NativeTensor& q, const NativeTensor& k,
                                  const NativeTensor& v, const NativeOptionalTensor& mask, double dropout,
                                  bool is_causal, std::optional<double> scale, bool enable_gqa);
  bool (*requires_grad)(const void* tensor_impl);
  bool (*tensor_has_dispatch)(const NativeTensor&);  ///< of a subclass with __torch_dispatch__
  bool (*is_neg)(const NativeTensor&);               ///< whether its numbers are those in memory with the other sign
  bool (*dispatch_mode_enabled)();
  NativeShared (*forward_ad_level)(std::uint64_t index);
  void* (*global_context)();
  bool (*enabled_flash)(const void* context);
  bool (*enabled_efficient)(const void* context);
  bool (*enabled_math)(const void* context);
  bool (*enabled_cudnn)(const void* context);
};

/// The version that arguments and results are written in: 2.10.
inline constexpr std::uint64_t kAbiVersion = 0x020a000000000000;

/// Finds the functions in a loaded libtorch.so. @throws std::runtime_error naming what is missing
void attach_libtorch(const std::string& path);
/// What attach_libtorch found.
const Libtorch& libtorch();
/// Whether every C++ symbol was found. HEED_STABLE_ABI_ONLY=1 in the environment hides them.
bool has_native_symbols();

}  // namespace heed::torch

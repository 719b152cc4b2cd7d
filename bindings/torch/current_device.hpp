/// The device, the stream and the addresses of a call.
#pragma once

#include <heed/heed.h>

#include "values.hpp"

namespace heed::torch {

inline const void* const_address(const Tensor& tensor) {
  const void* address = nullptr;
  check(libtorch().tensor_const_data(tensor.get(), &address), "asking for an address");
  return address;
}

inline void* address_of(const Tensor& tensor) {
  void* address = nullptr;
  check(libtorch().tensor_data(tensor.get(), &address), "asking for an address");
  return address;
}

/// Makes a GPU current while it lives, if it is not.
class CurrentDevice {
 public:
  explicit CurrentDevice(const heed_problem& problem) {
    const Libtorch& t = libtorch();
    if (problem.device_type != HEED_CUDA || t.new_device_guard == nullptr) return;
    std::int32_t current = -1;
    if (t.current_device != nullptr && t.current_device(&current) == 0 && current == problem.device) return;
    check(t.new_device_guard(problem.device, &guard_), "choosing a GPU");
  }
  ~CurrentDevice() {
    if (guard_ != nullptr) libtorch().delete_device_guard(guard_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

inline void* current_stream(const heed_problem& problem) {
  if (problem.device_type != HEED_CUDA) return nullptr;
  void* stream = nullptr;
  if (libtorch().current_cuda_stream == nullptr) throw std::runtime_error("this PyTorch was built without CUDA");
  check(libtorch().current_cuda_stream(problem.device, &stream), "asking for the current stream");
  return stream;
}

}  // namespace heed::torch

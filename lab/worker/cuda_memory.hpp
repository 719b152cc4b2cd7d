/// Device memory of a worker.
#pragma once

#ifdef HEED_WITH_CUDA

#include <cstdint>

#include "device/cuda_driver.hpp"

namespace heed::worker {

/// Errors that leave the context unusable are the candidate's crash; the rest is a launch that was refused.
/// @throws DeviceFailure for anything but CUDA_SUCCESS
void check_cuda(CUresult result, const char* step);

/// Memory that grows when more is asked for, in whole granules of the driver's: what lies in them behind the bytes in
/// use is the worker's too, and nobody else's.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { release(); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  CUdeviceptr at_least(std::uint64_t bytes);
  void release();
  [[nodiscard]] CUdeviceptr get() const { return pointer_; }
  /// All of it, whole granules.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  CUdeviceptr pointer_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace heed::worker

#endif

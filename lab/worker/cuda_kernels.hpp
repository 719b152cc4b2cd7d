/// The worker's own kernels on a GPU: they change inputs and wipe what launches leave behind.
#pragma once

#ifdef HEED_WITH_CUDA

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "device/cuda_driver.hpp"
#include "worker/channels.hpp"

namespace heed::worker {

class CudaKernels {
 public:
  /// Compiles them by the driver. @throws DeviceFailure where it cannot
  CudaKernels(CUdevice device, CUstream stream);

  /// Multiplies K in device memory; `factors` lies there too: `dim` floats.
  void multiply(CUdeviceptr image, const ChannelRange& range, CUdeviceptr factors) const;
  /// Shared memory and registers keep what earlier kernels left in them; a read of something never written must show.
  /// Fills them with NaN, all of every multiprocessor.
  void poison_shared_memory() const;
  void poison_registers() const;
  /// A kernel that does the same to the local memory of a candidate with that many bytes a thread; null for none. Its
  /// own frame is as large, so that the driver gives both the same memory.
  CUfunction poison_local(int bytes);
  void poison_local_memory(CUfunction kernel) const;

  /// Fills 32-bit words of device memory with a pattern of their own, and counts those that have another value: adds
  /// to the word at `count`.
  void fill(CUdeviceptr at, std::uint64_t bytes) const;
  void verify(CUdeviceptr at, std::uint64_t bytes, CUdeviceptr count) const;
  /// What `fill` writes to word `index`.
  static constexpr unsigned pattern(unsigned index) {
    const unsigned x = index * 0x9e3779b1U;
    return ((x ^ x >> 15) * 0x85ebca77U) ^ 0x48454544U;
  }
  /// Whether words begin to end - 1 are what `fill` writes.
  static bool is_pattern(const std::vector<unsigned>& words, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i)
      if (words[i] != pattern(static_cast<unsigned>(i))) return false;
    return true;
  }

 private:
  void launch(CUfunction kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void** arguments,
              const char* step) const;

  const CudaDriver& cuda_;
  CUstream stream_;
  int processors_ = 0;
  int shared_bytes_ = 0;
  CUfunction multiply_[6] = {};  ///< by Dtype
  CUfunction poison_shared_ = nullptr;
  CUfunction poison_registers_ = nullptr;
  CUfunction fill_ = nullptr;
  CUfunction verify_ = nullptr;
  std::map<int, CUfunction> poison_local_;
};

}  // namespace heed::worker

#endif

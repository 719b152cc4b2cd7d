/// The worker's own kernels on a GPU: they change inputs and wipe what launches leave behind.
#pragma once

#ifdef HEED_WITH_CUDA

#include <string>

#include "device/cuda_driver.hpp"
#include "worker/channels.hpp"

namespace heed::worker {

/// PTX of all of them but the local-memory one. https://docs.nvidia.com/cuda/parallel-thread-execution/
std::string own_kernels_ptx();

class CudaKernels {
 public:
  /// Compiles them by the driver. @throws DeviceFailure where it cannot
  CudaKernels(CUdevice device, CUstream stream);

  /// Multiplies K in device memory; `factors` lies there too: `dim` floats.
  void multiply(CUdeviceptr image, const ChannelRange& range, CUdeviceptr factors) const;
  /// Shared memory keeps what earlier kernels left in it; a read of something never written must show. Fills it with
  /// NaN, all of every multiprocessor.
  void poison_shared_memory() const;

 private:
  const CudaDriver& cuda_;
  CUstream stream_;
  int processors_ = 0;
  int shared_bytes_ = 0;
  CUfunction multiply_[3] = {};
  CUfunction poison_shared_ = nullptr;
};

}  // namespace heed::worker

#endif

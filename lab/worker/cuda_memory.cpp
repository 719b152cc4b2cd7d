#include "worker/cuda_memory.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include "worker/executor.hpp"

namespace heed::worker {
namespace {

constexpr std::uint64_t kGranule = 2 << 20;  // cuMemAlloc maps device memory in pieces of 2 MiB

}  // namespace

void check_cuda(CUresult result, const char* step) {
  if (result == CUDA_SUCCESS) return;
  const bool crashed = result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED ||
                       result == CUDA_ERROR_ASSERT || result == CUDA_ERROR_ILLEGAL_INSTRUCTION ||
                       result == CUDA_ERROR_MISALIGNED_ADDRESS || result == CUDA_ERROR_INVALID_ADDRESS_SPACE ||
                       result == CUDA_ERROR_INVALID_PC || result == CUDA_ERROR_HARDWARE_STACK_ERROR ||
                       result == CUDA_ERROR_LAUNCH_TIMEOUT;
  throw DeviceFailure(crashed ? DeviceFailure::Kind::crash : DeviceFailure::Kind::launch,
                      fmt::format("{}: {}", step, cuda_error_text(result)));
}

CUdeviceptr DeviceBuffer::at_least(std::uint64_t bytes) {
  if (bytes > bytes_) {
    release();
    const std::uint64_t whole = (bytes + kGranule - 1) / kGranule * kGranule;
    check_cuda(cuda_driver().mem_alloc(&pointer_, whole), "allocating device memory");
    bytes_ = whole;
  }
  return pointer_;
}

void DeviceBuffer::release() {
  if (pointer_ != 0) cuda_driver().mem_free(pointer_);
  pointer_ = 0;
  bytes_ = 0;
}

}  // namespace heed::worker

#endif

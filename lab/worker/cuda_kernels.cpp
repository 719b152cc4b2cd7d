#include "worker/cuda_kernels.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include <array>

#include "worker/cuda_memory.hpp"
#include "worker/executor.hpp"
#include "worker/own_ptx.hpp"

namespace heed::worker {
namespace {

constexpr unsigned kPoisonThreads = 1024;  // a step of 4096 bytes
constexpr unsigned kStreamThreads = 256;
constexpr unsigned kStreamBlocksAProcessor = 8;
constexpr unsigned kLocalThreads = 1024;
constexpr unsigned kThreadsAProcessor = 2048;  // the most of any chip

}  // namespace

CudaKernels::CudaKernels(CUdevice device, CUstream stream) : cuda_(cuda_driver()), stream_(stream) {
  check_cuda(cuda_.device_get_attribute(&processors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
             "asking the GPU");
  check_cuda(cuda_.device_get_attribute(&shared_bytes_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
             "asking the GPU");
  CUmodule module = nullptr;
  check_cuda(cuda_.module_load_data(&module, own_kernels_ptx().c_str()),
             "compiling the worker's own kernels, which takes the driver's PTX compiler");
  const auto find = [&](CUfunction& function, const char* name) {
    check_cuda(cuda_.module_get_function(&function, module, name), "finding the worker's own kernels");
  };
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32, Dtype::e4m3, Dtype::e5m2, Dtype::int8})
    find(multiply_[static_cast<int>(dtype)], fmt::format("heed_multiply_{}", to_string(dtype)).c_str());
  find(poison_shared_, "heed_poison_shared");
  find(poison_registers_, "heed_poison_registers");
  find(fill_, "heed_fill");
  find(verify_, "heed_verify");
  check_cuda(cuda_.func_set_attribute(poison_shared_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes_),
             "asking for shared memory");
}

void CudaKernels::launch(CUfunction kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void** arguments,
                         const char* step) const {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shared_bytes;
  config.hStream = stream_;
  check_cuda(cuda_.launch_kernel_ex(&config, kernel, arguments, nullptr), step);
}

void CudaKernels::multiply(CUdeviceptr image, const ChannelRange& range, CUdeviceptr factors) const {
  CUdeviceptr at = image + range.offset;
  std::uint64_t elements = range.elements;
  auto dim = static_cast<unsigned>(range.dim);
  void* arguments[] = {&at, &elements, &factors, &dim};
  launch(multiply_[static_cast<int>(range.dtype)], kStreamBlocksAProcessor * static_cast<unsigned>(processors_),
         kStreamThreads, 0, arguments, "multiplying K");
}

// A block takes all of a multiprocessor's shared memory, or registers, so that each multiprocessor gets one.
void CudaKernels::poison_shared_memory() const {
  auto bytes = static_cast<unsigned>(shared_bytes_);
  void* arguments[] = {&bytes};
  launch(poison_shared_, 2 * static_cast<unsigned>(processors_), kPoisonThreads, bytes, arguments,
         "poisoning shared memory");
}

void CudaKernels::poison_registers() const {
  std::array<unsigned, kPoisonedRegisters> words{};
  words.fill(~0U);
  unsigned rounds = 4;
  CUdeviceptr nowhere = 0;
  void* arguments[] = {words.data(), &rounds, &nowhere};
  launch(poison_registers_, 2 * static_cast<unsigned>(processors_), kPoisonRegisterThreads, 0, arguments,
         "poisoning registers");
}

CUfunction CudaKernels::poison_local(int bytes) {
  if (bytes <= 0) return nullptr;
  const auto [at, is_new] = poison_local_.try_emplace(bytes, nullptr);
  if (!is_new) return at->second;
  CUmodule module = nullptr;
  check_cuda(cuda_.module_load_data(&module, poison_local_ptx(bytes).c_str()), "compiling a kernel of the worker's");
  check_cuda(cuda_.module_get_function(&at->second, module, "heed_poison_local"), "finding a kernel of the worker's");
  int own_bytes = 0;
  check_cuda(cuda_.func_get_attribute(&own_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, at->second),
             "asking for the local memory of a kernel");
  if (own_bytes < bytes) throw DeviceFailure(DeviceFailure::Kind::launch, "a kernel of the worker's lost its frame");
  return at->second;
}

// As many threads as can be resident twice over.
void CudaKernels::poison_local_memory(CUfunction kernel) const {
  if (kernel == nullptr) return;
  int bytes = 0;
  check_cuda(cuda_.func_get_attribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel),
             "asking for the local memory of a kernel");
  auto words = static_cast<unsigned>(bytes / 4);
  void* arguments[] = {&words};
  launch(kernel, 2 * kThreadsAProcessor / kLocalThreads * static_cast<unsigned>(processors_), kLocalThreads, 0,
         arguments, "poisoning local memory");
}

void CudaKernels::fill(CUdeviceptr at, std::uint64_t bytes) const {
  std::uint64_t words = bytes / 4;
  if (words == 0) return;
  void* arguments[] = {&at, &words};
  launch(fill_, kStreamBlocksAProcessor * static_cast<unsigned>(processors_), kStreamThreads, 0, arguments,
         "filling memory");
}

void CudaKernels::verify(CUdeviceptr at, std::uint64_t bytes, CUdeviceptr count) const {
  std::uint64_t words = bytes / 4;
  if (words == 0) return;
  void* arguments[] = {&at, &words, &count};
  launch(verify_, kStreamBlocksAProcessor * static_cast<unsigned>(processors_), kStreamThreads, 0, arguments,
         "looking at memory");
}

}  // namespace heed::worker

#endif

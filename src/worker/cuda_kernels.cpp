#include "worker/cuda_kernels.hpp"

#ifdef HEED_WITH_CUDA

#include <fmt/format.h>

#include "worker/cuda_memory.hpp"

namespace heed::worker {
namespace {

constexpr const char* kHeader = ".version 7.0\n.target sm_80\n.address_size 64\n";

// A block fills its shared memory with NaN.
constexpr const char* kPoisonShared = R"(
.extern .shared .align 16 .b8 memory[];
.visible .entry heed_poison_shared(.param .u32 bytes)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  ld.param.u32 %r1, [bytes];
  mov.u32 %r2, %tid.x;
  shl.b32 %r2, %r2, 2;
  mov.u32 %r3, memory;
  mov.u32 %r4, -1;
next:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  add.u32 %r5, %r3, %r2;
  st.volatile.shared.u32 [%r5], %r4;
  add.u32 %r2, %r2, 4096;
  bra.uni next;
done:
  ret;
}
)";
constexpr unsigned kPoisonThreads = 1024;  // a step of 4096 bytes

// Element i of `elements` times factor i % dim. {0}: dtype, {1}: log2 of an element's bytes, {2}: load into %f2,
// {3}: store %f3.
constexpr const char* kMultiply = R"(
.visible .entry heed_multiply_{0}(.param .u64 at, .param .u64 elements, .param .u64 factors, .param .u32 dim)
{{
  .reg .pred %p<2>;
  .reg .b16 %h<3>;
  .reg .f32 %f<4>;
  .reg .b32 %r<8>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [at];
  ld.param.u64 %d2, [elements];
  ld.param.u64 %d3, [factors];
  ld.param.u32 %r1, [dim];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d3, %d3;
  cvt.u64.u32 %d4, %r1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %nctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mul.wide.u32 %d5, %r2, %r4;
  cvt.u64.u32 %d6, %r5;
  add.u64 %d5, %d5, %d6;
  mul.wide.u32 %d6, %r3, %r4;
next:
  setp.ge.u64 %p1, %d5, %d2;
  @%p1 bra done;
  rem.u64 %d7, %d5, %d4;
  shl.b64 %d7, %d7, 2;
  add.u64 %d7, %d3, %d7;
  ld.global.f32 %f1, [%d7];
  shl.b64 %d8, %d5, {1};
  add.u64 %d8, %d1, %d8;
  {2}
  mul.rn.f32 %f3, %f2, %f1;
  {3}
  add.u64 %d5, %d5, %d6;
  bra.uni next;
done:
  ret;
}}
)";
constexpr unsigned kMultiplyThreads = 256;
constexpr unsigned kMultiplyBlocksAProcessor = 8;

}  // namespace

std::string own_kernels_ptx() {
  std::string text = kHeader;
  text += kPoisonShared;
  text += fmt::format(kMultiply, "fp16", 1, "ld.global.b16 %h1, [%d8];\n  cvt.f32.f16 %f2, %h1;",
                      "cvt.rn.f16.f32 %h2, %f3;\n  st.global.b16 [%d8], %h2;");
  // bf16 is the upper half of fp32: exact products need no rounding.
  text +=
      fmt::format(kMultiply, "bf16", 1,
                  "ld.global.u16 %h1, [%d8];\n  cvt.u32.u16 %r6, %h1;\n  shl.b32 %r6, %r6, 16;\n  mov.b32 %f2, %r6;",
                  "mov.b32 %r6, %f3;\n  shr.u32 %r6, %r6, 16;\n  cvt.u16.u32 %h2, %r6;\n  st.global.u16 [%d8], %h2;");
  text += fmt::format(kMultiply, "fp32", 2, "ld.global.f32 %f2, [%d8];", "st.global.f32 [%d8], %f3;");
  return text;
}

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
  find(multiply_[static_cast<int>(Dtype::fp16)], "heed_multiply_fp16");
  find(multiply_[static_cast<int>(Dtype::bf16)], "heed_multiply_bf16");
  find(multiply_[static_cast<int>(Dtype::fp32)], "heed_multiply_fp32");
  find(poison_shared_, "heed_poison_shared");
  check_cuda(cuda_.func_set_attribute(poison_shared_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes_),
             "asking for shared memory");
}

void CudaKernels::multiply(CUdeviceptr image, const ChannelRange& range, CUdeviceptr factors) const {
  CUlaunchConfig config{};
  config.gridDimX = kMultiplyBlocksAProcessor * static_cast<unsigned>(processors_);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = kMultiplyThreads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream_;
  CUdeviceptr at = image + range.offset;
  std::uint64_t elements = range.elements;
  auto dim = static_cast<unsigned>(range.dim);
  void* arguments[] = {&at, &elements, &factors, &dim};
  check_cuda(cuda_.launch_kernel_ex(&config, multiply_[static_cast<int>(range.dtype)], arguments, nullptr),
             "multiplying K");
}

// A block takes all of a multiprocessor's shared memory, so that each multiprocessor gets one.
void CudaKernels::poison_shared_memory() const {
  CUlaunchConfig config{};
  config.gridDimX = 2 * static_cast<unsigned>(processors_);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = kPoisonThreads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(shared_bytes_);
  config.hStream = stream_;
  auto bytes = static_cast<unsigned>(shared_bytes_);
  void* arguments[] = {&bytes};
  check_cuda(cuda_.launch_kernel_ex(&config, poison_shared_, arguments, nullptr), "poisoning shared memory");
}

}  // namespace heed::worker

#endif

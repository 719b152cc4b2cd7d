/// Arithmetic of pairs of fp16, one instruction a function.
/// PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

namespace heed::ptx {

/// Products of the low and of the high fp16 halves; subnormal numbers count.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-mul
__device__ __forceinline__ unsigned mul_rn_f16x2(unsigned x, unsigned y) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

}  // namespace heed::ptx

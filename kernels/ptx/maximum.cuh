/// Maxima and minima that keep NaN (sm_80).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
#pragma once

namespace heed::ptx {

/// The larger one; NaN where either is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

/// The smaller one; NaN where either is.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-min
__device__ __forceinline__ float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

}  // namespace heed::ptx

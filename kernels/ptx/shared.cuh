/// Loads and stores of shared memory by 32-bit address, one instruction a function.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
#pragma once

namespace heed::ptx {

/// Four times the same 4 bytes to a 16-byte aligned address.
__device__ __forceinline__ void st_shared_v4(unsigned address, unsigned x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(x) : "memory");
}

/// Four words to a 16-byte aligned address.
__device__ __forceinline__ void st_shared_v4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void st_shared(unsigned address, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/// Two floats to an 8-byte aligned address.
__device__ __forceinline__ void st_shared_v2(unsigned address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements as accumulators' packed columns hold them: of matrix i, lane l has columns
/// 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
/// @param address where lane l's part of that is: row l % 8 of matrix l / 8, 16 bytes
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
__device__ __forceinline__ void st_matrix_x4(unsigned address, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
}

__device__ __forceinline__ unsigned ld_shared(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

/// The lowest kBytes of x, 1 or 2.
template <int kBytes>
__device__ __forceinline__ void st_shared_bytes(unsigned address, unsigned x) {
  if constexpr (kBytes == 1)
    asm volatile("{ .reg .b8 low; cvt.u8.u32 low, %1; st.shared.u8 [%0], low; }" ::"r"(address), "r"(x) : "memory");
  else
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(x)) : "memory");
}

/// Two bytes; the upper half of the result is 0.
__device__ __forceinline__ unsigned ld_shared_u16(unsigned address) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ void ld_shared_v4(unsigned (&x)[4], unsigned address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ld_shared_v2(float (&x)[2], unsigned address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(address) : "memory");
}

}  // namespace heed::ptx

/// WMMA: a warp multiplies 16 x 16 blocks of 16-bit elements with fp32 accumulation, one instruction a function.
///
/// Which element a register holds is unspecified: the only way from one fragment's row to another's is through memory.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-for-mma
///
/// Addresses are of shared memory (ptx::shared_address) and 32-byte aligned; strides are in elements, a multiple of 8
/// for 16-bit elements and of 4 for fp32.
#pragma once

#include "kernels/element.hpp"

namespace heed::ptx {

/// Registers of an A or B fragment: an fp16 element is held by two lanes, a bf16 element by one.
template <Element kElement>
  requires is_half<kElement>
inline constexpr int kWmmaInputRegisters = kElement == Element::bf16 ? 4 : 8;

#define HEED_WMMA_LOAD(instruction, layout)                                                                       \
  if constexpr (kElement == Element::bf16)                                                                        \
    asm volatile(instruction ".sync.aligned." layout ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"         \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                 \
                 : "r"(shared), "r"(stride)                                                                       \
                 : "memory");                                                                                     \
  else                                                                                                            \
    asm volatile(instruction ".sync.aligned." layout                                                              \
                             ".m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                  \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) \
                 : "r"(shared), "r"(stride)                                                                       \
                 : "memory")

/// A (16 rows, 16 k), stored by rows.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-wmma-ld
template <Element kElement>
__device__ __forceinline__ void wmma_load_a_row(unsigned (&r)[kWmmaInputRegisters<kElement>], unsigned shared,
                                                int stride) {
  HEED_WMMA_LOAD("wmma.load.a", "row");
}

/// B (16 k, 16 columns), stored by rows: for V, whose rows are keys.
template <Element kElement>
__device__ __forceinline__ void wmma_load_b_row(unsigned (&r)[kWmmaInputRegisters<kElement>], unsigned shared,
                                                int stride) {
  HEED_WMMA_LOAD("wmma.load.b", "row");
}

/// B (16 k, 16 columns), stored by columns: for K^T, whose columns are keys.
template <Element kElement>
__device__ __forceinline__ void wmma_load_b_col(unsigned (&r)[kWmmaInputRegisters<kElement>], unsigned shared,
                                                int stride) {
  HEED_WMMA_LOAD("wmma.load.b", "col");
}

#undef HEED_WMMA_LOAD

/// The accumulator (16, 16), fp32, stored by rows.
__device__ __forceinline__ void wmma_load_c(float (&c)[8], unsigned shared, int stride) {
  asm volatile("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]), "=f"(c[4]), "=f"(c[5]), "=f"(c[6]), "=f"(c[7])
               : "r"(shared), "r"(stride)
               : "memory");
}

/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-wmma-st
__device__ __forceinline__ void wmma_store_d(unsigned shared, const float (&d)[8], int stride) {
  asm volatile(
      "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(shared),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]), "r"(stride)
      : "memory");
}

#define HEED_WMMA(layouts)                                                                                            \
  if constexpr (kElement == Element::bf16)                                                                            \
    asm volatile("wmma.mma.sync.aligned." layouts                                                                     \
                 ".m16n16k16.f32.bf16.bf16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "                \
                 "{%12, %13, %14, %15}, {%0, %1, %2, %3, %4, %5, %6, %7};"                                            \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));           \
  else                                                                                                                \
    asm volatile("wmma.mma.sync.aligned." layouts                                                                     \
                 ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "      \
                 "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]), \
                   "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]))

/// d (16, 16) += a * b, b loaded by wmma_load_b_col.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-wmma-mma
template <Element kElement>
__device__ __forceinline__ void wmma_row_col(float (&d)[8], const unsigned (&a)[kWmmaInputRegisters<kElement>],
                                             const unsigned (&b)[kWmmaInputRegisters<kElement>]) {
  HEED_WMMA("row.col");
}

/// d (16, 16) += a * b, b loaded by wmma_load_b_row.
template <Element kElement>
__device__ __forceinline__ void wmma_row_row(float (&d)[8], const unsigned (&a)[kWmmaInputRegisters<kElement>],
                                             const unsigned (&b)[kWmmaInputRegisters<kElement>]) {
  HEED_WMMA("row.row");
}

#undef HEED_WMMA

}  // namespace heed::ptx

/// Accumulator fragments of one score product of fwd_sm90_split: 64 rows a warpgroup, two a lane (lane / 4 and 8 more);
/// register 4 t + 2 h + i is column 8 t + 2 (lane % 4) + i of row h.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-d
#pragma once

#include "kernels/ptx/math.cuh"

namespace heed::sm90_split {

/// Sets columns from `end` on to -inf; `end` is counted from this lane's first column, for each row.
template <int kRegisters>
__device__ __forceinline__ void hide_columns(float (&s)[kRegisters], const int (&end)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * t + i >= end[h]) s[4 * t + 2 * h + i] = -__int_as_float(0x7f800000);
}

/// The same of columns before `begin`.
template <int kRegisters>
__device__ __forceinline__ void hide_first_columns(float (&s)[kRegisters], const int (&begin)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (8 * t + i < begin[h]) s[4 * t + 2 * h + i] = -__int_as_float(0x7f800000);
}

/// Maximum of each row in this lane's columns, of the first kUsed registers.
template <int kUsed, int kRegisters>
__device__ __forceinline__ void maximum_of(const float (&s)[kRegisters], float (&maximum)[2]) {
  static_assert(kUsed <= kRegisters);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
    for (int t = 1; t < kUsed / 4; ++t) maximum[h] = fmaxf(maximum[h], fmaxf(s[4 * t + 2 * h], s[4 * t + 2 * h + 1]));
  }
}

/// Over the four lanes of a row, in log2 units of the scaled scores.
__device__ __forceinline__ void finish_maximum(float (&maximum)[2], float scale_log2) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffU, maximum[h], 1));
    maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffU, maximum[h], 2)) * scale_log2;
  }
}

/// Eight probabilities of a lane as operands of a product.
/// @tparam kInOrder where they stand in the source
template <Element kElement, bool kInOrder = true>
__device__ __forceinline__ void pack(unsigned (&p)[4], const float (&e)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    p[i] = kInOrder ? ptx::cvt_rn_x2_in_order<kElement>(e[2 * i], e[2 * i + 1])
                    : ptx::cvt_rn_x2<kElement>(e[2 * i], e[2 * i + 1]);
}

}  // namespace heed::sm90_split

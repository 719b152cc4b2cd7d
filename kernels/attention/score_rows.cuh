/// Rows of scores in accumulator fragments, as mma and wgmma leave them: register 4 t + 2 h + i of a lane is column
/// 8 t + 2 (lane % 4) + i of row lane / 4 + 8 h (kernels/tile/fragment.hpp). Columns are counted from the lane's first.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// Hides the columns of row h from `end` on: their scores become -inf.
/// @param first what the lane's first column counts as
template <int kRegisters>
__device__ __forceinline__ void hide_columns_from(float (&s)[kRegisters], int h, int end, int first = 0) {
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first + 8 * t + i >= end) s[4 * t + 2 * h + i] = -kInfinity;
}

/// Hides the columns of row h before `begin`.
template <int kRegisters>
__device__ __forceinline__ void hide_columns_before(float (&s)[kRegisters], int h, int begin) {
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (8 * t + i < begin) s[4 * t + 2 * h + i] = -kInfinity;
}

/// The same of fragments that are counted by tiles of 8 columns.
template <int kTiles>
__device__ __forceinline__ void hide_columns_from(float (&s)[kTiles][4], int h, int end, int first = 0) {
  hide_columns_from(reinterpret_cast<float(&)[4 * kTiles]>(s), h, end, first);
}
template <int kTiles>
__device__ __forceinline__ void hide_columns_before(float (&s)[kTiles][4], int h, int begin) {
  hide_columns_before(reinterpret_cast<float(&)[4 * kTiles]>(s), h, begin);
}

/// The largest score of row h in this lane's columns, of the first kUsed registers of both rows.
template <int kUsed, int kRegisters>
__device__ __forceinline__ float row_maximum(const float (&s)[kRegisters], int h) {
  static_assert(kUsed <= kRegisters);
  float maximum = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
  for (int t = 1; t < kUsed / 4; ++t) maximum = fmaxf(maximum, fmaxf(s[4 * t + 2 * h], s[4 * t + 2 * h + 1]));
  return maximum;
}

/// Multiplies row h of unfinished outputs.
template <int kRegisters>
__device__ __forceinline__ void rescale_row(float (&acc_o)[kRegisters], int h, float factor) {
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t) {
    acc_o[4 * t + 2 * h] *= factor;
    acc_o[4 * t + 2 * h + 1] *= factor;
  }
}

/// A warp's fragments of 16 rows at zero.
template <int kTiles>
__device__ __forceinline__ void clear(float (&acc)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[t][i] = 0.0F;
}

/// Writes row h of a partial output in fp32: this lane's two columns of each tile.
/// @param to the lane's first column
template <int kTiles>
__device__ __forceinline__ void put_row(float* to, const float (&acc)[kTiles][4], int h) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    *reinterpret_cast<float2*>(to + 8 * t) = make_float2(acc[t][2 * h], acc[t][2 * h + 1]);
}

/// Four neighbouring columns of row h of an output whose tiles n and n + 1 have the even and the odd columns of 16
/// (tile::out_column_of_pairs).
template <int kTiles>
__device__ __forceinline__ float4 four_columns_of_pairs(const float (&acc)[kTiles][4], int n, int h) {
  return make_float4(acc[n][2 * h], acc[n + 1][2 * h], acc[n][2 * h + 1], acc[n + 1][2 * h + 1]);
}

/// The probabilities of two tiles, 16 columns, as an A operand (kernels/tile/fragment.hpp).
template <Element kElement>
__device__ __forceinline__ void round_to_operand(unsigned (&p)[4], const float (&first)[4], const float (&second)[4]) {
  p[0] = ptx::cvt_rn_x2<kElement>(first[0], first[1]);
  p[1] = ptx::cvt_rn_x2<kElement>(first[2], first[3]);
  p[2] = ptx::cvt_rn_x2<kElement>(second[0], second[1]);
  p[3] = ptx::cvt_rn_x2<kElement>(second[2], second[3]);
}

}  // namespace heed::attention

/// Exchanges within a quad: the four lanes that hold a row of an accumulator fragment (kernels/tile/fragment.hpp).
#pragma once

namespace heed::tile {

/// The largest of what the four lanes have, in all of them.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

/// The sum of what the four lanes have, in all of them.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

/// x[i] of lane j of a quad becomes x[j] of lane i. Every lane of the warp takes part.
/// @param quarter lane % 4
__device__ __forceinline__ void transpose_quad(unsigned (&x)[4], int quarter) {
  const bool odd = quarter & 1;
  const bool upper = quarter & 2;
  const unsigned a = __shfl_xor_sync(0xffffffffU, odd ? x[0] : x[1], 1);
  const unsigned b = __shfl_xor_sync(0xffffffffU, odd ? x[2] : x[3], 1);
  (odd ? x[0] : x[1]) = a;
  (odd ? x[2] : x[3]) = b;
  const unsigned c = __shfl_xor_sync(0xffffffffU, upper ? x[0] : x[2], 2);
  const unsigned d = __shfl_xor_sync(0xffffffffU, upper ? x[1] : x[3], 2);
  (upper ? x[0] : x[2]) = c;
  (upper ? x[1] : x[3]) = d;
}

}  // namespace heed::tile

/// Scores that a warp multiplies alone, where others of its consumer warpgroup need not take part, as they would in an
/// asynchronous product. mma's accumulators lie as wgmma's do.
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/persistent/config.hpp"

namespace heed::sm90_persistent {

/// The scores of this warp's 16 rows and one tile of keys in shared memory, under no scale and no mask.
/// @param s (16, kKeys) accumulator fragments
/// @param q shared address of the (64, head_dim) queries of the consumer warpgroup, in boxes of 64 columns
/// @param k shared address of the (kKeys, head_dim) keys, in boxes of 64 columns
/// @param box bytes from one box of the keys to the next
template <const Problem& kProblem, int kKeys>
__device__ __forceinline__ void scores_of_warp(float (&s)[kKeys / 2], unsigned q, unsigned k, int box) {
  unsigned thread = threadIdx.x;
  opaque(thread);  // or addresses are worked out, and kept, for those who never come here
  const int at = thread % 32;
  q += (thread / 32 % 4 * 16 + at % 16) * tile::kBoxRowBytes;
  k += (at / 16 * 8 + at % 8) * tile::kBoxRowBytes;
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) s[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < padded_dim(kProblem.head_dim) / 16; ++i) {
    unsigned a[4];
    // Pieces of 16 bytes lie at their index xor their row's: kernels/tile/matrix_descriptor.hpp.
    ptx::ldmatrix_x4(a, q + i / 4 * kWarpgroupRows * tile::kBoxRowBytes + ((2 * (i % 4) + at / 16) ^ at % 8) * 16);
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) {
      unsigned b[4];  // 16 keys: the halves of the contraction for the first 8, then for the others
      ptx::ldmatrix_x4(b, k + i / 4 * box + 16 * t * tile::kBoxRowBytes + ((2 * (i % 4) + at / 8 % 2) ^ at % 8) * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float(&d)[4] = *reinterpret_cast<float(*)[4]>(s + 8 * t + 4 * j);
        ptx::mma_m16n8k16<kProblem.element>(d, a, b[2 * j], b[2 * j + 1]);
      }
    }
  }
}

}  // namespace heed::sm90_persistent

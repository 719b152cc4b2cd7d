/// Accumulator fragments of one score product of fwd_sm90_split: 64 rows a warpgroup, two a lane (lane / 4 and 8 more);
/// register 4 t + 2 h + i is column 8 t + 2 (lane % 4) + i of row h.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-d
#pragma once

#include "kernels/attention/score_rows.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_split {

/// Over the four lanes of a row, in log2 units of the scaled scores.
__device__ __forceinline__ void finish_maximum(float (&maximum)[2], float scale_log2) {
#pragma unroll
  for (int h = 0; h < 2; ++h) maximum[h] = tile::quad_max(maximum[h]) * scale_log2;
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

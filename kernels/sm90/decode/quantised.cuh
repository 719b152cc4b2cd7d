/// fwd_sm90_decode with K and V in 8 bits: half of the bytes, which is what decoding waits for. Tiles lie in shared
/// memory as they lie in global memory, and become operands as kernels/attention/quantised_keys.cuh says.
///
/// Conversion costs less than the bytes: a tile of 64 keys of head dim 128 is 16 KiB, for which a multiprocessor of an
/// H200 waits 890 clocks (4.8 TB/s over 132 at 1.98 GHz); its 8,192 conversions of two e4m3 take 128 clocks at 64 a
/// clock, 512 at 16, and the 2,048 permutations of V 32. An estimate, not measured.
#pragma once

#include "kernels/attention/quantised_keys.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/config.hpp"
#include "kernels/tile/widened.cuh"

namespace heed::sm90_decode {

using attention::KeyFactors;
using attention::query_column;
using attention::QueryScale;
using attention::scales_queries;
using attention::value_factors;

// ------------------------------------------------------------------------------------------------------ by columns

/// V's factors of a lane's columns, two of each fragment of 16 from column `first` on (column_parts.cuh: Result).
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void load_value_factors(float (&to)[kColumns][2], const ScoreFeatureParams& p, int entry,
                                                   int head, int first, int lane) {
  const float* const factors = value_factors(p, entry, head);
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = first + 16 * i + 2 * (lane / 4) + h;
      to[i][h] = column < kHeadDim ? factors[column * p.v_scales.channel] : 0.0F;
    }
}

/// Writes 16 columns of eight rows if `is_stored`. Of the transposed halves lane T has columns 4 (T % 4) to
/// 4 (T % 4) + 3 of row T / 4: the even ones in one register, the odd ones in the other. For whole warps.
/// @param to the lane's four columns
template <Element kElement>
__device__ __forceinline__ void store_columns(unsigned short* to, const float (&out)[4], const float (&inverse)[2],
                                              bool is_stored) {
  unsigned columns[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    columns[h] = ptx::movmatrix_trans(ptx::cvt_rn_x2<kElement>(out[2 * h] * inverse[0], out[2 * h + 1] * inverse[1]));
  if (!is_stored) return;
  ptx::st_global(to, ptx::prmt(columns[0], columns[1], 0x5410U));
  ptx::st_global(to + 2, ptx::prmt(columns[0], columns[1], 0x7632U));
}

}  // namespace heed::sm90_decode

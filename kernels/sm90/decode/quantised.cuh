/// fwd_sm90_decode with K and V in 8 bits: half of the bytes, which is what decoding waits for. Tiles lie in shared
/// memory as they lie in global memory and become fp16 in registers, in front of the products
/// (kernels/tile/widened.cuh). P is fp16 too, and so is Q: every element of 8 bits is exact in it, and bf16 would lose
/// digits of P and need more instructions.
///
/// Neither product minds an order of its contraction that both operands share, and columns of O may be counted as they
/// come. So no lane needs an element of another:
///
///     S    a lane's four neighbouring columns of K are columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of a step of 16: Q is
///          loaded in that order (query_column)
///     P V  ldmatrix transposes pairs of columns. Of lane T, four bytes are keys 2 t and 2 t + 1 of columns 2 g and
///          2 g + 1, g = T / 4: even columns are one fragment (rows 0 to 7 of it by columns), odd ones the next
///
/// Conversion costs less than the bytes: a tile of 64 keys of head dim 128 is 16 KiB, for which a multiprocessor of an
/// H200 waits 890 clocks (4.8 TB/s over 132 at 1.98 GHz); its 8,192 conversions of two e4m3 take 128 clocks at 64 a
/// clock, 512 at 16, and the 2,048 permutations of V 32. An estimate, not measured.
///
/// K's factor multiplies scores, V's the finished output: it has to be one of all keys (tensor, head or channel).
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/config.hpp"
#include "kernels/tile/widened.cuh"

namespace heed::sm90_decode {

/// Whether rows of Q are scaled on their way to fp16, whose exponents end at 15: each by a power of two of its own.
HEED_HOST_DEVICE constexpr bool scales_queries(const Problem& problem) {
  return is_quantised(problem) && problem.element == Element::bf16;
}

/// Column of a step of 16 whose elements, it and the next, register c (0 or 1) of a lane holds of K and of Q.
__device__ __forceinline__ int query_column(int lane, int c) {
  return 4 * (lane % 4) + 2 * c;
}

/// A row of Q in bf16 on its way to fp16: its largest element comes to lie in [2^14, 2^15). Elements below 2^-31 of it
/// lose digits, by 2^-40 of the largest at most.
struct QueryScale {
  unsigned most = 0;  ///< magnitude, of the lane's elements

  __device__ __forceinline__ void see(unsigned pair) { most = max(most, max(pair & 0x7fffU, pair >> 16 & 0x7fffU)); }
  /// The biased exponent of the row's largest element, for the four lanes that have it. Infinity stays infinite.
  __device__ __forceinline__ unsigned exponent() const {
    int all = static_cast<int>(most);
    all = max(all, __shfl_xor_sync(0xffffffffU, all, 1));
    all = max(all, __shfl_xor_sync(0xffffffffU, all, 2));
    return max(static_cast<unsigned>(all) >> 7, 15U);
  }
  /// What elements are multiplied by, a power of two, and what scores are to bring it back.
  __device__ __forceinline__ static float factor(unsigned exponent) { return __uint_as_float((268U - exponent) << 23); }
  __device__ __forceinline__ static float inverse(unsigned exponent) { return __uint_as_float((exponent - 14U) << 23); }

  __device__ __forceinline__ static unsigned scaled(unsigned pair, float factor) {
    return ptx::cvt_rn_x2<Element::fp16>(ptx::unpack_low<Element::bf16>(pair) * factor,
                                         ptx::unpack_high<Element::bf16>(pair) * factor);
  }
};

/// Factors of the keys of one job.
template <const Problem& kProblem>
struct KeyFactors {
  const FeatureParams& p;  ///< the launch as the job's entry has it
  int entry;
  int head;
  bool differ;  ///< from key to key

  __device__ __forceinline__ KeyFactors(const FeatureParams& params, int batch, int kv_head)
      : p(params), entry(batch), head(kv_head), differ(params.k_scales.strides.row != 0) {}

  /// Of a key; past the last one that of the last, whose score nobody takes.
  __device__ __forceinline__ float of(int key) const {
    const TensorScales& s = p.k_scales;
    const int known = max(min(key, p.len_k - 1), 0);
    if constexpr (kProblem.features.pages)
      return s.at[key_scale_index(p, s, entry, head, known)];
    else
      return s.at[scale_index(s, entry, head, known)];
  }
};

/// Where V's factor of column 0 lies; that of column d is d times `channel` further.
__device__ __forceinline__ const float* value_factors(const FeatureParams& p, int entry, int head) {
  return p.v_scales.at + scale_index(p.v_scales, entry, head, 0);
}

// ------------------------------------------------------------------------------------------------------ by columns

/// V's factors of a lane's columns, two of each fragment of 16 from column `first` on (column_parts.cuh: Result).
template <int kHeadDim, int kColumns>
__device__ __forceinline__ void load_value_factors(float (&to)[kColumns][2], const FeatureParams& p, int entry,
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

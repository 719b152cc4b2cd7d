/// K and V in 8 bits beside Q in 16, in families that multiply fragments in registers: elements become fp16 in front of
/// the products (kernels/tile/widened.cuh). P is fp16 too, and so is Q: every element of 8 bits is exact in it, and
/// bf16 would lose digits of P and need more instructions.
///
/// Neither product minds an order of its contraction that both operands share, and columns of O may be counted as they
/// come. So no lane needs an element of another:
///
///     S    a lane's four neighbouring columns of K are columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of a step of 16: Q is
///          loaded in that order (query_column)
///     P V  ldmatrix transposes pairs of columns. Of lane T, four bytes are keys 2 t and 2 t + 1 of columns 2 g and
///          2 g + 1, g = T / 4: even columns are one fragment (or eight rows of it), odd ones the next
///
/// K's factor multiplies scores, V's the output: it has to be one of all keys (tensor, head or channel).
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

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

/// Factors of K, of the keys of one head.
template <const Problem& kProblem>
struct KeyFactors {
  const ScoreFeatureParams& p;  ///< the launch as the job's entry has it
  int entry;
  int head;
  bool differ;  ///< from key to key

  __device__ __forceinline__ KeyFactors(const ScoreFeatureParams& params, int batch, int kv_head)
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
__device__ __forceinline__ const float* value_factors(const ScoreFeatureParams& p, int entry, int head) {
  return p.v_scales.at + scale_index(p.v_scales, entry, head, 0);
}

}  // namespace heed::attention

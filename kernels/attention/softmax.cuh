/// Online softmax over the accumulator fragments of mma.m16n8k16 (Milakov and Gimelshein, arXiv 1805.02867;
/// FlashAttention-2, Dao, arXiv 2307.08691), and what is done with a row's maximum and sum in all families.
///
/// A row's state is what was subtracted from its scores (row_max) and the sum of its probabilities (row_sum). Scores
/// are in units of log2 after multiplication with scale_log2 = softmax scale * log2(e).
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/exp2.cuh"
#include "kernels/element.hpp"
#include "kernels/tile/quad.cuh"

namespace heed::attention {

/// By how much a row maximum may grow before rows are rescaled (Rescale::conditional).
inline constexpr float kFar = 8.0F;

/// A finite stand-in for a row maximum of -inf, so that exp2(-inf - row_max) is 0 and never NaN.
__device__ __forceinline__ float finite_row_max(float row_max) {
  return row_max == -kInfinity ? 0.0F : row_max;
}

/// What was summed below `row_max` counts below `next`, the larger: 2^(row_max - next), and 0 where it had no keys.
__device__ __forceinline__ float rescale_factor(float row_max, float next) {
  return ptx::ex2_approx_ftz(row_max - finite_row_max(next));
}

/// 1 / row_sum, and 0 for a row without keys.
__device__ __forceinline__ float inverse_or_zero(float row_sum) {
  return row_sum > 0.0F ? ptx::rcp_approx_ftz(row_sum) : 0.0F;
}
/// The same, rounded correctly.
__device__ __forceinline__ float exact_inverse_or_zero(float row_sum) {
  return row_sum > 0.0F ? 1.0F / row_sum : 0.0F;
}

/// The log-sum-exp of a row in base 2: how it travels between partial results.
__device__ __forceinline__ float log2_sum_exp(float row_max, float row_sum) {
  return row_max + ptx::lg2_approx_ftz(row_sum);
}

/// The log-sum-exp of a row as it is written, in base e: -inf without keys.
__device__ __forceinline__ float log_sum_exp(bool has_keys, float row_max, float row_sum) {
  return has_keys ? log2_sum_exp(row_max, row_sum) * kLn2 : -kInfinity;
}

/// What two partial results of a row weigh in their sum, not normalised.
struct TwoWeights {
  float row_max;  ///< of both
  float first;
  float second;
};
__device__ __forceinline__ TwoWeights weigh_two(float first_row_max, float second_row_max) {
  const float row_max = fmaxf(first_row_max, second_row_max);
  const float subtracted = finite_row_max(row_max);
  const float first = ptx::ex2_approx_ftz(first_row_max - subtracted);
  const float second = ptx::ex2_approx_ftz(second_row_max - subtracted);
  return {row_max, first, second};
}

/// Adds four columns of a partial result.
__device__ __forceinline__ void add_weighted(float* out, float weight, const float4& part) {
  out[0] = fmaf(weight, part.x, out[0]);
  out[1] = fmaf(weight, part.y, out[1]);
  out[2] = fmaf(weight, part.z, out[2]);
  out[3] = fmaf(weight, part.w, out[3]);
}

/// Eight columns of a finished row, normalised and rounded to 16 bits.
template <Element kElement>
__device__ __forceinline__ uint4 words_of_row(const float (&out)[8], float inverse) {
  uint4 words;
  words.x = ptx::cvt_rn_x2<kElement>(out[0] * inverse, out[1] * inverse);
  words.y = ptx::cvt_rn_x2<kElement>(out[2] * inverse, out[3] * inverse);
  words.z = ptx::cvt_rn_x2<kElement>(out[4] * inverse, out[5] * inverse);
  words.w = ptx::cvt_rn_x2<kElement>(out[6] * inverse, out[7] * inverse);
  return words;
}

// ------------------------------------------------------------------------------------------- stale row maxima

/// The range that a stale row maximum leaves to probabilities, by the element type that they are rounded to.
template <Element kElement>
struct StaleRange;

/// bf16 and fp32 end at 3e38: probabilities cannot overflow, but outputs of many large ones could. Values of up to 3e29
/// have to fit on top of a sum.
template <>
struct StaleRange<Element::fp32> {
  static constexpr float lane_sum = 1e9F;     ///< of a lane's columns of one tile, which bounds each summand
  static constexpr float lane_tile = 1e9F;    ///< the same where the whole tile is taken before one sum is looked at
  static constexpr float mma_sum = 1e9F;      ///< of a row that the tensor cores sum over a column of ones
  static constexpr float tile_margin = 0.0F;  ///< 2^this is the largest probability of the tile it was taken from
};
template <>
struct StaleRange<Element::bf16> : StaleRange<Element::fp32> {};

/// fp16 ends at 65504, beyond which a probability is infinite, and a sum of the tensor cores too. It has 2^11 above the
/// margin for larger scores of later tiles, and 2^-18 below before it loses digits.
template <>
struct StaleRange<Element::fp16> {
  static constexpr float lane_sum = 6e4F;
  static constexpr float lane_tile = 3e4F;
  static constexpr float mma_sum = 3e38F;
  static constexpr float tile_margin = 4.0F;
};

/// Whether no probability below a stale row maximum has left the range of 16 bits, by the sums of a lane's columns
/// of one tile. False too for a sum that is NaN: a row without a row maximum yet, or a score that is NaN.
template <Element kElement, int kFragments>
__device__ __forceinline__ bool stale_tile_fits(const float (&total)[kFragments][2]) {
  constexpr float kMost = StaleRange<kElement>::lane_tile;
  bool fits = true;
#pragma unroll
  for (int m = 0; m < kFragments; ++m) fits = fits && total[m][0] < kMost && total[m][1] < kMost;
  return !__any_sync(0xffffffffU, !fits);
}

// ------------------------------------------------------------------------------------------- warp-level fragments

/// State of the rows one lane takes part in: two rows (lane / 4 and lane / 4 + 8) of each 16-row fragment.
template <int kFragments>
struct RowState {
  float row_max[kFragments][2];  ///< -inf before the first visible key
  float row_sum[kFragments][2];  ///< of this lane's columns only, until reduce()

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row_max[m][h] = -kInfinity;
        row_sum[m][h] = 0.0F;
      }
  }

  /// Adds up the sums of the four lanes that share a row.
  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) row_sum[m][h] = tile::quad_sum(row_sum[m][h]);
  }
};

/// Replaces scores (kFragments, kTiles n-tiles of 8 keys) by exp2(scaled score - row maximum), updates row maxima and
/// sums, and rescales the partial output `out` (kFragments, kOutTiles) when the row maximum changed. New row
/// maxima lie `margin_below` below the maximum. Without kSums row sums are rescaled and nothing is added to them.
template <Exp2 kExp2, Rescale kRescale, bool kSums = true, int kFragments, int kTiles, int kOutTiles>
__device__ __forceinline__ void softmax_tile(float (&scores)[kFragments][kTiles][4],
                                             float (&out)[kFragments][kOutTiles][4], RowState<kFragments>& rows,
                                             float scale_log2, float margin_below = 0.0F) {
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
    float scaled_maximum[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float maximum = fmaxf(scores[m][0][2 * h], scores[m][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kTiles; ++n) maximum = fmaxf(maximum, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      scaled_maximum[h] = fmaf(tile::quad_max(maximum), scale_log2, -margin_below);
    }
    const float margin = kRescale == Rescale::conditional ? kFar : 0.0F;
    const bool grew =
        scaled_maximum[0] > rows.row_max[m][0] + margin || scaled_maximum[1] > rows.row_max[m][1] + margin;
    if (kRescale == Rescale::always || kRescale == Rescale::stale_tile || __any_sync(0xffffffffU, grew)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(rows.row_max[m][h], scaled_maximum[h]);
        const float factor = rescale_factor(rows.row_max[m][h], next);
        rows.row_max[m][h] = next;
        rows.row_sum[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          out[m][n][2 * h] *= factor;
          out[m][n][2 * h + 1] *= factor;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float negative = -finite_row_max(rows.row_max[m][h]);
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float p = exp2<kExp2>(fmaf(scores[m][n][2 * h + c], scale_log2, negative), 2 * n + c);
          scores[m][n][2 * h + c] = p;
          sum += p;
        }
      }
      if constexpr (kSums) rows.row_sum[m][h] += sum;
    }
  }
}

}  // namespace heed::attention

/// Online softmax over the accumulator fragments of mma.m16n8k16 (Milakov and Gimelshein, arXiv 1805.02867;
/// FlashAttention-2, Dao, arXiv 2307.08691).
#pragma once

#include "kernels/attention/exp2.cuh"

namespace heed::attention {

inline constexpr float kFar = 8.0F;

/// State of the rows one lane takes part in: two rows (lane / 4 and lane / 4 + 8) of each 16-row fragment.
/// Scores are in units of log2 after multiplication with scale_log2 = softmax scale * log2(e).
template <int kFragments>
struct RowState {
  float reference[kFragments][2];  ///< subtracted from scaled scores; -inf before the first visible key
  float sum[kFragments][2];        ///< of this lane's columns only, until reduce()

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        reference[m][h] = -__int_as_float(0x7f800000);
        sum[m][h] = 0.0F;
      }
  }

  /// Adds up the sums of the four lanes that share a row.
  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += __shfl_xor_sync(0xffffffffU, sum[m][h], 1);
        sum[m][h] += __shfl_xor_sync(0xffffffffU, sum[m][h], 2);
      }
  }
};

/// A finite stand-in for a reference of -inf, so that exp2(-inf - reference) is 0 and never NaN.
__device__ __forceinline__ float finite_row_max(float reference) {
  return reference == -__int_as_float(0x7f800000) ? 0.0F : reference;
}

/// With a stale row maximum: 2^this is the largest probability of the tile it was taken from. fp16 has 2^11 above
/// it for larger scores of later tiles, and 2^-18 below before it loses digits; bf16 needs neither.
__device__ __forceinline__ constexpr float stale_tile_margin(Element element) {
  return element == Element::bf16 ? 0.0F : 4.0F;
}

/// Whether no probability below a stale row maximum has left the range of 16 bits, by the sums of a lane's columns
/// of one tile. False too for a sum that is NaN: a row without a reference yet, or a score that is NaN.
template <int kFragments>
__device__ __forceinline__ bool stale_tile_fits(const float (&total)[kFragments][2], Element element) {
  // The sum bounds each summand. bf16 probabilities cannot overflow, but outputs of many large ones could.
  const float most = element == Element::bf16 ? 1e9F : 3e4F;
  bool fits = true;
#pragma unroll
  for (int m = 0; m < kFragments; ++m) fits = fits && total[m][0] < most && total[m][1] < most;
  return !__any_sync(0xffffffffU, !fits);
}

/// Replaces scores (kFragments, kTiles n-tiles of 8 keys) by exp2(scaled score - reference), updates references and
/// sums, and rescales the partial output `out` (kFragments, kOutTiles) when the reference of a row changed. New
/// references lie `reference_margin` below the maximum.
template <Exp2 kExp2, Rescale kRescale, int kFragments, int kTiles, int kOutTiles>
__device__ __forceinline__ void softmax_tile(float (&scores)[kFragments][kTiles][4],
                                             float (&out)[kFragments][kOutTiles][4], RowState<kFragments>& rows,
                                             float scale_log2, float reference_margin = 0.0F) {
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
    float scaled_maximum[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float maximum = fmaxf(scores[m][0][2 * h], scores[m][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kTiles; ++n) maximum = fmaxf(maximum, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
      scaled_maximum[h] = fmaf(maximum, scale_log2, -reference_margin);
    }
    const float margin = kRescale == Rescale::conditional ? kFar : 0.0F;
    const bool grew =
        scaled_maximum[0] > rows.reference[m][0] + margin || scaled_maximum[1] > rows.reference[m][1] + margin;
    if (kRescale == Rescale::always || kRescale == Rescale::stale_tile || __any_sync(0xffffffffU, grew)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(rows.reference[m][h], scaled_maximum[h]);
        const float factor = ptx::ex2_approx_ftz(rows.reference[m][h] - finite_row_max(next));
        rows.reference[m][h] = next;
        rows.sum[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          out[m][n][2 * h] *= factor;
          out[m][n][2 * h + 1] *= factor;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float negative_reference = -finite_row_max(rows.reference[m][h]);
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float p = exp2<kExp2>(fmaf(scores[m][n][2 * h + c], scale_log2, negative_reference), 2 * n + c);
          scores[m][n][2 * h + c] = p;
          sum += p;
        }
      }
      rows.sum[m][h] += sum;
    }
  }
}

}  // namespace heed::attention

/// Row maxima, exponentials and row sums of fwd_sm90_split: what happens to the scores of a consumer warpgroup between
/// two products.
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691); that what is subtracted need not be the maximum,
/// as long as probabilities stay in range, is what RowMax and kMostSum are about.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/sm90/split/gemms.cuh"
#include "kernels/sm90/split/scores.cuh"

namespace heed::sm90_split {

/// Adds the head's sink to a row of one part: to its log2-sum-exp, and to the sum by whose `inverse` its outputs are
/// multiplied.
__device__ __forceinline__ void add_sink(const ScoreFeatureParams& p, int head, float& log2_sum, float& inverse) {
  float sum = 1.0F;
  inverse *= attention::add_sink(p, head, log2_sum, sum);
  inverse *= attention::inverse_or_zero(sum);
  log2_sum = attention::log2_sum_exp(log2_sum, sum);
}

template <const Config& kConfig, const Problem& kProblem>
struct Softmax {
  using Gemms = sm90_split::Gemms<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr bool kOnes = Gemms::kOnes;
  using StaleRange = attention::StaleRange<kProblem.element>;
  static constexpr float kMostSum = kOnes ? StaleRange::mma_sum : StaleRange::lane_sum;
  // Of bf16 the rounded probabilities are summed: below a stale row maximum one that outweighs all others
  // is no power of two, and rounding it alone made a row wrong by 0.5%.
  static constexpr bool kSumsRounded = !kOnes && kProblem.element == Element::bf16;

  // ---- state
  float scale_log2;
  float row_max[2];  // in log2 units of the scaled scores
  float row_sum[2];  // of this lane's columns; unused with columns of ones

  /// Raises the row maxima to `maximum` where that is larger, and rescales what was summed below the old ones.
  __device__ __forceinline__ void raise_row_max(const float (&maximum)[2], Gemms& gemms) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(row_max[h], maximum[h]);
      const float factor = attention::rescale_factor(row_max[h], next);
      row_max[h] = next;
      row_sum[h] *= factor;
      attention::rescale_row(gemms.acc_o, h, factor);
    }
  }

  /// Exponentials of one step: scores 8 step to 8 step + 7 of an n-block, less `subtracted` of each row.
  __device__ __forceinline__ void exponentials(float (&e)[8], const float (&s)[kBlockN / 2], int step,
                                               const float (&subtracted)[2]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) e[i] = fmaf(s[8 * step + i], scale_log2, -subtracted[i / 2 % 2]);
      // Where the compiler moves these among the products decides 10% of the time.
#pragma unroll
    for (int i = 0; i < 8; ++i)
      e[i] = kConfig.asm_order == AsmOrder::fixed ? ptx::ex2_approx_ftz_in_order(e[i]) : ptx::ex2_approx_ftz(e[i]);
    if constexpr (!kOnes && !kSumsRounded) {
      row_sum[0] += (e[0] + e[1]) + (e[4] + e[5]);
      row_sum[1] += (e[2] + e[3]) + (e[6] + e[7]);
    }
  }

  /// Rounds a step's probabilities; sums what the tensor cores will see.
  __device__ __forceinline__ void round(unsigned (&p)[4], const float (&e)[8]) {
    pack<kProblem.element, kConfig.asm_order == AsmOrder::fixed>(p, e);
    if constexpr (kSumsRounded)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        row_sum[i % 2] += ptx::unpack_low<kProblem.element>(p[i]) + ptx::unpack_high<kProblem.element>(p[i]);
  }

  /// A row's sum, or this lane's share of it.
  __device__ __forceinline__ float final_row_sum(int half, const Gemms& gemms) const {
    return kOnes ? gemms.acc_o[Gemms::kDim / 2 + 2 * half] : row_sum[half];
  }

  /// Whether a row's sum left its range.
  __device__ __forceinline__ bool has_overflown(const Gemms& gemms) const {
    return !(final_row_sum(0, gemms) < kMostSum) || !(final_row_sum(1, gemms) < kMostSum);
  }
};

}  // namespace heed::sm90_split

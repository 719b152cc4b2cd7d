/// Masks, row maxima and exponentials of fwd_sm90_split: what happens to the scores of a consumer warpgroup between two
/// products.
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691); that what is subtracted need not be the maximum,
/// as long as probabilities stay in range, is what RowMax and kMostSum are about.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/sm90/split/gemms.cuh"
#include "kernels/sm90/split/known_parts.hpp"
#include "kernels/sm90/split/scores.cuh"

namespace heed::sm90_split {

template <const Config& kConfig, const Problem& kProblem>
struct Softmax : Gemms<kConfig, kProblem> {
  using Base = Gemms<kConfig, kProblem>;
  using Base::kBlockN, Base::kMWarpgroups, Base::kDim, Base::kOutColumns, Base::kOnes, Base::m_warpgroup, Base::acc_o,
      Base::params, Base::block_row, Base::kBegins, Base::origin;

  // ---- compile-time facts
  static constexpr float kMostSum =
      kOnes ? attention::largest_row_sum_of_mma(kProblem.element) : attention::largest_row_sum(kProblem.element);
  // Of bf16 the rounded probabilities are summed: below a stale row maximum one that outweighs all others
  // is no power of two, and rounding it alone made a row wrong by 0.5%.
  static constexpr bool kSumsRounded = !kOnes && kProblem.element == Element::bf16;

  // ---- state
  int lane;
  int warp;        // within the consumer warpgroup
  Range n_blocks;  // of this part
  float scale_log2;
  // MaskAt::probabilities:
  int diagonal;      // the n-block through which the mask's edge runs
  bool is_lined_up;  // it runs from corner to corner, and no row of the block that is written sees past the last key
  unsigned seen[kBlockN / 8 + 1];  // bits of two packed ones that are kept, of its tile t and row h: at t - h + 1
  float row_max[2];                // in log2 units of the scaled scores
  float row_sum[2];                // of this lane's columns; unused with columns of ones

  using Base::Base;

  __device__ __forceinline__ int row(int half) const {
    return block_row + m_warpgroup * kWarpgroupRows + warp * 16 + lane / 4 + 8 * half;
  }

  /// Sets scores of keys that a row does not see, or that are another split's, to -inf.
  __device__ __forceinline__ void mask_scores(float (&s)[kBlockN / 2], int first_key) const {
    if constexpr (kBegins) {
      int begin[2];
      int end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = origin() + first_key + 2 * (lane % 4);
        begin[h] = hidden_keys(kProblem.mask, row(h), params.left_offset, params.len_k) - from;
        end[h] = min(visible_keys(kProblem.mask, row(h), params.right_offset, params.len_k),
                     origin() + n_blocks.end * kBlockN) -
                 from;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_from(s, h, end[h]);
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_before(s, h, begin[h]);
    } else {
      int end[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        end[h] = min(visible_keys(kProblem.mask, row(h), params.right_offset, params.len_k), n_blocks.end * kBlockN) -
                 first_key - 2 * (lane % 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) attention::hide_columns_from(s, h, end[h]);
    }
  }

  /// Raises the row maxima to `maximum` where that is larger, and rescales what was summed below the old ones.
  __device__ __forceinline__ void raise_row_max(const float (&maximum)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(row_max[h], maximum[h]);
      const float factor = attention::rescale_factor(row_max[h], next);
      row_max[h] = next;
      row_sum[h] *= factor;
      attention::rescale_row(acc_o, h, factor);
    }
  }

  /// Which probabilities the rows of this lane see of the n-block on the diagonal. Both rows see the same of tiles that
  /// are one apart, so nine words tell of all 16 pairs of columns.
  __device__ __forceinline__ void find_diagonal() {
    diagonal = (block_row + m_warpgroup * kWarpgroupRows + params.right_offset) / kBlockN;
    // Of the whole block: its consumer warpgroups vote together, and one in the other program would vote at another
    // place.
    is_lined_up = sm90_split::is_lined_up(kConfig, block_row, params.len_q, params.len_k, params.right_offset);
    const int keys = 16 * warp + lane / 4 + 1 - 2 * (lane % 4);  // seen from this lane's first column on
#pragma unroll
    for (int i = 0; i <= kBlockN / 8; ++i) {
      const int left = keys - 8 * (i - 1);
      seen[i] = left >= 2 ? 0xFFFFFFFFU : left == 1 ? 0xFFFFU : 0;
    }
  }

  /// Takes out what the rows do not see, of a step of an n-block; `before` has all bits set where the n-block lies
  /// before the diagonal.
  __device__ __forceinline__ void keep_seen(unsigned (&p)[4], int step, unsigned before) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] &= seen[2 * step + i / 2 - i % 2 + 1] | before;
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
  __device__ __forceinline__ float final_row_sum(int half) const {
    return kOnes ? acc_o[kDim / 2 + 2 * half] : row_sum[half];
  }

  /// Whether a row's sum left its range.
  __device__ __forceinline__ bool has_overflown() const {
    return !(final_row_sum(0) < kMostSum) || !(final_row_sum(1) < kMostSum);
  }
};

}  // namespace heed::sm90_split

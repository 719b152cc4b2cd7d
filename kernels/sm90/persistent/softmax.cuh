/// Row maxima and exponentials of fwd_sm90_persistent: what happens to the scores of a consumer warpgroup between two
/// products, and how its warps find out that they were overflowed by a stale row maximum.
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691); that what is subtracted need not be the maximum,
/// as long as probabilities stay in range, is what RowMax, OverflowCheck and kMostSum are about.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/sm90/persistent/gemms.cuh"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_persistent {

/// Row maxima and sums of a lane's two rows.
template <const Config& kConfig, const Problem& kProblem>
struct Softmax {
  using AccO = typename Gemms<kConfig, kProblem>::AccO;
  using AccS = typename Gemms<kConfig, kProblem>::AccS;
  using FragP = typename Gemms<kConfig, kProblem>::FragP;

  // ---- compile-time facts
  static constexpr int kKeys = kConfig.block_n;
  static constexpr int kSteps = kKeys / kMmaK;
  // The sum of a lane's columns of one tile stays below kMostSum, or fp16 probabilities may have overflowed; bf16 ones
  // cannot, but outputs of many large ones could. What lies between that and 2^kMargin, the largest probability of the
  // tiles a row maximum was taken from, keeps warps from being overflowed: rows that see a single key of their first
  // tile need 2^11 of it. With a margin of 8 some warp of most launches was, and b4h16l512d64 causal took 6% longer on
  // an H200. Of 0 and 1 the range hardly tells, but ptxas places exponentials by them: without a mask 0 is up to 1.3%
  // slower (b1h8l2048d64), with one 1.5% faster (b4h16l512d64).
  static constexpr float kMargin = kProblem.element == Element::fp16 && !has_right_bound(kProblem.mask) ? 1.0F : 0.0F;
  static constexpr float kMostSum = attention::StaleRange<kProblem.element>::lane_sum;
  // Of bf16 the rounded probabilities are summed: below a stale row maximum one that outweighs all others
  // is no power of two, and rounding it alone makes a row wrong by 0.5%. Of fp16, whose digits are eight times as many,
  // where that is asked for.
  static constexpr bool kSumsRounded =
      kProblem.element == Element::bf16 || kConfig.rowsum == attention::Rowsum::fadd_rounded;

  // In steps, how far ahead of exponentials or behind.
  static constexpr int kScaledAhead = kConfig.scale_placement == ScalePlacement::at_use       ? 0
                                      : kConfig.scale_placement == ScalePlacement::step_ahead ? 1
                                                                                              : kSteps;
  static constexpr int kPackedBehind = kConfig.convert_placement == ConvertPlacement::at_once      ? 0
                                       : kConfig.convert_placement == ConvertPlacement::step_later ? 1
                                                                                                   : kSteps;
  static constexpr int kAsAsked = kConfig.rowsum_placement == RowsumPlacement::at_once      ? 0
                                  : kConfig.rowsum_placement == RowsumPlacement::step_later ? 1
                                                                                            : kSteps;
  static constexpr int kAddedBehind = kSumsRounded && kPackedBehind > kAsAsked ? kPackedBehind : kAsAsked;
  static constexpr int kLatest = kPackedBehind > kAddedBehind ? kPackedBehind : kAddedBehind;

  // ---- state
  float row_max[2];  // in log2 units of the scaled scores; -inf before the first key
  float row_sum[2];  // of this lane's columns

  __device__ __forceinline__ void clear() {
    row_max[0] = row_max[1] = -attention::kInfinity;
    row_sum[0] = row_sum[1] = 0.0F;
  }

  /// Probabilities below the given row maxima and their sums in this lane's columns. In which order they are written
  /// decides where ptxas puts them: Scaling, Packing, Adding.
  __device__ __forceinline__ void exponentials(FragP& p, float (&total)[2], const AccS& s, float scale_log2,
                                               const float (&negative)[2]) const {
    float e[kSteps][8];
    const auto scale_step = [&](int k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) e[k][i] = fmaf(s[8 * k + i], scale_log2, negative[i / 2 % 2]);
    };
    const auto pack_step = [&](int k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = ptx::cvt_rn_x2<kProblem.element>(e[k][2 * i], e[k][2 * i + 1]);
    };
    const auto add_step = [&](int k) {
      if constexpr (kSumsRounded) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          e[k][2 * i] = ptx::unpack_low<kProblem.element>(p[k][i]);
          e[k][2 * i + 1] = ptx::unpack_high<kProblem.element>(p[k][i]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float of_step = (e[k][2 * h] + e[k][2 * h + 1]) + (e[k][2 * h + 4] + e[k][2 * h + 5]);
        total[h] = k == 0 ? of_step : total[h] + of_step;
      }
    };
#pragma unroll
    for (int k = 0; k < kScaledAhead; ++k) scale_step(k);
#pragma unroll
    for (int k = 0; k < kSteps + kLatest; ++k) {
      if (k + kScaledAhead < kSteps) scale_step(k + kScaledAhead);
#pragma unroll
      for (int i = 0; i < 8 && k < kSteps; ++i) e[k][i] = ptx::ex2_approx_ftz(e[k][i]);
      if (k >= kPackedBehind && k < kSteps + kPackedBehind) pack_step(k - kPackedBehind);
      if (k >= kAddedBehind && k < kSteps + kAddedBehind) add_step(k - kAddedBehind);
    }
  }

  /// What probabilities below the row maxima so far take from scores. A row of which biases have hidden every key has
  /// none: what it sees first becomes infinite, and what is hidden 0, not NaN, for which its warp would compute each
  /// tile twice.
  __device__ __forceinline__ float below_stale(int half) const {
    constexpr float kNone = 0x1p100F;
    return kProblem.features.bias ? fminf(-row_max[half], kNone) : -row_max[half];
  }

  /// The row_max of a row by the maximum of a tile's first kUsed keys.
  template <int kUsed>
  __device__ __forceinline__ float row_max_of(const AccS& s, float scale_log2, int half) const {
    return fmaf(tile::quad_max(attention::row_maximum<kUsed / 2>(s, half)), scale_log2, -kMargin);
  }

  /// Raises the row maxima to this tile's maxima where those are larger, and takes the probabilities. What was summed
  /// below the old row maxima is to be multiplied with `factor`: the sums are, the output is left to rescale.
  __device__ __forceinline__ void online_probabilities(FragP& p, float (&factor)[2], const AccS& s, float scale_log2) {
    float negative[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(row_max[h], row_max_of<kKeys>(s, scale_log2, h));
      negative[h] = -attention::finite_row_max(next);
      factor[h] = ptx::ex2_approx_ftz(row_max[h] + negative[h]);
      row_max[h] = next;
    }
    float total[2];
    exponentials(p, total, s, scale_log2, negative);
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] = fmaf(row_sum[h], factor[h], total[h]);
  }

  __device__ __forceinline__ void online(FragP& p, const AccS& s, float scale_log2, AccO& acc_o) {
    float factor[2];
    online_probabilities(p, factor, s, scale_log2);
    rescale(acc_o, factor);
  }

  /// Whether probabilities with these sums are in the range of 16 bits.
  __device__ __forceinline__ static bool fits(const float (&total)[2]) {
    return total[0] < kMostSum && total[1] < kMostSum;
  }

  /// Probabilities of the first tile below row maxima of its first 16 keys, which take a quarter of the instructions of
  /// all maxima (0.1 of 6.7 us at b1h8l1024d64 on an H200); false where that will not do, without row maxima again.
  __device__ __forceinline__ bool stale_16(FragP& p, const AccS& s, float scale_log2) {
    row_max[0] = row_max_of<kMmaK>(s, scale_log2, 0);
    row_max[1] = row_max_of<kMmaK>(s, scale_log2, 1);
    if (stale(p, s, scale_log2)) return true;
    row_max[0] = row_max[1] = -attention::kInfinity;
    return false;
  }

  /// Probabilities below the row maxima so far; false where they may have left the range of 16 bits, or where a row
  /// has no row maximum yet (its probabilities are infinite then): nothing has been added up in that case.
  __device__ __forceinline__ bool stale(FragP& p, const AccS& s, float scale_log2, bool refused = false) {
    const float negative[2] = {below_stale(0), below_stale(1)};
    float total[2];
    exponentials(p, total, s, scale_log2, negative);
    if (__any_sync(0xffffffffU, !fits(total) || refused)) return false;
    row_sum[0] += total[0];
    row_sum[1] += total[1];
    return true;
  }

  /// The same without a branch: whether they may have left the range. ptxas moves no wait for products over a branch,
  /// but products would wait for one at the end of these.
  __device__ __forceinline__ bool stale_branchless(FragP& p, const AccS& s, float scale_log2, bool refused = false) {
    const float negative[2] = {below_stale(0), below_stale(1)};
    float total[2];
    exponentials(p, total, s, scale_log2, negative);
    const bool overflowed = __any_sync(0xffffffffU, !fits(total) || refused);
    row_sum[0] += overflowed ? 0.0F : total[0];
    row_sum[1] += overflowed ? 0.0F : total[1];
    return overflowed;
  }

  /// Probabilities below the row maxima so far in the scores' place, and their sums in this lane's columns.
  __device__ __forceinline__ void exponentials_in_place(AccS& s, float (&total)[2], float scale_log2) const {
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* e = s + 4 * t + 2 * h;
#pragma unroll
        for (int i = 0; i < 2; ++i) e[i] = ptx::ex2_approx_ftz(fmaf(e[i], scale_log2, -row_max[h]));
        total[h] = t == 0 ? e[0] + e[1] : total[h] + (e[0] + e[1]);
      }
  }
  /// Rounds these, and adds their sums, which fit, to those of the rows.
  __device__ __forceinline__ void round_in_place(FragP& p, const AccS& s, const float (&total)[2]) {
    if constexpr (!kSumsRounded) {
      row_sum[0] += total[0];
      row_sum[1] += total[1];
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[k][i] = ptx::cvt_rn_x2<kProblem.element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        // Here, though beside no product: rounded in place, beside the values, one register too many is live.
        if constexpr (kSumsRounded)
          row_sum[i % 2] += ptx::unpack_low<kProblem.element>(p[k][i]) + ptx::unpack_high<kProblem.element>(p[k][i]);
      }
  }

  /// Of each row over the four lanes that have its columns.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] = tile::quad_sum(row_sum[h]);
  }

  /// Adds the head's sink to rows that are done with this part's keys, for one of the parts alone: outputs, row maxima
  /// and sums are merged as ever.
  __device__ __forceinline__ void add_sinks(const ScoreFeatureParams& params, int head, AccO& acc_o) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = attention::add_sink(params, head, row_max[h], row_sum[h]);
    rescale(acc_o, factor);
  }

  /// No product is in flight.
  __device__ __forceinline__ static void rescale(AccO& acc_o, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < padded_dim(kProblem.head_dim) / 2; ++i) acc_o[i] *= factor[i / 2 % 2];
  }
};

}  // namespace heed::sm90_persistent

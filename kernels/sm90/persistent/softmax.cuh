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
#include "kernels/sm90/persistent/entries.cuh"
#include "kernels/sm90/persistent/gemms.cuh"
#include "kernels/sm90/persistent/registers.hpp"

namespace heed::sm90_persistent {

/// Biases of the tile whose products are next. Where a config asks for none an empty type.
template <bool kAsks, int kKeys>
struct NextBiasesOf {
  struct Type {};
};
template <int kKeys>
struct NextBiasesOf<true, kKeys> {
  using Type = attention::BiasesAhead<kKeys>;
};

template <const Config& kConfig, const Problem& kProblem>
struct Softmax : Gemms<kConfig, kProblem>, attention::ListedBlocks<kProblem> {
  using Base = Gemms<kConfig, kProblem>;
  using Changes = attention::ScoreChanges<kProblem>;
  using Base::kDim, Base::kKeys, Base::kSteps, Base::lane, Base::warp, Base::m_warpgroup, Base::acc_o;
  using typename Base::Smem, typename Base::AccS, typename Base::FragP;

  // ---- compile-time facts
  // The sum of a lane's columns of one tile stays below kMostSum, or fp16 probabilities may have overflowed; bf16 ones
  // cannot, but outputs of many large ones could. What lies between that and 2^kMargin, the largest probability of the
  // tiles a row maximum was taken from, keeps warps from being overflowed: rows that see a single key of their first
  // tile need 2^11 of it. With a margin of 8 some warp of most launches was, and b4h16l512d64 causal took 6% longer on
  // an H200. Of 0 and 1 the range hardly tells, but ptxas places exponentials by them: without a mask 0 is up to 1.3%
  // slower (b1h8l2048d64), with one 1.5% faster (b4h16l512d64).
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kChanges = changes_scores(kProblem.features);
  static constexpr float kMargin = kProblem.element == Element::fp16 && !has_right_bound(kProblem.mask) ? 1.0F : 0.0F;
  static constexpr float kMostSum = attention::largest_row_sum(kProblem.element);
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

  // Whether biases of full blocks are not read. Beyond one box of columns they are, and change nothing: with a branch
  // around them the program with all features at head dim 128 spills 124 bytes, wherever the branch stands.
  static constexpr bool kSkipsBias = has_full_blocks(kProblem.features) && kDim <= tile::kBoxColumns;

  // ---- state
  attention::ParamsOfEntry<kProblem> params;
  int warpgroup_row;  // first of the consumer warpgroup
  float scale_log2;
  float row_max[2];  // in log2 units of the scaled scores; -inf before the first key
  float row_sum[2];  // of this lane's columns

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Softmax(const Params<kProblem>& parameters, const Smem& where, int block_warp)
      : Base(where, block_warp),
        params(parameters),
        scale_log2(kChanges ? 1.0F : parameters.scale * attention::kLog2e) {}

  __device__ __forceinline__ int row(int half) const { return warpgroup_row + warp * 16 + lane / 4 + 8 * half; }

  /// The first key of the Q tile's KV tiles: keys are counted from there (kv_tiles.hpp).
  __device__ __forceinline__ int origin() const {
    if constexpr (kProblem.features.blocks)
      if (this->blocks.numbers != nullptr) return 0;
    if constexpr (kProblem.features.pages)
      return origin_of_boxes(
          kConfig, params,
          hidden_keys(kProblem.mask, warpgroup_row - m_warpgroup * kWarpgroupRows, params.left_offset, params.len_k));
    return hidden_keys(kProblem.mask, warpgroup_row - m_warpgroup * kWarpgroupRows, params.left_offset, params.len_k);
  }
  /// Keys before this are hidden from some row of the consumer warpgroup.
  __device__ __forceinline__ int hidden_from_some() const {
    return hidden_keys(kProblem.mask, warpgroup_row + kWarpgroupRows - 1, params.left_offset, params.len_k) - origin();
  }

  /// To be called in front of all else of a Q tile, behind the start barrier as well: from then on `params` are those
  /// of its entry, where entries differ.
  __device__ __forceinline__ void begin_entry(const Params<kProblem>& launch, const QTile& at) {
    if constexpr (kProblem.features.lengths) params = attention::params_of_entry<kProblem>(launch, at.batch);
    int prefix_keys = 0;
    if constexpr (kProblem.features.prefix) prefix_keys = this->prefix = prefix_of(params, at.batch);
    if constexpr (kProblem.features.blocks) this->blocks = blocks_of_tile<kConfig, kProblem>(params, at, prefix_keys);
  }

  /// The first key of KV tile n, counted from the origin.
  __device__ __forceinline__ int first_key(int n) const {
    // The head's bias is null where the launch's is, and is kept anyway.
    if constexpr (has_full_blocks(kProblem.features))
      return first_key_of_tile<kConfig>(this->blocks, n, this->bias != nullptr);
    else if constexpr (kProblem.features.blocks)
      return first_key_of_tile<kConfig>(this->blocks, n);
    return n * kKeys;
  }

  /// Keys that some row of the entry sees: those before this.
  __device__ __forceinline__ int keys_of_entry() const {
    const int seen = visible_keys(kProblem.mask, params.len_q - 1, params.right_offset, params.len_k);
    if constexpr (kProblem.features.prefix) return max(seen, this->prefix);
    return seen;
  }

  /// To be called when a Q tile begins, behind the start barrier: slopes may be the work of the launch before.
  __device__ __forceinline__ void begin_head(const QTile& at) {
    if constexpr (kChanges) static_cast<Changes&>(*this) = Changes(params, at.batch, at.head);
    if constexpr (kProblem.features.prefix) this->prefix = prefix_of(params, at.batch);
  }

  /// Biases of the next tile, asked for before its products are multiplied: their loads take as long as those. Where
  /// exponentials run beside products, scores are changed there as well, and registers are short.
  static constexpr bool kAsksForBiases = kProblem.features.bias && kConfig.softmax_overlap == SoftmaxOverlap::none &&
                                         kKeys / 4 + registers_needed(kConfig, kProblem) <= registers_allowed(kConfig);
  using NextBiases = typename NextBiasesOf<kAsksForBiases, kKeys>::Type;
  static constexpr int kPrefetchedTiles = 3;

  /// The first key of tile n, as entries count.
  __device__ __forceinline__ int first_key_of_entry(int n) const { return (kBegins ? origin() : 0) + first_key(n); }
  __device__ __forceinline__ int key_of_lane(int n) const { return first_key_of_entry(n) + 2 * (lane % 4); }
  __device__ __forceinline__ bool reads_bias(int n) const {
    if constexpr (kSkipsBias) return !this->blocks.is_full(index_in_list(this->blocks, n * kKeys));
    return true;
  }

  /// To be called before the products of KV tile n.
  __device__ __forceinline__ void ask_for_biases(NextBiases& next, int n) const {
    if constexpr (kAsksForBiases) {
      Changes::ask_for_biases(next, params, first_key_of_entry(n));
      prefetch_biases(next, n - kPrefetchedTiles);
    }
  }
  /// Of the first tile, the last of the keys.
  __device__ __forceinline__ void ask_for_first_biases(NextBiases& next, int n) const {
    if constexpr (kAsksForBiases) {
      bool prefetches = true;
      if constexpr (kProblem.features.blocks) prefetches = this->blocks.numbers == nullptr;
      Changes::begin_rows(next, params, row(0), warpgroup_row + warp * 16, prefetches);
#pragma unroll
      for (int i = 1; i < kPrefetchedTiles; ++i) prefetch_biases(next, n - i);
      ask_for_biases(next, n);
    }
  }
  __device__ __forceinline__ void prefetch_biases(const NextBiases& next, int n) const {
    Changes::prefetch_biases(next, params, n < 0 ? -1 : (kBegins ? origin() : 0) + n * kKeys);
  }

  /// The products of KV tile n become scores, where the problem's are more than these. Once for every tile, before it
  /// is masked.
  __device__ __forceinline__ void change_products(AccS& s, int n) const {
    if constexpr (kChanges) Changes::change_scores(s, params, row(0), key_of_lane(n), reads_bias(n));
  }
  /// The same with biases that have been asked for.
  __device__ __forceinline__ void change_products(AccS& s, int n, const NextBiases& next) const {
    if constexpr (kAsksForBiases)
      Changes::change_scores(s, params, row(0), key_of_lane(n), reads_bias(n), next);
    else
      change_products(s, n);
  }

  /// Adds the head's sink to rows that are done with this part's keys, for one of the parts alone: outputs, row maxima
  /// and sums are merged as ever.
  __device__ __forceinline__ void add_sinks(int head) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) factor[h] = attention::add_sink(params, head, row_max[h], row_sum[h]);
    rescale(factor);
  }

  /// Sets scores of keys that a row does not see to -inf.
  __device__ __forceinline__ void mask_scores(AccS& s, int first_key) const {
    if constexpr (kBegins) hide_first_keys(s, first_key);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int seen = keys_of_row<has_whole_q_tiles(kProblem)>(kProblem.mask, row(h), params.right_offset, params.len_k);
      if constexpr (kProblem.features.prefix) seen = max(seen, this->prefix);
      if constexpr (kBegins) seen -= origin();
      attention::hide_columns_from(s, h, seen - first_key - 2 * (lane % 4));
    }
  }

  /// Sets scores of keys in front of those that a row sees to -inf.
  __device__ __forceinline__ void hide_first_keys(AccS& s, int first_key) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int begin =
          hidden_keys(kProblem.mask, row(h), params.left_offset, params.len_k) - origin() - first_key - 2 * (lane % 4);
      attention::hide_columns_before(s, h, begin);
    }
  }

  /// Probabilities below the given row maxima and their sums in this lane's columns. In which order they are written
  /// decides where ptxas puts them: Scaling, Packing, Adding.
  __device__ __forceinline__ void exponentials(FragP& p, float (&total)[2], const AccS& s,
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

  /// The row_max of a row by the maximum of a tile's first kUsed keys.
  template <int kUsed>
  __device__ __forceinline__ float row_max_of(const AccS& s, int half) const {
    return fmaf(tile::quad_max(attention::row_maximum<kUsed / 2>(s, half)), scale_log2, -kMargin);
  }

  /// Raises the row maxima to this tile's maxima where those are larger, and takes the probabilities. What was summed
  /// below the old row maxima is to be multiplied with `factor`: the sums are, the output is left to rescale.
  __device__ __forceinline__ void online_probabilities(FragP& p, float (&factor)[2], const AccS& s) {
    float negative[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(row_max[h], row_max_of<kKeys>(s, h));
      negative[h] = -attention::finite_row_max(next);
      factor[h] = ptx::ex2_approx_ftz(row_max[h] + negative[h]);
      row_max[h] = next;
    }
    float total[2];
    exponentials(p, total, s, negative);
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] = fmaf(row_sum[h], factor[h], total[h]);
  }

  /// No product is in flight.
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_o[i] *= factor[i / 2 % 2];
  }

  __device__ __forceinline__ void online_softmax(FragP& p, const AccS& s) {
    float factor[2];
    online_probabilities(p, factor, s);
    rescale(factor);
  }

  /// Probabilities of the first tile below row maxima of its first 16 keys, which take a quarter of the instructions of
  /// all maxima (0.1 of 6.7 us at b1h8l1024d64 on an H200); false where that will not do, without row maxima again.
  __device__ __forceinline__ bool stale_16_softmax(FragP& p, const AccS& s) {
    row_max[0] = row_max_of<kMmaK>(s, 0);
    row_max[1] = row_max_of<kMmaK>(s, 1);
    if (stale_softmax(p, s)) return true;
    row_max[0] = row_max[1] = -attention::kInfinity;
    return false;
  }

  /// Of the first tile's products, some of whose keys may be hidden.
  __device__ __forceinline__ void first_tile_softmax(FragP& p, AccS& s, int n, bool masked, const NextBiases& biases) {
    change_products(s, n, biases);
    if (masked) mask_scores(s, n * kKeys);
    if (kConfig.row_max != RowMax::stale_16 || !stale_16_softmax(p, s)) online_softmax(p, s);
  }

  /// Probabilities below the row maxima so far; false where they may have left the range of 16 bits, or where a row
  /// has no row maximum yet (its probabilities are infinite then): nothing has been added up in that case.
  __device__ __forceinline__ bool stale_softmax(FragP& p, const AccS& s, bool refused = false) {
    const float negative[2] = {-row_max[0], -row_max[1]};
    float total[2];
    exponentials(p, total, s, negative);
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    if (__any_sync(0xffffffffU, !fits || refused)) return false;
    row_sum[0] += total[0];
    row_sum[1] += total[1];
    return true;
  }

  /// The same without a branch: whether they may have left the range. ptxas moves no wait for products over a branch,
  /// but products would wait for one at the end of these.
  __device__ __forceinline__ bool stale_softmax_branchless(FragP& p, const AccS& s, bool refused = false) {
    const float negative[2] = {-row_max[0], -row_max[1]};
    float total[2];
    exponentials(p, total, s, negative);
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    const bool overflowed = __any_sync(0xffffffffU, !fits || refused);
    row_sum[0] += overflowed ? 0.0F : total[0];
    row_sum[1] += overflowed ? 0.0F : total[1];
    return overflowed;
  }
};

}  // namespace heed::sm90_persistent

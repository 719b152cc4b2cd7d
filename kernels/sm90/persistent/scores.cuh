/// Scores of fwd_sm90_persistent between the product Q K^T and the softmax: changed by what a problem has besides the
/// product (kernels/attention/features.hpp), and masked.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/score_rows.cuh"
#include "kernels/sm90/persistent/dropout.cuh"
#include "kernels/sm90/persistent/entries.cuh"
#include "kernels/sm90/persistent/gemms.cuh"
#include "kernels/sm90/persistent/registers.hpp"

namespace heed::sm90_persistent {

/// A warp's tiles of biases. Where a config copies none an empty type.
template <bool kCopies, int kKeys>
struct BiasTileOf {
  struct Type {};
};
template <int kKeys>
struct BiasTileOf<true, kKeys> {
  using Type = attention::BiasTile<kKeys>;
};

/// Which rows, of which batch entry and head, a consumer warpgroup has, and what becomes of their scores.
///
/// Of Gemms functions take the place of the thread. They take all of it: references to `thread` alone moved the machine
/// code of two programs of head dim 128 (docs/ledger.md).
template <const Config& kConfig, const Problem& kProblem>
struct Scores {
  using Gemms = sm90_persistent::Gemms<kConfig, kProblem>;
  using Changes = attention::ScoreChanges<kProblem>;
  using AccS = typename Gemms::AccS;
  using FragP = typename Gemms::FragP;

  // ---- compile-time facts
  static constexpr int kKeys = kConfig.block_n;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kChanges = changes_scores(kProblem.features);
  // Whether biases of full blocks are not read. Beyond one box of columns they are, and change nothing: with a branch
  // around them the program with all features at head dim 128 spills 124 bytes, wherever the branch stands.
  static constexpr bool kSkipsBias =
      has_full_blocks(kProblem.features) && padded_dim(kProblem.head_dim) <= tile::kBoxColumns;
  static constexpr bool kCopiesBiases = copies_biases(kConfig, kProblem);
  using BiasTile = typename BiasTileOf<kCopiesBiases, kKeys>::Type;

  // ---- state
  [[no_unique_address]] attention::ListedBlocks<kProblem> changes;
  attention::ParamsOfEntry<kProblem> params;
  int warpgroup_row;  // first of the consumer warpgroup
  float scale_log2;   // what the softmax multiplies scores with

  __device__ __forceinline__ explicit Scores(const Params<kProblem>& parameters)
      : params(parameters), scale_log2(kChanges ? 1.0F : parameters.scale * attention::kLog2e) {
    if constexpr (kCopiesBiases) scale_log2 = Changes::softmax_scale(parameters);
  }

  /// To be called in front of all else of a Q tile, behind the start barrier as well: from then on `params` are those
  /// of its entry, where entries differ.
  __device__ __forceinline__ void begin_entry(const Params<kProblem>& launch, const QTile& at) {
    if constexpr (kProblem.features.lengths) params = attention::params_of_entry<kProblem>(launch, at.batch);
    int prefix_keys = 0;
    if constexpr (kProblem.features.prefix) prefix_keys = changes.prefix = prefix_of(params, at.batch);
    if constexpr (kProblem.features.blocks) changes.blocks = blocks_of_tile<kConfig, kProblem>(params, at, prefix_keys);
  }
  /// To be called when a Q tile begins, behind the start barrier: slopes may be the work of the launch before.
  __device__ __forceinline__ void begin_head(const QTile& at) {
    if constexpr (kChanges || kProblem.features.dropout)
      static_cast<Changes&>(changes) = Changes(params, at.batch, at.head);
    if constexpr (kProblem.features.prefix) changes.prefix = prefix_of(params, at.batch);
  }

  // ---- places
  /// The first and the second row of a lane.
  __device__ __forceinline__ int row(const Gemms& gemms, int half) const {
    return warpgroup_row + gemms.thread.warp * 16 + gemms.thread.lane / 4 + 8 * half;
  }
  /// The first key of the Q tile's KV tiles: keys are counted from there (kv_tiles.hpp).
  __device__ __forceinline__ int origin(const Gemms& gemms) const {
    if constexpr (kProblem.features.blocks)
      if (changes.blocks.numbers != nullptr) return 0;
    if constexpr (kProblem.features.pages)
      return origin_of_boxes(kConfig, params,
                             hidden_keys(kProblem.mask, warpgroup_row - gemms.thread.m_warpgroup * kWarpgroupRows,
                                         params.left_offset, params.len_k));
    return hidden_keys(kProblem.mask, warpgroup_row - gemms.thread.m_warpgroup * kWarpgroupRows, params.left_offset,
                       params.len_k);
  }
  /// Keys before this are hidden from some row of the consumer warpgroup.
  __device__ __forceinline__ int hidden_from_some(const Gemms& gemms) const {
    return hidden_keys(kProblem.mask, warpgroup_row + kWarpgroupRows - 1, params.left_offset, params.len_k) -
           origin(gemms);
  }
  /// Keys before this are seen by all rows of the consumer warpgroup, but for those that are hidden from some.
  __device__ __forceinline__ int seen_by_all(const Gemms& gemms) const {
    if constexpr (kProblem.features.prefix)
      return max(changes.prefix, keys_of_row(kProblem.mask, warpgroup_row, params.right_offset, params.len_k)) -
             (kBegins ? origin(gemms) : 0);
    if constexpr (kBegins)
      return keys_of_row(kProblem.mask, warpgroup_row, params.right_offset, params.len_k) - origin(gemms);
    return keys_of_row<has_whole_q_tiles(kProblem)>(kProblem.mask, warpgroup_row, params.right_offset, params.len_k);
  }
  /// The first KV tile that some row of the consumer warpgroup sees.
  __device__ __forceinline__ int first_seen(const Gemms& gemms) const {
    return (hidden_keys(kProblem.mask, warpgroup_row, params.left_offset, params.len_k) - origin(gemms)) /
           kConfig.block_n;
  }
  /// Keys that some row of the entry sees: those before this.
  __device__ __forceinline__ int keys_of_entry() const {
    const int seen = visible_keys(kProblem.mask, params.len_q - 1, params.right_offset, params.len_k);
    if constexpr (kProblem.features.prefix) return max(seen, changes.prefix);
    return seen;
  }
  /// The first key of KV tile n, counted from the origin.
  __device__ __forceinline__ int first_key(int n) const {
    // The head's bias is null where the launch's is, and is kept anyway.
    if constexpr (has_full_blocks(kProblem.features))
      return first_key_of_tile<kConfig>(changes.blocks, n, changes.bias != nullptr);
    else if constexpr (kProblem.features.blocks)
      return first_key_of_tile<kConfig>(changes.blocks, n);
    return n * kKeys;
  }
  /// The same as entries count.
  __device__ __forceinline__ int first_key_of_entry(const Gemms& gemms, int n) const {
    return (kBegins ? origin(gemms) : 0) + first_key(n);
  }
  __device__ __forceinline__ int key_of_lane(const Gemms& gemms, int n) const {
    return first_key_of_entry(gemms, n) + 2 * (gemms.thread.lane % 4);
  }

  // ---- changes
  /// To be called when the scores of the tile before have been changed, and before the products of a KV tile.
  /// @param key first_key of the tile
  __device__ __forceinline__ void ask_for_biases(const BiasTile& tile, const Gemms& gemms, int key) const {
    if constexpr (kCopiesBiases) changes.ask_for_biases(tile, params, (kBegins ? origin(gemms) : 0) + key);
  }
  /// Of the first tile, the last of the keys.
  __device__ __forceinline__ void ask_for_first_biases(BiasTile& tile, const Gemms& gemms, int key) const {
    if constexpr (kCopiesBiases) {
      const auto& at = gemms.thread;
      changes.begin_rows(tile, params, warpgroup_row + at.warp * 16,
                         gemms.smem.biases((at.kv_group * kConfig.m_warpgroups + at.m_warpgroup) * 4 + at.warp));
      ask_for_biases(tile, gemms, key);
    }
  }

  /// The products of KV tile n become scores, where the problem's are more than these. Once for every tile, before it
  /// is masked.
  __device__ __forceinline__ void change(AccS& s, const Gemms& gemms, int n) const {
    if constexpr (kCopiesBiases)
      changes.template change_scores<true, true, true>(s, params, row(gemms, 0), key_of_lane(gemms, n), reads_bias(n));
    else if constexpr (kChanges)
      changes.change_scores(s, params, row(gemms, 0), key_of_lane(gemms, n), reads_bias(n));
  }
  /// The same with biases that have been asked for.
  /// @tparam kHides false: hide_biased has to follow where probabilities do not turn out to be finite
  template <bool kHides>
  __device__ __forceinline__ void change(AccS& s, const Gemms& gemms, int n, const BiasTile& tile) const {
    if constexpr (kCopiesBiases)
      changes.template change_scores<true, kHides, true>(s, params, row(gemms, 0), key_of_lane(gemms, n), reads_bias(n),
                                                         tile);
    else
      change(s, gemms, n);
  }
  /// What biases hide of the scores of KV tile n, which change<false> has changed.
  __device__ __forceinline__ void hide_biased(AccS& s, const Gemms& gemms, int n) const {
    if constexpr (kCopiesBiases) changes.hide_biased(s, params, row(gemms, 0), key_of_lane(gemms, n), reads_bias(n));
  }

  /// The probabilities of KV tile n, when they are summed, without those that are dropped.
  __device__ __forceinline__ void drop(FragP& p, const Gemms& gemms, int n) const {
    if constexpr (kProblem.features.dropout)
      sm90_persistent::drop<!kBegins>(p, changes.dropout.of_head, params, row(gemms, 0), key_of_lane(gemms, n));
  }

  /// Sets scores of keys that a row does not see to -inf.
  __device__ __forceinline__ void mask(AccS& s, const Gemms& gemms, int first_key) const {
    if constexpr (kBegins) hide_first_keys(s, gemms, first_key);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int seen =
          keys_of_row<has_whole_q_tiles(kProblem)>(kProblem.mask, row(gemms, h), params.right_offset, params.len_k);
      if constexpr (kProblem.features.prefix) seen = max(seen, changes.prefix);
      if constexpr (kBegins) seen -= origin(gemms);
      attention::hide_columns_from(s, h, seen - first_key - 2 * (gemms.thread.lane % 4));
    }
  }

 private:
  __device__ __forceinline__ bool reads_bias(int n) const {
    if constexpr (kSkipsBias) return !changes.blocks.is_full(index_in_list(changes.blocks, n * kKeys));
    return true;
  }

  /// Sets scores of keys in front of those that a row sees to -inf.
  __device__ __forceinline__ void hide_first_keys(AccS& s, const Gemms& gemms, int first_key) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int begin = hidden_keys(kProblem.mask, row(gemms, h), params.left_offset, params.len_k) - origin(gemms) -
                        first_key - 2 * (gemms.thread.lane % 4);
      attention::hide_columns_before(s, h, begin);
    }
  }
};

}  // namespace heed::sm90_persistent

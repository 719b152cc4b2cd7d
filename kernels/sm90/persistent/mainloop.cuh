/// How a consumer warpgroup of fwd_sm90_persistent goes through KV tiles: which products run beside which exponentials.
///
///   consumer warpgroup 0     | scores n-1, values n | exponentials n-1 | scores n-2, values n-1 | exponentials n-2 |
///   .. consumer warpgroup 1     .. exponentials n      | scores n-1, values n | exponentials n-1   | ..
///                     the tensor cores always have some consumer warpgroup's products (SoftmaxOverlap::none)
///
///   one consumer warpgroup   | exponentials n-1                        | exponentials n-2       | ..
///     its products  | values n, scores n-2                    | values n-1, scores n-3 | ..   (SoftmaxOverlap::qk_pv)
///
///   a consumer warpgroup     |              exponentials n-1 |              exponentials n-2 | ..
///     its products  | scores n-1 | values n         | scores n-2 | values n-1       | ..         (SoftmaxOverlap::pv)
///
/// Tiles that not every row of the consumer warpgroup sees whole are the first of its order and take the exact maximum.
/// The tiles after them need neither mask nor, unless the row maximum is exact, maximum.
///
/// Asynchronous products beside exponentials are FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/persistent/cleared_values.cuh"
#include "kernels/sm90/persistent/known_kv_tiles.hpp"
#include "kernels/sm90/persistent/softmax.cuh"
#include "kernels/sm90/persistent/warp_scores.cuh"

namespace heed::sm90_persistent {

/// The state of a consumer thread: what it has of products, scores, row maxima and sums, and which queries are next.
template <const Config& kConfig, const Problem& kProblem>
struct Mainloop {
  using Gemms = sm90_persistent::Gemms<kConfig, kProblem>;
  using Scores = sm90_persistent::Scores<kConfig, kProblem>;
  using Softmax = sm90_persistent::Softmax<kConfig, kProblem>;
  using Smem = typename Gemms::Smem;
  using AccS = typename Gemms::AccS;
  using FragP = typename Gemms::FragP;
  using BiasTile = typename Scores::BiasTile;

  // ---- compile-time facts
  static constexpr int kKeys = Gemms::kKeys;
  static constexpr bool kBegins = Scores::kBegins;
  static constexpr bool kOneTile = kConfig.scheduler == Scheduler::single_tile;
  static constexpr bool kVotesAtOnce = kConfig.overflow_check == OverflowCheck::inlined;
  static constexpr bool kTogether = Gemms::kTogether;
  static constexpr KnownKvTiles kKnown = known_kv_tiles(kConfig, kProblem);
  // What biases hide of tiles that all rows see is looked for where a probability is not finite alone (add_pair).
  static constexpr bool kHidesAtOnce = !Scores::kCopiesBiases || kConfig.row_max == RowMax::online;

  // ---- state, in an order that machine code follows (docs/ledger.md)
  Gemms gemms;
  Scores scores;
  Softmax softmax;
  sm90::PipelineState<kConfig.q_stages> query;

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Mainloop(const Params<kProblem>& params, const Smem& smem, int block_warp)
      : gemms(smem, block_warp), scores(params) {}

  /// Before the first key of a row.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < Gemms::kDim / 2; ++i) gemms.acc_o[i] = 0.0F;
    softmax.clear();
  }

  __device__ __forceinline__ void release_queries() const {
    if constexpr (!kOneTile)
      if (gemms.thread.lane == 0) ptx::mbarrier_arrive(gemms.smem.q_empty(query.stage));
  }

  /// Hides what rows do not see of tile n, whose keys with lists of blocks are those of the list's block.
  __device__ __forceinline__ void mask_tile(AccS& s, int n) const {
    if constexpr (kProblem.features.blocks)
      scores.mask(s, gemms, scores.first_key(n));
    else
      scores.mask(s, gemms, n * kKeys);
  }
  /// Changes the scores of tile n with the biases that have been asked for, and asks for those of the next tile, where
  /// there is one: they have the time of a softmax and of the products to come.
  /// @param next_key Scores::first_key of the next tile
  /// @tparam kHides as Scores::change has it
  template <bool kHides = true>
  __device__ __forceinline__ void change_and_ask(AccS& s, int n, const BiasTile& biases, bool more,
                                                 int next_key) const {
    scores.template change<kHides>(s, gemms, n, biases);
    if constexpr (Scores::kCopiesBiases)
      if (more) scores.ask_for_biases(biases, gemms, next_key);
  }
  /// Of the first tile's products, some of whose keys may be hidden.
  __device__ __forceinline__ void first_tile_softmax(FragP& p, AccS& s, int n, bool masked) {
    if (masked) mask_tile(s, n);
    if (kConfig.row_max != RowMax::stale_16 || !softmax.stale_16(p, s, scores.scale_log2))
      softmax.online(p, s, scores.scale_log2, gemms.acc_o);
    scores.drop(p, gemms, n);
  }
  /// Of later ones, of which some row does not see all.
  __device__ __forceinline__ void masked_tile_softmax(FragP& p, AccS& s, int n, int first_key) {
    scores.mask(s, gemms, first_key);
    softmax.online(p, s, scores.scale_log2, gemms.acc_o);
    scores.drop(p, gemms, n);
  }
  /// Of later ones that all rows see.
  /// @tparam kHidden the scores are those of change_and_ask<true>
  template <bool kHidden = kHidesAtOnce>
  __device__ __forceinline__ void whole_tile_softmax(FragP& p, AccS& s, int n) {
    if (kConfig.row_max == RowMax::online || !softmax.stale(p, s, scores.scale_log2)) {
      if constexpr (!kHidden) scores.hide_biased(s, gemms, n);
      softmax.online(p, s, scores.scale_log2, gemms.acc_o);
    }
    scores.drop(p, gemms, n);
  }

  /// @param stays the iteration's keys are this consumer warpgroup's next
  __device__ __forceinline__ void values_alone(const FragP& p, bool stays = false) {
    gemms.wait_for_stage();
    gemms.begin();
    ptx::wgmma_fence();
    gemms.pv(p);
    ptx::wgmma_commit_group();
    gemms.end();
    if constexpr (kConfig.rowsum_reduce == RowsumReduce::beside_pv) softmax.add_up_sums();
    ptx::wgmma_wait_group(0);
    keep_live(gemms.acc_o);
    if (!kTogether || !stays) gemms.release_stage();
  }

  /// The scores of the next tile, and its exponentials beside the values of the tile before, whose probabilities are
  /// `p`. They take the scores' place: what else would need the registers of both is to have the scores at hand where
  /// they must be taken again, which happens so rarely that they are multiplied again.
  /// @param n the next tile
  /// @param skips as for Gemms::scores_and_values
  __device__ __forceinline__ void exponentials_beside_values(AccS& s, unsigned long long queries, FragP& p, int n,
                                                             bool skips = false) {
    gemms.wait_for_stage();
    const sm90::PipelineState<kConfig.stages> of_keys = gemms.stage_of_keys(skips);
    gemms.begin();
    ptx::wgmma_fence();
    gemms.qk(s, queries, of_keys.stage);
    ptx::wgmma_commit_group();
    gemms.pv(p);
    ptx::wgmma_commit_group();
    gemms.end();
    ptx::wgmma_wait_group(1);
    keep_live(s);
    scores.change(s, gemms, n);
    float total[2];
    softmax.exponentials_in_place(s, total, scores.scale_log2);
    // All warps of a warpgroup have to take the same wait, so what an overflowed one does lies before and behind it.
    // ptxas would put the wait in front of most exponentials, but moves it over no branch.
    unsigned overflowed = __any_sync(0xffffffffU, !Softmax::fits(total));
    if (overflowed) {
      // The descriptor's address, which lacks the bits above that tell the blocks of a cluster from each other.
      unsigned of_queries = static_cast<unsigned>(queries & 0x3FFF) << 4;
      if constexpr (kConfig.cluster > 1) of_queries |= gemms.smem.shared & 0xFF000000U;
      scores_of_warp<kProblem, kKeys>(s, of_queries, gemms.smem.keys(gemms.thread.kv_group, of_keys.stage),
                                      Gemms::kPlan.box);
      scores.change(s, gemms, n);
    }
    ptx::wgmma_wait_group(0);
    keep_live(gemms.acc_o);
    keep_live(s);
    opaque(overflowed);  // or there might be two waits again, one for either answer
    if (overflowed) {
      softmax.online(p, s, scores.scale_log2, gemms.acc_o);
    } else {
      softmax.round_in_place(p, s, total);
    }
    scores.drop(p, gemms, n);
    gemms.release_stage();
    if (kTogether && skips) gemms.release_stage();
  }

  /// Whether some row does not see all of tile n, the first of a consumer warpgroup.
  __device__ __forceinline__ static bool is_first_masked(int n, int seen_by_all) {
    return kKnown.some_first_masked && (!kKnown.some_first_whole || (n + 1) * kKeys > seen_by_all);
  }

  /// Tiles n, n - 1, .. first of this KV group; those that reach past seen_by_all have keys that some row does not
  /// see. With ShareCausalTail::on the other consumer warpgroup takes every other tile from `both_see` on.
  /// @param takes_partners_tiles these are the other consumer warpgroup's rows, its own are still to come
  /// @param stays_at the tile whose values come with keys of its own rows
  /// @return the last tile
  __device__ __forceinline__ int run_tiles(int n, int first, int seen_by_all, unsigned long long queries,
                                           int both_see = 0, bool takes_partners_tiles = false, int stays_at = -1) {
    if constexpr (kConfig.softmax_overlap != SoftmaxOverlap::qk_pv) {
      AccS s;
      FragP p;
      BiasTile biases;
      scores.ask_for_first_biases(biases, gemms, n * kKeys);
      gemms.scores(s, queries);
      gemms.try_wait_next(gemms.kv_stage);
      const int hidden = kBegins ? scores.hidden_from_some(gemms) : 0;
      const auto after = [&](int tile) { return tile - (kTogether && tile > both_see ? 2 : 1); };
      change_and_ask(s, n, biases, after(n) >= first, after(n) * kKeys);
      first_tile_softmax(p, s, n, is_first_masked(n, seen_by_all) || (kBegins && n * kKeys < hidden));
      clear_values_past_keys(gemms, scores, n);
      const auto step = [&] { return kTogether && n > both_see ? 2 : 1; };
      int by = step();
      if constexpr (kKnown.some_later_masked)
#pragma unroll 1
        for (; n - by >= first && (n - by + 1) * kKeys > seen_by_all; n -= by, by = step()) {
          gemms.scores_and_values(s, queries, p, by == 2);
          change_and_ask(s, n - by, biases, after(n - by) >= first, after(n - by) * kKeys);
          masked_tile_softmax(p, s, n - by, (n - by) * kKeys);
        }
      if constexpr (kTogether) {
#pragma unroll 1
        for (; n > both_see && n - 2 >= first; n -= 2) {
          if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
            exponentials_beside_values(s, queries, p, n - 2, true);
            continue;
          }
          gemms.scores_and_values(s, queries, p, true);
          change_and_ask<kHidesAtOnce>(s, n - 2, biases, after(n - 2) >= first, after(n - 2) * kKeys);
          whole_tile_softmax(p, s, n - 2);
        }
        if (n > both_see) first = n;
      }
#pragma unroll 1
      for (; n > first; --n) {
        if constexpr (kBegins)
          if ((n - 1) * kKeys < hidden) {
            gemms.scores_and_values(s, queries, p);
            change_and_ask(s, n - 1, biases, n - 1 > first, (n - 2) * kKeys);
            masked_tile_softmax(p, s, n - 1, (n - 1) * kKeys);
            continue;
          }
        if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
          exponentials_beside_values(s, queries, p, n - 1);
          continue;
        }
        gemms.scores_and_values(s, queries, p);
        change_and_ask<kHidesAtOnce>(s, n - 1, biases, n - 1 > first, (n - 2) * kKeys);
        whole_tile_softmax(p, s, n - 1);
      }
      if (!kTogether || !takes_partners_tiles) release_queries();
      clear_values_before_keys(gemms, scores, n);
      values_alone(p, n == stays_at);
    } else {
      // Without a second tile that some row does not see whole, a program that knows of none.
      const bool hides_more = has_right_bound(kProblem.mask) && n * kKeys > seen_by_all;
      if (has_right_bound(kProblem.mask) && kKnown.some_later_masked &&
          (kConfig.mask_path != MaskPath::separate_loop || hides_more))
        return run_overlapped<true>(n, first, seen_by_all, queries);
      return run_overlapped<false>(n, first, seen_by_all, queries);
    }
    return n;
  }

  /// The same with exponentials beside products.
  /// @tparam kMayHide some row may not see the whole of a tile after the first
  template <bool kMayHide>
  __device__ __forceinline__ int run_overlapped(int n, int first, int seen_by_all, unsigned long long queries) {
    AccS s[2];
    FragP p[2];
    BiasTile biases;
    scores.ask_for_first_biases(biases, gemms, n * kKeys);
    gemms.scores(s[0], queries);
    gemms.try_wait_next(gemms.kv_stage);
    const int hidden = kBegins ? scores.hidden_from_some(gemms) : 0;
    const bool masked = is_first_masked(n, seen_by_all) || (kBegins && n * kKeys < hidden);
    if (kKnown.some_are_one && (!kKnown.some_are_more || n == first)) {
      scores.template change<true>(s[0], gemms, n, biases);
      first_tile_softmax(p[0], s[0], n, masked);
      release_queries();
      gemms.skip_iteration();  // between a tile's scores and its values
      clear_values_past_keys(gemms, scores, n);
      clear_values_before_keys(gemms, scores, n);
      values_alone(p[0]);
      return n;
    }
    const auto hides = [&](int tile) {
      return kMayHide && ((tile + 1) * kKeys > seen_by_all || (kBegins && tile * kKeys < hidden));
    };
    overlapped<kMayHide, false, true>(s[1], p[0], s[0], p[1], queries, n, masked, biases, (n - 1) * kKeys);
    clear_values_past_keys(gemms, scores, n);
#pragma unroll 1
    for (--n; n > first + 1; n -= 2) {
      overlapped<kMayHide, true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n), biases, (n - 1) * kKeys);
      overlapped<kMayHide, true, true>(s[1], p[0], s[0], p[1], queries, n - 1, hides(n - 1), biases, (n - 2) * kKeys);
    }
    // One or two are left. Two ends cost nothing; copied to the same registers, probabilities would be what ptxas
    // serialises products for (C7513).
    if (kKnown.some_are_even && (!kKnown.some_are_odd || n == first)) {
      overlapped<kMayHide, true, false>(s[0], p[1], s[1], p[0], queries, n, hides(n), biases, (n - 1) * kKeys);
      release_queries();
      clear_values_before_keys(gemms, scores, n);
      values_alone(p[1]);
    } else {
      overlapped<kMayHide, true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n), biases, (n - 1) * kKeys);
      overlapped<kMayHide, true, false>(s[1], p[0], s[0], p[1], queries, first, hides(first), biases, 0);
      release_queries();
      clear_values_before_keys(gemms, scores, first);
      values_alone(p[0]);
    }
    return n;
  }

  /// The exponentials of tile n's scores `s` to `p`, while the values of the tile before, with probabilities
  /// `p_before`, and the scores of the next one are multiplied. Nothing stays in flight: ptxas serialises all products
  /// of a kernel that keeps one in flight over a loop's back edge.
  template <bool kMayHide, bool kBefore, bool kMore>
  __device__ __forceinline__ void overlapped(AccS& next, FragP& p, AccS& s, const FragP& p_before,
                                             unsigned long long queries, int n, bool masked, const BiasTile& biases,
                                             int next_key) {
    gemms.wait_for_next_stage();
    if constexpr (Gemms::kAhead && kMore) {
      sm90::PipelineState<kConfig.stages> following = gemms.kv_stage;
      following.advance();
      gemms.try_wait_next(following);
    }
    gemms.begin();
    if constexpr (kBefore && kMore) {
      gemms.qk_pv(next, queries, p_before, gemms.kv_stage.stage);
    } else {
      ptx::wgmma_fence();
      if constexpr (kBefore) gemms.pv(p_before);
      if constexpr (kMore) gemms.qk(next, queries, gemms.kv_stage.stage);
      ptx::wgmma_commit_group();
    }
    gemms.end();
    change_and_ask(s, n, biases, kMore, next_key);
    float factor[2] = {1.0F, 1.0F};
    constexpr bool kFirst = !kBefore && kConfig.row_max == RowMax::stale_16;
    constexpr bool kVotesOnMasks = kMayHide && kBefore && kConfig.mask_path == MaskPath::redo;
    if (kFirst && masked) mask_tile(s, n);
    const bool is_known = masked && !kVotesOnMasks;
    const bool exact = kFirst
                           ? !softmax.stale_16(p, s, scores.scale_log2)
                           : !kBefore || is_known || (kVotesAtOnce && !softmax.stale(p, s, scores.scale_log2, masked));
    bool overflowed = false;
    if (exact) {
      if (!kFirst && masked) mask_tile(s, n);
      softmax.online_probabilities(p, factor, s, scores.scale_log2);
    } else if constexpr (!kVotesAtOnce && !kFirst) {
      overflowed = softmax.stale_branchless(p, s, scores.scale_log2, masked);
    }
    ptx::wgmma_wait_group(0);
    keep_live(gemms.acc_o);
    if constexpr (kMore) keep_live(next);
    gemms.release_stage();
    if (kBefore && exact) Softmax::rescale(gemms.acc_o, factor);
    if (!kVotesAtOnce && overflowed) {
      if (kVotesOnMasks && masked) mask_tile(s, n);
      softmax.online(p, s, scores.scale_log2, gemms.acc_o);
    }
    scores.drop(p, gemms, n);
  }
};

}  // namespace heed::sm90_persistent

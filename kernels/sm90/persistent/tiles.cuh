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
#include "kernels/sm90/persistent/warp_scores.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct Tiles : ClearedValues<kConfig, kProblem> {
  using Base = ClearedValues<kConfig, kProblem>;
  using Base::ask_for_biases, Base::ask_for_first_biases, Base::change_products;
  using Base::clear_values_past_keys, Base::clear_values_before_keys;
  using Base::gemm_qk, Base::gemm_pv, Base::gemm_qk_pv, Base::begin_gemms, Base::end_gemms, Base::let_next_start;
  using Base::kBegins, Base::hidden_from_some, Base::kKeys, Base::kSteps, Base::kAhead, Base::kPlan, Base::kMostSum,
      Base::kSumsRounded;
  using Base::mask_scores, Base::online_probabilities, Base::rescale, Base::online_softmax, Base::stale_16_softmax,
      Base::first_tile_softmax, Base::stale_softmax, Base::stale_softmax_branchless;
  using Base::smem, Base::lane, Base::kv_group, Base::scale_log2, Base::kv_stage, Base::acc_o, Base::row_max,
      Base::row_sum;
  using Base::wait_for_stage, Base::wait_for_next_stage, Base::try_wait_next, Base::release_stage, Base::skip_iteration;
  using typename Base::AccS, typename Base::FragP, typename Base::NextBiases;

  // ---- compile-time facts
  static constexpr bool kOneTile = kConfig.scheduler == Scheduler::single_tile;
  static constexpr bool kVotesAtOnce = kConfig.overflow_check == OverflowCheck::inlined;
  static constexpr bool kTogether = kConfig.share_causal_tail == ShareCausalTail::on;
  static constexpr KnownKvTiles kKnown = known_kv_tiles(kConfig, kProblem);

  // ---- state
  sm90::PipelineState<kConfig.q_stages> query;

  using Base::Base;

  __device__ __forceinline__ void release_queries() const {
    if constexpr (!kOneTile)
      if (lane == 0) ptx::mbarrier_arrive(smem.q_empty(query.stage));
  }

  /// Of each row over the four lanes that have its columns.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) row_sum[h] = tile::quad_sum(row_sum[h]);
  }

  /// The first of a Q tile.
  __device__ __forceinline__ void scores_alone(AccS& s, unsigned long long queries) {
    wait_for_stage();
    begin_gemms();
    ptx::wgmma_fence();
    gemm_qk(s, queries, kv_stage.stage);
    ptx::wgmma_commit_group();
    end_gemms();
    ptx::wgmma_wait_group(0);
    keep_live(s);
    release_stage();
    let_next_start();
  }

  /// The iteration of the next keys, waited for, when that of the values before them is there.
  /// @param skips the next tile is the one after the next: its keys come an iteration later than those values
  __device__ __forceinline__ sm90::PipelineState<kConfig.stages> stage_of_keys(bool skips) const {
    sm90::PipelineState<kConfig.stages> of_keys = kv_stage;
    if (kTogether && skips) {
      of_keys.advance();
      ptx::mbarrier_wait(smem.kv_full(kv_group, of_keys.stage), of_keys.parity);
    }
    return of_keys;
  }

  /// Values of the tile before and scores of the next, waited for.
  /// @param skips as above
  __device__ __forceinline__ void both_products(AccS& s, unsigned long long queries, const FragP& p, bool skips) {
    wait_for_next_stage();
    const sm90::PipelineState<kConfig.stages> of_keys = stage_of_keys(skips);
    begin_gemms();
    gemm_qk_pv(s, queries, p, of_keys.stage);
    end_gemms();
    ptx::wgmma_wait_group(0);
    keep_live(s);
    keep_live(acc_o);
    release_stage();
    if (kTogether && skips) release_stage();
    try_wait_next(kv_stage);
  }

  /// @param stays the iteration's keys are this consumer warpgroup's next
  __device__ __forceinline__ void values_alone(const FragP& p, bool stays = false) {
    wait_for_stage();
    begin_gemms();
    ptx::wgmma_fence();
    gemm_pv(p);
    ptx::wgmma_commit_group();
    end_gemms();
    if constexpr (kConfig.rowsum_reduce == RowsumReduce::beside_pv) add_up_sums();
    ptx::wgmma_wait_group(0);
    keep_live(acc_o);
    if (!kTogether || !stays) release_stage();
  }

  /// The scores of the next tile, and its exponentials beside the values of the tile before, whose probabilities are
  /// `p`. They take the scores' place: what else would need the registers of both is to have the scores at hand where
  /// they must be taken again, which happens so rarely that they are multiplied again.
  /// @param n the next tile
  /// @param skips as for both_products
  __device__ __forceinline__ void exponentials_beside_values(AccS& s, unsigned long long queries, FragP& p, int n,
                                                             bool skips) {
    wait_for_stage();
    const sm90::PipelineState<kConfig.stages> of_keys = stage_of_keys(skips);
    begin_gemms();
    ptx::wgmma_fence();
    gemm_qk(s, queries, of_keys.stage);
    ptx::wgmma_commit_group();
    gemm_pv(p);
    ptx::wgmma_commit_group();
    end_gemms();
    ptx::wgmma_wait_group(1);
    keep_live(s);
    change_products(s, n);
    float total[2];
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* e = s + 4 * t + 2 * h;
#pragma unroll
        for (int i = 0; i < 2; ++i) e[i] = ptx::ex2_approx_ftz(fmaf(e[i], scale_log2, -row_max[h]));
        total[h] = t == 0 ? e[0] + e[1] : total[h] + (e[0] + e[1]);
      }
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    // All warps of a warpgroup have to take the same wait, so what an overflowed one does lies before and behind it.
    // ptxas would put the wait in front of most exponentials, but moves it over no branch.
    unsigned overflowed = __any_sync(0xffffffffU, !fits);
    if (overflowed) {
      // The descriptor's address, which lacks the bits above that tell the blocks of a cluster from each other.
      unsigned of_queries = static_cast<unsigned>(queries & 0x3FFF) << 4;
      if constexpr (kConfig.cluster > 1) of_queries |= smem.shared & 0xFF000000U;
      scores_of_warp<kProblem, kKeys>(s, of_queries, smem.keys(kv_group, of_keys.stage), kPlan.box);
      change_products(s, n);
    }
    ptx::wgmma_wait_group(0);
    keep_live(acc_o);
    keep_live(s);
    opaque(overflowed);  // or there might be two waits again, one for either answer
    if (overflowed) {
      online_softmax(p, s);
    } else {
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
    release_stage();
    if (kTogether && skips) release_stage();
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
      NextBiases biases;
      ask_for_first_biases(biases, n);
      scores_alone(s, queries);
      try_wait_next(kv_stage);
      const int hidden = kBegins ? hidden_from_some() : 0;
      first_tile_softmax(p, s, n, is_first_masked(n, seen_by_all) || (kBegins && n * kKeys < hidden), biases);
      clear_values_past_keys(n);
      const auto step = [&] { return kTogether && n > both_see ? 2 : 1; };
      int by = step();
      if constexpr (kKnown.some_later_masked)
#pragma unroll 1
        for (; n - by >= first && (n - by + 1) * kKeys > seen_by_all; n -= by, by = step()) {
          ask_for_biases(biases, n - by);
          both_products(s, queries, p, by == 2);
          change_products(s, n - by, biases);
          mask_scores(s, (n - by) * kKeys);
          online_softmax(p, s);
        }
      if constexpr (kTogether) {
#pragma unroll 1
        for (; n > both_see && n - 2 >= first; n -= 2) {
          if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
            exponentials_beside_values(s, queries, p, n - 2, true);
            continue;
          }
          ask_for_biases(biases, n - 2);
          both_products(s, queries, p, true);
          change_products(s, n - 2, biases);
          if (kConfig.row_max == RowMax::online || !stale_softmax(p, s)) online_softmax(p, s);
        }
        if (n > both_see) first = n;
      }
#pragma unroll 1
      for (; n > first; --n) {
        if constexpr (kBegins)
          if ((n - 1) * kKeys < hidden) {
            ask_for_biases(biases, n - 1);
            both_products(s, queries, p, false);
            change_products(s, n - 1, biases);
            mask_scores(s, (n - 1) * kKeys);
            online_softmax(p, s);
            continue;
          }
        if constexpr (kConfig.softmax_overlap == SoftmaxOverlap::pv) {
          exponentials_beside_values(s, queries, p, n - 1, false);
          continue;
        }
        ask_for_biases(biases, n - 1);
        both_products(s, queries, p, false);
        change_products(s, n - 1, biases);
        if (kConfig.row_max == RowMax::online || !stale_softmax(p, s)) online_softmax(p, s);
      }
      if (!kTogether || !takes_partners_tiles) release_queries();
      clear_values_before_keys(n);
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
    scores_alone(s[0], queries);
    try_wait_next(kv_stage);
    const int hidden = kBegins ? hidden_from_some() : 0;
    const bool masked = is_first_masked(n, seen_by_all) || (kBegins && n * kKeys < hidden);
    if (kKnown.some_are_one && (!kKnown.some_are_more || n == first)) {
      first_tile_softmax(p[0], s[0], n, masked, NextBiases{});
      release_queries();
      skip_iteration();  // between a tile's scores and its values
      clear_values_past_keys(n);
      clear_values_before_keys(n);
      values_alone(p[0]);
      return n;
    }
    const auto hides = [&](int tile) {
      return kMayHide && ((tile + 1) * kKeys > seen_by_all || (kBegins && tile * kKeys < hidden));
    };
    overlapped<kMayHide, false, true>(s[1], p[0], s[0], p[1], queries, n, masked);
    clear_values_past_keys(n);
#pragma unroll 1
    for (--n; n > first + 1; n -= 2) {
      overlapped<kMayHide, true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n));
      overlapped<kMayHide, true, true>(s[1], p[0], s[0], p[1], queries, n - 1, hides(n - 1));
    }
    // One or two are left. Two ends cost nothing; copied to the same registers, probabilities would be what ptxas
    // serialises products for (C7513).
    if (kKnown.some_are_even && (!kKnown.some_are_odd || n == first)) {
      overlapped<kMayHide, true, false>(s[0], p[1], s[1], p[0], queries, n, hides(n));
      release_queries();
      clear_values_before_keys(n);
      values_alone(p[1]);
    } else {
      overlapped<kMayHide, true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n));
      overlapped<kMayHide, true, false>(s[1], p[0], s[0], p[1], queries, first, hides(first));
      release_queries();
      clear_values_before_keys(first);
      values_alone(p[0]);
    }
    return n;
  }

  /// The exponentials of tile n's scores `s` to `p`, while the values of the tile before, with probabilities
  /// `p_before`, and the scores of the next one are multiplied. Nothing stays in flight: ptxas serialises all products
  /// of a kernel that keeps one in flight over a loop's back edge.
  template <bool kMayHide, bool kBefore, bool kMore>
  __device__ __forceinline__ void overlapped(AccS& next, FragP& p, AccS& s, const FragP& p_before,
                                             unsigned long long queries, int n, bool masked) {
    wait_for_next_stage();
    if constexpr (kAhead && kMore) {
      sm90::PipelineState<kConfig.stages> following = kv_stage;
      following.advance();
      try_wait_next(following);
    }
    begin_gemms();
    if constexpr (kBefore && kMore) {
      gemm_qk_pv(next, queries, p_before, kv_stage.stage);
    } else {
      ptx::wgmma_fence();
      if constexpr (kBefore) gemm_pv(p_before);
      if constexpr (kMore) gemm_qk(next, queries, kv_stage.stage);
      ptx::wgmma_commit_group();
    }
    end_gemms();
    change_products(s, n);
    float factor[2] = {1.0F, 1.0F};
    constexpr bool kFirst = !kBefore && kConfig.row_max == RowMax::stale_16;
    constexpr bool kVotesOnMasks = kMayHide && kBefore && kConfig.mask_path == MaskPath::redo;
    if (kFirst && masked) mask_scores(s, n * kKeys);
    const bool is_known = masked && !kVotesOnMasks;
    const bool exact =
        kFirst ? !stale_16_softmax(p, s) : !kBefore || is_known || (kVotesAtOnce && !stale_softmax(p, s, masked));
    bool overflowed = false;
    if (exact) {
      if (!kFirst && masked) mask_scores(s, n * kKeys);
      online_probabilities(p, factor, s);
    } else if constexpr (!kVotesAtOnce && !kFirst) {
      overflowed = stale_softmax_branchless(p, s, masked);
    }
    ptx::wgmma_wait_group(0);
    keep_live(acc_o);
    if constexpr (kMore) keep_live(next);
    release_stage();
    if (kBefore && exact) rescale(factor);
    if (!kVotesAtOnce && overflowed) {
      if (kVotesOnMasks && masked) mask_scores(s, n * kKeys);
      online_softmax(p, s);
    }
  }
};

}  // namespace heed::sm90_persistent

/// How a row group of fwd_sm90_stream goes through key tiles: which products run beside which exponentials.
///
///   row group 0     | scores n-1, values n | exponentials n-1 | scores n-2, values n-1 | exponentials n-2 | ..
///   row group 1     .. exponentials n      | scores n-1, values n | exponentials n-1   | ..
///                     the tensor cores always have some row group's products (Overlap::nothing)
///
///   one row group   | exponentials n-1                        | exponentials n-2       | ..
///     its products  | values n, scores n-2                    | values n-1, scores n-3 | ..   (Overlap::products)
///
///   a row group     |              exponentials n-1 |              exponentials n-2 | ..
///     its products  | scores n-1 | values n         | scores n-2 | values n-1       | ..         (Overlap::values)
///
/// Tiles that not every row of the row group sees whole are the first of its order and take the exact maximum. The
/// tiles after them need neither mask nor, unless the reference is exact, maximum.
///
/// Asynchronous products beside exponentials are FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/stream/known_tiles.hpp"
#include "kernels/stream/softmax.cuh"
#include "kernels/stream/warp_scores.cuh"

namespace heed::stream {

template <const Config& kConfig, const Problem& kProblem>
struct Tiles : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::hide_keys, Base::exact_probabilities, Base::rescale, Base::exact_softmax, Base::first_keys_softmax,
      Base::first_softmax, Base::optimistic_softmax, Base::guessed_softmax;
  using Base::kKeys, Base::kSteps, Base::kAhead, Base::kPlan, Base::kMostSum, Base::kSumsRounded;
  using Base::multiply_keys, Base::multiply_values, Base::multiply_both, Base::begin_products, Base::end_products,
      Base::let_next_start;
  using Base::place, Base::lane, Base::key_group, Base::scale_log2, Base::turn, Base::out, Base::reference, Base::sum;
  using Base::wait_for_turn, Base::wait_for_next_turn, Base::look_ahead, Base::end_turn, Base::pass_turn;
  using typename Base::Scores, typename Base::Probabilities;

  // ---- compile-time facts
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  static constexpr bool kVotesAtOnce = kConfig.vote == Vote::at_once;
  static constexpr bool kTogether = kConfig.pairs == Pairs::together;
  static constexpr KnownTiles kKnown = known_tiles(kConfig, kProblem);

  // ---- state
  Cursor<kConfig.query_stages> query;

  using Base::Base;

  __device__ __forceinline__ void release_queries() const {
    if constexpr (!kOneTile)
      if (lane == 0) ptx::mbarrier_arrive(place.queries_freed(query.stage));
  }

  /// Of each row over the four lanes that have its columns.
  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
    }
  }

  /// The first of a row tile.
  __device__ __forceinline__ void scores_alone(Scores& s, unsigned long long queries) {
    wait_for_turn();
    begin_products();
    ptx::wgmma_fence();
    multiply_keys(s, queries, turn.stage);
    ptx::wgmma_commit_group();
    end_products();
    ptx::wgmma_wait_group(0);
    ptx::pin(s);
    end_turn();
    let_next_start();
  }

  /// The turn of the next keys, waited for, when that of the values before them is there.
  /// @param skips the next tile is the one after the next: its keys come a turn later than those values
  __device__ __forceinline__ Cursor<kConfig.stages> turn_of_keys(bool skips) const {
    Cursor<kConfig.stages> of_keys = turn;
    if (kTogether && skips) {
      of_keys.advance();
      ptx::mbarrier_wait(place.ring_barrier(key_group, of_keys.stage), of_keys.parity);
    }
    return of_keys;
  }

  /// Values of the tile before and scores of the next, waited for.
  /// @param skips as above
  __device__ __forceinline__ void both_products(Scores& s, unsigned long long queries, const Probabilities& p,
                                                bool skips) {
    wait_for_next_turn();
    const Cursor<kConfig.stages> of_keys = turn_of_keys(skips);
    begin_products();
    multiply_both(s, queries, p, of_keys.stage);
    end_products();
    ptx::wgmma_wait_group(0);
    ptx::pin(s);
    ptx::pin(out);
    end_turn();
    if (kTogether && skips) end_turn();
    look_ahead(turn);
  }

  /// @param stays the turn's keys are this row group's next
  __device__ __forceinline__ void values_alone(const Probabilities& p, bool stays = false) {
    wait_for_turn();
    begin_products();
    ptx::wgmma_fence();
    multiply_values(p);
    ptx::wgmma_commit_group();
    end_products();
    if constexpr (kConfig.sums == Sums::beside_values) add_up_sums();
    ptx::wgmma_wait_group(0);
    ptx::pin(out);
    if (!kTogether || !stays) end_turn();
  }

  /// The scores of the next tile, and its exponentials beside the values of the tile before, whose probabilities are
  /// `p`. They take the scores' place: what else would need the registers of both is to have the scores at hand where
  /// they must be taken again, which happens so rarely that they are multiplied again.
  /// @param skips as for both_products
  __device__ __forceinline__ void exponentials_beside_values(Scores& s, unsigned long long queries, Probabilities& p,
                                                             bool skips) {
    wait_for_turn();
    const Cursor<kConfig.stages> of_keys = turn_of_keys(skips);
    begin_products();
    ptx::wgmma_fence();
    multiply_keys(s, queries, of_keys.stage);
    ptx::wgmma_commit_group();
    multiply_values(p);
    ptx::wgmma_commit_group();
    end_products();
    ptx::wgmma_wait_group(1);
    ptx::pin(s);
    float total[2];
#pragma unroll
    for (int t = 0; t < kKeys / 8; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* e = s + 4 * t + 2 * h;
#pragma unroll
        for (int i = 0; i < 2; ++i) e[i] = ptx::ex2_approx_ftz(fmaf(e[i], scale_log2, -reference[h]));
        total[h] = t == 0 ? e[0] + e[1] : total[h] + (e[0] + e[1]);
      }
    const bool fits = total[0] < kMostSum && total[1] < kMostSum;
    // All warps of a warpgroup have to take the same wait, so what a misled one does lies before and behind it. ptxas
    // would put the wait in front of most exponentials, but moves it over no branch.
    unsigned misled = __any_sync(0xffffffffU, !fits);
    if (misled) {
      // The descriptor's address, which lacks the bits above that tell the blocks of a cluster from each other.
      unsigned of_queries = static_cast<unsigned>(queries & 0x3FFF) << 4;
      if constexpr (kConfig.cluster > 1) of_queries |= place.shared & 0xFF000000U;
      scores_of_warp<kProblem, kKeys>(s, of_queries, place.keys(key_group, of_keys.stage), kPlan.box);
    }
    ptx::wgmma_wait_group(0);
    ptx::pin(out);
    ptx::pin(s);
    ptx::settle(misled);  // or there might be two waits again, one for either answer
    if (misled) {
      exact_softmax(p, s);
    } else {
      if constexpr (!kSumsRounded) {
        sum[0] += total[0];
        sum[1] += total[1];
      }
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[k][i] = ptx::cvt_rn_x2<kProblem.element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
          // Here, though beside no product: rounded in place, beside the values, one register too many is live.
          if constexpr (kSumsRounded)
            sum[i % 2] += ptx::unpack_low<kProblem.element>(p[k][i]) + ptx::unpack_high<kProblem.element>(p[k][i]);
        }
    }
    end_turn();
    if (kTogether && skips) end_turn();
  }

  /// Whether some row does not see all of tile n, the first of a row group.
  __device__ __forceinline__ static bool is_first_masked(int n, int seen_by_all) {
    return kKnown.some_first_masked && (!kKnown.some_first_whole || (n + 1) * kKeys > seen_by_all);
  }

  /// Tiles n, n - 1, .. first of this key group; those that reach past seen_by_all have keys that some row does not
  /// see. With Pairs::together the other row group takes every other tile from `both_see` on.
  /// @param helps these are the other row group's rows, its own are still to come
  /// @param stays_at the tile whose values come with keys of its own rows
  /// @return the last tile
  __device__ __forceinline__ int run_tiles(int n, int first, int seen_by_all, unsigned long long queries,
                                           int both_see = 0, bool helps = false, int stays_at = -1) {
    if constexpr (kConfig.overlap != Overlap::products) {
      Scores s;
      Probabilities p;
      scores_alone(s, queries);
      look_ahead(turn);
      first_softmax(p, s, n, is_first_masked(n, seen_by_all));
      const auto step = [&] { return kTogether && n > both_see ? 2 : 1; };
      int by = step();
      if constexpr (kKnown.some_later_masked)
#pragma unroll 1
        for (; n - by >= first && (n - by + 1) * kKeys > seen_by_all; n -= by, by = step()) {
          both_products(s, queries, p, by == 2);
          hide_keys(s, (n - by) * kKeys);
          exact_softmax(p, s);
        }
      if constexpr (kTogether) {
#pragma unroll 1
        for (; n > both_see && n - 2 >= first; n -= 2) {
          if constexpr (kConfig.overlap == Overlap::values) {
            exponentials_beside_values(s, queries, p, true);
            continue;
          }
          both_products(s, queries, p, true);
          if (kConfig.reference == Reference::exact || !optimistic_softmax(p, s)) exact_softmax(p, s);
        }
        if (n > both_see) first = n;
      }
#pragma unroll 1
      for (; n > first; --n) {
        if constexpr (kConfig.overlap == Overlap::values) {
          exponentials_beside_values(s, queries, p, false);
          continue;
        }
        both_products(s, queries, p, false);
        if (kConfig.reference == Reference::exact || !optimistic_softmax(p, s)) exact_softmax(p, s);
      }
      if (!kTogether || !helps) release_queries();
      values_alone(p, n == stays_at);
    } else {
      // Without a second tile that some row does not see whole, a program that knows of none.
      const bool hides_more = kProblem.causal && n * kKeys > seen_by_all;
      if (kProblem.causal && kKnown.some_later_masked && (kConfig.masking != Masking::apart || hides_more))
        return run_overlapped<true>(n, first, seen_by_all, queries);
      return run_overlapped<false>(n, first, seen_by_all, queries);
    }
    return n;
  }

  /// The same with exponentials beside products.
  /// @tparam kMayHide some row may not see the whole of a tile after the first
  template <bool kMayHide>
  __device__ __forceinline__ int run_overlapped(int n, int first, int seen_by_all, unsigned long long queries) {
    Scores s[2];
    Probabilities p[2];
    scores_alone(s[0], queries);
    look_ahead(turn);
    const bool masked = is_first_masked(n, seen_by_all);
    if (kKnown.some_are_one && (!kKnown.some_are_more || n == first)) {
      first_softmax(p[0], s[0], n, masked);
      release_queries();
      pass_turn();  // between a tile's scores and its values
      values_alone(p[0]);
      return n;
    }
    const auto hides = [&](int tile) { return kMayHide && (tile + 1) * kKeys > seen_by_all; };
    overlapped<kMayHide, false, true>(s[1], p[0], s[0], p[1], queries, n, masked);
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
      values_alone(p[1]);
    } else {
      overlapped<kMayHide, true, true>(s[0], p[1], s[1], p[0], queries, n, hides(n));
      overlapped<kMayHide, true, false>(s[1], p[0], s[0], p[1], queries, first, hides(first));
      release_queries();
      values_alone(p[0]);
    }
    return n;
  }

  /// The exponentials of tile n's scores `s` to `p`, while the values of the tile before, with probabilities
  /// `p_before`, and the scores of the next one are multiplied. Nothing stays in flight: ptxas serialises all products
  /// of a kernel that keeps one in flight over a loop's back edge.
  template <bool kMayHide, bool kBefore, bool kMore>
  __device__ __forceinline__ void overlapped(Scores& next, Probabilities& p, Scores& s, const Probabilities& p_before,
                                             unsigned long long queries, int n, bool masked) {
    wait_for_next_turn();
    if constexpr (kAhead && kMore) {
      Cursor<kConfig.stages> following = turn;
      following.advance();
      look_ahead(following);
    }
    begin_products();
    if constexpr (kBefore && kMore) {
      multiply_both(next, queries, p_before, turn.stage);
    } else {
      ptx::wgmma_fence();
      if constexpr (kBefore) multiply_values(p_before);
      if constexpr (kMore) multiply_keys(next, queries, turn.stage);
      ptx::wgmma_commit_group();
    }
    end_products();
    float factor[2] = {1.0F, 1.0F};
    constexpr bool kFirst = !kBefore && kConfig.reference == Reference::first_keys;
    constexpr bool kVotesOnMasks = kMayHide && kBefore && kConfig.masking == Masking::with_vote;
    if (kFirst && masked) hide_keys(s, n * kKeys);
    const bool is_known = masked && !kVotesOnMasks;
    const bool exact = kFirst ? !first_keys_softmax(p, s)
                              : !kBefore || is_known || (kVotesAtOnce && !optimistic_softmax(p, s, masked));
    bool misled = false;
    if (exact) {
      if (!kFirst && masked) hide_keys(s, n * kKeys);
      exact_probabilities(p, factor, s);
    } else if constexpr (!kVotesAtOnce && !kFirst) {
      misled = guessed_softmax(p, s, masked);
    }
    ptx::wgmma_wait_group(0);
    ptx::pin(out);
    if constexpr (kMore) ptx::pin(next);
    end_turn();
    if (kBefore && exact) rescale(factor);
    if (!kVotesAtOnce && misled) {
      if (kVotesOnMasks && masked) hide_keys(s, n * kKeys);
      exact_softmax(p, s);
    }
  }
};

}  // namespace heed::stream

/// fwd_sm90_stream: fused attention for Hopper where the products and exponentials of a launch take longer than
/// starting it. A producer keeps a ring of key tiles full; row groups run through them, last tile first:
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
/// Under a causal mask row groups with rows from both ends of a head may share the tiles of the one with more keys
/// (Pairs::together): every other tile each, the results added through shared memory.
///
/// Where row tiles are few and long, two blocks of a cluster may share the keys of each (Config::cluster), and a
/// multiprocessor a block of a long row tile and one of a short one (TileOrder::folded).
///
/// Tiles that not every row of the row group sees whole are the first of its order and take the exact maximum. The
/// tiles after them need neither mask nor, unless the reference is exact, maximum.
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691), asynchronous products beside exponentials and
/// registers that move from producer to consumers are FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/stream/copies.cuh"
#include "kernels/stream/epilogue.cuh"
#include "kernels/stream/softmax.cuh"
#include "kernels/stream/warp_scores.cuh"

namespace heed::stream {

template <Config kConfig, Problem kProblem>
struct Forward : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::kDim, Base::kKeys, Base::kSteps, Base::kAhead, Base::kPlan, Base::kMostSum, Base::kSumsRounded;
  using Base::multiply_keys, Base::multiply_values, Base::multiply_both, Base::begin_products, Base::end_products,
      Base::begin_turns, Base::end_turns;
  using Base::params, Base::place, Base::lane, Base::warp, Base::row_group, Base::key_group, Base::group_row,
      Base::scale_log2, Base::turn, Base::out, Base::reference, Base::sum;
  using Base::row, Base::hide_keys, Base::exact_probabilities, Base::rescale, Base::exact_softmax,
      Base::first_keys_softmax, Base::first_softmax, Base::optimistic_softmax, Base::guessed_softmax;
  using Base::wait_for_turn, Base::wait_for_next_turn, Base::look_ahead, Base::end_turn, Base::pass_turn;
  using typename Base::Scores, typename Base::Probabilities;

  // ---- compile-time facts
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  static constexpr bool kVotesAtOnce = kConfig.vote == Vote::at_once;
  static constexpr bool kTogether = kConfig.pairs == Pairs::together;

  // ---- state
  Cursor<kConfig.query_stages> query;

  using Base::Base;

  // --------------------------------------------------------------------------------------------------- key tiles

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
      first_softmax(p, s, n, (n + 1) * kKeys > seen_by_all);
      const auto step = [&] { return kTogether && n > both_see ? 2 : 1; };
      int by = step();
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
      if (kProblem.causal && (kConfig.masking != Masking::apart || hides_more))
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
    const bool masked = (n + 1) * kKeys > seen_by_all;
    if (n == first) {
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
    if (n == first) {
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

  // --------------------------------------------------------------------------------------------------- row tiles

  __device__ __forceinline__ void release_queries() const {
    if constexpr (!kOneTile)
      if (lane == 0) ptx::mbarrier_arrive(place.queries_freed(query.stage));
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) out[i] = 0.0F;
    reference[0] = reference[1] = -__int_as_float(0x7f800000);
    sum[0] = sum[1] = 0.0F;
  }

  /// Which rows and tiles of a row tile are this warp's.
  struct Share {
    int row;      ///< first of the row group
    Range tiles;  ///< of the key group
    int end;      ///< of those, that any of the rows sees
    int odd_row;  ///< Pairs::together: first of the odd row group of the pair, and its end; that of the even one
    int odd_end;
    int even_end;
  };

  __device__ __forceinline__ int row_of(int index, int of) const {
    return group_tile(kConfig, index, of, group_tiles(params.len_q)) * kGroupRows;
  }
  __device__ __forceinline__ Share share_of(int index) const {
    Share share{};
    share.row = row_of(index, row_group);
    const auto tiles_of = [&](int of) {
      return tiles_seen(kConfig, kProblem.causal, index, of, params.len_q, params.len_k, params.causal_offset);
    };
    if constexpr (kTogether) {
      const int even = row_group & ~1;
      const int of_even = tiles_of(even);
      const int of_odd = tiles_of(even + 1);
      if constexpr (kConfig.key_groups > 1)
        share.tiles = tiles_of_part(kConfig, min(of_even, of_odd), max(of_even, of_odd), key_group);
      else
        share.tiles = tiles_of_part(kConfig, keys_end(index), 0);
      const auto in_group = [&](int end) { return max(share.tiles.first, min(share.tiles.end, end)); };
      share.even_end = in_group(of_even);
      share.odd_end = in_group(of_odd);
      share.odd_row = row_of(index, even + 1);
      share.end = row_group == even ? share.even_end : share.odd_end;
    } else {
      share.tiles = tiles_of_part(kConfig, keys_end(index), part_of<kConfig>(key_group));
      share.end = min(share.tiles.end, tiles_of(row_group));
    }
    return share;
  }
  __device__ __forceinline__ int keys_end(int index) const {
    return visible_keys(kProblem.causal, last_row(kConfig, index, params.len_q), params.causal_offset, params.len_k);
  }
  __device__ __forceinline__ int seen_by_all() const {
    return visible_keys(kProblem.causal, group_row, params.causal_offset, params.len_k);
  }

  __device__ __forceinline__ void wait_for_queries(int of) const {
    ptx::mbarrier_wait(place.queries_barrier(query.stage, of), query.parity);
  }
  /// The queries of row group `of`, when they have arrived.
  __device__ __forceinline__ unsigned long long queries_of(int of) const {
    if constexpr (kTogether) wait_for_queries(of);  // else it has waited before
    return tile::matrix_descriptor(place.queries(query.stage) + of * kBoxes * kGroupRows * tile::kBoxRowBytes, 16);
  }

  /// Every tile that this row group sees.
  __device__ __forceinline__ void run_rows(const Share& share) {
    const Range& tiles = share.tiles;
    const bool has_tiles = share.end > tiles.first;
    group_row = share.row;
    clear();
    const unsigned long long queries = queries_of(row_group);
    // Tiles that only other row groups see.
#pragma unroll 1
    for (int n = has_tiles ? tiles.end - share.end : turns_of(kConfig, tiles.end - tiles.first); n > 0; --n)
      pass_turn();
    if (has_tiles)
      run_tiles(share.end - 1, tiles.first, seen_by_all(), queries);
    else
      release_queries();
  }

  /// A pair's share of tiles (Pairs::together). The odd row group's rows are from the head's end; n tiles are seen by
  /// the even one, too, which has no rows only where a head has no more:
  ///
  ///   odd      .. n + 3 | n + 1 | n - 1 | n - 2 | ..     its own rows
  ///   even     .. n + 2 | n     |                        the odd one's rows, handed over
  ///                             | n - 1 | n - 2 | ..     its own rows
  __device__ __forceinline__ void run_pair(const Share& share) {
    const Range& tiles = share.tiles;
    const bool is_even = row_group % 2 == 0;
    const bool is_helped = share.odd_end - share.even_end > 1;  // a single tile is not worth handing over
    int key_tile = tiles.end - 1;                               // whose keys come with the next turn
    bool helps = is_helped && is_even;
#pragma unroll 1
    for (;;) {
      group_row = helps ? share.odd_row : share.row;
      clear();
      const unsigned long long queries = queries_of(helps ? row_group + 1 : row_group);
      const int n = (helps ? share.odd_end - 1 : share.end) - 1;
      const int first = helps ? share.even_end : tiles.first;
      const int stays_at = helps && first > tiles.first ? first : -1;
      if (n >= first) {
#pragma unroll 1
        for (; key_tile > n; --key_tile) pass_turn();
        key_tile = run_tiles(n, first, seen_by_all(), queries, share.even_end, helps, stays_at);
        key_tile -= key_tile == stays_at ? 1 : 2;
      } else {
        release_queries();
      }
      if (!helps) break;
      hand_over();
      helps = false;
    }
    if (tiles.end > tiles.first)
#pragma unroll 1
      for (; key_tile >= tiles.first - 1; --key_tile) pass_turn();
    if (is_helped && !is_even) take_over();
  }

  // Barriers 8 and up, one for each pair and key group: something has been handed over; 12 and up: it has been taken.
  __device__ __forceinline__ int pair_index() const { return key_group * pairs(kConfig) + row_group / 2; }
  __device__ __forceinline__ unsigned help() const { return place.help(row_group / 2, key_group, warp * 32 + lane); }

  /// What this row group has of the other's rows.
  __device__ __forceinline__ void hand_over() const {
    if constexpr (!kOneTile) ptx::bar_sync(12 + pair_index(), 2 * kGroupThreads);
    const unsigned to = help();
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4)
      ptx::st_shared_v4(to + i / 4 * 16 * kGroupThreads, __float_as_uint(out[i]), __float_as_uint(out[i + 1]),
                        __float_as_uint(out[i + 2]), __float_as_uint(out[i + 3]));
    ptx::st_shared_v4(to + kDim / 8 * 16 * kGroupThreads, __float_as_uint(reference[0]), __float_as_uint(reference[1]),
                      __float_as_uint(sum[0]), __float_as_uint(sum[1]));
    ptx::bar_arrive(8 + pair_index(), 2 * kGroupThreads);
  }

  /// Adds what the other row group has of these rows.
  __device__ __forceinline__ void take_over() {
    ptx::bar_sync(8 + pair_index(), 2 * kGroupThreads);
    const unsigned from = help();
    unsigned state[4];
    ptx::ld_shared_v4(state, from + kDim / 8 * 16 * kGroupThreads);
    float mine[2];
    float its[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(reference[h], __uint_as_float(state[h]));
      const float subtracted = attention::finite_reference(most);
      mine[h] = ptx::ex2_approx_ftz(reference[h] - subtracted);
      its[h] = ptx::ex2_approx_ftz(__uint_as_float(state[h]) - subtracted);
      sum[h] = fmaf(sum[h], mine[h], its[h] * __uint_as_float(state[2 + h]));
      reference[h] = most;
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4) {
      unsigned x[4];
      ptx::ld_shared_v4(x, from + i / 4 * 16 * kGroupThreads);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i + j] = fmaf(out[i + j], mine[j / 2], __uint_as_float(x[j]) * its[j / 2]);
    }
    if constexpr (!kOneTile) ptx::bar_arrive(12 + pair_index(), 2 * kGroupThreads);
  }
  /// At the start what has been handed over counts as taken; at the end someone has to take the last arrival.
  __device__ __forceinline__ void begin_pairs() const {
    if (kTogether && !kOneTile && row_group % 2 == 1) ptx::bar_arrive(12 + pair_index(), 2 * kGroupThreads);
  }
  __device__ __forceinline__ void end_pairs() const {
    if (kTogether && !kOneTile && row_group % 2 == 0) ptx::bar_sync(12 + pair_index(), 2 * kGroupThreads);
  }

  __device__ __forceinline__ Epilogue<kConfig, kProblem> end_of(const RowTile& at, const Target& target) const {
    return {target, place.shared, {part_of<kConfig>(key_group), row_group, warp, lane, row(0), at.head, at.batch}};
  }

  __device__ __forceinline__ void add_up_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
    }
  }

  __device__ __forceinline__ void run_row_tile(const RowTile& at, const Target& target) {
    const Share share = share_of(at.index);
    if constexpr (kTogether)
      run_pair(share);
    else
      run_rows(share);
    if constexpr (kConfig.sums == Sums::at_end) add_up_sums();
    end_of(at, target).run(out, reference, sum);
  }

  __device__ __forceinline__ void consume(const TensorMap& output) {
    const Target target = {
        static_cast<unsigned short*>(params.o), params.lse, params.o_strides, params.len_q, params.heads, &output};
    if constexpr (kOneTile) {
      const RowTile at = row_tile_of_this_block<kConfig, kProblem>();
      if constexpr (kConfig.store == Store::aimed_rows) {
        group_row = row_of(at.index, row_group);
        end_of(at, target).keep_line();
      }
      ptx::bar_sync(1, consumer_threads(kConfig) + 32);
      begin_turns();
      // The other block's barriers exist: nothing to wait for here, before the queries have come.
      if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_wait_acquire();
      if constexpr (!kTogether) wait_for_queries(row_group);
      run_row_tile(at, target);
    } else {
      ptx::bar_sync(1, consumer_threads(kConfig) + 32);
      begin_turns();
      begin_pairs();
#pragma unroll 1
      for (;;) {
        wait_for_queries(row_group);
        unsigned words[4];
        ptx::ld_shared_v4(words, place.row_tile(query.stage));
        const RowTile at = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1]), ptx::warp_uniform(words[2])};
        if (at.index < 0) break;
        run_row_tile(at, target);
        query.advance();
      }
      end_pairs();
    }
    end_turns();
    if constexpr (kConfig.store == Store::boxes)
      if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }
};

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <Config kConfig, Problem kProblem>
__device__ __forceinline__ void forward(const ForwardParams& params, const TensorMaps& maps, char* dynamic_shared) {
  const Layout<kConfig, kProblem> place{ptx::shared_address(dynamic_shared)};
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  constexpr int kConsumerWarps = consumer_threads(kConfig) / 32;
  if (warp >= kConsumerWarps) {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (warp != kConsumerWarps) return;
    // In a register: ptxas would work the address out again for every copy, from a special register each time.
    const Layout<kConfig, kProblem> own{static_cast<unsigned>(ptx::warp_uniform(place.shared))};
    const Copies<kConfig, kProblem> copies{params, maps, own};
    if (ptx::elect_one()) copies.start();
    __syncwarp();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    ptx::bar_arrive(1, consumer_threads(kConfig) + 32);
    if (ptx::elect_one()) copies.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    Forward<kConfig, kProblem>(params, place, warp).consume(maps.o);
  }
}

}  // namespace heed::stream

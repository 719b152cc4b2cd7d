/// fwd_sm90_stream: fused attention for Hopper where the products and exponentials of a launch take longer than
/// starting it. A producer keeps a ring of key tiles full; row groups run through them, last tile first
/// (kernels/stream/tiles.cuh).
///
/// Under a causal mask row groups with rows from both ends of a head may share the tiles of the one with more keys
/// (Pairs::together): every other tile each, the results added through shared memory.
///
/// Where row tiles are few and long, two blocks of a cluster may share the keys of each (Config::cluster), and a
/// multiprocessor a block of a long row tile and one of a short one (TileOrder::folded).
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691), registers that move from producer to consumers are
/// FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/stream/copies.cuh"
#include "kernels/stream/epilogue.cuh"
#include "kernels/stream/registers.hpp"
#include "kernels/stream/tiles.cuh"

namespace heed::stream {

template <const Config& kConfig, const Problem& kProblem>
struct Forward : Tiles<kConfig, kProblem> {
  using Base = Tiles<kConfig, kProblem>;
  using Base::begin_turns, Base::end_turns, Base::wait_to_start, Base::let_next_start, Base::pass_turn,
      Base::release_queries, Base::run_tiles, Base::add_up_sums;
  using Base::kDim, Base::kOneTile, Base::kTogether, Base::kKnown;
  using Base::params, Base::place, Base::lane, Base::warp, Base::row_group, Base::key_group, Base::group_row,
      Base::query, Base::out, Base::reference, Base::sum, Base::row;

  // ---- compile-time facts
  static constexpr int kStart = 1;  // barriers from here on, one a team: the mbarriers exist
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr bool kSharesAhead = kConfig.shares == Shares::ahead;

  using Base::Base;

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
    const auto keys = [&] {
      return keys_seen<has_whole_row_tiles(kConfig)>(kConfig, kProblem.causal, index, params.len_q, params.len_k,
                                                     params.causal_offset);
    };
    const auto tiles_of = [&](int of) {
      return tiles_seen<has_whole_row_tiles(kConfig)>(kConfig, kProblem.causal, index, of, params.len_q, params.len_k,
                                                      params.causal_offset);
    };
    if constexpr (kTogether) {
      const int even = row_group & ~1;
      const int of_even = tiles_of(even);
      const int of_odd = tiles_of(even + 1);
      if constexpr (kConfig.key_groups > 1)
        share.tiles = tiles_of_part(kConfig, min(of_even, of_odd), max(of_even, of_odd), key_group);
      else
        share.tiles = tiles_of_part(kConfig, keys(), 0);
      const auto in_group = [&](int end) { return max(share.tiles.first, min(share.tiles.end, end)); };
      share.even_end = in_group(of_even);
      share.odd_end = in_group(of_odd);
      share.odd_row = row_of(index, even + 1);
      share.end = row_group == even ? share.even_end : share.odd_end;
    } else {
      share.tiles = tiles_of_part(kConfig, keys(), part_of<kConfig>(key_group));
      share.end = min(share.tiles.end, tiles_of(row_group));
    }
    return share;
  }
  __device__ __forceinline__ int seen_by_all() const {
    return keys_of_row<has_whole_row_tiles(kConfig)>(kProblem.causal, group_row, params.causal_offset, params.len_k);
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
    const bool has_tiles = share.end > tiles.first || !kKnown.some_are_none;
    group_row = share.row;
    clear();
    const unsigned long long queries = queries_of(row_group);
    // Tiles that only other row groups see. Without this loop the compiler knows the stage of every turn where it
    // unrolls as many turns as there are stages.
    if constexpr (kConfig.row_groups > 1 && kKnown.some_pass)
#pragma unroll 1
      for (int n = has_tiles ? tiles.end - share.end : turns_of(kConfig, tiles.end - tiles.first); n > 0; --n)
        pass_turn();
    if (has_tiles) {
      run_tiles(share.end - 1, tiles.first, seen_by_all(), queries);
    } else {
      let_next_start();
      release_queries();
    }
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
    return {{target, place, {part_of<kConfig>(key_group), row_group, warp, lane, row(0), at.head, at.batch}}};
  }

  __device__ __forceinline__ void run_row_tile(const RowTile& at, const Share& share, const Target& target) {
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
      Share share{};
      if constexpr (kSharesAhead) share = share_of(at.index);
      ptx::bar_sync(kStart + place.team, team_threads(kConfig) + 32);
      begin_turns();
      // The other block's barriers exist: nothing to wait for here, before the queries have come.
      if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_wait_acquire();
      if constexpr (!kTogether) wait_for_queries(row_group);
      wait_to_start();
      if constexpr (!kSharesAhead) share = share_of(at.index);
      run_row_tile(at, share, target);
    } else {
      ptx::bar_sync(kStart + place.team, team_threads(kConfig) + 32);
      begin_turns();
      begin_pairs();
#pragma unroll 1
      for (bool is_first = kSharesAhead;; is_first = false) {
        // The first row tile has been announced at the barrier above, the others are with their queries.
        if (!is_first) wait_for_queries(row_group);
        unsigned words[4];
        ptx::ld_shared_v4(words, place.row_tile(query.stage));
        const RowTile at = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1]), ptx::warp_uniform(words[2])};
        if (at.index < 0) break;
        const Share share = share_of(at.index);
        if (is_first) wait_for_queries(row_group);
        run_row_tile(at, share, target);
        query.advance();
      }
      end_pairs();
    }
    end_turns();
    if constexpr (kConfig.store == Store::boxes)
      if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }
};

template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void run_block(const ForwardParams& params, const TensorMaps& maps, char* dynamic_shared) {
  using Place = Layout<kConfig, kProblem>;
  const unsigned shared = ptx::shared_address(dynamic_shared);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  constexpr int kConsumerWarps = consumer_threads(kConfig) / 32;
  constexpr int kTeamWarps = team_threads(kConfig) / 32;
  if (warp >= kConsumerWarps) {
    constexpr bool kAtOnce = kConfig.release == Release::at_once;
    if constexpr (moves_registers(kConfig) && kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (kConfig.teams == 1 ? warp != kConsumerWarps : warp >= kConsumerWarps + kConfig.teams) {
      if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
      return;
    }
    // In a register: ptxas would work the address out again for every copy, from a special register each time.
    const auto own = Place::of_team(static_cast<unsigned>(ptx::warp_uniform(shared)), warp - kConsumerWarps);
    const Copies<kConfig, kProblem> copies{params, maps, own};
    if (ptx::elect_one()) copies.start();
    __syncwarp();
    if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    ptx::bar_arrive(Forward<kConfig, kProblem>::kStart + own.team, team_threads(kConfig) + 32);
    if (ptx::elect_one()) copies.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    const int team = kConfig.teams == 1 ? 0 : warp / kTeamWarps;
    Forward<kConfig, kProblem>(params, Place::of_team(shared, team), warp - team * kTeamWarps).consume(maps.o);
  }
}

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void forward(const ForwardParams& params, const TensorMaps& maps, char* dynamic_shared) {
  if constexpr (kConfig.sizes == Sizes::any)
    run_block<kConfig, kProblem>(params, maps, dynamic_shared);
  else
    run_block<kConfig, kProblem>(with_sizes(params, kProblem.sizes), maps, dynamic_shared);
}

}  // namespace heed::stream

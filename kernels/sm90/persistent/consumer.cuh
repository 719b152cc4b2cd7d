/// A consumer warpgroup of fwd_sm90_persistent, Q tile after Q tile: its share of the work, the mainloop over its KV
/// tiles, and the epilogue.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/epilogue.cuh"
#include "kernels/sm90/persistent/listed_blocks.cuh"
#include "kernels/sm90/persistent/pairs.cuh"
#include "kernels/sm90/persistent/stream_k.cuh"
#include "kernels/sm90/persistent/work_share.cuh"

namespace heed::sm90_persistent {

/// Where a virtual CTA's consumers wait for its producer warp.
template <const Config& kConfig>
__device__ __forceinline__ int start_barrier(int virtual_cta) {
  return attention::barrier_id<kConfig, NamedBarrier::start>(virtual_cta);
}

template <const Config& kConfig, const Problem& kProblem>
struct Consumer {
  using Mainloop = sm90_persistent::Mainloop<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBoxes = Mainloop::Gemms::kDim / tile::kBoxColumns;
  static constexpr bool kOneTile = Mainloop::kOneTile;
  static constexpr bool kTogether = Mainloop::kTogether;
  static constexpr bool kBegins = Mainloop::kBegins;
  static constexpr KnownKvTiles kKnown = Mainloop::kKnown;
  static constexpr bool kSharesAhead = kConfig.tile_setup == TileSetup::early;
  static constexpr bool kLengths = kProblem.features.lengths;
  static constexpr bool kBlocks = kProblem.features.blocks;
  static constexpr bool kStreamK = streams(kConfig);

  // ---- state
  Mainloop mainloop;

  __device__ __forceinline__ void consume(const Params<kProblem>& launch, const TensorMap& output) {
    const Target<kProblem> target = target_of(output);
    if constexpr (kOneTile) {
      const QTile at = q_tile_of_this_cta<kConfig, kProblem>();
      if constexpr (kConfig.epilogue == EpilogueStore::smem_b128_preaddressed) {
        mainloop.scores.warpgroup_row =
            row_of<kConfig>(mainloop.scores.params, at.index, mainloop.gemms.thread.m_warpgroup);
        epilogue(at, target).slices.keep_address();
      }
      WorkShare share{};
      if constexpr (kSharesAhead) share = work_share(mainloop.scores, mainloop.gemms.thread, at.index);
      ptx::bar_sync(start_barrier<kConfig>(mainloop.gemms.smem.virtual_cta.index), virtual_cta_threads(kConfig) + 32);
      mainloop.scores.begin_entry(launch, at);
      if constexpr (kLengths)
        if (!has_rows(kConfig, at.index, mainloop.scores.params.len_q)) return;
      mainloop.gemms.begin_pingpong();
      // The other block's barriers exist: nothing to wait for here, before the queries have come.
      if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_wait_acquire();
      if constexpr (!kTogether) wait_for_queries(mainloop.gemms.thread.m_warpgroup);
      mainloop.gemms.wait_to_start();
      if constexpr (!kSharesAhead) share = work_share(mainloop.scores, mainloop.gemms.thread, at.index);
      run_q_tile(at, share, kLengths ? target_of(output) : target);
    } else {
      ptx::bar_sync(start_barrier<kConfig>(mainloop.gemms.smem.virtual_cta.index), virtual_cta_threads(kConfig) + 32);
      mainloop.gemms.begin_pingpong();
      begin_pairs(mainloop.gemms.thread);
#pragma unroll 1
      for (bool is_first = kSharesAhead;; is_first = false) {
        // The first Q tile has been announced at the barrier above, the others are with their queries.
        if (!is_first) wait_for_queries(mainloop.gemms.thread.m_warpgroup);
        unsigned words[4];
        ptx::ld_shared_v4(words, mainloop.gemms.smem.q_tile(mainloop.query.stage));
        const QTile at = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1]), ptx::warp_uniform(words[2])};
        if (at.index < 0) break;
        mainloop.scores.begin_entry(launch, at);
        WorkShare share = work_share(mainloop.scores, mainloop.gemms.thread, at.index);
        Pieces pieces{1, 0};
        if constexpr (kStreamK) pieces = take_piece(share);
        if (is_first) wait_for_queries(mainloop.gemms.thread.m_warpgroup);
        run_q_tile(at, share, kLengths ? target_of(output) : target, pieces);
        mainloop.query.advance();
      }
      end_pairs(mainloop.gemms.thread);
    }
    mainloop.gemms.end_pingpong();
    if constexpr (kConfig.epilogue == EpilogueStore::tma)
      if (mainloop.gemms.thread.lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }

 private:
  __device__ __forceinline__ void wait_for_queries(int of) const {
    ptx::mbarrier_wait(mainloop.gemms.smem.q_full(mainloop.query.stage, of), mainloop.query.parity);
  }
  /// The queries of consumer warpgroup `of`, when they have arrived.
  __device__ __forceinline__ unsigned long long queries_of(int of) const {
    if constexpr (kTogether) wait_for_queries(of);  // else it has waited before
    return tile::matrix_descriptor(
        mainloop.gemms.smem.queries(mainloop.query.stage) + of * kBoxes * kWarpgroupRows * tile::kBoxRowBytes, 16);
  }

  /// Of the launch, or of the entry that has begun where entries have lengths of their own.
  __device__ __forceinline__ Target<kProblem> target_of(const TensorMap& output) const {
    const auto& params = mainloop.scores.params;
    return {static_cast<unsigned short*>(params.o),
            params.lse,
            params.o_strides,
            params.len_q,
            params.heads,
            &output,
            &params};
  }
  __device__ __forceinline__ Epilogue<kConfig, kProblem> epilogue(const QTile& at,
                                                                  const Target<kProblem>& target) const {
    return {{target,
             mainloop.gemms.smem,
             {split_of<kConfig>(mainloop.gemms.thread.kv_group), mainloop.gemms.thread.m_warpgroup,
              mainloop.gemms.thread.warp, mainloop.gemms.thread.lane, mainloop.scores.row(mainloop.gemms, 0), at.head,
              at.batch}}};
  }

  /// The KV tiles of the piece that was announced with the Q tile.
  /// @return the Q tile's pieces
  __device__ __forceinline__ Pieces take_piece(WorkShare& share) const {
    unsigned words[4];
    ptx::ld_shared_v4(words, mainloop.gemms.smem.q_tile(mainloop.query.stage) + 16);
    // In front of the branch: under a condition ptxas 13.0 made of it redux instructions whose predicate it had not
    // set.
    const Range tiles = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1])};
    const Pieces pieces = {ptx::warp_uniform(words[2]), ptx::warp_uniform(words[3])};
    if (mainloop.scores.changes.blocks.numbers == nullptr) return {1, 0};
    share.tiles = tiles;
    share.end = share.row < mainloop.scores.params.len_q ? share.tiles.end : share.tiles.first;
    return pieces;
  }

  __device__ __forceinline__ void run_q_tile(const QTile& at, const WorkShare& share, const Target<kProblem>& target,
                                             const Pieces& pieces = {1, 0}) {
    mainloop.scores.begin_head(at);
    if constexpr (kTogether)
      run_pair(share);
    else
      run_rows(share);
    if constexpr (kConfig.rowsum_reduce == RowsumReduce::at_end) mainloop.softmax.add_up_sums();
    if constexpr (kStreamK) {
      const auto& thread = mainloop.gemms.thread;
      const int cta = blockIdx.x * kConfig.virtual_ctas + mainloop.gemms.smem.virtual_cta.index;
      if (pieces.count > 1 &&
          !merge_pieces<kConfig, kProblem>(mainloop.scores.params, pieces, cta, thread.m_warpgroup * 4 + thread.warp,
                                           thread.lane, mainloop.gemms.acc_o, mainloop.softmax.row_max,
                                           mainloop.softmax.row_sum))
        return;
    }
    if constexpr (kProblem.features.sinks)
      if (split_of<kConfig>(mainloop.gemms.thread.kv_group) == 0)
        mainloop.softmax.add_sinks(mainloop.scores.params, at.head, mainloop.gemms.acc_o);
    epilogue(at, target).run(mainloop.gemms.acc_o, mainloop.softmax.row_max, mainloop.softmax.row_sum);
  }

  /// Every tile that this consumer warpgroup sees.
  __device__ __forceinline__ void run_rows(const WorkShare& share) {
    Range tiles = share.tiles;
    if constexpr (kBegins) {
      mainloop.scores.warpgroup_row = share.row;
      if constexpr (!kBlocks)
        tiles.first = min(max(tiles.first, mainloop.scores.first_seen(mainloop.gemms)), tiles.end);
    }
    const bool has_tiles = share.end > tiles.first || !kKnown.some_are_none;
    mainloop.scores.warpgroup_row = share.row;
    mainloop.clear();
    const unsigned long long queries = queries_of(mainloop.gemms.thread.m_warpgroup);
    // Tiles that only other consumer warpgroups see. Without this loop the compiler knows the stage of every iteration
    // where it unrolls as many iterations as there are stages.
    if constexpr (kConfig.m_warpgroups > 1 && kKnown.some_pass)
#pragma unroll 1
      for (int n = has_tiles ? tiles.end - share.end : iterations_of(kConfig, share.tiles.end - share.tiles.first);
           n > 0; --n)
        mainloop.gemms.skip_iteration();
    if (has_tiles) {
      if constexpr (kBlocks)
        run_listed_tiles(mainloop, share.end - 1, tiles.first, mainloop.scores.seen_by_all(mainloop.gemms), queries);
      else
        mainloop.run_tiles(share.end - 1, tiles.first, mainloop.scores.seen_by_all(mainloop.gemms), queries);
      if constexpr (kBegins && kConfig.m_warpgroups > 1)
#pragma unroll 1
        for (int n = tiles.first - share.tiles.first; n > 0; --n) mainloop.gemms.skip_iteration();
    } else {
      mainloop.gemms.let_next_start();
      mainloop.release_queries();
    }
  }

  /// A pair's share of tiles (ShareCausalTail::on). The odd consumer warpgroup's rows are from the head's end; n tiles
  /// are seen by the even one, too, which has no rows only where a head has no more:
  ///
  ///   odd      .. n + 3 | n + 1 | n - 1 | n - 2 | ..     its own rows
  ///   even     .. n + 2 | n     |                        the odd one's rows, handed over
  ///                             | n - 1 | n - 2 | ..     its own rows
  __device__ __forceinline__ void run_pair(const WorkShare& share) {
    const Range& tiles = share.tiles;
    const bool is_even = mainloop.gemms.thread.m_warpgroup % 2 == 0;
    const bool has_help = share.odd_end - share.even_end > 1;  // a single tile is not worth handing over
    int kv_tile = tiles.end - 1;                               // whose keys come with the next iteration
    bool takes_partners_tiles = has_help && is_even;
#pragma unroll 1
    for (;;) {
      mainloop.scores.warpgroup_row = takes_partners_tiles ? share.odd_row : share.row;
      mainloop.clear();
      const unsigned long long queries =
          queries_of(takes_partners_tiles ? mainloop.gemms.thread.m_warpgroup + 1 : mainloop.gemms.thread.m_warpgroup);
      const int n = (takes_partners_tiles ? share.odd_end - 1 : share.end) - 1;
      const int first = takes_partners_tiles ? share.even_end : tiles.first;
      const int stays_at = takes_partners_tiles && first > tiles.first ? first : -1;
      if (n >= first) {
#pragma unroll 1
        for (; kv_tile > n; --kv_tile) mainloop.gemms.skip_iteration();
        kv_tile = mainloop.run_tiles(n, first, mainloop.scores.seen_by_all(mainloop.gemms), queries, share.even_end,
                                     takes_partners_tiles, stays_at);
        kv_tile -= kv_tile == stays_at ? 1 : 2;
      } else {
        mainloop.release_queries();
      }
      if (!takes_partners_tiles) break;
      send_partial(mainloop.gemms, mainloop.softmax);
      takes_partners_tiles = false;
    }
    if (tiles.end > tiles.first)
#pragma unroll 1
      for (; kv_tile >= tiles.first - 1; --kv_tile) mainloop.gemms.skip_iteration();
    if (has_help && !is_even) reduce_partial(mainloop.gemms, mainloop.softmax);
  }
};

}  // namespace heed::sm90_persistent

/// fwd_sm90_persistent: fused attention for Hopper where the products and exponentials of a launch take longer than
/// starting it. A producer keeps a ring of KV tiles full; consumer warpgroups run through them, last tile first
/// (kernels/sm90/persistent/tiles.cuh).
///
/// Under a causal mask consumer warpgroups with rows from both ends of a head may share the tiles of the one with more
/// keys (ShareCausalTail::on): every other tile each, the results added through shared memory.
///
/// Where Q tiles are few and long, two blocks of a cluster may share the keys of each (Config::cluster), and a
/// multiprocessor a block of a long Q tile and one of a short one (TileOrder::lpt_then_spt).
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691), registers that move from producer to consumers are
/// FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/epilogue.cuh"
#include "kernels/sm90/persistent/listed_tiles.cuh"
#include "kernels/sm90/persistent/registers.hpp"
#include "kernels/sm90/persistent/tma_producer.cuh"

namespace heed::sm90_persistent {

/// Where a virtual CTA's consumers wait for its producer warp.
template <const Config& kConfig>
__device__ __forceinline__ int start_barrier(int virtual_cta) {
  return attention::barrier_id<kConfig, NamedBarrier::start>(virtual_cta);
}

template <const Config& kConfig, const Problem& kProblem>
struct Forward : ListedTiles<kConfig, kProblem> {
  using Base = ListedTiles<kConfig, kProblem>;
  using Base::begin_entry, Base::begin_pingpong, Base::end_pingpong, Base::wait_to_start, Base::let_next_start,
      Base::skip_iteration, Base::release_queries, Base::run_tiles, Base::run_listed_tiles, Base::add_up_sums,
      Base::begin_head, Base::add_sinks;
  using Base::kDim, Base::kOneTile, Base::kTogether, Base::kKnown, Base::kBegins, Base::origin;
  using Base::params, Base::smem, Base::lane, Base::warp, Base::m_warpgroup, Base::kv_group, Base::warpgroup_row,
      Base::query, Base::acc_o, Base::row_max, Base::row_sum, Base::row;

  // ---- compile-time facts
  static constexpr int kBoxes = kDim / tile::kBoxColumns;
  static constexpr bool kSharesAhead = kConfig.tile_setup == TileSetup::early;
  static constexpr bool kLengths = kProblem.features.lengths;
  static constexpr bool kPrefix = kProblem.features.prefix;
  static constexpr bool kBlocks = kProblem.features.blocks;

  using Base::Base;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc_o[i] = 0.0F;
    row_max[0] = row_max[1] = -attention::kInfinity;
    row_sum[0] = row_sum[1] = 0.0F;
  }

  /// Which rows and tiles of a Q tile are this warp's.
  struct WorkShare {
    int row;      ///< first of the consumer warpgroup
    Range tiles;  ///< of the KV group
    int end;      ///< of those, that any of the rows sees; under a mask with a left bound they begin with first_seen()
    int odd_row;  ///< ShareCausalTail::on: first of the odd consumer warpgroup of the pair, and its end; that of the
                  ///< even one
    int odd_end;
    int even_end;
  };

  __device__ __forceinline__ int row_of(int index, int of) const {
    return warpgroup_tile(kConfig, index, of, warpgroup_tiles(params.len_q)) * kWarpgroupRows;
  }
  __device__ __forceinline__ WorkShare tile_setup_of(int index) const {
    WorkShare share{};
    share.row = row_of(index, m_warpgroup);
    if constexpr (kBlocks)
      if (this->blocks.numbers != nullptr) {
        share.tiles = kv_tiles_of_split(kConfig, keys_of_list(this->blocks), split_of<kConfig>(kv_group));
        share.end = share.row < params.len_q ? share.tiles.end : share.tiles.first;
        return share;
      }
    const auto keys = [&] {
      if constexpr (kPrefix)
        return max(this->prefix,
                   keys_seen(kConfig, kProblem.mask, index, params.len_q, params.len_k, params.right_offset));
      return keys_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, index, params.len_q, params.len_k,
                                                    params.right_offset);
    };
    const auto tiles_of = [&](int of) {
      return tiles_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, index, of, params.len_q, params.len_k,
                                                     params.right_offset);
    };
    // A prefix is seen by every row that there is.
    const auto with_prefix = [&](int tiles, int begin) {
      if constexpr (kPrefix)
        if (share.row < params.len_q)
          return max(tiles, static_cast<int>(kv_tiles_for(kConfig, max(0, this->prefix - begin))));
      return tiles;
    };
    if constexpr (kTogether) {
      const int even = m_warpgroup & ~1;
      const int of_even = tiles_of(even);
      const int of_odd = tiles_of(even + 1);
      if constexpr (kConfig.kv_groups > 1)
        share.tiles = kv_tiles_of_split(kConfig, min(of_even, of_odd), max(of_even, of_odd), kv_group);
      else
        share.tiles = kv_tiles_of_split(kConfig, keys(), 0);
      const auto in_group = [&](int end) { return max(share.tiles.first, min(share.tiles.end, end)); };
      share.even_end = in_group(of_even);
      share.odd_end = in_group(of_odd);
      share.odd_row = row_of(index, even + 1);
      share.end = m_warpgroup == even ? share.even_end : share.odd_end;
    } else if constexpr (kBegins) {
      int begin = origin_of(kConfig, kProblem.mask, index, params.left_offset, params.len_k);
      if constexpr (kProblem.features.pages) begin = origin_of_boxes(kConfig, params, begin);
      share.tiles = kv_tiles_of_split(kConfig, keys() - begin, split_of<kConfig>(kv_group));
      share.end = min(share.tiles.end, with_prefix(tiles_seen_from(kConfig, kProblem.mask, index, m_warpgroup, begin,
                                                                   params.len_q, params.len_k, params.right_offset),
                                                   begin));
    } else {
      share.tiles = kv_tiles_of_split(kConfig, keys(), split_of<kConfig>(kv_group));
      share.end = min(share.tiles.end, with_prefix(tiles_of(m_warpgroup), 0));
    }
    return share;
  }
  __device__ __forceinline__ int seen_by_all() const {
    if constexpr (kPrefix)
      return max(this->prefix, keys_of_row(kProblem.mask, warpgroup_row, params.right_offset, params.len_k)) -
             (kBegins ? origin() : 0);
    if constexpr (kBegins)
      return keys_of_row(kProblem.mask, warpgroup_row, params.right_offset, params.len_k) - origin();
    return keys_of_row<has_whole_q_tiles(kProblem)>(kProblem.mask, warpgroup_row, params.right_offset, params.len_k);
  }
  /// The first KV tile that some row of the consumer warpgroup sees.
  __device__ __forceinline__ int first_seen() const {
    return (hidden_keys(kProblem.mask, warpgroup_row, params.left_offset, params.len_k) - origin()) / kConfig.block_n;
  }

  __device__ __forceinline__ void wait_for_queries(int of) const {
    ptx::mbarrier_wait(smem.q_full(query.stage, of), query.parity);
  }
  /// The queries of consumer warpgroup `of`, when they have arrived.
  __device__ __forceinline__ unsigned long long queries_of(int of) const {
    if constexpr (kTogether) wait_for_queries(of);  // else it has waited before
    return tile::matrix_descriptor(smem.queries(query.stage) + of * kBoxes * kWarpgroupRows * tile::kBoxRowBytes, 16);
  }

  /// Every tile that this consumer warpgroup sees.
  __device__ __forceinline__ void run_rows(const WorkShare& share) {
    Range tiles = share.tiles;
    if constexpr (kBegins) {
      warpgroup_row = share.row;
      if constexpr (!kBlocks) tiles.first = min(max(tiles.first, first_seen()), tiles.end);
    }
    const bool has_tiles = share.end > tiles.first || !kKnown.some_are_none;
    warpgroup_row = share.row;
    clear();
    const unsigned long long queries = queries_of(m_warpgroup);
    // Tiles that only other consumer warpgroups see. Without this loop the compiler knows the stage of every iteration
    // where it unrolls as many iterations as there are stages.
    if constexpr (kConfig.m_warpgroups > 1 && kKnown.some_pass)
#pragma unroll 1
      for (int n = has_tiles ? tiles.end - share.end : iterations_of(kConfig, share.tiles.end - share.tiles.first);
           n > 0; --n)
        skip_iteration();
    if (has_tiles) {
      if constexpr (kBlocks)
        run_listed_tiles(share.end - 1, tiles.first, seen_by_all(), queries);
      else
        run_tiles(share.end - 1, tiles.first, seen_by_all(), queries);
      if constexpr (kBegins && kConfig.m_warpgroups > 1)
#pragma unroll 1
        for (int n = tiles.first - share.tiles.first; n > 0; --n) skip_iteration();
    } else {
      let_next_start();
      release_queries();
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
    const bool is_even = m_warpgroup % 2 == 0;
    const bool has_help = share.odd_end - share.even_end > 1;  // a single tile is not worth handing over
    int kv_tile = tiles.end - 1;                               // whose keys come with the next iteration
    bool takes_partners_tiles = has_help && is_even;
#pragma unroll 1
    for (;;) {
      warpgroup_row = takes_partners_tiles ? share.odd_row : share.row;
      clear();
      const unsigned long long queries = queries_of(takes_partners_tiles ? m_warpgroup + 1 : m_warpgroup);
      const int n = (takes_partners_tiles ? share.odd_end - 1 : share.end) - 1;
      const int first = takes_partners_tiles ? share.even_end : tiles.first;
      const int stays_at = takes_partners_tiles && first > tiles.first ? first : -1;
      if (n >= first) {
#pragma unroll 1
        for (; kv_tile > n; --kv_tile) skip_iteration();
        kv_tile = run_tiles(n, first, seen_by_all(), queries, share.even_end, takes_partners_tiles, stays_at);
        kv_tile -= kv_tile == stays_at ? 1 : 2;
      } else {
        release_queries();
      }
      if (!takes_partners_tiles) break;
      send_partial();
      takes_partners_tiles = false;
    }
    if (tiles.end > tiles.first)
#pragma unroll 1
      for (; kv_tile >= tiles.first - 1; --kv_tile) skip_iteration();
    if (has_help && !is_even) reduce_partial();
  }

  // Both consumer warpgroups of a pair are at these: partial O has been put, and has been taken.
  __device__ __forceinline__ int pair_index() const { return kv_group * pairs(kConfig) + m_warpgroup / 2; }
  __device__ __forceinline__ int put_barrier() const {
    return attention::barrier_id<kConfig, NamedBarrier::put>(pair_index());
  }
  __device__ __forceinline__ int taken_barrier() const {
    return attention::barrier_id<kConfig, NamedBarrier::taken>(pair_index());
  }
  __device__ __forceinline__ unsigned partner_partials() const {
    return smem.partner_partials(m_warpgroup / 2, kv_group, warp * 32 + lane);
  }

  /// What this consumer warpgroup has of the other's rows.
  __device__ __forceinline__ void send_partial() const {
    if constexpr (!kOneTile) ptx::bar_sync(taken_barrier(), 2 * kWarpgroupThreads);
    const unsigned to = partner_partials();
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4)
      ptx::st_shared_v4(to + i / 4 * 16 * kWarpgroupThreads, __float_as_uint(acc_o[i]), __float_as_uint(acc_o[i + 1]),
                        __float_as_uint(acc_o[i + 2]), __float_as_uint(acc_o[i + 3]));
    ptx::st_shared_v4(to + kDim / 8 * 16 * kWarpgroupThreads, __float_as_uint(row_max[0]), __float_as_uint(row_max[1]),
                      __float_as_uint(row_sum[0]), __float_as_uint(row_sum[1]));
    ptx::bar_arrive(put_barrier(), 2 * kWarpgroupThreads);
  }

  /// Adds what the other consumer warpgroup has of these rows.
  __device__ __forceinline__ void reduce_partial() {
    ptx::bar_sync(put_barrier(), 2 * kWarpgroupThreads);
    const unsigned from = partner_partials();
    unsigned state[4];
    ptx::ld_shared_v4(state, from + kDim / 8 * 16 * kWarpgroupThreads);
    float mine[2];
    float its[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const attention::TwoWeights both = attention::weigh_two(row_max[h], __uint_as_float(state[h]));
      mine[h] = both.first;
      its[h] = both.second;
      row_sum[h] = fmaf(row_sum[h], mine[h], its[h] * __uint_as_float(state[2 + h]));
      row_max[h] = both.row_max;
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; i += 4) {
      unsigned x[4];
      ptx::ld_shared_v4(x, from + i / 4 * 16 * kWarpgroupThreads);
#pragma unroll
      for (int j = 0; j < 4; ++j) acc_o[i + j] = fmaf(acc_o[i + j], mine[j / 2], __uint_as_float(x[j]) * its[j / 2]);
    }
    if constexpr (!kOneTile) ptx::bar_arrive(taken_barrier(), 2 * kWarpgroupThreads);
  }
  /// At the start what has been handed over counts as taken; at the end someone has to take the last arrival.
  __device__ __forceinline__ void begin_pairs() const {
    if constexpr (kTogether && !kOneTile)
      if (m_warpgroup % 2 == 1) ptx::bar_arrive(taken_barrier(), 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void end_pairs() const {
    if constexpr (kTogether && !kOneTile)
      if (m_warpgroup % 2 == 0) ptx::bar_sync(taken_barrier(), 2 * kWarpgroupThreads);
  }

  __device__ __forceinline__ Epilogue<kConfig, kProblem> end_of(const QTile& at, const Target<kProblem>& target) const {
    return {{target, smem, {split_of<kConfig>(kv_group), m_warpgroup, warp, lane, row(0), at.head, at.batch}}};
  }

  __device__ __forceinline__ void run_q_tile(const QTile& at, const WorkShare& share, const Target<kProblem>& target) {
    begin_head(at);
    if constexpr (kTogether)
      run_pair(share);
    else
      run_rows(share);
    if constexpr (kConfig.rowsum_reduce == RowsumReduce::at_end) add_up_sums();
    if constexpr (kProblem.features.sinks)
      if (split_of<kConfig>(kv_group) == 0) add_sinks(at.head);
    end_of(at, target).run(acc_o, row_max, row_sum);
  }

  /// Of the launch, or of the entry that has begun where entries have lengths of their own.
  __device__ __forceinline__ Target<kProblem> target_of(const TensorMap& output) const {
    return {static_cast<unsigned short*>(params.o),
            params.lse,
            params.o_strides,
            params.len_q,
            params.heads,
            &output,
            &params};
  }

  __device__ __forceinline__ void consume(const Params<kProblem>& launch, const TensorMap& output) {
    const Target<kProblem> target = target_of(output);
    if constexpr (kOneTile) {
      const QTile at = q_tile_of_this_cta<kConfig, kProblem>();
      if constexpr (kConfig.epilogue == EpilogueStore::smem_b128_preaddressed) {
        warpgroup_row = row_of(at.index, m_warpgroup);
        end_of(at, target).keep_address();
      }
      WorkShare share{};
      if constexpr (kSharesAhead) share = tile_setup_of(at.index);
      ptx::bar_sync(start_barrier<kConfig>(smem.virtual_cta), virtual_cta_threads(kConfig) + 32);
      begin_entry(launch, at);
      if constexpr (kLengths)
        if (!has_rows(kConfig, at.index, params.len_q)) return;
      begin_pingpong();
      // The other block's barriers exist: nothing to wait for here, before the queries have come.
      if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_wait_acquire();
      if constexpr (!kTogether) wait_for_queries(m_warpgroup);
      wait_to_start();
      if constexpr (!kSharesAhead) share = tile_setup_of(at.index);
      run_q_tile(at, share, kLengths ? target_of(output) : target);
    } else {
      ptx::bar_sync(start_barrier<kConfig>(smem.virtual_cta), virtual_cta_threads(kConfig) + 32);
      begin_pingpong();
      begin_pairs();
#pragma unroll 1
      for (bool is_first = kSharesAhead;; is_first = false) {
        // The first Q tile has been announced at the barrier above, the others are with their queries.
        if (!is_first) wait_for_queries(m_warpgroup);
        unsigned words[4];
        ptx::ld_shared_v4(words, smem.q_tile(query.stage));
        const QTile at = {ptx::warp_uniform(words[0]), ptx::warp_uniform(words[1]), ptx::warp_uniform(words[2])};
        if (at.index < 0) break;
        begin_entry(launch, at);
        const WorkShare share = tile_setup_of(at.index);
        if (is_first) wait_for_queries(m_warpgroup);
        run_q_tile(at, share, kLengths ? target_of(output) : target);
        query.advance();
      }
      end_pairs();
    }
    end_pingpong();
    if constexpr (kConfig.epilogue == EpilogueStore::tma)
      if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }
};

template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void run_block(const Params<kProblem>& params, const TensorMaps& maps,
                                          char* dynamic_shared) {
  using Smem = SmemLayout<kConfig, kProblem>;
  const unsigned shared = ptx::shared_address(dynamic_shared);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  constexpr int kConsumerWarps = consumer_threads(kConfig) / 32;
  constexpr int kVirtualCtaWarps = virtual_cta_threads(kConfig) / 32;
  if (warp >= kConsumerWarps) {
    constexpr bool kAtOnce = kConfig.setmaxnreg == Setmaxnreg::early;
    if constexpr (moves_registers(kConfig) && kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (kConfig.virtual_ctas == 1 ? warp != kConsumerWarps : warp >= kConsumerWarps + kConfig.virtual_ctas) {
      if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
      return;
    }
    // In a register: ptxas would work the address out again for every copy, from a special register each time.
    const auto own = Smem::of_virtual_cta(static_cast<unsigned>(ptx::warp_uniform(shared)), warp - kConsumerWarps);
    const TmaProducer<kConfig, kProblem> copies{params, maps, own};
    if (ptx::elect_one()) copies.start();
    __syncwarp();
    if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    ptx::bar_arrive(start_barrier<kConfig>(own.virtual_cta), virtual_cta_threads(kConfig) + 32);
    if (ptx::elect_one()) copies.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    const int virtual_cta = kConfig.virtual_ctas == 1 ? 0 : warp / kVirtualCtaWarps;
    Forward<kConfig, kProblem>(params, Smem::of_virtual_cta(shared, virtual_cta), warp - virtual_cta * kVirtualCtaWarps)
        .consume(params, maps.o);
  }
}

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void forward(const Params<kProblem>& params, const TensorMaps& maps, char* dynamic_shared) {
  if constexpr (kProblem.specialization.specialize == Specialize::none)
    run_block<kConfig, kProblem>(params, maps, dynamic_shared);
  else
    run_block<kConfig, kProblem>(with_sizes(params, kProblem.sizes), maps, dynamic_shared);
}

}  // namespace heed::sm90_persistent

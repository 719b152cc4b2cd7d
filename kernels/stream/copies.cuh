/// The copies of fwd_sm90_stream: one thread of a block keeps the rings of queries, keys and values full, and decides
/// which row tile comes next.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/stream/config.hpp"

namespace heed::stream {

/// A place in a ring and how often it was passed. Counted up and compared, not masked: this stays in uniform registers.
template <int kStages>
struct Cursor {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Where things lie in a block's shared memory.
template <Config kConfig, Problem kProblem>
struct Layout {
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  unsigned shared;

  __device__ __forceinline__ unsigned barrier(int index) const { return shared + kPlan.barriers + 8 * index; }
  __device__ __forceinline__ unsigned queries_barrier(int stage) const { return barrier(kBarriers.queries + stage); }
  __device__ __forceinline__ unsigned queries_freed(int stage) const {
    return barrier(kBarriers.queries_freed + stage);
  }
  __device__ __forceinline__ unsigned keys_barrier(int group, int stage) const {
    return barrier(kBarriers.keys + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned values_barrier(int group, int stage) const {
    return barrier(kBarriers.values + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned keys_freed(int group, int stage) const {
    return barrier(kBarriers.keys_freed + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned values_freed(int group, int stage) const {
    return barrier(kBarriers.values_freed + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned queries(int stage) const { return shared + kPlan.q + stage * kPlan.query_bytes; }
  __device__ __forceinline__ unsigned keys(int group, int stage) const {
    return shared + kPlan.ring + (2 * group * kConfig.stages + stage) * kPlan.operand;
  }
  __device__ __forceinline__ unsigned values(int group, int stage) const {
    return shared + kPlan.ring + ((2 * group + 1) * kConfig.stages + stage) * kPlan.operand;
  }
  __device__ __forceinline__ unsigned row_tile(int stage) const { return shared + kPlan.row_tiles + 16 * stage; }
};

template <Config kConfig, Problem kProblem>
struct Copies {
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kKeyGroups = kConfig.key_groups;
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  using Place = Layout<kConfig, kProblem>;
  static constexpr SharedPlan kPlan = Place::kPlan;
  static constexpr bool kQueriesFirst = kConfig.evict_first != EvictFirst::none;
  static constexpr bool kKeysFirst =
      kConfig.evict_first == EvictFirst::inputs || kConfig.evict_first == EvictFirst::all;

  const ForwardParams& params;
  const TensorMaps& maps;
  Place place;

  __device__ __forceinline__ void initialise_barriers() const {
    constexpr BarrierPlan kBarriers = Place::kBarriers;
    for (int i = 0; i < kBarriers.queries_freed; ++i) ptx::mbarrier_init(place.barrier(i), 1);
    for (int i = kBarriers.queries_freed; i < kBarriers.keys; ++i)
      ptx::mbarrier_init(place.barrier(i), 4 * kConfig.row_groups * kKeyGroups);
    for (int i = kBarriers.keys; i < kBarriers.keys_freed; ++i) ptx::mbarrier_init(place.barrier(i), 1);
    for (int i = kBarriers.keys_freed; i < kBarriers.count; ++i)
      ptx::mbarrier_init(place.barrier(i), 4 * kConfig.row_groups);
    ptx::fence_mbarrier_init();
  }

  template <bool kEvictFirst>
  __device__ __forceinline__ static void copy_box(unsigned to, const TensorMap& map, unsigned barrier, int box, int row,
                                                  int head, int batch) {
    if constexpr (kEvictFirst)
      ptx::cp_async_bulk_tensor_4d_evict_first(to, map, barrier, box * tile::kBoxColumns, row, head, batch);
    else
      ptx::cp_async_bulk_tensor_4d(to, map, barrier, box * tile::kBoxColumns, row, head, batch);
  }

  __device__ __forceinline__ void copy_queries(const RowTile& tile, int stage) const {
    const unsigned barrier = place.queries_barrier(stage);
    ptx::mbarrier_arrive_expect_tx(barrier, kPlan.query_bytes);
    const int all = (params.len_q + kGroupRows - 1) / kGroupRows;
#pragma unroll
    for (int g = 0; g < kConfig.row_groups; ++g)
#pragma unroll
      for (int b = 0; b < kBoxes; ++b)
        copy_box<kQueriesFirst>(place.queries(stage) + (g * kBoxes + b) * kGroupRows * tile::kBoxRowBytes, maps.q,
                                barrier, b, group_tile(kConfig, tile.index, g, all) * kGroupRows, tile.head,
                                tile.batch);
  }

  __device__ __forceinline__ void copy_operand(const TensorMap& map, unsigned to, unsigned barrier, int key, int head,
                                               int batch) const {
    ptx::mbarrier_arrive_expect_tx(barrier, kPlan.operand);
#pragma unroll
    for (int b = 0; b < kBoxes; ++b) copy_box<kKeysFirst>(to + b * kPlan.box, map, barrier, b, key, head, batch);
  }

  /// Everything a block needs, row tile after row tile. One thread.
  __device__ __forceinline__ void run() const {
    Cursor<kConfig.query_stages> query;
    query.parity = 1;  // what no fill has used yet counts as freed
    Cursor<kConfig.stages> ring[kKeyGroups];
#pragma unroll
    for (int g = 0; g < kKeyGroups; ++g) ring[g].parity = 1;

    if constexpr (kOneTile) {
      const int index = kProblem.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
      copy_row_tile({index, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)}, 0, ring, [] {});
    } else {
      const int row_tiles = (params.len_q + block_rows(kConfig) - 1) / block_rows(kConfig);
      const int total = row_tiles * params.heads * params.batch;
      const int together = heads_together(kProblem, params.len_k, params.heads_kv * params.batch) * params.group_size;
      int next = blockIdx.x;
      for (;;) {
        ptx::mbarrier_wait(place.queries_freed(query.stage), query.parity);
        if (next >= total) break;
        const RowTile tile = row_tile_at(kConfig, next, row_tiles, params.heads, params.batch, together);
        ptx::st_shared_v4(place.row_tile(query.stage), tile.index, tile.head, tile.batch, 0);
        copy_row_tile(tile, query.stage, ring, [&] { next = following(next, total); });
        query.advance();
      }
      ptx::st_shared_v4(place.row_tile(query.stage), -1, 0, 0, 0);
      ptx::mbarrier_arrive(place.queries_barrier(query.stage));
    }
    if (kConfig.trigger != Trigger::none) ptx::griddepcontrol_launch_dependents();
  }

 private:
  /// The blocks together draw as many tickets as there are row tiles, the last of each included: back at zero then.
  __device__ __forceinline__ int following(int index, int total) const {
    if constexpr (kConfig.schedule == Schedule::dynamic)
      return gridDim.x + ptx::atom_inc_acq_rel_gpu(params.counters, total - 1);
    return index + gridDim.x;
  }

  /// Queries and the first keys, then all else in the order of use: the last keys first. `after_queries` runs while the
  /// first copies are under way.
  template <typename AfterQueries>
  __device__ __forceinline__ void copy_row_tile(const RowTile& tile, int query_stage,
                                                Cursor<kConfig.stages> (&ring)[kKeyGroups],
                                                const AfterQueries& after_queries) const {
    // A division takes over 100 clocks here, before the first copy of keys.
    const int kv_head = params.group_size == 1 ? tile.head : tile.head / params.group_size;
    const int keys_end =
        visible_keys(kProblem.causal, last_row(kConfig, tile.index, params.len_q), params.causal_offset, params.len_k);
    copy_queries(tile, query_stage);
    bool more = true;
    for (int i = 0; more; ++i) {
      more = false;
#pragma unroll
      for (int g = 0; g < kKeyGroups; ++g) {
        const Range tiles = tiles_of_group(kConfig, keys_end, g);
        const int n = tiles.end - 1 - i;
        if (n < tiles.first) continue;
        more = n > tiles.first || more;
        const int stage = ring[g].stage;
        ptx::mbarrier_wait(place.keys_freed(g, stage), ring[g].parity);
        copy_operand(maps.k, place.keys(g, stage), place.keys_barrier(g, stage), n * kConfig.tile_keys, kv_head,
                     tile.batch);
        ptx::mbarrier_wait(place.values_freed(g, stage), ring[g].parity);
        copy_operand(maps.v, place.values(g, stage), place.values_barrier(g, stage), n * kConfig.tile_keys, kv_head,
                     tile.batch);
        ring[g].advance();
      }
      if (i == 0) after_queries();
    }
  }
};

}  // namespace heed::stream

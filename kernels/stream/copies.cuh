/// The copies of fwd_sm90_stream: one thread of a block keeps the rings of queries, keys and values full, and decides
/// which row tile comes next.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/stream/layout.cuh"

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

/// The part that a key group of this block is.
template <const Config& kConfig>
__device__ __forceinline__ int part_of(int key_group) {
  return kConfig.cluster == 1 ? key_group : static_cast<int>(blockIdx.x % kConfig.cluster);
}

/// Of one_tile.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ RowTile row_tile_of_this_block() {
  const int x = static_cast<int>(blockIdx.x / kConfig.cluster);
  const int y = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.z);
  if constexpr (heads_in_x(kConfig))
    return {row_tile_of_block(kConfig, kProblem.causal, y, gridDim.y), x, batch};
  else
    return {row_tile_of_block(kConfig, kProblem.causal, x, gridDim.x / kConfig.cluster), y, batch};
}

template <const Config& kConfig, const Problem& kProblem>
struct Copies {
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kKeyGroups = kConfig.key_groups;
  static constexpr bool kOneTile = kConfig.schedule == Schedule::one_tile;
  // Key groups that share out what two row groups multiply, not what the longer one sees.
  static constexpr bool kCutsByWork = kConfig.pairs == Pairs::together && kKeyGroups > 1;
  // Every second wave in the other order: a block that had one of the longest row tiles takes one of the shortest.
  static constexpr bool kBackAndForth = kProblem.causal && kConfig.schedule == Schedule::persistent;
  using Place = Layout<kConfig, kProblem>;
  static constexpr SharedPlan kPlan = Place::kPlan;
  static constexpr bool kQueriesFirst = queries_leave_first(kConfig.evict_first);
  static constexpr bool kKeysFirst = keys_leave_first(kConfig.evict_first);
  static constexpr bool kValuesFirst = values_leave_first(kConfig.evict_first);
  static constexpr int kEighthsStay = eighths_that_stay(kConfig.evict_first);
  static constexpr int kFirstStay = first_tiles_that_stay(kConfig.evict_first);
  static constexpr bool kSomeStay = kEighthsStay < 8 || kFirstStay > 0;
  // Turns of a row tile that are still to be asked for when the next row tile is drawn: an atomic in the L2 takes less
  // than one. With 1, 2, 3 and 4 times are equal to 1%.
  static constexpr int kDrawnAhead = 2;

  const ForwardParams& params;
  const TensorMaps& maps;
  Place place;

  /// Asks for what consumers wait for: the first row tile's queries and every key group's first keys. They take over
  /// 500 clocks to come, so they are asked for before the other barriers exist; and where all blocks of a launch ask at
  /// once, as long again, so the first row group's queries and the keys are in front. One thread, before run().
  __device__ __forceinline__ void start() const {
    ptx::prefetch_tensormap(maps.q);
    ptx::prefetch_tensormap(maps.k);
    initialise_barriers<true>();
    if (!has_row_tiles()) return initialise_barriers<false>();
    const RowTile tile = first_row_tile();
    const int kv_head = key_head(tile);
    const Keys seen = keys_seen(tile);
    const bool stays = is_of_heads_that_stay(tile, kv_head);
    if constexpr (kConfig.trigger != Trigger::none) ptx::griddepcontrol_wait();
    if constexpr (!kOneTile) announce(tile, 0);
    // The row group that begins with the last tile.
    constexpr int kFirst = kConfig.tile_order == TileOrder::mirrored ? 1 : 0;
    copy_queries(tile, 0, kFirst, kFirst + 1, stays);
#pragma unroll
    for (int g = 0; g < kKeyGroups; ++g) {
      const Range tiles = tiles_of(seen, g);
      if (tiles.first < tiles.end) {
        ptx::mbarrier_arrive_expect_tx(place.ring_barrier(g, 0), kPlan.operand);
        copy_operand<kKeysFirst>(maps.k, place.keys(g, 0), place.ring_barrier(g, 0), tiles.end - 1, kv_head, tile.batch,
                                 stays);
      }
    }
    if constexpr (kFirst > 0) copy_queries(tile, 0, 0, kFirst, stays);
    copy_queries(tile, 0, kFirst + 1, kConfig.row_groups, stays);
    ptx::prefetch_tensormap(maps.v);
    if constexpr (kConfig.store == Store::boxes) ptx::prefetch_tensormap(maps.o);
    initialise_barriers<false>();
  }

  /// @param stays it is of a part that may stay in the L2 (eighths_that_stay, first_tiles_that_stay)
  template <bool kEvictFirst>
  __device__ __forceinline__ static void copy_box(unsigned to, const TensorMap& map, unsigned barrier, int box, int row,
                                                  int head, int batch, bool stays) {
    if (kEvictFirst || (kSomeStay && !stays))
      ptx::cp_async_bulk_tensor_4d_evict_first(to, map, barrier, box * tile::kBoxColumns, row, head, batch);
    else
      ptx::cp_async_bulk_tensor_4d(to, map, barrier, box * tile::kBoxColumns, row, head, batch);
  }

  /// The queries of row groups first to end - 1.
  __device__ __forceinline__ void copy_queries(const RowTile& tile, int stage, int first, int end, bool stays) const {
    const int all = group_tiles(params.len_q);
#pragma unroll
    for (int g = first; g < end; ++g) {
      const unsigned barrier = place.queries_barrier(stage, g);
      ptx::mbarrier_arrive_expect_tx(barrier, kPlan.query_bytes / kConfig.row_groups);
#pragma unroll
      for (int b = 0; b < kBoxes; ++b)
        copy_box<kQueriesFirst>(place.queries(stage) + (g * kBoxes + b) * kGroupRows * tile::kBoxRowBytes, maps.q,
                                barrier, b, group_tile(kConfig, tile.index, g, all) * kGroupRows, tile.head, tile.batch,
                                stays);
    }
  }

  template <bool kEvictFirst>
  __device__ __forceinline__ void copy_operand(const TensorMap& map, unsigned to, unsigned barrier, int tile,
                                               int kv_head, int batch, bool stays) const {
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
      copy_box<kEvictFirst>(to + b * kPlan.box, map, barrier, b, tile * kConfig.tile_keys, kv_head, batch, stays);
  }

  /// Everything else that a block needs, row tile after row tile. The same thread.
  __device__ __forceinline__ void run() const {
    Cursor<kConfig.query_stages> query;
    query.parity = 1;  // what no fill has used yet counts as freed
    Cursor<kConfig.stages> ring[kKeyGroups];
#pragma unroll
    for (int g = 0; g < kKeyGroups; ++g) ring[g].parity = 1;

    if constexpr (kOneTile) {
      copy_row_tile(first_row_tile(), 0, ring, true, [] {});
    } else {
      const int total = row_tiles() * params.heads * params.batch;
      int next = first_index();
      bool goes_back = false;
      bool started = true;
      for (;;) {
        ptx::mbarrier_wait(place.queries_freed(query.stage), query.parity);
        if (next >= total) break;
        const bool is_back = kBackAndForth && goes_back;
        const RowTile tile = row_tile(is_back ? backwards(next, first_index(), all_teams(), total) : next);
        goes_back = !goes_back;
        if (!started) announce(tile, query.stage);
        copy_row_tile(tile, query.stage, ring, started, [&] { next = following(next, total); });
        started = false;
        query.advance();
      }
      ptx::st_shared_v4(place.row_tile(query.stage), -1, 0, 0, 0);
#pragma unroll
      for (int g = 0; g < kConfig.row_groups; ++g) ptx::mbarrier_arrive(place.queries_barrier(query.stage, g));
    }
    if (kConfig.trigger != Trigger::none) ptx::griddepcontrol_launch_dependents();
  }

 private:
  /// Whether the first copies arrive at barrier i.
  __device__ __forceinline__ static constexpr bool is_first(int i) {
    for (int g = 0; g < kKeyGroups; ++g)
      if (i == Place::kBarriers.ring + g * kConfig.stages) return true;
    return i >= Place::kBarriers.queries && i < Place::kBarriers.queries + kConfig.row_groups;
  }

  template <bool kFirst>
  __device__ __forceinline__ void initialise_barriers() const {
    constexpr BarrierPlan kBarriers = Place::kBarriers;
#pragma unroll
    for (int i = 0; i < kBarriers.count; ++i) {
      const int arrivals = i < kBarriers.queries_freed ? 1
                           : i < kBarriers.ring        ? 4 * kConfig.row_groups * kKeyGroups
                           : i < kBarriers.ring_freed  ? 1
                           : i < kBarriers.inbox       ? 4 * kConfig.row_groups
                                                       : 1;
      // By this one thread: barriers that differ from lane to lane take 100 clocks each.
      if (is_first(i) == kFirst) ptx::mbarrier_init(place.barrier(i), arrivals);
    }
    ptx::fence_mbarrier_init();
    if constexpr (!kFirst && kConfig.cluster > 1)
#pragma unroll
      for (int g = 0; g < kConfig.row_groups; ++g)
        ptx::mbarrier_arrive_expect_tx(place.inbox(g), bytes_sent(kConfig, kProblem.head_dim));
  }

  /// Of schedules in which blocks stay: which row tile is this team's first, and how many teams there are.
  __device__ __forceinline__ int first_index() const { return blockIdx.x * kConfig.teams + place.team; }
  __device__ __forceinline__ int all_teams() const { return gridDim.x * kConfig.teams; }
  /// Of the last block's teams some may have no row tile.
  __device__ __forceinline__ bool has_row_tiles() const {
    return kConfig.teams == 1 || first_index() < row_tiles() * params.heads * params.batch;
  }
  __device__ __forceinline__ int row_tiles() const {
    return (params.len_q + block_rows(kConfig) - 1) / block_rows(kConfig);
  }
  /// Of schedules in which blocks stay: the row tile that comes `index`-th.
  __device__ __forceinline__ RowTile row_tile(int index) const {
    const int together = heads_together(kProblem, params.len_k, params.heads_kv * params.batch) * params.group_size;
    return row_tile_at(kConfig, index, row_tiles(), params.heads, params.batch, together);
  }
  __device__ __forceinline__ RowTile first_row_tile() const {
    if constexpr (kOneTile) {
      return row_tile_of_this_block<kConfig, kProblem>();
    } else {
      return row_tile(first_index());
    }
  }
  /// A division takes over 100 clocks.
  __device__ __forceinline__ int key_head(const RowTile& tile) const {
    return params.group_size == 1 ? tile.head : tile.head / params.group_size;
  }
  /// Whether the row tile's head is one of those of which lines may stay in the L2.
  __device__ __forceinline__ bool is_of_heads_that_stay(const RowTile& tile, int kv_head) const {
    if constexpr (kEighthsStay == 8) return true;
    const long long before = static_cast<long long>(tile.batch) * params.heads_kv + kv_head;
    return 8 * before < kEighthsStay * (static_cast<long long>(params.batch) * params.heads_kv);
  }
  /// What a row tile's key groups share out: the tiles of a pair, or the keys of its last row.
  struct Keys {
    int shorter;
    int longer;
    int end;
  };
  __device__ __forceinline__ Keys keys_seen(const RowTile& tile) const {
    if constexpr (kCutsByWork) {
      const int first = tiles_seen<has_whole_row_tiles(kConfig)>(kConfig, kProblem.causal, tile.index, 0, params.len_q,
                                                                 params.len_k, params.causal_offset);
      const int second = tiles_seen<has_whole_row_tiles(kConfig)>(kConfig, kProblem.causal, tile.index, 1, params.len_q,
                                                                  params.len_k, params.causal_offset);
      return {min(first, second), max(first, second), 0};
    } else {
      return {0, 0,
              stream::keys_seen<has_whole_row_tiles(kConfig)>(kConfig, kProblem.causal, tile.index, params.len_q,
                                                              params.len_k, params.causal_offset)};
    }
  }
  __device__ __forceinline__ static Range tiles_of(const Keys& seen, int key_group) {
    if constexpr (kCutsByWork)
      return tiles_of_part(kConfig, seen.shorter, seen.longer, key_group);
    else
      return tiles_of_part(kConfig, seen.end, part_of<kConfig>(key_group));
  }
  /// Tells the consumers which row tile a stage's queries are of, before they can arrive.
  __device__ __forceinline__ void announce(const RowTile& tile, int query_stage) const {
    ptx::st_shared_v4(place.row_tile(query_stage), tile.index, tile.head, tile.batch, 0);
  }

  /// The blocks together draw as many tickets as there are row tiles, the last of each included: back at zero then.
  __device__ __forceinline__ int following(int index, int total) const {
    // Relaxed: it orders nothing, and to wait for its end would hold up the copies behind it.
    if constexpr (kConfig.schedule == Schedule::dynamic)
      return all_teams() + ptx::atom_inc_relaxed_gpu(params.counters, total - 1);
    return index + all_teams();
  }

  /// The turn of a row tile, of so many key tiles, in which it is decided which one comes next. A counter is asked as
  /// late as its answer is sure to be there in time: of blocks that draw while their row tiles have just begun some
  /// draw long ones when others are nearly done. In front of the first turn / like this on an H200, causal, us: three
  /// to six waves b1h48l2048d128 107 / 96.5, b5h16l1024d128 59.9 / 51.3, b3h32l2048d64 120 / 105.5, b3h8l2048d256 121 /
  /// 103; sixteen b4h8l4096d256 464 / 444, b8h16l2048d128 255.6 / 251.7, b32h16l512d128 103.5 / 104.2.
  __device__ __forceinline__ static int turn_of_choice(const Range& tiles) {
    if constexpr (kConfig.schedule != Schedule::dynamic) return 0;
    return max(0, turns_of(kConfig, tiles.end - tiles.first) - kDrawnAhead);
  }

  /// Queries and the first keys, unless start() has asked for them, then all else turn by turn, the last keys first.
  /// `choose_next` decides which row tile comes after this one, in front of the last kDrawnAhead turns.
  template <typename ChooseNext>
  __device__ __forceinline__ void copy_row_tile(const RowTile& tile, int query_stage,
                                                Cursor<kConfig.stages> (&ring)[kKeyGroups], bool started,
                                                const ChooseNext& choose_next) const {
    const int kv_head = key_head(tile);
    const Keys seen = keys_seen(tile);
    const bool stays = is_of_heads_that_stay(tile, kv_head);
    const int chosen_at = turn_of_choice(tiles_of(seen, 0));
    if (!started) copy_queries(tile, query_stage, 0, kConfig.row_groups, stays && kFirstStay == 0);
    bool more = true;
    for (int turn = 0; more; ++turn) {
      more = false;
#pragma unroll
      for (int g = 0; g < kKeyGroups; ++g) {
        const Range tiles = tiles_of(seen, g);
        const int turns = turns_of(kConfig, tiles.end - tiles.first);
        if (turn >= turns) continue;
        more = turn + 1 < turns || more;
        const int stage = ring[g].stage;
        const unsigned barrier = place.ring_barrier(g, stage);
        const int n = tiles.end - 1 - turn;
        const bool has_keys = n >= tiles.first;
        const bool has_values = n + value_lag(kConfig) < tiles.end;
        if (!started || turn > 0) {
          // No one has used a stage before; asking takes 30 clocks, in front of copies that are waited for.
          if (!started || turn >= kConfig.stages) ptx::mbarrier_wait(place.ring_freed(g, stage), ring[g].parity);
          ptx::mbarrier_arrive_expect_tx(barrier, (has_keys ? kPlan.operand : 0) + (has_values ? kPlan.operand : 0));
          const bool keys_stay = stays && (kFirstStay == 0 || (started && turn < kFirstStay));
          if (has_keys)
            copy_operand<kKeysFirst>(maps.k, place.keys(g, stage), barrier, n, kv_head, tile.batch, keys_stay);
          if (has_values)
            copy_operand<kValuesFirst>(maps.v, place.values(g, stage), barrier, n + value_lag(kConfig), kv_head,
                                       tile.batch, stays);
        }
        ring[g].advance();
      }
      if (turn == chosen_at) choose_next();
    }
  }
};

}  // namespace heed::stream

/// The loads of fwd_sm90_persistent: one thread of a block keeps the rings of queries, keys and values full, and
/// decides which Q tile comes next.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/page_boxes.cuh"
#include "kernels/sm90/persistent/barriers.cuh"
#include "kernels/sm90/persistent/entries.cuh"
#include "kernels/sm90/persistent/known_kv_tiles.hpp"
#include "kernels/sm90/persistent/producer_schedule.cuh"
#include "kernels/sm90/persistent/stream_k.cuh"
#include "kernels/sm90/tma.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct TmaProducer {
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kKvGroups = kConfig.kv_groups;
  static constexpr bool kOneTile = kConfig.scheduler == Scheduler::single_tile;
  // KV groups that share out what two consumer warpgroups multiply, not what the longer one sees.
  static constexpr bool kCutsByWork = kConfig.share_causal_tail == ShareCausalTail::on && kKvGroups > 1;
  // Every second wave in the other order: a block that had one of the longest Q tiles takes one of the shortest.
  static constexpr bool kBackAndForth =
      has_right_bound(kProblem.mask) && kConfig.scheduler == Scheduler::static_persistent;
  using Smem = SmemLayout<kConfig, kProblem>;
  using Schedule = ProducerSchedule<kConfig, kProblem>;
  using Place = sm90::PlaceInPages;
  /// Boxes of one page and several columns that come without a loop: with four the producer spills 32 bytes.
  static constexpr int kBoxesInARow = kBoxes <= 2 ? kBoxes : 1;
  static constexpr SharedPlan kPlan = Smem::kPlan;
  static constexpr bool kQueriesFirst = q_evict_first(kConfig.evict_first);
  static constexpr bool kKeysFirst = k_evict_first(kConfig.evict_first);
  static constexpr bool kValuesFirst = v_evict_first(kConfig.evict_first);
  static constexpr int kResidentEighths = resident_head_eighths(kConfig.evict_first);
  static constexpr int kResidentFirstTiles = resident_first_tiles(kConfig.evict_first);
  static constexpr bool kSomeStay = kResidentEighths < 8 || kResidentFirstTiles > 0;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);

  static constexpr bool kLengths = kProblem.features.lengths;
  static constexpr bool kPrefix = kProblem.features.prefix;
  static constexpr bool kBlocks = kProblem.features.blocks;
  static constexpr bool kPages = kProblem.features.pages;
  static constexpr bool kStreamK = streams(kConfig);

  const Params<kProblem>& params;  ///< of the launch, or of an entry (of_entry)
  const TensorMaps& maps;
  Smem smem;
  EntryOfTile<kProblem> entry{};  ///< of a Q tile
  [[no_unique_address]] TilePiece<kStreamK> piece{};

  /// Asks for what consumers wait for: the first Q tile's queries and every KV group's first keys. They take over
  /// 500 clocks to come, so they are asked for before the other barriers exist; and where all blocks of a launch ask at
  /// once, as long again, so the first consumer warpgroup's queries and the keys are in front. One thread, before
  /// run().
  __device__ __forceinline__ void start() const {
    if constexpr (!kStreamK) sm90::prefetch_first_maps(maps);  // those have been asked for in front of find_part
    initialise_barriers<true>(smem);
    if constexpr (entries_differ(kProblem.features)) {
      if constexpr (kConfig.pdl_trigger != PdlTrigger::none) ptx::griddepcontrol_wait();
      bool has_started = false;
      if (schedule().has_q_tiles())
        of_entry(schedule().first_q_tile(), [&](const TmaProducer& own) {
          has_started = own.has_rows_of(schedule().first_q_tile());
          if (has_started) own.start_q_tile(schedule().first_q_tile());
        });
      if (!has_started) initialise_barriers<false>(smem);
    } else {
      if (!schedule().has_q_tiles()) return initialise_barriers<false>(smem);
      start_q_tile(schedule().first_q_tile());
    }
  }

  __device__ __forceinline__ void start_q_tile(const QTile& tile) const {
    const int kv_head = kv_head_of(tile);
    const Keys seen = keys_seen(tile);
    const bool stays = is_resident_head(tile, kv_head);
    if constexpr (kConfig.pdl_trigger != PdlTrigger::none && !entries_differ(kProblem.features))
      ptx::griddepcontrol_wait();
    if constexpr (!kOneTile) announce(tile, 0);
    // The consumer warpgroup that begins with the last tile.
    constexpr int kFirst = kConfig.tile_order == TileOrder::paired ? 1 : 0;
    load_q(tile, 0, kFirst, kFirst + 1, stays);
#pragma unroll
    for (int g = 0; g < kKvGroups; ++g) {
      const Range tiles = tiles_of(seen, g);
      if (tiles.first < tiles.end) {
        ptx::mbarrier_arrive_expect_tx(smem.kv_full(g, 0), kPlan.operand);
        int last = tiles.end - 1;
        if constexpr (kBlocks) last = first_key_of_tile<kConfig, kProblem>(params, entry.listed.blocks, last);
        load_operand<kKeysFirst>(maps.k, smem.keys(g, 0), smem.kv_full(g, 0), last, kv_head, tile.batch, stays,
                                 origin(tile), place_of_tile(last, origin(tile), tile.batch));
      }
    }
    if constexpr (kFirst > 0) load_q(tile, 0, 0, kFirst, stays);
    load_q(tile, 0, kFirst + 1, kConfig.m_warpgroups, stays);
    sm90::prefetch_later_maps<kConfig.epilogue == EpilogueStore::tma>(maps);
    initialise_barriers<false>(smem);
  }

  /// The queries of consumer warpgroups first to end - 1.
  /// @param stays it is of a part that may stay in the L2 (resident_head_eighths, resident_first_tiles)
  __device__ __forceinline__ void load_q(const QTile& tile, int stage, int first, int end, bool stays) const {
    const int all = warpgroup_tiles(params.len_q);
#pragma unroll
    for (int g = first; g < end; ++g) {
      const unsigned barrier = smem.q_full(stage, g);
      ptx::mbarrier_arrive_expect_tx(barrier, kPlan.q_stage_bytes / kConfig.m_warpgroups);
#pragma unroll
      for (int b = 0; b < kBoxes; ++b)
        sm90::load_box<kQueriesFirst>(smem.queries(stage) + (g * kBoxes + b) * kWarpgroupRows * tile::kBoxRowBytes,
                                      maps.q, barrier, b,
                                      row_of_map(warpgroup_tile(kConfig, tile.index, g, all) * kWarpgroupRows),
                                      tile.head, batch_of_map(tile.batch), kSomeStay && !stays);
    }
  }

  /// @param tile its number, or with lists of blocks its first key (first_key_of_tile)
  /// @param place place_of_tile
  template <bool kEvictFirst>
  __device__ __forceinline__ void load_operand(const TensorMap& map, unsigned to, unsigned barrier, int tile,
                                               int kv_head, int batch, bool stays, int first_key,
                                               const Place& place) const {
    if constexpr (reads_past_keys(kProblem.features)) {
      load_keys_of_entry<kEvictFirst>(map, to, barrier, first_key_of(tile, first_key), kv_head, batch,
                                      kSomeStay && !stays, place);
      return;
    }
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
      sm90::load_box<kEvictFirst>(to + b * kPlan.box, map, barrier, b,
                                  kBegins ? first_key + tile * kConfig.block_n : tile * kConfig.block_n, kv_head, batch,
                                  kSomeStay && !stays);
  }

  /// Written within load_operand it makes programs with pages an instruction longer at head dims 128 and 256.
  /// @param tile,first_key as load_operand has them
  __device__ __forceinline__ static int first_key_of(int tile, int first_key) {
    const int key = kBlocks ? tile : tile * kConfig.block_n;
    return kBegins ? first_key + key : key;
  }
  /// The tile of keys from `key` on, counted from the entry's first.
  template <bool kEvictFirst>
  __device__ __forceinline__ void load_keys_of_entry(const TensorMap& map, unsigned to, unsigned barrier, int key,
                                                     int kv_head, int batch, bool evict_first,
                                                     const Place& place) const {
    if constexpr (kPages) {
      if (params.page_table != nullptr && !lies_in_a_page())
        return sm90::for_boxes_in_pages<kConfig.block_n>(
            params, key, batch, rows_of_page_box(kConfig, params.page_size), [&](int at, int row, int page) {
#pragma unroll kBoxesInARow
              for (int b = 0; b < kBoxes; ++b)
                sm90::load_box<kEvictFirst>(to + (b * kConfig.block_n + at) * tile::kBoxRowBytes, map, barrier, b, row,
                                            kv_head, page, evict_first);
            });
      if (params.page_table != nullptr) {
        key = place.row;
        batch = place.page;
      } else if constexpr (kLengths) {
        key += entry.rows.first_k;
        batch = entry.rows.k_batch;
      }
    } else if constexpr (kLengths) {
      key += entry.rows.first_k;
      batch = entry.rows.k_batch;
    }
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
      sm90::load_box<kEvictFirst>(to + b * kPlan.box, map, barrier, b, key, kv_head, batch, evict_first);
  }

  /// Everything else that a block needs, Q tile after Q tile. The same thread.
  __device__ __forceinline__ void run() const {
    sm90::PipelineState<kConfig.q_stages> query;
    query.parity = 1;  // what no fill has used yet counts as freed
    sm90::PipelineState<kConfig.stages> ring[kKvGroups];
#pragma unroll
    for (int g = 0; g < kKvGroups; ++g) ring[g].parity = 1;

    if constexpr (kOneTile) {
      if constexpr (entries_differ(kProblem.features))
        of_entry(schedule().first_q_tile(), [&](const TmaProducer& own) {
          if (own.has_rows_of(schedule().first_q_tile()))
            own.load_q_tile(schedule().first_q_tile(), 0, ring, true, [] {});
        });
      else
        load_q_tile(schedule().first_q_tile(), 0, ring, true, [] {});
    } else {
      const int total = schedule().end();
      int next = schedule().first();
      bool goes_back = false;
      bool started = true;
      for (;;) {
        ptx::mbarrier_wait(smem.q_empty(query.stage), query.parity);
        if (next >= total) break;
        const bool is_back = kBackAndForth && goes_back;
        const QTile tile = schedule().q_tile(
            is_back ? attention::q_tile_from_the_end(next, schedule().first(), schedule().virtual_ctas(), total)
                    : next);
        goes_back = !goes_back;
        if constexpr (entries_differ(kProblem.features)) {
          bool has_loaded = false;
          of_entry(tile, [&](const TmaProducer& own) {
            has_loaded = own.has_rows_of(tile);
            if (!has_loaded) return;
            if (!started) own.announce(tile, query.stage);
            own.load_q_tile(tile, query.stage, ring, started, [&] { next = schedule().following(next, total); });
          });
          started = false;
          // Consumers do not hear of Q tiles behind the end of an entry.
          if (has_loaded)
            query.advance();
          else
            next = schedule().following(next, total);
          continue;
        }
        if (!started) announce(tile, query.stage);
        load_q_tile(tile, query.stage, ring, started, [&] { next = schedule().following(next, total); });
        started = false;
        query.advance();
      }
      ptx::st_shared_v4(smem.q_tile(query.stage), -1, 0, 0, 0);
      announce_no_queries(query.stage);
    }
    if (kConfig.pdl_trigger != PdlTrigger::none) ptx::griddepcontrol_launch_dependents();
  }

 private:
  __device__ __forceinline__ Schedule schedule() const { return {params, smem}; }
  /// Calls `load` with a producer whose parameters are those of the Q tile's entry.
  template <typename Load>
  __device__ __forceinline__ void of_entry(const QTile& tile, const Load& load) const {
    const attention::ParamsOfEntry<kProblem> own = attention::params_of_entry<kProblem>(params, tile.batch);
    const EntryOfTile<kProblem> of_tile = entry_of_tile<kConfig, kProblem>(params, own, tile);
    if constexpr (kStreamK) {
      load(
          TmaProducer{own, maps, smem, of_tile, piece_of_tile(smem, schedule().index_of(tile), of_tile.listed.blocks)});
    } else {
      load(TmaProducer{own, maps, smem, of_tile});
    }
  }
  __device__ __forceinline__ bool has_rows_of(const QTile& tile) const {
    return !kLengths || has_rows(kConfig, tile.index, params.len_q);
  }
  __device__ __forceinline__ int row_of_map(int row) const {
    if constexpr (kLengths) return entry.rows.first_q + row;
    return row;
  }
  __device__ __forceinline__ int batch_of_map(int batch) const {
    if constexpr (kLengths) return entry.rows.q_batch;
    return batch;
  }

  /// Whether each KV tile of a launch with pages lies in one.
  __device__ __forceinline__ bool lies_in_a_page() const {
    return rows_of_page_box(kConfig, params.page_size) == kConfig.block_n;
  }
  /// The page of a KV tile that lies in one, else nothing of use. Of a tile's keys it is asked for before the wait for
  /// a free stage, and kept for the values.
  /// @param tile,first_key as load_operand has them
  __device__ __forceinline__ Place place_of_tile(int tile, int first_key, int batch) const {
    if constexpr (kPages)
      if (params.page_table != nullptr && lies_in_a_page())
        return sm90::place_in_pages(params, first_key_of(tile, first_key), batch);
    return {};
  }

  /// A division takes over 100 clocks.
  __device__ __forceinline__ int kv_head_of(const QTile& tile) const {
    return params.group_size == 1 ? tile.head : tile.head / params.group_size;
  }
  /// Whether the Q tile's head is one of those of which lines may stay in the L2.
  __device__ __forceinline__ bool is_resident_head(const QTile& tile, int kv_head) const {
    if constexpr (kResidentEighths == 8) return true;
    const long long before = static_cast<long long>(tile.batch) * params.heads_kv + kv_head;
    return 8 * before < kResidentEighths * (static_cast<long long>(params.batch) * params.heads_kv);
  }
  /// The first key of the Q tile's KV tiles.
  __device__ __forceinline__ int origin(const QTile& tile) const {
    if constexpr (!kBegins) return 0;
    if constexpr (kBlocks)
      if (entry.listed.blocks.numbers != nullptr) return 0;
    if constexpr (kProblem.features.pages)
      return origin_of_boxes(kConfig, params,
                             origin_of(kConfig, kProblem.mask, tile.index, params.left_offset, params.len_k));
    return origin_of(kConfig, kProblem.mask, tile.index, params.left_offset, params.len_k);
  }
  /// What a Q tile's KV groups share out: the tiles of a pair, or the keys of its last row.
  struct Keys {
    int shorter;
    int longer;
    int end;
  };
  __device__ __forceinline__ Keys keys_seen(const QTile& tile) const {
    if constexpr (kBlocks)
      if (entry.listed.blocks.numbers != nullptr) return {0, 0, keys_of_list(entry.listed.blocks)};
    if constexpr (kCutsByWork) {
      const int first = tiles_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, tile.index, 0, params.len_q,
                                                                params.len_k, params.right_offset);
      const int second = tiles_seen<has_whole_q_tiles(kProblem)>(kConfig, kProblem.mask, tile.index, 1, params.len_q,
                                                                 params.len_k, params.right_offset);
      return {min(first, second), max(first, second), 0};
    } else {
      int end = sm90_persistent::keys_seen<has_whole_q_tiles(kProblem)>(
          kConfig, kProblem.mask, tile.index, params.len_q, params.len_k, params.right_offset);
      if constexpr (kPrefix) end = max(end, entry.seen.prefix);
      if constexpr (kBegins) end -= origin(tile);
      return {0, 0, end};
    }
  }
  __device__ __forceinline__ Range tiles_of(const Keys& seen, int kv_group) const {
    if constexpr (kStreamK)
      if (entry.listed.blocks.numbers != nullptr) return piece.tiles;
    if constexpr (kCutsByWork)
      return kv_tiles_of_split(kConfig, seen.shorter, seen.longer, kv_group);
    else
      return kv_tiles_of_split(kConfig, seen.end, split_of<kConfig>(kv_group));
  }
  /// Tells the consumers which Q tile a stage's queries are of, before they can arrive.
  __device__ __forceinline__ void announce(const QTile& tile, int q_stage) const {
    ptx::st_shared_v4(smem.q_tile(q_stage), tile.index, tile.head, tile.batch, 0);
    if constexpr (kStreamK)
      ptx::st_shared_v4(smem.q_tile(q_stage) + 16, piece.tiles.first, piece.tiles.end, piece.pieces, piece.first_cta);
  }

  __device__ __forceinline__ void announce_no_queries(int q_stage) const {
    for (int g = 0; g < kConfig.m_warpgroups; ++g) ptx::mbarrier_arrive(smem.q_full(q_stage, g));
  }

  /// Queries and the first keys, unless start() has asked for them, then all else iteration by iteration, the last keys
  /// first. `choose_next` decides which Q tile comes after this one, in front of the last kDrawnAhead iterations.
  template <typename ChooseNext>
  __device__ __forceinline__ void load_q_tile(const QTile& tile, int q_stage,
                                              sm90::PipelineState<kConfig.stages> (&ring)[kKvGroups], bool started,
                                              const ChooseNext& choose_next) const {
    const int kv_head = kv_head_of(tile);
    const Keys seen = keys_seen(tile);
    const bool stays = is_resident_head(tile, kv_head);
    const int chosen_at = Schedule::iteration_of_draw(tiles_of(seen, 0));
    if (!started && some_q_tiles_see_nothing(kConfig, kProblem) && seen.end <= 0)
      announce_no_queries(q_stage);
    else if (!started)
      load_q(tile, q_stage, 0, kConfig.m_warpgroups, stays && kResidentFirstTiles == 0);
    // With lists of blocks the first keys of the tiles before, the last of which is the next with values.
    int before[kKvGroups][v_lag(kConfig)];
    // Likewise their places in pages.
    Place places_before[kKvGroups][v_lag(kConfig)];
    bool more = true;
    for (int kv_stage = 0; more; ++kv_stage) {
      more = false;
#pragma unroll
      for (int g = 0; g < kKvGroups; ++g) {
        const Range tiles = tiles_of(seen, g);
        const int turns = iterations_of(kConfig, tiles.end - tiles.first);
        if (kv_stage >= turns) continue;
        more = kv_stage + 1 < turns || more;
        const int stage = ring[g].stage;
        const unsigned barrier = smem.kv_full(g, stage);
        const int n = tiles.end - 1 - kv_stage;
        const bool has_keys = n >= tiles.first;
        const bool has_values = n + v_lag(kConfig) < tiles.end;
        // The number of a listed block is asked for before the wait for a free stage.
        int key = n;
        if constexpr (kBlocks)
          key = has_keys ? first_key_of_tile<kConfig, kProblem>(params, entry.listed.blocks, n) : 0;
        Place place{};
        if (kPages && has_keys) place = place_of_tile(key, origin(tile), tile.batch);
        if (!started || kv_stage > 0) {
          // No one has used a stage before; asking takes 30 clocks, in front of loads that are waited for.
          if (!started || kv_stage >= kConfig.stages) ptx::mbarrier_wait(smem.kv_empty(g, stage), ring[g].parity);
          ptx::mbarrier_arrive_expect_tx(barrier, (has_keys ? kPlan.operand : 0) + (has_values ? kPlan.operand : 0));
          const bool keys_stay = stays && (kResidentFirstTiles == 0 || (started && kv_stage < kResidentFirstTiles));
          if (has_keys)
            load_operand<kKeysFirst>(maps.k, smem.keys(g, stage), barrier, key, kv_head, tile.batch, keys_stay,
                                     origin(tile), place);
          if (has_values)
            load_operand<kValuesFirst>(maps.v, smem.values(g, stage), barrier,
                                       kBlocks ? before[g][v_lag(kConfig) - 1] : n + v_lag(kConfig), kv_head,
                                       tile.batch, stays, origin(tile), places_before[g][v_lag(kConfig) - 1]);
        }
        if constexpr (kBlocks) {
          if constexpr (v_lag(kConfig) > 1) before[g][1] = before[g][0];
          before[g][0] = key;
        }
        if constexpr (kPages) {
          if constexpr (v_lag(kConfig) > 1) places_before[g][1] = places_before[g][0];
          places_before[g][0] = place;
        }
        ring[g].advance();
      }
      if (kv_stage == chosen_at) choose_next();
    }
  }
};

}  // namespace heed::sm90_persistent

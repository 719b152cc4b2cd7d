/// The producer warp of fwd_sm90_decode where entries have keys of their own: a lane asks for a box of each tile of
/// keys and of values, so that a tile out of many small pages is asked for at once. Pages of the next tile are looked
/// up while the warp waits for its stage.
#pragma once

#include "kernels/sm90/decode/block.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct EntryProducer {
  using Of = Block<kConfig, kProblem>;
  static constexpr int kBlockN = kConfig.block_n;

  const Of& block;
  LineJob job;
  int tile;  // of the job
  ScoreFeatureParams own;
  int first_key;
  int box_rows;
  // Where the lane's box lies in the tensor maps.
  int row;
  int entry;
  int kv_head;

  __device__ __forceinline__ explicit EntryProducer(const Of& b) : block(b), job(b.first_job) {
    tile = b.first_tile - job.start;
    box_rows = rows_of_box(kConfig, is_paged() ? b.params.page_size : 0);
    find_entry();
    find_box();
  }

  __device__ __forceinline__ bool is_paged() const {
    if constexpr (kProblem.features.pages) return block.params.page_table != nullptr;
    return false;
  }
  __device__ __forceinline__ bool has_box() const { return block.lane * box_rows < kBlockN; }

  __device__ __forceinline__ void find_entry() {
    own = block.line().params_of(job.entry);
    first_key = block.line().first_key(own);
  }

  __device__ __forceinline__ void find_box() {
    const int tiles = row_tiles(kConfig, own.group_size, block.params.len_q);
    kv_head = tiles == 1 ? job.head : divide(job.head, tiles);
    const int key = first_key + tile * kBlockN + block.lane * box_rows;
    if (is_paged()) {
      const int page = divide(key, own.page_size);
      row = key - page * own.page_size;
      entry = own.pages;  // behind the entry's keys a page that there is not: zeros
      if (has_box() && key < own.len_k)
        entry = clamped(own.page_table[job.entry * own.page_table_batch + page], 0, own.pages - 1);
    } else {
      row = key + (own.cu_seqlens_k != nullptr ? own.cu_seqlens_k[job.entry] : 0);
      entry = own.cu_seqlens_k != nullptr ? 0 : job.entry;
    }
  }

  /// Asks for the tile, and goes on to the next.
  __device__ __forceinline__ void copy(int stage) {
    const unsigned keys = block.stage_address(stage);
    if (block.lane == 0) {
      ptx::mbarrier_arrive_expect_tx(block.full(stage), (by_columns(kConfig) ? 1 : 2) * Of::kPlan.tile_bytes);
      if constexpr (by_columns(kConfig)) ptx::mbarrier_arrive_expect_tx(block.values_full(stage), Of::kPlan.tile_bytes);
    }
    __syncwarp();
    if (has_box()) {
      const unsigned to = keys + block.lane * box_rows * Of::kBoxRowBytes;
      sm90::load_boxes<Of::kBoxes, kConfig.evict_first, Of::kBoxColumns>(to, Of::kBoxBytes, block.maps.k,
                                                                         block.full(stage), row, kv_head, entry);
      sm90::load_boxes<Of::kBoxes, kConfig.evict_first, Of::kBoxColumns>(
          to + Of::kPlan.tile_bytes, Of::kBoxBytes, block.maps.v, block.values_full(stage), row, kv_head, entry);
    }
    __syncwarp();
    if (++tile == job.tiles) {
      const int before = job.entry;
      job = block.line().next(job);
      tile = 0;
      if (job.entry >= block.params.batch) return;
      if (job.entry != before) find_entry();
    }
    find_box();
  }

  /// The first keys and values of the block, from the L2 (Block::prefetch_first_keys).
  __device__ __forceinline__ void prefetch() const {
    constexpr int kKeys = kConfig.l2_prefetch_kib * 1024 / (2 * Of::kHeadDim * Of::kKeyBytes);
    constexpr int kPiece = least(kBlockN, kKeys);
    const int begin = first_key + tile * kBlockN;
    const int end = least(least(begin + kKeys, begin + least(block.tile_count, job.tiles - tile) * kBlockN), own.len_k);
    const typename Of::Source source{0, 0, kv_head, job.entry};
#pragma unroll 1
    for (int key = begin; key < end; key += kPiece) {
      block.prefetch_rows(own.k, own.k_strides, source, key, least(kPiece, end - key));
      block.prefetch_rows(own.v, own.v_strides, source, key, least(kPiece, end - key));
    }
  }

  __device__ __forceinline__ void run() {
    if (kConfig.l2_prefetch_kib > 0 && !is_paged() && block.lane == 0) prefetch();
    if (block.lane == 0) {
#pragma unroll
      for (int s = 0; s < kConfig.stages; ++s) {
        ptx::mbarrier_init(block.full(s), 1);
        if constexpr (by_columns(kConfig)) ptx::mbarrier_init(block.values_full(s), 1);
        ptx::mbarrier_init(block.empty(s), Of::kReaders);
      }
      ptx::fence_mbarrier_init();
    }
    Of::barriers_are_set();
    int stage = 0;
    unsigned parity = 1;  // stages are empty at first
#pragma unroll 1
    for (int t = 0; t < block.tile_count; ++t) {
      if (t >= kConfig.stages) ptx::mbarrier_wait(block.empty(stage), parity);
      copy(stage);
      if (++stage == kConfig.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
};

}  // namespace heed::sm90_decode

/// How the producer of fwd_sm90_persistent loads tiles of keys and values out of pages, each of which counts as a batch
/// entry of the tensor map: by one thread, or with a warp that knows the pages before a stage is free (PageLoads).
#pragma once

#include "kernels/sm90/page_boxes.cuh"
#include "kernels/sm90/persistent/entries.cuh"

namespace heed::sm90_persistent {

/// Asks for the tile of keys from `key` on, a multiple of block_n, out of pages.
/// @param p the launch as the entry has it
/// @tparam kBoxes boxes of 64 columns in a row
template <const Config& kConfig, int kBoxes, bool kEvictFirst>
__device__ __forceinline__ void load_from_pages(const ScoreFeatureParams& p, const TensorMap& map, unsigned to,
                                                unsigned barrier, int key, int kv_head, int entry, bool evict_first) {
  sm90::for_boxes_in_pages<kConfig.block_n>(
      p, key, entry, rows_of_page_box(kConfig, p.page_size), [&](int at, int row, int page) {
#pragma unroll 1
        for (int b = 0; b < kBoxes; ++b)
          sm90::load_box<kEvictFirst>(to + (b * kConfig.block_n + at) * tile::kBoxRowBytes, map, barrier, b, row,
                                      kv_head, page, evict_first);
      });
}

/// Of a tile, the rows of keys that a lane of the producer warp knows (PageLoads::warp): box `lane` of those that
/// divide pages and tiles.
struct PageBox {
  int page;
  int row;  ///< of the page
};

/// Finds the boxes of the tile of keys from `key` on. Boxes behind the entry's last key are of a page that there is
/// not, as in sm90::for_boxes_in_pages. A whole warp, before it waits for a stage: the load of a number and its
/// division take as long as several copies.
/// @param p the launch as the entry has it
template <const Config& kConfig>
__device__ __forceinline__ PageBox find_page_box(const ScoreFeatureParams& p, int key, int entry, int lane) {
  const int rows = rows_of_page_box(kConfig, p.page_size);
  const int at = key + lane * rows;
  const auto size = static_cast<unsigned>(p.page_size);
  const bool is_power = (size & (size - 1)) == 0;
  const auto page = static_cast<int>(is_power ? static_cast<unsigned>(at) >> (31 - __clz(p.page_size))
                                              : static_cast<unsigned>(at) / size);
  PageBox box{p.pages, at - page * p.page_size};
  if (lane * rows < kConfig.block_n && at < p.len_k)
    box.page = clamped(p.page_table[entry * p.page_table_batch + page], 0, p.pages - 1);
  return box;
}

/// Asks for the box that this lane has found, kBoxes boxes of columns of it. A whole warp, when lane 0 has arrived at
/// the barrier.
template <const Config& kConfig, int kBoxes, bool kEvictFirst>
__device__ __forceinline__ void load_page_box(const ScoreFeatureParams& p, const PageBox& own, const TensorMap& map,
                                              unsigned to, unsigned barrier, int kv_head, int lane, bool evict_first) {
  __syncwarp();
  const int at = lane * rows_of_page_box(kConfig, p.page_size);
  if (at >= kConfig.block_n) return;
#pragma unroll 1
  for (int b = 0; b < kBoxes; ++b)
    sm90::load_box<kEvictFirst>(to + (b * kConfig.block_n + at) * tile::kBoxRowBytes, map, barrier, b, own.row, kv_head,
                                own.page, evict_first);
}

}  // namespace heed::sm90_persistent

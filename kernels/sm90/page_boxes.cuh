/// Tiles of keys that lie in pages, as the producer thread of a family asks for them: each page counts as a batch entry
/// of the tensor map, and a tile comes in boxes of rows that divide a page and a tile.
#pragma once

#include "kernels/attention/features.cuh"

namespace heed::sm90 {

/// The page of a key. A division takes over 100 clocks, twice for each tile, of a thread that is the limit: with pages
/// of 64 keys b4h32hkv8l512k8192d128 takes 537,000 clocks on an H200 where it divides, 393,000 without pages.
__device__ __forceinline__ int page_of(int key, int page_size) {
  if ((page_size & (page_size - 1)) == 0) return key >> (__ffs(page_size) - 1);
  return static_cast<int>(static_cast<unsigned>(key) / static_cast<unsigned>(page_size));
}

/// Goes through the boxes of the tile of keys from `key` on, a multiple of kKeys. Those behind the entry's last key are
/// of a page that there is not, and come as zeros: the table need not have numbers for them. Numbers are asked for two
/// at a time, as a load waits for its own. With four, or boxes in a row without a loop, the producer of
/// fwd_sm90_persistent spills: of its 24 registers up to 176 bytes at head dim 128.
/// @param p the launch as the entry has it
/// @param rows of a box
/// @param load load(at, row, page) asks for the rows that lie `at` rows behind the tile's first, from row `row` of a
/// page
template <int kKeys, typename Load>
__device__ __forceinline__ void for_boxes_in_pages(const ScoreFeatureParams& p, int key, int entry, int rows,
                                                   const Load& load) {
  constexpr int kAtOnce = 2;
  const int* table = p.page_table + entry * p.page_table_batch;
  int page = page_of(key, p.page_size);
  int row = key - page * p.page_size;
#pragma unroll 1
  for (int from = 0; from < kKeys; from += kAtOnce * rows) {
    int numbers[kAtOnce];
    int first_rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * rows;
      numbers[i] = p.pages;
      if (at < kKeys && key + at < p.len_k) numbers[i] = clamped(table[page], 0, p.pages - 1);
      first_rows[i] = row;
      row += rows;
      if (row == p.page_size) {
        row = 0;
        ++page;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * rows;
      if (at >= kKeys) break;
      load(at, first_rows[i], numbers[i]);
    }
  }
}

}  // namespace heed::sm90

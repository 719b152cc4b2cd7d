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

/// The page that a number of the table means.
__device__ __forceinline__ int page_within(const ScoreFeatureParams& p, int number) {
  return clamped(number, 0, p.pages - 1);
}
/// The page of an entry; of one behind the entry's last key a page that there is not, which comes as zeros: the table
/// need not have a number for it.
/// @param number where the table has it
/// @param is_listed whether it lies in front of the entry's last key
__device__ __forceinline__ int page_number(const ScoreFeatureParams& p, const int* number, bool is_listed) {
  return is_listed ? page_within(p, *number) : p.pages;
}

/// Where a tile that lies in one page begins.
struct PlaceInPages {
  int row;
  int page;
};
/// @param p the launch as the entry has it
/// @param key the tile's first, a multiple of the keys of a tile
__device__ __forceinline__ PlaceInPages place_in_pages(const ScoreFeatureParams& p, int key, int entry) {
  const int page = page_of(key, p.page_size);
  return {key - page * p.page_size, page_number(p, p.page_table + entry * p.page_table_batch + page, key < p.len_k)};
}

/// Goes through the boxes of the tile of keys from `key` on, a multiple of kKeys, that lies in several pages.
/// @param p the launch as the entry has it
/// @param rows of a box: a power of two that divides a page, less than kKeys
/// @param load load(at, row, page) asks for the rows that lie `at` rows behind the tile's first, from row `row` of a
/// page
template <int kKeys, typename Load>
__device__ __forceinline__ void for_boxes_in_pages(const ScoreFeatureParams& p, int key, int entry, int rows,
                                                   const Load& load) {
  const int page = page_of(key, p.page_size);
  const int* number = p.page_table + entry * p.page_table_batch + page;
  // Boxes that are pages, all of which the table has: as few instructions as can be, two boxes a turn, as a load waits
  // for its own. A tile of 224 keys has seven boxes of 32.
  const bool has_pairs = (kKeys & (kKeys - 1)) == 0 || (kKeys & (2 * rows - 1)) == 0;
  if (has_pairs && rows == p.page_size && key + kKeys <= p.len_k) {
#pragma unroll 1
    for (int at = 0; at < kKeys; at += 2 * rows) {
      const int first = number[0];
      const int second = number[1];
      load(at, 0, page_within(p, first));
      load(at + rows, 0, page_within(p, second));
      number += 2;
    }
    return;
  }
  int row = key - page * p.page_size;
#pragma unroll 1
  for (int at = 0; at < kKeys; at += rows) {
    load(at, row, page_number(p, number, key + at < p.len_k));
    row += rows;
    if (row == p.page_size) {
      row = 0;
      ++number;
    }
  }
}

}  // namespace heed::sm90

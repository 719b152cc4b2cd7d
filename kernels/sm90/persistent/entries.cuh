/// Entries of a batch that differ: lengths of their own, keys in pages, prefixes. What of a Q tile's entry the producer
/// and the consumers of fwd_sm90_persistent have to know, which both work out from the same numbers of a launch.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/sm90/persistent/entries.hpp"
#include "kernels/sm90/rows_in_maps.cuh"
#include "kernels/sm90/tma.cuh"

namespace heed::sm90_persistent {

/// The Q tile of a CTA that has one (Scheduler::single_tile).
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ QTile q_tile_of_this_cta() {
  const attention::GridPlace at = attention::place_in_grid<grid_axes(kConfig), kConfig.cluster>(
      {blockIdx.x, blockIdx.y, blockIdx.z}, {gridDim.x, gridDim.y, gridDim.z});
  return {q_tile_of_cta(kConfig, kProblem.mask, at.index, at.q_tiles), at.head, at.batch};
}

/// The blocks of keys that a Q tile's rows see. Without the feature an empty type.
template <bool kBlocks>
struct BlocksOfTile {};
template <>
struct BlocksOfTile<true> {
  KeyBlocks blocks{};
};

/// What the producer has to know of a Q tile's entry beside the launch's parameters as the entry has them.
template <const Problem& kProblem>
struct EntryOfTile {
  [[no_unique_address]] attention::SeenPrefix<kProblem> seen;
  [[no_unique_address]] BlocksOfTile<kProblem.features.blocks> listed;
  [[no_unique_address]] sm90::RowsInMaps<kProblem.features.lengths> rows;
};

/// The list of a Q tile, which lies in one block of rows.
/// @param own the launch as the tile's entry has it
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ KeyBlocks blocks_of_tile(const ScoreFeatureParams& own, const QTile& tile, int prefix) {
  const int first = tile.index * block_rows(kConfig);
  const int last = min(first + block_rows(kConfig), own.len_q) - 1;
  const int end = visible_keys(kProblem.mask, last, own.right_offset, own.len_k);
  return key_blocks<has_full_blocks(kProblem.features)>(own, tile.batch, tile.head, first, max(end, prefix));
}
/// Keys of all blocks of a list, one block after the other; KV tiles are counted in these.
HEED_HOST_DEVICE constexpr int keys_of_list(const KeyBlocks& blocks) {
  return blocks.count * blocks.keys;
}
/// The first key of KV tile n: of listed blocks, or from the Q tile's origin on where a launch has no lists.
template <const Config& kConfig>
__device__ __forceinline__ int first_key_of_tile(const KeyBlocks& blocks, int n) {
  const int at = n * kConfig.block_n;
  if (blocks.numbers == nullptr) return at;
  const int index = blocks.keys == kLeastBlock ? at / kLeastBlock : at / (2 * kLeastBlock);
  return blocks.first_key(index) + at - index * blocks.keys;
}
/// The block of a list in which its key `at` lies.
HEED_HOST_DEVICE constexpr int index_in_list(const KeyBlocks& blocks, int at) {
  return blocks.keys == kLeastBlock ? at / kLeastBlock : at / (2 * kLeastBlock);
}
/// The same where blocks may be full.
/// @param takes_full takes_full_blocks of the launch
template <const Config& kConfig>
__device__ __forceinline__ int first_key_of_tile(const KeyBlocks& blocks, int n, bool takes_full) {
  const int at = n * kConfig.block_n;
  if (blocks.numbers == nullptr) return at;
  const int index = index_in_list(blocks, at);
  return blocks.first_key(index, takes_full) + at - index * blocks.keys;
}

/// The same of a launch with these parameters.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ int first_key_of_tile(const ScoreFeatureParams& params, const KeyBlocks& blocks, int n) {
  if constexpr (has_full_blocks(kProblem.features))
    return first_key_of_tile<kConfig>(blocks, n, takes_full_blocks<true>(params));
  else
    return first_key_of_tile<kConfig>(blocks, n);
}

/// Of the entry of a Q tile.
/// @param own the launch as the entry has it
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ EntryOfTile<kProblem> entry_of_tile(const ScoreFeatureParams& launch,
                                                               const ScoreFeatureParams& own, const QTile& tile) {
  EntryOfTile<kProblem> of_tile;
  const int entry = tile.batch;
  if constexpr (kProblem.features.lengths) sm90::find_rows(of_tile.rows, launch, entry);
  int prefix = 0;
  if constexpr (kProblem.features.prefix) prefix = of_tile.seen.prefix = prefix_of(own, entry);
  if constexpr (kProblem.features.blocks) of_tile.listed.blocks = blocks_of_tile<kConfig, kProblem>(own, tile, prefix);
  return of_tile;
}

}  // namespace heed::sm90_persistent

/// fwd_sm80_decode: the knobs, what is legal, the resources a config takes, and which thread holds which row and key.
/// Shared by the host, nvcc and NVRTC; all of it constexpr, so that the host can test what no GPU is needed for.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/contract.hpp"
#include "kernels/element.hpp"
#include "kernels/sm80/groups.hpp"
#include "kernels/tile/packed_rows.hpp"
#include "kernels/tile/shared_tile.hpp"

namespace heed::sm80_decode {

/// How much the L2 is asked to fetch with each 16 bytes of K and V.
enum class L2PrefetchSize { none, b128, b256 };

/// One point of the space. Every field changes speed, never results beyond the rounding the gate allows.
struct Config {
  int block_m = 16;    ///< packed rows a thread block: 16, 32 or 64
  int block_n = 16;    ///< keys a tile
  int warp_rows = 16;  ///< packed rows a warp: 16 or 32
  int kv_groups = 4;   ///< groups of warps that hold the same rows and take the block's tiles of keys in turn
  int stages = 3;      ///< tiles of K and V a group has in shared memory or under way
  int min_blocks =
      2;          ///< thread blocks a multiprocessor: what the compiler leaves registers for and the plan counts on
  int waves = 1;  ///< times the blocks of a launch fill the chip
  tile::SharedLayout smem_layout = tile::SharedLayout::padded;
  bool q_in_registers = true;  ///< else Q is read from shared memory again for every tile
  L2PrefetchSize l2_prefetch_size = L2PrefetchSize::b128;
  attention::Exp2 exp2{};
  attention::Rescale rescale{};
  constexpr bool operator==(const Config&) const = default;
};

inline constexpr int kMostSplits = 1024;   ///< blocks that share the keys of one tile of rows
inline constexpr int kMostGridYZ = 65535;  ///< of a launch

using tile::ceil_div;
using tile::divide;
using tile::least;
using tile::packed_row;
using tile::PackedRow;

/// Of an element of K and of V: both are quantised or neither is.
HEED_HOST_DEVICE constexpr int key_bytes(const Problem& problem) {
  return bytes_of(k_element(problem));
}

// ---------------------------------------------------------------------------------------------- rows

/// Tiles of block_m rows that the packed rows of one key head make.
HEED_HOST_DEVICE constexpr int row_tiles(const Config& c, int group_size, int len_q) {
  return ceil_div(group_size * len_q, c.block_m);
}

/// Which rows a thread block holds.
struct RowTile {
  int kv_head;
  int first;  ///< packed row
  int rows;   ///< real ones, 1 to block_m
};

/// `index`: blockIdx.y, 0 to heads_kv * row_tiles - 1.
HEED_HOST_DEVICE constexpr RowTile row_tile(const Config& c, int index, int group_size, int len_q) {
  const int tiles = row_tiles(c, group_size, len_q);
  const int kv_head = tiles == 1 ? index : divide(index, tiles);
  const int first = (index - kv_head * tiles) * c.block_m;
  return {kv_head, first, least(c.block_m, group_size * len_q - first)};
}

/// Keys that some row of the tile sees; what lies beyond may hold NaN and is not read.
HEED_HOST_DEVICE constexpr int keys_some_see(MaskKind mask, const RowTile& tile, int group_size, int right_offset,
                                             int len_k) {
  return visible_keys(mask, has_right_bound(mask) ? divide(tile.first + tile.rows - 1, group_size) : 0, right_offset,
                      len_k);
}
/// Keys that every row of the tile sees: below, no mask is needed.
HEED_HOST_DEVICE constexpr int keys_all_see(MaskKind mask, const RowTile& tile, int group_size, int right_offset,
                                            int len_k) {
  return visible_keys(mask, has_right_bound(mask) ? divide(tile.first, group_size) : 0, right_offset, len_k);
}

/// Keys that some row of the tile does not see at the left, under a mask with a left bound: from there on, no row has
/// any. Packed rows are few, so the tiles of keys begin with key 0 all the same.
HEED_HOST_DEVICE constexpr int keys_some_hide(MaskKind mask, const RowTile& tile, int group_size, int left_offset,
                                              int len_k) {
  return has_left_bound(mask) ? hidden_keys(mask, divide(tile.first + tile.rows - 1, group_size), left_offset, len_k)
                              : 0;
}

// ---------------------------------------------------------------------------------------------- keys

/// Tiles of block_n keys, `first` and the `count` - 1 after it.
struct TileRange {
  int first;
  int count;
};

/// The tiles of one split: all splits get the same number or one more.
///
///   keys_some_see = 100, block_n = 16: 7 tiles      | 0 1 2 | 3 4 | 5 6 |       splits = 3
///                                                    split 0   1     2
HEED_HOST_DEVICE constexpr TileRange tiles_of_split(int keys, int block_n, int splits, int split) {
  const int tiles = ceil_div(keys, block_n);
  const int each = divide(tiles, splits);
  const int more = tiles - each * splits;
  return {split * each + least(split, more), each + (split < more ? 1 : 0)};
}

/// How many of a block's tiles a group takes: tiles first + group, first + group + groups, ...
HEED_HOST_DEVICE constexpr int tiles_of_group(int count, int groups, int group) {
  return count > group ? ceil_div(count - group, groups) : 0;
}

/// Blocks among which the keys of each tile of rows are split, so that `row_tiles` tiles of rows fill `slots` places
/// for blocks. Of the numbers that leave at least one tile of keys for each group of warps, the least that fills
/// within 5% of the best: fewer parts are cheaper to merge. A second round is not begun where one fills 80%: memory is
/// as busy with that many blocks.
HEED_HOST_DEVICE constexpr int choose_splits(const Config& c, long long row_tiles, long long slots, int keys) {
  const int useful = ceil_div(keys > 0 ? keys : 1, c.block_n * c.kv_groups);
  const long long enough = 4 * ((slots + row_tiles - 1) / row_tiles);
  int most = least(useful, kMostSplits);
  if (enough < most) most = static_cast<int>(enough);
  // Share of the places that work until the last round is done.
  const auto fill = [&](int splits) {
    const long long blocks = row_tiles * splits;
    return static_cast<double>(blocks) / static_cast<double>((blocks + slots - 1) / slots * slots);
  };
  const long long one_round = slots / row_tiles;
  if (one_round >= 1 && one_round < most && fill(static_cast<int>(one_round)) >= 0.8)
    most = static_cast<int>(one_round);
  double best = 0;
  for (int splits = 1; splits <= most; ++splits) best = fill(splits) > best ? fill(splits) : best;
  for (int splits = 1; splits <= most; ++splits)
    if (fill(splits) >= 0.95 * best) return splits;
  return 1;
}

// ---------------------------------------------------------------------------------------------- resources

using sm80_groups::blocks_fit, sm80_groups::registers_allowed, sm80_groups::threads, sm80_groups::threads_per_group,
    sm80_groups::warps_per_group;
using sm80_groups::named_barriers, sm80_groups::NamedBarrier;

/// Dynamic shared memory, in bytes from its start (aligned to 128).
///
///   during the loop:  | Q | group 0: stage 0 K, V | stage 1 K, V | ... | group 1: ... |
///   afterwards:       | partial O of all groups, fp32 | (row_max, sum) of all groups and rows | is this block last |
struct SharedPlan {
  int q;              ///< (block_m, head_dim)
  int stages;         ///< (groups, stages, {K, V}, block_n, head_dim)
  int tile_bytes;     ///< K or V of one stage
  int partial_out;    ///< (groups, block_m, partial_pitch) fp32
  int partial_pitch;  ///< floats; 4 more than the head dim, so that rows start in different banks
  int row_state;      ///< (groups, block_m, 2) fp32
  int is_last;        ///< 4 bytes
  int total;
};

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim, int key_bytes = 2) {
  SharedPlan plan{};
  plan.tile_bytes = tile::tile_bytes(c.smem_layout, head_dim * key_bytes / 2, c.block_n);
  plan.q = 0;
  plan.stages = tile::tile_bytes(c.smem_layout, head_dim, c.block_m);
  const int loop_bytes = plan.stages + c.kv_groups * c.stages * 2 * plan.tile_bytes;
  plan.partial_out = 0;
  plan.partial_pitch = head_dim + 4;
  plan.row_state = c.kv_groups * c.block_m * plan.partial_pitch * 4;
  plan.is_last = plan.row_state + c.kv_groups * c.block_m * 2 * 4;
  const int merge_bytes = plan.is_last + 16;
  plan.total = loop_bytes > merge_bytes ? loop_bytes : merge_bytes;
  return plan;
}

/// Byte offset of a 16-byte chunk of a tile of K or V. Rows of 64 bytes, of 8-bit elements and head dim 64, have four
/// chunks: swizzled ones lie at c ^ (r / 2 % 4), in eight bank groups over eight rows.
/// @param pairs two bytes each, of a row
HEED_HOST_DEVICE constexpr int key_chunk_offset(tile::SharedLayout layout, int pairs, int row, int chunk) {
  const bool is_narrow = layout == tile::SharedLayout::swizzled && pairs == 32;
  return is_narrow ? row * 64 + (chunk ^ (row / 2 & 3)) * 16 : tile::chunk_offset(layout, pairs, row, chunk);
}

/// The workspace of a launch with several splits, in floats:
///
///   | partial O (row tile, split, block_m, head_dim) | (row_max, sum) (row tile, split, block_m, 2) |
///
/// A row tile's index is batch * heads_kv * row_tiles + blockIdx.y. Rows beyond the real ones are never touched.
HEED_HOST_DEVICE constexpr long long workspace_row(const Config& c, long long tile, int splits, int split, int row) {
  return (tile * splits + split) * c.block_m + row;
}
HEED_HOST_DEVICE constexpr long long workspace_out(long long row, int head_dim) {
  return row * head_dim;
}
HEED_HOST_DEVICE constexpr long long workspace_state(const Config& c, long long tiles, int splits, long long row,
                                                     int head_dim) {
  return tiles * splits * c.block_m * head_dim + 2 * row;
}
HEED_HOST_DEVICE constexpr long long workspace_bytes(const Config& c, long long tiles, int splits, int head_dim) {
  return splits > 1 ? tiles * splits * c.block_m * (head_dim + 2) * 4 : 0;
}

/// Into how many parts the last block divides the splits, so that all its threads have something to add: each part is
/// added up by other threads, and the parts then meet in shared memory, where there is room for `groups` of them.
HEED_HOST_DEVICE constexpr int merge_parts(const Config& c, int head_dim, int rows, int splits) {
  const int parts = least(threads(c) / (rows * (head_dim / 8)), least(c.kv_groups, splits));
  return parts > 1 ? parts : 1;
}

/// Registers a thread needs: output and score accumulators, P packed beside the scores, Q where it is kept, and 39 for
/// addresses and row state. An estimate: of 176 random configs that 32 let through 5 spilled, of which 39 refuses 3;
/// the other two spill 4 bytes, with half of the exponentials on the FMA pipe. Features add what 32 rows a warp of head
/// dim 128 spilled of them with Q in registers: up to 180 bytes with biases, 12 with pages, none with the others.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, const Problem& problem) {
  const int head_dim = problem.head_dim;
  const int fragments = c.warp_rows / 16;
  const int features = (problem.features.bias ? 20 : 0) + (problem.features.pages ? 8 : 0);
  const int out = fragments * head_dim / 2;
  const int scores = fragments * (c.block_n / 2 + c.block_n / 4);
  const int query = c.q_in_registers ? fragments * head_dim / 4 : 0;
  const int factors = key_bytes(problem) == 1 ? c.block_n / 4 + 2 * fragments : 0;  // of K and of rows
  return out + scores + query + features + factors + 39;
}

enum class Illegal {
  no,
  head_dim,
  block_m,
  kv_groups,
  copies,
  threads,
  shared_memory,
  occupancy,
  registers,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  if (problem.head_dim != 64 && problem.head_dim != 128 && problem.head_dim != 256) return Illegal::head_dim;
  if (c.block_m % c.warp_rows != 0) return Illegal::block_m;
  if (!attention::are_disjoint(named_barriers(c))) return Illegal::kv_groups;
  if (key_bytes(problem) == 1 && c.block_n * problem.head_dim / 16 % threads_per_group(c) != 0) return Illegal::copies;
  if (threads(c) > 1024) return Illegal::threads;
  const int total = shared_plan(c, problem.head_dim, key_bytes(problem)).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  if (!blocks_fit(c, total, shared_bytes_per_processor)) return Illegal::occupancy;
  if (registers_needed(c, problem) > registers_allowed(c)) return Illegal::registers;
  return Illegal::no;
}

}  // namespace heed::sm80_decode

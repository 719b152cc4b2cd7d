/// fwd_sm90_stream: which rows and which keys are whose, by a config and the lengths of a launch. Shared by the host,
/// nvcc and NVRTC.
#pragma once

#include "kernels/stream/config.hpp"

namespace heed::stream {

struct Range {
  int first;
  int end;
  constexpr bool operator==(const Range&) const = default;
};

// What follows is unsigned where it divides and has no loops: a launch's first copies wait for it, and in a chain of
// constants of the block every instruction waits for the one before.

/// Tiles that hold so many keys.
HEED_HOST_DEVICE constexpr unsigned key_tiles(const Config& c, int keys) {
  return (static_cast<unsigned>(keys) + c.tile_keys - 1) / static_cast<unsigned>(c.tile_keys);
}
/// How many times 64 rows a head has, the last perhaps in part.
HEED_HOST_DEVICE constexpr int group_tiles(int len_q) {
  return static_cast<int>((static_cast<unsigned>(len_q) + kGroupRows - 1) / kGroupRows);
}

/// Key tiles of a part, of all the tiles that hold the first `keys` keys: as even as whole tiles allow. Of an odd
/// number the second block of a cluster has the fewer: under a causal mask the last tile is its, which takes longest;
/// and the key group that begins last (Starts::in_turn).
HEED_HOST_DEVICE constexpr Range tiles_of_part(const Config& c, int keys, int part) {
  const unsigned all = key_tiles(c, keys);
  const unsigned sharers = static_cast<unsigned>(parts(c));
  // Without a branch in the source: with one NVRTC 13.0 makes another program of b4h16l4096d128 causal, which has
  // neither.
  const bool first_has_more = (c.cluster > 1) | (c.starts == Starts::in_turn);
  const unsigned up = first_has_more ? sharers - 1 : 0;
  return {static_cast<int>((all * part + up) / sharers), static_cast<int>((all * (part + 1) + up) / sharers)};
}

// Templates take whether row tiles are whole: has_whole_row_tiles of the config, as a constant expression. With it as a
// condition NVRTC 13.0 makes other programs of some mirrored ones, for which it is never true.

/// Keys that a row sees: those before this.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int keys_of_row(bool causal, int row, int causal_offset, int len_k) {
  if constexpr (kWhole)
    return causal ? row + causal_offset + 1 : len_k;
  else
    return visible_keys(causal, row, causal_offset, len_k);
}

/// Which 64 rows of a head, counted in 64s, a row group of row tile `index` works on; `all` there are. May lie past the
/// last.
///
///   mirrored, 2 row groups, 7 times 64 rows      | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
///                               row tile           0   1   2   3   2   1   0
HEED_HOST_DEVICE constexpr int group_tile(const Config& c, int index, int row_group, int all) {
  const int n = index * c.row_groups + row_group;
  if (c.tile_order != TileOrder::mirrored || (row_group > 0 && n >= all)) return n;
  const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
  return n % 2 == 0 ? half : all - 1 - half;
}

/// The last row of row tile `index`: the one that sees most keys.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int last_row(const Config& c, int index, int len_q) {
  int last = (index + 1) * c.row_groups - 1;
  if (c.tile_order == TileOrder::mirrored) {
    // Of mirrored row groups the first that comes from the head's end, if there is one.
    const int all = group_tiles(len_q);
    const int n = index * c.row_groups;
    const int from_end = n | 1;
    const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
    last = from_end < n + c.row_groups && from_end < all ? all - 1 - half : half;
  }
  const int end = (last + 1) * kGroupRows;
  if constexpr (kWhole) return end - 1;
  return (end < len_q ? end : len_q) - 1;
}

/// Keys that some row of row tile `index` sees: those before this.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int keys_seen(const Config& c, bool causal, int index, int len_q, int len_k,
                                         int causal_offset) {
  return keys_of_row<kWhole>(causal, last_row<kWhole>(c, index, len_q), causal_offset, len_k);
}

/// Pairs of row groups that share their key tiles out among them.
HEED_HOST_DEVICE constexpr int pairs(const Config& c) {
  return c.pairs == Pairs::together ? c.row_groups / 2 : 0;
}

/// Key tiles that a row group of row tile `index` sees: those before this, which may be 0.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int tiles_seen(const Config& c, bool causal, int index, int row_group, int len_q, int len_k,
                                          int causal_offset) {
  const int first = group_tile(c, index, row_group, group_tiles(len_q)) * kGroupRows;
  if constexpr (kWhole)
    return static_cast<int>(key_tiles(c, keys_of_row<true>(causal, first + kGroupRows - 1, causal_offset, len_k)));
  const int end = first + kGroupRows < len_q ? first + kGroupRows : len_q;
  return first < len_q ? static_cast<int>(key_tiles(c, visible_keys(causal, end - 1, causal_offset, len_k))) : 0;
}

/// Key tiles of a key group where one row group sees `longer` tiles and the other, of the same pair, `shorter`: as
/// even as whole tiles allow in what both multiply.
///
///   shorter 2, longer 8, 2 key groups     key tile     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
///                                         row groups     2   2   1   1   1   1   1   1
///                                         key group      0   0   0   1   1   1   1   1
HEED_HOST_DEVICE constexpr Range tiles_of_part(const Config& c, int shorter, int longer, int key_group) {
  const auto cut = [&](int group) {
    if (group == 0 || group == c.key_groups) return group == 0 ? 0 : longer;
    const unsigned groups = static_cast<unsigned>(c.key_groups);
    const int work = static_cast<int>((static_cast<unsigned>(shorter + longer) * group + groups / 2) / groups);
    return work <= 2 * shorter ? work / 2 : work - shorter;
  };
  return {cut(key_group), cut(key_group + 1)};
}

/// How many tiles the values of a turn are behind its keys:
///
///   turn               0      1      2      3      4           tiles 3, 2, 1, 0, last first
///   Overlap::products  K 3    K 2    K 1 V 3  K 0 V 2  V 1  V 0
///   otherwise          K 3    K 2 V 3  K 1 V 2  K 0 V 1  V 0
HEED_HOST_DEVICE constexpr int value_lag(const Config& c) {
  return c.overlap == Overlap::products ? 2 : 1;
}

/// Turns of a key group with so many tiles.
HEED_HOST_DEVICE constexpr int turns_of(const Config& c, int tiles) {
  return tiles > 0 ? tiles + value_lag(c) : 0;
}

/// Rows of one head and batch entry.
struct RowTile {
  int index;  ///< in row tiles
  int head;
  int batch;
  constexpr bool operator==(const RowTile&) const = default;
};

/// Bytes of K and V that are read again and again while they are in the L2: half of it on Hopper.
inline constexpr long long kResidentBytes = 32LL << 20;

/// Heads whose K and V stay in the L2 together.
HEED_HOST_DEVICE constexpr int heads_together(const Problem& problem, int len_k, int all_heads) {
  const long long bytes = 4LL * (len_k < 1 ? 1 : len_k) * problem.head_dim;
  const long long fit = kResidentBytes / bytes;
  return fit < 1 ? 1 : fit < all_heads ? static_cast<int>(fit) : all_heads;
}

/// Blocks of Schedule::persistent for so many row tiles on a device that runs `places` blocks at once.
///
///   256 row tiles, 132 places     filled 132: 124 blocks take two, 8 take one     even 128: all take two
HEED_HOST_DEVICE constexpr long long blocks_that_stay(const Config& c, long long row_tiles, long long places) {
  if (row_tiles <= places) return row_tiles;
  if (c.waves == Waves::filled) return places;
  const long long waves = (row_tiles + places - 1) / places;
  return (row_tiles + waves - 1) / waves;
}

/// Of Schedule::persistent under a causal mask, what block `block` takes instead of the `index`-th row tile, which is
/// its own in a wave that goes backwards: as far from the wave's end as that is from its start.
HEED_HOST_DEVICE constexpr int backwards(int index, int block, int blocks, int all) {
  const int end = index - block + blocks;
  return (end < all ? end : all) - 1 - block;
}

/// Of one_tile, whether blocks go through the heads first: a grid of (heads of a cluster each, row tiles, batch). Else
/// it is (row tiles of a cluster each, heads, batch).
HEED_HOST_DEVICE constexpr bool heads_in_x(const Config& c) {
  return c.tile_order == TileOrder::folded || c.tile_order == TileOrder::heads_first;
}

/// Of one_tile, which row tile of a head comes `x`-th: under a causal mask the longest comes first.
HEED_HOST_DEVICE constexpr int row_tile_of_block(const Config& c, bool causal, int x, int row_tiles) {
  const int longer = (row_tiles + 1) / 2;
  if (c.tile_order == TileOrder::folded && x >= longer) return x - longer;
  return causal && c.tile_order != TileOrder::mirrored ? row_tiles - 1 - x : x;
}

/// The row tile that comes `index`-th; `together` from heads_together.
HEED_HOST_DEVICE constexpr RowTile row_tile_at(const Config& c, int index, int row_tiles, int heads, int batch,
                                               int together) {
  int row = 0;
  int all_heads = 0;
  if (c.tile_order != TileOrder::heads_first) {
    all_heads = index / row_tiles;
    row = index - all_heads * row_tiles;
  } else {
    const int section = index / (row_tiles * together);
    const int within = index - section * row_tiles * together;
    const int left = heads * batch - section * together;
    const int width = left < together ? left : together;
    row = within / width;
    all_heads = section * together + within - row * width;
  }
  const int batch_index = batch == 1 ? 0 : all_heads / heads;
  return {row_tiles - 1 - row, all_heads - batch_index * heads, batch_index};
}

}  // namespace heed::stream

/// fwd_sm90_persistent: which rows and which keys are whose, by a config and the lengths of a launch. Shared by the
/// host, nvcc and NVRTC.
#pragma once

#include "kernels/sm90/persistent/config.hpp"

namespace heed::sm90_persistent {

struct Range {
  int first;
  int end;
  constexpr bool operator==(const Range&) const = default;
};

// What follows is unsigned where it divides and has no loops: a launch's first loads wait for it, and in a chain of
// constants of the block every instruction waits for the one before.

/// Tiles that hold so many keys.
HEED_HOST_DEVICE constexpr unsigned kv_tiles_for(const Config& c, int keys) {
  return (static_cast<unsigned>(keys) + c.block_n - 1) / static_cast<unsigned>(c.block_n);
}
/// How many times 64 rows a head has, the last perhaps in part.
HEED_HOST_DEVICE constexpr int warpgroup_tiles(int len_q) {
  return static_cast<int>((static_cast<unsigned>(len_q) + kWarpgroupRows - 1) / kWarpgroupRows);
}

/// KV tiles of a part, of all the tiles that hold the first `keys` keys: as even as whole tiles allow. Of an odd
/// number the second block of a cluster has the fewer: under a causal mask the last tile is its, which takes longest;
/// and the KV group that begins last (StaggerSplits::on).
HEED_HOST_DEVICE constexpr Range kv_tiles_of_split(const Config& c, int keys, int split_idx) {
  const unsigned all = kv_tiles_for(c, keys);
  const unsigned sharers = static_cast<unsigned>(num_splits(c));
  // Without a branch in the source: with one NVRTC 13.0 makes another program of b4h16l4096d128 causal, which has
  // neither.
  const bool first_has_more = (c.cluster > 1) | (c.stagger_splits == StaggerSplits::on);
  const unsigned up = first_has_more ? sharers - 1 : 0;
  return {static_cast<int>((all * split_idx + up) / sharers), static_cast<int>((all * (split_idx + 1) + up) / sharers)};
}

// Templates take whether Q tiles are whole: has_whole_row_tiles of the config, as a constant expression. With it as a
// condition NVRTC 13.0 makes other programs of some paired ones, for which it is never true.

/// Keys that a row sees: those before this.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int keys_of_row(MaskKind mask, int row, int right_offset, int len_k) {
  if constexpr (kWhole)
    return has_right_bound(mask) ? row + right_offset + 1 : len_k;
  else
    return visible_keys(mask, row, right_offset, len_k);
}

/// Which 64 rows of a head, counted in 64s, a consumer warpgroup of Q tile `index` works on; `all` there are. May lie
/// past the last.
///
///   paired, 2 consumer warpgroups, 7 times 64 rows      | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
///                               Q tile           0   1   2   3   2   1   0
HEED_HOST_DEVICE constexpr int warpgroup_tile(const Config& c, int index, int m_warpgroup, int all) {
  const int n = index * c.m_warpgroups + m_warpgroup;
  if (c.tile_order != TileOrder::paired || (m_warpgroup > 0 && n >= all)) return n;
  const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
  return n % 2 == 0 ? half : all - 1 - half;
}

/// The last row of Q tile `index`: the one that sees most keys.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int last_row(const Config& c, int index, int len_q) {
  int last = (index + 1) * c.m_warpgroups - 1;
  if (c.tile_order == TileOrder::paired) {
    // Of paired consumer warpgroups the first that comes from the head's end, if there is one.
    const int all = warpgroup_tiles(len_q);
    const int n = index * c.m_warpgroups;
    const int from_end = n | 1;
    const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
    last = from_end < n + c.m_warpgroups && from_end < all ? all - 1 - half : half;
  }
  const int end = (last + 1) * kWarpgroupRows;
  if constexpr (kWhole) return end - 1;
  return (end < len_q ? end : len_q) - 1;
}

/// Keys that some row of Q tile `index` sees: those before this.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int keys_seen(const Config& c, MaskKind mask, int index, int len_q, int len_k,
                                         int right_offset) {
  return keys_of_row<kWhole>(mask, last_row<kWhole>(c, index, len_q), right_offset, len_k);
}

/// KV tiles that a consumer warpgroup of Q tile `index` sees: those before this, which may be 0.
template <bool kWhole = false>
HEED_HOST_DEVICE constexpr int tiles_seen(const Config& c, MaskKind mask, int index, int m_warpgroup, int len_q,
                                          int len_k, int right_offset) {
  const int first = warpgroup_tile(c, index, m_warpgroup, warpgroup_tiles(len_q)) * kWarpgroupRows;
  if constexpr (kWhole)
    return static_cast<int>(kv_tiles_for(c, keys_of_row<true>(mask, first + kWarpgroupRows - 1, right_offset, len_k)));
  const int end = first + kWarpgroupRows < len_q ? first + kWarpgroupRows : len_q;
  return first < len_q ? static_cast<int>(kv_tiles_for(c, visible_keys(mask, end - 1, right_offset, len_k))) : 0;
}

// Under a mask with a left bound KV tiles begin at the first key that some row of a Q tile sees, its origin: keys are
// counted from there, and none before it is loaded. Q tiles are neighbours then (TileOrder::paired is not for such
// masks), and rows may see past the last key (Specialize::whole_tiles is not, either).

/// The origin of Q tile `index`.
HEED_HOST_DEVICE constexpr int origin_of(const Config& c, MaskKind mask, int index, int left_offset, int len_k) {
  return hidden_keys(mask, index * block_rows(c), left_offset, len_k);
}

/// KV tiles, from the origin on, that a consumer warpgroup of Q tile `index` sees: those before this, which may be 0.
HEED_HOST_DEVICE constexpr int tiles_seen_from(const Config& c, MaskKind mask, int index, int m_warpgroup, int origin,
                                               int len_q, int len_k, int right_offset) {
  const int first = (index * c.m_warpgroups + m_warpgroup) * kWarpgroupRows;
  const int end = first + kWarpgroupRows < len_q ? first + kWarpgroupRows : len_q;
  return first < len_q ? static_cast<int>(kv_tiles_for(c, visible_keys(mask, end - 1, right_offset, len_k) - origin))
                       : 0;
}

/// KV tiles of a KV group where one consumer warpgroup sees `longer` tiles and the other, of the same pair, `shorter`:
/// as even as whole tiles allow in what both multiply.
///
///   shorter 2, longer 8, 2 KV groups     KV tile     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
///                                         consumer warpgroups     2   2   1   1   1   1   1   1
///                                         KV group      0   0   0   1   1   1   1   1
HEED_HOST_DEVICE constexpr Range kv_tiles_of_split(const Config& c, int shorter, int longer, int kv_group) {
  const auto cut = [&](int group) {
    if (group == 0 || group == c.kv_groups) return group == 0 ? 0 : longer;
    const unsigned groups = static_cast<unsigned>(c.kv_groups);
    const int work = static_cast<int>((static_cast<unsigned>(shorter + longer) * group + groups / 2) / groups);
    return work <= 2 * shorter ? work / 2 : work - shorter;
  };
  return {cut(kv_group), cut(kv_group + 1)};
}

/// How many tiles the values of an iteration are behind its keys:
///
///   iteration               0      1      2      3      4           tiles 3, 2, 1, 0, last first
///   SoftmaxOverlap::qk_pv  K 3    K 2    K 1 V 3  K 0 V 2  V 1  V 0
///   otherwise          K 3    K 2 V 3  K 1 V 2  K 0 V 1  V 0
HEED_HOST_DEVICE constexpr int v_lag(const Config& c) {
  return c.softmax_overlap == SoftmaxOverlap::qk_pv ? 2 : 1;
}

/// Turns of a KV group with so many tiles.
HEED_HOST_DEVICE constexpr int iterations_of(const Config& c, int tiles) {
  return tiles > 0 ? tiles + v_lag(c) : 0;
}

/// Whether CTAs of Scheduler::single_tile go through the heads first.
HEED_HOST_DEVICE constexpr attention::GridAxes grid_axes(const Config& c) {
  return c.tile_order == TileOrder::lpt_then_spt || c.tile_order == TileOrder::lpt_l2
             ? attention::GridAxes::heads_tiles_batch
             : attention::GridAxes::tiles_heads_batch;
}

/// Of Scheduler::single_tile, which Q tile of a head comes `x`-th: under a causal mask the longest comes first.
HEED_HOST_DEVICE constexpr int q_tile_of_cta(const Config& c, MaskKind mask, int x, int q_tiles) {
  if (c.tile_order == TileOrder::lpt_then_spt) return attention::q_tile_at(c.tile_order, x, q_tiles);
  return has_right_bound(mask) && c.tile_order != TileOrder::paired ? q_tiles - 1 - x : x;
}

/// The grid of a launch.
/// @param ctas that run at once
HEED_HOST_DEVICE constexpr attention::Grid3 launch_grid(const Config& c, long long len_q, long long heads,
                                                        long long batch, long long ctas) {
  const long long q_tiles = attention::q_tiles_of_head(len_q, block_rows(c));
  if (c.scheduler == Scheduler::single_tile) return attention::grid_of(grid_axes(c), q_tiles, heads, batch, c.cluster);
  // Lists may be long where Q tiles are few.
  if (streams(c)) return {static_cast<unsigned>(ctas), 1, 1};
  const long long virtual_ctas =
      attention::persistent_ctas(c.grid == Grid::balanced, q_tiles * heads * batch, ctas * c.virtual_ctas);
  return {static_cast<unsigned>((virtual_ctas + c.virtual_ctas - 1) / c.virtual_ctas), 1, 1};
}

}  // namespace heed::sm90_persistent

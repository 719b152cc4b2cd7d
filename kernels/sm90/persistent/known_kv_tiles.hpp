/// fwd_sm90_persistent: what a program for fixed sizes knows of the KV tiles of its consumer warpgroups, so that it
/// holds no instructions for what never happens (Prune::on).
#pragma once

#include "kernels/sm90/persistent/kv_tiles.hpp"

namespace heed::sm90_persistent {

/// Of all consumer warpgroups, Q tiles and parts of a launch, what some or none of them meet.
struct KnownKvTiles {
  bool some_are_none = false;  ///< consumer warpgroups that see no key of a part
  bool some_are_one = false;   ///< a single tile
  bool some_are_more = false;
  bool some_are_odd = false;  ///< an odd number of tiles
  bool some_are_even = false;
  bool some_pass = false;          ///< iterations that only other consumer warpgroups of the part have tiles in
  bool some_first_masked = false;  ///< first tiles that not every row sees whole
  bool some_first_whole = false;
  bool some_later_masked = false;  ///< tiles behind the first that not every row sees whole
  constexpr bool operator==(const KnownKvTiles&) const = default;
};

/// Consumer warpgroup `m_warpgroup` of Q tile `index`, with the tiles of `range` of which it sees those before `end`.
HEED_HOST_DEVICE constexpr void meet_kv_tiles(KnownKvTiles& known, const Config& c, const Problem& problem, int index,
                                              int m_warpgroup, Range range, int end) {
  const FixedSizes& s = problem.sizes;
  const int first_row = warpgroup_tile(c, index, m_warpgroup, warpgroup_tiles(s.len_q)) * kWarpgroupRows;
  const int seen_by_all = keys_of_row(problem.mask, first_row, s.right_offset, s.len_k);
  const int tiles = end > range.first ? end - range.first : 0;
  if (tiles == 0) known.some_are_none = true;
  if (tiles == 1) known.some_are_one = true;
  if (tiles > 1) known.some_are_more = true;
  if (tiles > 0) (tiles % 2 != 0 ? known.some_are_odd : known.some_are_even) = true;
  if (tiles == 0 ? range.end > range.first : end < range.end) known.some_pass = true;
  if (tiles > 0) (end * c.block_n > seen_by_all ? known.some_first_masked : known.some_first_whole) = true;
  if (tiles > 1 && (end - 1) * c.block_n > seen_by_all) known.some_later_masked = true;
}

/// The tiles of a part of Q tile `index` that any of a pair of consumer warpgroups, of which `m_warpgroup` is one, may
/// take; of consumer warpgroups on their own, that all of them do.
HEED_HOST_DEVICE constexpr Range tiles_shared(const Config& c, const Problem& problem, int index, int m_warpgroup,
                                              int split_idx) {
  const FixedSizes& s = problem.sizes;
  if (c.share_causal_tail == ShareCausalTail::on && c.kv_groups > 1) {
    const int even = m_warpgroup & ~1;
    const int first = tiles_seen(c, problem.mask, index, even, s.len_q, s.len_k, s.right_offset);
    const int second = tiles_seen(c, problem.mask, index, even + 1, s.len_q, s.len_k, s.right_offset);
    return first < second ? kv_tiles_of_split(c, first, second, split_idx)
                          : kv_tiles_of_split(c, second, first, split_idx);
  }
  return kv_tiles_of_split(c, keys_seen(c, problem.mask, index, s.len_q, s.len_k, s.right_offset), split_idx);
}

/// Without known sizes, and for Prune::off, all of it may happen.
HEED_HOST_DEVICE constexpr KnownKvTiles known_kv_tiles(const Config& c, const Problem& problem) {
  constexpr KnownKvTiles kAll{true, true, true, true, true, true, true, true, true};
  const FixedSizes& s = problem.sizes;
  if (s.len_q == 0 || problem.specialization.prune == Prune::off || has_left_bound(problem.mask)) return kAll;
  KnownKvTiles known{};
  const int q_tiles = (s.len_q + block_rows(c) - 1) / block_rows(c);
  for (int index = 0; index < q_tiles; ++index)
    for (int split_idx = 0; split_idx < num_splits(c); ++split_idx)
      for (int g = 0; g < c.m_warpgroups; ++g) {
        const Range range = tiles_shared(c, problem, index, g, split_idx);
        const int seen = tiles_seen(c, problem.mask, index, g, s.len_q, s.len_k, s.right_offset);
        meet_kv_tiles(known, c, problem, index, g, range, seen < range.end ? seen : range.end);
      }
  if (c.share_causal_tail == ShareCausalTail::off) return known;
  // Consumer warpgroups of a pair begin and end with each other's tiles as well.
  KnownKvTiles of_pairs = kAll;
  of_pairs.some_later_masked = known.some_later_masked;
  return of_pairs;
}

/// Whether there may be Q tiles no row of which sees a key: a mask aligned to the end, with more queries than keys.
/// They write zeros, whatever their queries are. Not of pairs of consumer warpgroups, whose queries are waited for
/// together, nor of pieces, which are announced with queries.
HEED_HOST_DEVICE constexpr bool some_q_tiles_see_nothing(const Config& c, const Problem& problem) {
  return has_right_bound(problem.mask) && c.share_causal_tail == ShareCausalTail::off && !streams(c) &&
         known_kv_tiles(c, problem).some_are_none;
}

}  // namespace heed::sm90_persistent

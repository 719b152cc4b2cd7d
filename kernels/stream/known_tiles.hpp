/// fwd_sm90_stream: what a program for fixed sizes knows of the key tiles of its row groups, so that it holds no
/// instructions for what never happens (Programs::needed).
#pragma once

#include "kernels/stream/shares.hpp"

namespace heed::stream {

/// Of all row groups, row tiles and parts of a launch, what some or none of them meet.
struct KnownTiles {
  bool some_are_none = false;  ///< row groups that see no key of a part
  bool some_are_one = false;   ///< a single tile
  bool some_are_more = false;
  bool some_are_odd = false;  ///< an odd number of tiles
  bool some_are_even = false;
  bool some_pass = false;          ///< turns that only other row groups of the part have tiles in
  bool some_first_masked = false;  ///< first tiles that not every row sees whole
  bool some_first_whole = false;
  bool some_later_masked = false;  ///< tiles behind the first that not every row sees whole
  constexpr bool operator==(const KnownTiles&) const = default;
};

/// Row group `row_group` of row tile `index`, with the tiles of `range` of which it sees those before `end`.
HEED_HOST_DEVICE constexpr void meet_tiles(KnownTiles& known, const Config& c, const Problem& problem, int index,
                                           int row_group, Range range, int end) {
  const FixedSizes& s = problem.sizes;
  const int first_row = group_tile(c, index, row_group, group_tiles(s.len_q)) * kGroupRows;
  const int seen_by_all = keys_of_row(problem.causal, first_row, s.causal_offset, s.len_k);
  const int tiles = end > range.first ? end - range.first : 0;
  if (tiles == 0) known.some_are_none = true;
  if (tiles == 1) known.some_are_one = true;
  if (tiles > 1) known.some_are_more = true;
  if (tiles > 0) (tiles % 2 != 0 ? known.some_are_odd : known.some_are_even) = true;
  if (tiles == 0 ? range.end > range.first : end < range.end) known.some_pass = true;
  if (tiles > 0) (end * c.tile_keys > seen_by_all ? known.some_first_masked : known.some_first_whole) = true;
  if (tiles > 1 && (end - 1) * c.tile_keys > seen_by_all) known.some_later_masked = true;
}

/// The tiles of a part of row tile `index` that any of a pair of row groups, of which `row_group` is one, may take; of
/// row groups on their own, that all of them do.
HEED_HOST_DEVICE constexpr Range tiles_shared(const Config& c, const Problem& problem, int index, int row_group,
                                              int part) {
  const FixedSizes& s = problem.sizes;
  if (c.pairs == Pairs::together && c.key_groups > 1) {
    const int even = row_group & ~1;
    const int first = tiles_seen(c, problem.causal, index, even, s.len_q, s.len_k, s.causal_offset);
    const int second = tiles_seen(c, problem.causal, index, even + 1, s.len_q, s.len_k, s.causal_offset);
    return first < second ? tiles_of_part(c, first, second, part) : tiles_of_part(c, second, first, part);
  }
  return tiles_of_part(c, keys_seen(c, problem.causal, index, s.len_q, s.len_k, s.causal_offset), part);
}

/// Without known sizes, and for Programs::all, all of it may happen.
HEED_HOST_DEVICE constexpr KnownTiles known_tiles(const Config& c, const Problem& problem) {
  constexpr KnownTiles kAll{true, true, true, true, true, true, true, true, true};
  const FixedSizes& s = problem.sizes;
  if (s.len_q == 0 || c.programs == Programs::all) return kAll;
  KnownTiles known{};
  const int row_tiles = (s.len_q + block_rows(c) - 1) / block_rows(c);
  for (int index = 0; index < row_tiles; ++index)
    for (int part = 0; part < parts(c); ++part)
      for (int g = 0; g < c.row_groups; ++g) {
        const Range range = tiles_shared(c, problem, index, g, part);
        const int seen = tiles_seen(c, problem.causal, index, g, s.len_q, s.len_k, s.causal_offset);
        meet_tiles(known, c, problem, index, g, range, seen < range.end ? seen : range.end);
      }
  if (c.pairs == Pairs::apart) return known;
  // Row groups of a pair begin and end with each other's tiles as well.
  KnownTiles of_pairs = kAll;
  of_pairs.some_later_masked = known.some_later_masked;
  return of_pairs;
}

}  // namespace heed::stream

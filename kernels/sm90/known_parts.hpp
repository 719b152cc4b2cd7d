/// fwd_sm90: what a program for fixed sizes knows of the parts of its row tiles, so that it holds one program where
/// none needs the other (Programs::needed).
#pragma once

#include "kernels/sm90/config.hpp"

namespace heed::sm90 {

/// Of all parts of all row tiles of a launch, what some meet.
struct KnownParts {
  bool some_are_none = false;    ///< no keys
  bool some_are_longer = false;  ///< more than one segment
  bool some_are_masked = false;  ///< keys that some row of a row group does not see, or chunks past the part's end
  bool some_are_askew = false;   ///< a mask's edge that does not run from corner to corner of chunks (is_lined_up)
  constexpr bool operator==(const KnownParts&) const = default;
};

/// Whether the edge of a block's mask runs from corner to corner of chunks, and no row that is written sees past the
/// last key.
HEED_HOST_DEVICE constexpr bool is_lined_up(const Config& c, int block_row, int len_q, int len_k, int causal_offset) {
  const int first = block_row + causal_offset;
  const int end = block_row + c.row_groups * kGroupRows;
  const int last_row = (end < len_q ? end : len_q) - 1;
  return first >= 0 && first % c.chunk == 0 && last_row + causal_offset < len_k;
}

/// Without known sizes, and for Programs::all, all of it may happen.
HEED_HOST_DEVICE constexpr KnownParts known_parts(const Config& c, const Problem& problem) {
  const FixedSizes& s = problem.sizes;
  if (s.len_q == 0 || c.programs == Programs::all) return {true, true, true, true};
  KnownParts known{};
  const int rows = c.row_groups * kGroupRows;
  for (int block_row = 0; block_row < s.len_q; block_row += rows) {
    const int last_row = (block_row + rows < s.len_q ? block_row + rows : s.len_q) - 1;
    const int keys = visible_keys(problem.causal, last_row, s.causal_offset, s.len_k);
    if (!is_lined_up(c, block_row, s.len_q, s.len_k, s.causal_offset)) known.some_are_askew = true;
    for (int part = 0; part < parts(c); ++part) {
      const Range chunks = chunks_of_part(c, keys, part);
      const int segments = segments_of(c, chunks);
      if (segments == 0) known.some_are_none = true;
      if (segments > 1) known.some_are_longer = true;
      for (int g = 0; g < c.row_groups; ++g) {
        const int seen = visible_keys(problem.causal, block_row + g * kGroupRows, s.causal_offset, s.len_k);
        const int end = chunks.end * c.chunk;
        if ((chunks.first + segments * c.chunks) * c.chunk > (seen < end ? seen : end)) known.some_are_masked = true;
      }
    }
  }
  return known;
}

}  // namespace heed::sm90

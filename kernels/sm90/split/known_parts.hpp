/// fwd_sm90_split: what a program for fixed sizes knows of the parts of its Q tiles, so that it holds one program where
/// none needs the other (Prune::on).
#pragma once

#include "kernels/sm90/split/config.hpp"

namespace heed::sm90_split {

/// Of all parts of all Q tiles of a launch, what some meet.
struct KnownParts {
  bool some_are_none = false;    ///< no keys
  bool some_are_longer = false;  ///< more than one iteration
  bool some_are_masked =
      false;  ///< keys that some row of a consumer warpgroup does not see, or n-blocks past the split's end
  bool some_are_askew = false;  ///< a mask's edge that does not run from corner to corner of n-blocks (is_lined_up)
  constexpr bool operator==(const KnownParts&) const = default;
};

/// Whether the edge of a block's mask runs from corner to corner of n-blocks, and no row that is written sees past the
/// last key.
HEED_HOST_DEVICE constexpr bool is_lined_up(const Config& c, int block_row, int len_q, int len_k, int right_offset) {
  const int first = block_row + right_offset;
  const int end = block_row + c.m_warpgroups * kWarpgroupRows;
  const int last_row = (end < len_q ? end : len_q) - 1;
  return first >= 0 && first % c.block_n == 0 && last_row + right_offset < len_k;
}

/// Without known sizes, and for Prune::off, all of it may happen.
HEED_HOST_DEVICE constexpr KnownParts known_parts(const Config& c, const Problem& problem) {
  const FixedSizes& s = problem.sizes;
  if (s.len_q == 0 || problem.specialization.prune == Prune::off) return {true, true, true, true};
  KnownParts known{};
  const int rows = c.m_warpgroups * kWarpgroupRows;
  for (int block_row = 0; block_row < s.len_q; block_row += rows) {
    const int last_row = (block_row + rows < s.len_q ? block_row + rows : s.len_q) - 1;
    const int origin = hidden_keys(problem.mask, block_row, s.left_offset, s.len_k);
    const int keys = visible_keys(problem.mask, last_row, s.right_offset, s.len_k) - origin;
    if (!is_lined_up(c, block_row, s.len_q, s.len_k, s.right_offset)) known.some_are_askew = true;
    for (int split_idx = 0; split_idx < num_splits(c); ++split_idx) {
      const Range n_blocks = n_blocks_of_split(c, keys, split_idx);
      const int iterations = iterations_of(c, n_blocks);
      if (iterations == 0) known.some_are_none = true;
      if (iterations > 1) known.some_are_longer = true;
      for (int g = 0; g < c.m_warpgroups; ++g) {
        const int seen = visible_keys(problem.mask, block_row + g * kWarpgroupRows, s.right_offset, s.len_k) - origin;
        const int hidden =
            hidden_keys(problem.mask, block_row + (g + 1) * kWarpgroupRows - 1, s.left_offset, s.len_k) - origin;
        const int end = n_blocks.end * c.block_n;
        if ((n_blocks.first + iterations * c.n_blocks_per_stage) * c.block_n > (seen < end ? seen : end))
          known.some_are_masked = true;
        if (hidden > n_blocks.first * c.block_n) known.some_are_masked = true;
      }
    }
  }
  return known;
}

}  // namespace heed::sm90_split

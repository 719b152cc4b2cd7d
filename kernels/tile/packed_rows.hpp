/// Query rows that share a key head as one matrix, for launches of few queries. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/contract.hpp"

namespace heed::tile {

inline constexpr int kMostPackedRows = 512;  ///< of one key head: beyond, query tiles beat packed rows

/// Quotients of numbers that are not negative: half the instructions of a signed division, before the first load.
HEED_HOST_DEVICE constexpr int divide(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) / static_cast<unsigned>(b));
}
HEED_HOST_DEVICE constexpr int ceil_div(int a, int b) {
  return static_cast<int>((static_cast<unsigned>(a) + static_cast<unsigned>(b) - 1) / static_cast<unsigned>(b));
}
HEED_HOST_DEVICE constexpr int least(int a, int b) {
  return a < b ? a : b;
}

/// The query rows that read one key head are packed into one matrix, query by query:
///
///   packed row      0        1     ...    g - 1       g        g + 1   ...           (g = group_size)
///   query           0        0     ...      0         1          1     ...
///   head of group   0        1     ...    g - 1       0          1     ...
///
/// so that the rows of a tile are neighbouring queries, which see nearly the same keys under a causal mask.
struct PackedRow {
  int query;
  int head;  ///< within the group: query head kv_head * group_size + head
  constexpr bool operator==(const PackedRow&) const = default;
};

HEED_HOST_DEVICE constexpr PackedRow packed_row(int row, int group_size) {
  const int query = divide(row, group_size);
  return {query, row - query * group_size};
}

}  // namespace heed::tile

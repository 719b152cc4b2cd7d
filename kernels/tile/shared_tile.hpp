/// Where element (row, column) of a 16-bit tile lies in shared memory.
///
/// A row of head_dim elements is head_dim / 8 chunks of 16 bytes; 8 chunks of 16 bytes span all 32 banks. ldmatrix
/// reads one chunk from each of 8 consecutive rows at once, which is free of bank conflicts when the 8 chunks lie in 8
/// different bank groups of 16 bytes:
///
///   linear   (head_dim 64)     swizzled: chunk c of row r lies at c ^ (r % 8)     padded: rows 16 bytes further apart
///   row 0: 0 1 2 3 4 5 6 7     0 1 2 3 4 5 6 7                                     0 1 2 3 4 5 6 7 -
///   row 1: 0 1 2 3 4 5 6 7     1 0 3 2 5 4 7 6                                     - 0 1 2 3 4 5 6 7
///   row 2: 0 1 2 3 4 5 6 7     2 3 0 1 6 7 4 5                                     (shifts by one group a row)
///   8 rows, one group:         8 rows, 8 groups                                    8 rows, 8 groups
///   8-way conflict
#pragma once

#include "kernels/contract.hpp"

namespace heed::tile {

enum class SharedLayout { linear, swizzled, padded };

/// Bytes between rows.
HEED_HOST_DEVICE constexpr int row_pitch(SharedLayout layout, int head_dim) {
  return head_dim * 2 + (layout == SharedLayout::padded ? 16 : 0);
}

/// Byte offset of a 16-byte chunk.
HEED_HOST_DEVICE constexpr int chunk_offset(SharedLayout layout, int head_dim, int row, int chunk) {
  const int placed = layout == SharedLayout::swizzled ? (chunk ^ (row & 7)) : chunk;
  return row * row_pitch(layout, head_dim) + placed * 16;
}

/// Bytes of a tile of `rows` rows.
HEED_HOST_DEVICE constexpr int tile_bytes(SharedLayout layout, int head_dim, int rows) {
  return rows * row_pitch(layout, head_dim);
}

}  // namespace heed::tile

/// Where a warp keeps the biases of a tile of its scores in shared memory. Host and device.
#pragma once

#include "kernels/contract.hpp"

namespace heed::attention {

inline constexpr int kBiasRows = 16;  ///< of a warp's tile

/// Whether 32 lanes copy whole rows of tiles with so many columns at once, 16 bytes each.
HEED_HOST_DEVICE constexpr bool has_bias_tiles(int columns) {
  return columns == 32 || columns == 64 || columns == 128;
}

/// Bytes from a row of biases of up to 16 bits to the next. With 16 more than there are biases, eight rows of 16 bytes
/// lie in different banks, and so do eight of 8 bytes.
HEED_HOST_DEVICE constexpr int bias_pitch(int columns) {
  return 2 * columns + 16;
}

/// Bytes of a warp's tile.
HEED_HOST_DEVICE constexpr int bias_tile_bytes(int columns) {
  return kBiasRows * bias_pitch(columns);
}

}  // namespace heed::attention

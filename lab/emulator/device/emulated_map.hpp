/// What stands in a tensor map for the emulated GPU.
#pragma once

#include <cstddef>

namespace heed::emulator {

/// Where a tensor map's stand-in keeps what the copies need; sizes and strides of (column, row, head, batch), in
/// elements.
struct EmulatedMap {
  const std::byte* base;
  long long sizes[4];
  long long strides[4];
  int box_rows;
  int box_columns;  ///< rows of 128, 64 or 32 bytes lie in the swizzle of as many
  int element_bytes = 2;
};

}  // namespace heed::emulator

/// Tensor maps for emulated kernels.
#pragma once

#include <cstddef>
#include <cstring>

#include "emulated_map.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::emulator {

/// A tensor map of `rows` rows for each head and batch entry, with boxes of 64 columns, as the launcher encodes it
/// (lib/launch/tensor_map.cpp).
inline TensorMap map_of(const void* tensor, const TensorStrides& s, int head_dim, int rows, int heads, int batch,
                        int box_rows) {
  const EmulatedMap m{static_cast<const std::byte*>(tensor),
                      {head_dim, rows, heads, batch},
                      {1, s.row, s.head, s.batch},
                      box_rows,
                      tile::kBoxColumns};
  TensorMap map{};
  std::memcpy(map.opaque, &m, sizeof(m));
  return map;
}

}  // namespace heed::emulator

/// How the rows of a scene's tensors lie: dense with rows of padding, or with gaps of each tensor's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "heed/heed.hpp"

namespace heed::verify {

/// The sizes of a tensor (blocks, heads, rows, dim), or in the other layout (blocks, rows, heads, dim).
struct Extent {
  std::int64_t blocks;
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t dim;
};

/// Strides, and the memory that lies between the first element and the end of the last block, in elements.
struct Spread {
  Strides strides;
  std::int64_t elements;
};

/// Strides of the five tensors of a scene that rows are read from or written to.
///
/// With a seed each has a layout of its own and gaps of its own after each row, around each dimension outside of it and
/// after each block, no two tensors the same. Gaps are multiples of 16 bytes, as vector loads and tensor maps need
/// them.
class SceneStrides {
 public:
  enum Tensor { q, k, v, o, gate, tensors };

  /// @param seed 0: no gaps, and all lie in the layout
  SceneStrides(Layout layout, std::uint64_t seed);

  /// @param padding_rows extra rows of a head (bhld) or of a block (blhd)
  [[nodiscard]] Spread of(Tensor tensor, const Extent& extent, std::int64_t padding_rows,
                          std::size_t element_bytes) const;

 private:
  struct Own {
    Layout layout = Layout::bhld;
    std::array<std::int64_t, 3> gaps{};  // in units of 16 bytes, from the inside to the outside
  };
  std::array<Own, tensors> own_;
};

/// Bytes that the gaps of a tensor take at most. @param extent with the rows of padding
std::uint64_t most_gap_bytes(const Extent& extent);

}  // namespace heed::verify

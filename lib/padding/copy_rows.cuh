/// heed_copy_rows: pads rows to the head dim of a program, and takes the padding off.
#pragma once

#include "lib/padding/copy_rows.hpp"

namespace heed::padding {

/// Threads of a grid share the pieces of all rows; a grid may have any size. Copies are a part of a call that takes
/// three to ten times as long: pieces whose rows lie badly are moved element by element.
/// @tparam Element as many bits as an element has
template <class Element>
__device__ __forceinline__ void copy_rows_of(const RowCopy& t) {
  constexpr int kPieceElements = kPieceBytes / sizeof(Element);
  const int pieces = (t.to_dim + kPieceElements - 1) / kPieceElements;
  const long long all = t.batch * t.heads * t.rows * pieces;
  const auto* const from = static_cast<const Element*>(t.from);
  auto* const to = static_cast<Element*>(t.to);
  for (long long at = static_cast<long long>(blockIdx.x) * kCopyThreads + threadIdx.x; at < all;
       at += static_cast<long long>(gridDim.x) * kCopyThreads) {
    const int column = static_cast<int>(at % pieces) * kPieceElements;
    const long long line = at / pieces;
    const long long row = line % t.rows;
    const long long head = line / t.rows % t.heads;
    const long long entry = line / t.rows / t.heads;
    const Element* const read =
        from + entry * t.from_strides.batch + head * t.from_strides.head + row * t.from_strides.row;
    Element* const written = to + entry * t.to_strides.batch + head * t.to_strides.head + row * t.to_strides.row;
    if (t.is_wide != 0 && column + kPieceElements <= t.from_dim) {
      *reinterpret_cast<uint4*>(written + column) = *reinterpret_cast<const uint4*>(read + column);
      continue;
    }
#pragma unroll 8  // 16 bytes of their own at a time spill registers
    for (int i = 0; i < kPieceElements; ++i)
      if (column + i < t.to_dim)
        written[(column + i) * t.to_step] =
            column + i < t.from_dim ? read[(column + i) * t.from_step] : static_cast<Element>(0);
  }
}

__device__ inline void copy_rows(const RowCopy& t) {
  if (t.element_bytes == 4)
    copy_rows_of<unsigned>(t);
  else if (t.element_bytes == 2)
    copy_rows_of<unsigned short>(t);
  else
    copy_rows_of<unsigned char>(t);
}

}  // namespace heed::padding

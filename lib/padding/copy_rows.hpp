/// Copies of tensors whose rows no kernel reads or writes as they lie: another head dim than its program's, addresses
/// or strides that are no multiples of 16 bytes, elements that do not follow each other.
#pragma once

#include "kernels/contract.hpp"

namespace heed::padding {

/// One tensor, (batch, heads, rows, dim).
struct RowCopy {
  const void* from;
  void* to;
  TensorStrides from_strides;  ///< elements
  TensorStrides to_strides;
  long long from_step;  ///< elements from one of a row to the next
  long long to_step;
  long long batch;
  int heads;
  int rows;
  int from_dim;
  int to_dim;         ///< elements beyond from_dim are zeros
  int is_wide;        ///< whether both sides can be moved 16 bytes at a time
  int element_bytes;  ///< 1, 2 or 4
};

/// The parameter of the entry `heed_copy_rows`: what one launch copies, a tensor a grid.y.
struct RowCopies {
  RowCopy tensors[3];
};

inline constexpr int kCopyThreads = 256;
inline constexpr int kPieceBytes = 16;  ///< of a row, that one thread copies

}  // namespace heed::padding

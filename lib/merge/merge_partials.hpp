/// Attention over parts of the keys, made one: what a launch of the merge is told, on every device.
///
/// Part i of a row has the output o_i of its keys alone and their log-sum-exp l_i. With m the largest l_i,
///
///     o = sum_i exp(l_i - m) o_i / sum_i exp(l_i - m)        l = m + log(sum_i exp(l_i - m))
///
/// is the row over all keys, exactly: section 3.1 of FlashAttention-2 (Dao, arXiv 2307.08691), and Flash-Decoding's
/// last step. A part whose l_i is -infinity saw no key and its output is not read; a row without any part is zeros and
/// -infinity; a NaN in any l_i makes the row NaN.
#pragma once

#include "kernels/contract.hpp"

namespace heed::merge {

/// One partial result. Its rows are some of the rows of the merged one: row `first_row` is its row 0.
struct Partial {
  const void* o;     ///< (batch, heads, rows, dim), elements of a row follow each other
  const float* lse;  ///< (batch, heads, rows), natural logarithm
  TensorStrides o_strides;
  TensorStrides lse_strides;
  int element;  ///< of o, an Element
  int first_row;
  int rows;
  int is_read;  ///< 0: it counts as one that saw no key
};

/// Partial results that one launch takes.
inline constexpr int kMostPartials = 8;

/// The parameter of the entry `heed_merge_partials`. The output may be the memory of a part whose strides and element
/// it has: a row is read before it is written.
struct Merge {
  Partial partials[kMostPartials];
  void* o;
  float* lse;          ///< null: not wanted
  const float* sinks;  ///< (heads), a score of each row without a value, as a part that has no output; null: none
  TensorStrides o_strides;
  TensorStrides lse_strides;
  long long batch;
  int heads;
  int rows;
  int dim;
  int element;  ///< of the output
  int count;    ///< of partials, 1 to kMostPartials
  int is_wide;  ///< whether all rows begin at multiples of 16 bytes and dim is a multiple of 8
};

inline constexpr int kMergeThreads = 128;
inline constexpr int kPieceElements = 8;  ///< of a row, that one thread merges
/// Of heads of at most 512 elements: a row is 64 pieces at most, and a block merges whole rows.
inline constexpr int kMostDim = kMergeThreads / 2 * kPieceElements;

/// Rows that a block merges at a time.
HEED_HOST_DEVICE constexpr int rows_of_block(int dim) {
  return kMergeThreads / ((dim + kPieceElements - 1) / kPieceElements);
}

/// Where a row of the merged result lies.
struct RowPlace {
  long long entry;
  int head;
  int row;
};
HEED_HOST_DEVICE constexpr RowPlace place_of(const Merge& m, long long index) {
  return {index / m.rows / m.heads, static_cast<int>(index / m.rows % m.heads), static_cast<int>(index % m.rows)};
}
HEED_HOST_DEVICE constexpr long long offset_of(const TensorStrides& s, const RowPlace& at, int row) {
  return at.entry * s.batch + at.head * s.head + row * s.row;
}

}  // namespace heed::merge

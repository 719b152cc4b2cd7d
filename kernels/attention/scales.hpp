/// Scale factors of quantised Q, K and V: a number is its element times the factor of its place. Host and device.
///
///     granularity   strides that are not 0     rows   channel
///     tensor        none                       1      0
///     head          batch, head                1      0
///     block         batch, head, row           B      0         rows [i B, (i + 1) B) share factor i
///     token         batch, head, row           1      0
///     channel       batch, head                1      1         of V alone: a factor each value column
///
/// Granularities are numbers of a launch: a program runs all of them. They are the layouts of FlashInfer and vLLM
/// (tensor, head), SageAttention (block, token; channel of V, arXiv 2411.10958) and FlashAttention-3 (head).
#pragma once

#include "kernels/contract.hpp"

namespace heed {

struct TensorScales {
  const float* at;        ///< null: the tensor has none, and its numbers are its elements
  TensorStrides strides;  ///< in numbers; 0: shared. `row` is from one block of rows to the next
  int rows;               ///< of a block
  int channel;            ///< 1: factor d of column d; 0: columns share it
  int first_row;          ///< what the launch's first row counts as: those that `trimmed` cut off, or an entry's first
  int reserved;           ///< 0
};

HEED_HOST_DEVICE constexpr bool is_quantised(const Problem& problem) {
  return problem.inputs.quantised;
}

/// The index of a row's factor, of the first one where columns have their own. Where K and V lie in pages and rows have
/// factors, `entry` is the page and `row` counts from the begin of the page.
HEED_HOST_DEVICE inline long long scale_index(const TensorScales& s, long long entry, long long head, int row) {
  return entry * s.strides.batch + head * s.strides.head + (row + s.first_row) / s.rows * s.strides.row;
}

}  // namespace heed

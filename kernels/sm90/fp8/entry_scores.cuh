/// Scores of fwd_sm90_fp8 under the mask of an entry that has lengths of its own.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/score_rows.cuh"
#include "kernels/sm90/fp8/entries.hpp"

namespace heed::sm90_fp8 {

/// Sets scores of keys that the lane's row h does not see to -inf.
/// @param from the key of the lane's first column
/// @param m of the entry
template <MaskKind kMask, int kRegisters>
__device__ __forceinline__ void hide_keys(float (&s)[kRegisters], int h, int row, int from, const MaskBounds& m) {
  if constexpr (has_left_bound(kMask))
    attention::hide_columns_before(s, h, hidden_keys(kMask, row, m.left_offset, m.len_k) - from);
  attention::hide_columns_from(s, h, visible_keys(kMask, row, m.right_offset, m.len_k) - from);
}

}  // namespace heed::sm90_fp8

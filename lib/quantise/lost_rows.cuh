/// heed_quantise_lost: which values quantising loses (Stage::lost), in debug mode alone. A program of its own: in that
/// of the other stages it made registers spill.
#pragma once

#include "lib/quantise/quantise_rows.cuh"

namespace heed::quantise {

/// A lane with something to count takes two atomics.
template <int kEach>
__device__ __forceinline__ void count_lost(const Pass& pass, const TensorPass& t, const WarpRows& w, bool is_smoothed,
                                           int tensor, int lane) {
  Lost own{0, kNoneLost};
  for (int row = w.begin; row < w.end; ++row) {
    float given[kEach], x[kEach];
    load_lane(t, offset_of(t.from_strides, w.rows.first, w.entry, w.head, row), lane, given);
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = given[i];
    prepare(pass, t, w, is_smoothed, lane, x);
    const long long index = factor_index(t.scales, w.rows.first, w.entry, w.head, row);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = lane * kEach + i;
      if (column >= t.dim) continue;
      const float factor = factor_of(t.largest[index + (t.scales.channel != 0 ? column : 0)], t.to_element);
      if (!is_lost(given[i], x[i], factor, t.to_element)) continue;
      const unsigned long long at = lost_index(pass.rows, t, w.entry, w.head, row, column);
      own = {own.count + 1, at < own.first ? at : own.first};
    }
  }
  if (own.count == 0) return;
  atomicAdd(&pass.lost[tensor].count, own.count);
  atomicMin(&pass.lost[tensor].first, own.first);
}

template <int kEach>
__device__ __forceinline__ void count_lost_rows(const Pass& pass, const TensorPass& t, int tensor) {
  const bool is_smoothed = tensor == 1 && pass.mean != nullptr;
  for_items(pass, t, false, [&](const WarpRows& w) {
    count_lost<kEach>(pass, t, w, is_smoothed, tensor, static_cast<int>(threadIdx.x % 32));
  });
}

/// A grid may have any number of blocks in x; its y counts tensors: Q, K and V.
__device__ inline void count_lost_values(const Pass& pass) {
  const int tensor = static_cast<int>(blockIdx.y);
  const TensorPass& t = tensor == 0 ? pass.q : tensor == 1 ? pass.k : pass.v;
  if (t.to == nullptr) return;
  switch (elements_of_lane(t.to_dim)) {
    case 2:
      return count_lost_rows<2>(pass, t, tensor);
    case 4:
      return count_lost_rows<4>(pass, t, tensor);
    default:
      return count_lost_rows<8>(pass, t, tensor);
  }
}

}  // namespace heed::quantise

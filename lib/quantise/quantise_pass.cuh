/// heed_quantise: Q, K and V of fp16, bf16 or fp32 as quantised tensors, a stage a launch (quantise_rows.hpp).
#pragma once

#include "lib/quantise/quantise_rows.cuh"
#include "lib/quantise/wide_rows.cuh"

namespace heed::quantise {

/// Elements are written in the reverse of the order in which magnitudes were found, tensors too (`quantise` below):
/// what was read last is in the L2 cache.
__device__ __forceinline__ void take_rows(const Pass& pass, const TensorPass& t, int tensor) {
  const bool is_smoothed = tensor == 1 && pass.mean != nullptr;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const WideLanes lanes = wide_lanes(t.to_dim, lane);
  for_items(pass, t, pass.stage == static_cast<int>(Stage::elements), [&](const WarpRows& w) {
    if (pass.stage == static_cast<int>(Stage::largest))
      find_largest_wide(pass, t, w, lanes, is_smoothed, lane);
    else if (t.scales.channel != 0)
      write_wide_channels(t, w, lanes);
    else
      write_wide(pass, t, w, lanes, is_smoothed, tensor == 0, lane);
  });
}

__device__ __forceinline__ void write_factors(const TensorPass& t) {
  for (long long i = static_cast<long long>(blockIdx.x) * kQuantiseThreads + threadIdx.x; i < t.count;
       i += static_cast<long long>(gridDim.x) * kQuantiseThreads)
    t.factors[i] = wide_factor_of(t.largest[i], t.to_element);
}

/// Sums of channels of K over chunks of keys, a thread a channel and chunk: neighbours read neighbours.
__device__ inline void add_sums(const Pass& pass) {
  const TensorPass& k = pass.k;
  const int chunks = chunks_of(most_rows(pass.rows, true));
  const long long all = static_cast<long long>(pass.rows.batch) * k.heads * chunks * k.dim;
  for (long long at = static_cast<long long>(blockIdx.x) * kQuantiseThreads + threadIdx.x; at < all;
       at += static_cast<long long>(gridDim.x) * kQuantiseThreads) {
    const int column = static_cast<int>(at % k.dim);
    const long long item = at / k.dim;
    const int entry = static_cast<int>(item / chunks / k.heads);
    const int head = static_cast<int>(item / chunks % k.heads);
    const int first = static_cast<int>(item % chunks) * kChunkRows;
    const EntryRows rows = rows_of(pass.rows, true, entry);
    const int begin = rows.begin > first ? rows.begin : first;
    const int end = rows.end < first + kChunkRows ? rows.end : first + kChunkRows;
    double sum = 0.0;
#pragma unroll 8
    for (int row = begin; row < end; ++row) {
      const float x = element_at(k, offset_of(k.from_strides, rows.first, entry, head, row) + column * k.from_step);
      sum += (detail::bits_of_float(x) & 0x7f800000U) != 0x7f800000U ? x : 0.0F;
    }
    pass.sums[at] = sum;
  }
}

__device__ inline void take_means(const Pass& pass) {
  const TensorPass& k = pass.k;
  const int chunks = chunks_of(most_rows(pass.rows, true));
  const long long all = static_cast<long long>(pass.rows.batch) * k.heads * k.dim;
  for (long long at = static_cast<long long>(blockIdx.x) * kQuantiseThreads + threadIdx.x; at < all;
       at += static_cast<long long>(gridDim.x) * kQuantiseThreads) {
    const int column = static_cast<int>(at % k.dim);
    const long long of_head = at / k.dim;
    const EntryRows rows = rows_of(pass.rows, true, static_cast<int>(of_head / k.heads));
    double sum = 0.0;
    for (int c = 0; c < chunks; ++c) sum += pass.sums[(of_head * chunks + c) * k.dim + column];
    pass.mean[at] = rows.begin < rows.end ? static_cast<float>(sum / (rows.end - rows.begin)) : 0.0F;
  }
}

__device__ inline void shift_lse(const Pass& pass) {
  for (long long at = static_cast<long long>(blockIdx.x) * kQuantiseThreads + threadIdx.x; at < pass.shift_count;
       at += static_cast<long long>(gridDim.x) * kQuantiseThreads)
    pass.lse[at] = shifted(pass.lse[at], pass.shift[at]);
}

/// A grid may have any number of blocks in x; in stages of rows its y counts tensors: Q, K and V.
__device__ inline void quantise(const Pass& pass) {
  if (pass.stage == static_cast<int>(Stage::sums)) return add_sums(pass);
  if (pass.stage == static_cast<int>(Stage::means)) return take_means(pass);
  if (pass.stage == static_cast<int>(Stage::lse)) return shift_lse(pass);
  const bool writes = pass.stage == static_cast<int>(Stage::elements);
  const int tensor = writes ? 2 - static_cast<int>(blockIdx.y) : static_cast<int>(blockIdx.y);
  // A copy takes fewer registers than a reference.
  const TensorPass t = tensor == 0 ? pass.q : tensor == 1 ? pass.k : pass.v;
  if (t.to == nullptr) return;
  take_rows(pass, t, tensor);
  if (writes) write_factors(t);
}

}  // namespace heed::quantise

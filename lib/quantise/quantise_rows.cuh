/// heed_quantise: Q, K and V of fp16, bf16 or fp32 as quantised tensors, a stage a launch (quantise_rows.hpp).
#pragma once

#include "kernels/ptx/math.cuh"
#include "lib/quantise/quantise_rows.hpp"

namespace heed::quantise {

inline constexpr unsigned kWarp = 0xffffffffU;

__device__ __forceinline__ float element_at(const TensorPass& t, long long index) {
  if (t.element == static_cast<int>(Element::fp32)) return static_cast<const float*>(t.from)[index];
  const unsigned word = static_cast<const unsigned short*>(t.from)[index];
  return t.element == static_cast<int>(Element::bf16) ? ptx::unpack_low<Element::bf16>(word)
                                                      : ptx::unpack_low<Element::fp16>(word);
}

/// kEach elements of a row from column lane * kEach on; zeros past the head dim.
template <int kEach>
__device__ __forceinline__ void load_lane(const TensorPass& t, long long offset, int lane, float (&x)[kEach]) {
  const int column = lane * kEach;
  if (t.is_wide == 0 || column >= t.dim) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      x[i] = column + i < t.dim ? element_at(t, offset + (column + i) * t.from_step) : 0.0F;
    return;
  }
  if (t.element == static_cast<int>(Element::fp32)) {
    const float* const from = static_cast<const float*>(t.from) + offset + column;
    if constexpr (kEach == 2) {
      const float2 both = *reinterpret_cast<const float2*>(from);
      x[0] = both.x, x[1] = both.y;
    } else {
#pragma unroll
      for (int i = 0; i < kEach; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
    }
    return;
  }
  const unsigned short* const from = static_cast<const unsigned short*>(t.from) + offset + column;
  unsigned words[kEach / 2];
  if constexpr (kEach == 2) {
    words[0] = *reinterpret_cast<const unsigned*>(from);
  } else if constexpr (kEach == 4) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x, words[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < kEach / 2; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + 2 * i);
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach / 2; ++i) {
    const bool bf16 = t.element == static_cast<int>(Element::bf16);
    x[2 * i] = bf16 ? ptx::unpack_low<Element::bf16>(words[i]) : ptx::unpack_low<Element::fp16>(words[i]);
    x[2 * i + 1] = bf16 ? ptx::unpack_high<Element::bf16>(words[i]) : ptx::unpack_high<Element::fp16>(words[i]);
  }
}

/// A row times S H / sqrt(dim), by all lanes of a warp. Butterflies of a host's order: element i and i + half.
template <int kEach>
__device__ __forceinline__ void rotate_lane(const Pass& pass, int dim, int lane, float (&x)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (lane * kEach + i < dim && changes_sign(pass.signs, lane * kEach + i)) x[i] = -x[i];
#pragma unroll
  for (int half = 1; half < kEach; half *= 2) {
    if (half >= dim) break;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if ((i & half) == 0) {
        const float sum = x[i] + x[i + half];
        x[i + half] = x[i] - x[i + half];
        x[i] = sum;
      }
  }
  for (int lanes = 1; lanes * kEach < dim; lanes *= 2) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float other = __shfl_xor_sync(kWarp, x[i], lanes);
      x[i] = (lane & lanes) == 0 ? x[i] + other : other - x[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] *= pass.norm;
}

__device__ __forceinline__ const float* mean_of(const Pass& pass, int entry, int head) {
  return pass.mean + (static_cast<long long>(entry) * pass.k.heads + head) * pass.k.dim;
}

/// A warp's rows: some of those of one head of an entry.
struct WarpRows {
  EntryRows rows;
  int entry;
  int head;
  int begin;
  int end;
};
__device__ __forceinline__ WarpRows rows_of_warp(const Pass& pass, const TensorPass& t, long long item) {
  const int parts = (most_rows(pass.rows, t.are_keys != 0) + kRowsOfWarp - 1) / kRowsOfWarp;
  WarpRows w;
  w.entry = static_cast<int>(item / parts / t.heads);
  w.head = static_cast<int>(item / parts % t.heads);
  w.rows = rows_of(pass.rows, t.are_keys != 0, w.entry);
  const int first = static_cast<int>(item % parts) * kRowsOfWarp;
  w.begin = w.rows.begin > first ? w.rows.begin : first;
  w.end = w.rows.end < first + kRowsOfWarp ? w.rows.end : first + kRowsOfWarp;
  return w;
}

template <int kEach>
__device__ __forceinline__ void load_prepared(const Pass& pass, const TensorPass& t, const WarpRows& w, int row,
                                              bool is_smoothed, int lane, float (&x)[kEach]) {
  load_lane(t, offset_of(t.from_strides, w.rows.first, w.entry, w.head, row), lane, x);
  if (is_smoothed) {
    const float* const mean = mean_of(pass, w.entry, w.head);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane * kEach + i < t.dim) x[i] -= mean[lane * kEach + i];
  }
  if (t.is_rotated != 0) rotate_lane(pass, t.dim, lane, x);
}

/// Raises the largest magnitudes of what shares a factor. Rows of a warp that share one do so once.
template <int kEach>
__device__ __forceinline__ void find_largest(const Pass& pass, const TensorPass& t, const WarpRows& w, bool is_smoothed,
                                             int lane) {
  unsigned most[kEach] = {};
  long long index = -1;
  const auto flush = [&] {
    if (index < 0) return;
    if (t.scales.channel != 0) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (most[i] != 0) atomicMax(t.largest + index + lane * kEach + i, most[i]);
    } else {
      unsigned all = most[0];
#pragma unroll
      for (int i = 1; i < kEach; ++i) all = all > most[i] ? all : most[i];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        const unsigned other = __shfl_xor_sync(kWarp, all, lanes);
        all = all > other ? all : other;
      }
      if (lane == 0 && all != 0) atomicMax(t.largest + index, all);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) most[i] = 0;
  };
  for (int row = w.begin; row < w.end; ++row) {
    float x[kEach];
    load_prepared(pass, t, w, row, is_smoothed, lane, x);
    const long long own = factor_index(t.scales, w.rows.first, w.entry, w.head, row);
    if (own != index) flush();
    index = own;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned magnitude = lane * kEach + i < t.dim ? magnitude_of(x[i], t.to_element) : 0U;
      most[i] = most[i] > magnitude ? most[i] : magnitude;
    }
  }
  flush();
}

/// scale * q.mean of a row: lanes add the products of their elements, and each other's sums by halves.
template <int kEach>
__device__ __forceinline__ float shift_of(const Pass& pass, const WarpRows& w, int row, int lane) {
  float x[kEach];
  load_lane(pass.q, offset_of(pass.q.from_strides, w.rows.first, w.entry, w.head, row), lane, x);
  const float* const mean = mean_of(pass, w.entry, w.head / (pass.q.heads / pass.k.heads));
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (lane * kEach + i < pass.q.dim) sum = __fadd_rn(sum, __fmul_rn(x[i], mean[lane * kEach + i]));
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kWarp, sum, lanes));
  return pass.scale * sum;
}

template <int kEach>
__device__ __forceinline__ void write_elements(const Pass& pass, const TensorPass& t, const WarpRows& w,
                                               bool is_smoothed, bool are_queries, int lane) {
  const int column = lane * kEach;
  for (int row = w.begin; row < w.end; ++row) {
    float x[kEach];
    load_prepared(pass, t, w, row, is_smoothed, lane, x);
    const long long index = factor_index(t.scales, w.rows.first, w.entry, w.head, row);
    float factor = factor_at(t, index);
    unsigned words[(kEach + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (column + i >= t.dim) continue;
      if (t.scales.channel != 0) factor = factor_at(t, index + column + i);
      words[i / 4] |= static_cast<unsigned>(element_of(x[i], factor, t.to_element)) << (8 * (i % 4));
    }
    if (column < t.to_dim) {
      unsigned char* const to = t.to + offset_of(t.to_strides, w.rows.first, w.entry, w.head, row) + column;
      if (t.to_dim % kEach != 0) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          if (column + i < t.to_dim) to[i] = static_cast<unsigned char>(words[i / 4] >> (8 * (i % 4)));
      } else if constexpr (kEach == 2) {
        *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words[0]);
      } else {
#pragma unroll
        for (int i = 0; i < kEach / 4; ++i) reinterpret_cast<unsigned*>(to)[i] = words[i];
      }
    }
    if (!are_queries || pass.shift == nullptr) continue;
    const float shift = shift_of<kEach>(pass, w, row, lane);
    if (lane == 0) pass.shift[shift_index(pass, w.rows.first, w.entry, w.head, row)] = shift;
  }
}

template <int kEach>
__device__ __forceinline__ void take_rows(const Pass& pass, const TensorPass& t, int tensor) {
  const long long threads = static_cast<long long>(gridDim.x) * kQuantiseThreads;
  const long long thread = static_cast<long long>(blockIdx.x) * kQuantiseThreads + threadIdx.x;
  const bool is_smoothed = tensor == 1 && pass.mean != nullptr;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int parts = (most_rows(pass.rows, t.are_keys != 0) + kRowsOfWarp - 1) / kRowsOfWarp;
  const long long items = static_cast<long long>(pass.rows.batch) * t.heads * parts;
  for (long long item = thread / 32; item < items; item += threads / 32) {
    const WarpRows w = rows_of_warp(pass, t, item);
    if (pass.stage == static_cast<int>(Stage::largest))
      find_largest<kEach>(pass, t, w, is_smoothed, lane);
    else
      write_elements<kEach>(pass, t, w, is_smoothed, tensor == 0, lane);
  }
  if (pass.stage != static_cast<int>(Stage::elements)) return;
  for (long long i = thread; i < t.count; i += threads) t.factors[i] = factor_of(t.largest[i], t.to_element);
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
  const int tensor = static_cast<int>(blockIdx.y);
  const TensorPass& t = tensor == 0 ? pass.q : tensor == 1 ? pass.k : pass.v;
  if (t.to == nullptr) return;
  switch (elements_of_lane(t.to_dim)) {
    case 2:
      return take_rows<2>(pass, t, tensor);
    case 4:
      return take_rows<4>(pass, t, tensor);
    default:  // head dims of GPUs' programs end at 256
      return take_rows<8>(pass, t, tensor);
  }
}

}  // namespace heed::quantise

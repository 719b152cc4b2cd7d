/// What the programs of the pass share: a row a warp, and which rows a warp takes (quantise_rows.hpp, wide_rows.cuh).
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

/// kEach elements of a row from column lane * kEach on, one by one; zeros past the head dim.
template <int kEach>
__device__ __forceinline__ void load_strided(const TensorPass& t, long long offset, int lane, float (&x)[kEach]) {
  const int column = lane * kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = column + i < t.dim ? element_at(t, offset + (column + i) * t.from_step) : 0.0F;
}

/// The same in vectors where rows are wide.
template <int kEach>
__device__ __forceinline__ void load_lane(const TensorPass& t, long long offset, int lane, float (&x)[kEach]) {
  const int column = lane * kEach;
  if (t.is_wide == 0 || column >= t.dim) return load_strided(t, offset, lane, x);
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
#pragma unroll 1
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
/// body(rows of a warp), of all of a tensor. Where heads of a row lie side by side, neighbours take those and read what
/// lies side by side. Counts within an entry have 32 bits, so that nothing divides 64, by a call that costs registers.
/// @param backwards from the last to the first
template <class Body>
__device__ __forceinline__ void for_items(const Pass& pass, const TensorPass& t, bool backwards, const Body& body) {
  const unsigned parts = (static_cast<unsigned>(most_rows(pass.rows, t.are_keys != 0)) + kRowsOfWarp - 1) / kRowsOfWarp;
  const unsigned of_entry = parts * static_cast<unsigned>(t.heads);
  if (of_entry == 0) return;
  const bool heads_first = t.from_strides.head < t.from_strides.row;
  const unsigned inner = heads_first ? static_cast<unsigned>(t.heads) : parts;
  const unsigned warp = (blockIdx.x * kQuantiseThreads + threadIdx.x) / 32;
  const unsigned warps = gridDim.x * (kQuantiseThreads / 32);
  const auto batch = static_cast<unsigned>(pass.rows.batch);
  unsigned entry = warp / of_entry;
  unsigned item = warp % of_entry;
  while (entry < batch) {
    const unsigned at = backwards ? of_entry - 1 - item : item;
    WarpRows w;
    w.entry = static_cast<int>(backwards ? batch - 1 - entry : entry);
    w.head = static_cast<int>(heads_first ? at % inner : at / inner);
    w.rows = rows_of(pass.rows, t.are_keys != 0, w.entry);
    const int first = static_cast<int>(heads_first ? at / inner : at % inner) * kRowsOfWarp;
    w.begin = w.rows.begin > first ? w.rows.begin : first;
    w.end = w.rows.end < first + kRowsOfWarp ? w.rows.end : first + kRowsOfWarp;
    body(w);
    entry += warps / of_entry;
    item += warps % of_entry;
    if (item >= of_entry) item -= of_entry, ++entry;
  }
}

template <int kEach>
__device__ __forceinline__ void prepare(const Pass& pass, const TensorPass& t, const WarpRows& w, bool is_smoothed,
                                        int lane, float (&x)[kEach]) {
  if (is_smoothed) {
    const float* const mean = mean_of(pass, w.entry, w.head);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane * kEach + i < t.dim) x[i] -= mean[lane * kEach + i];
  }
  if (t.is_rotated != 0) rotate_lane(pass, t.dim, lane, x);
}

}  // namespace heed::quantise

/// heed_append_rows: new keys and values written into a cache (append_rows.hpp).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "lib/append/append_rows.hpp"
#include "lib/quantise/quantise_rows.cuh"

namespace heed::append {

/// The launch may begin while the one before it ends, and the next one, which waits for this one's writes before it
/// reads memory, while this one runs: programmatic dependent launches, from sm_90 on.
__device__ __forceinline__ void begin_dependent() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
#endif
}

template <class Element>
__device__ __forceinline__ void copy_elements(const Tensor& t, long long from, long long to, int lane) {
  const auto* const read = static_cast<const Element*>(t.rows.from) + from;
  auto* const written = reinterpret_cast<Element*>(t.rows.to) + to;
  for (int column = lane; column < t.rows.dim; column += 32)
    written[column * t.to_step] = read[column * t.rows.from_step];
}

/// A row as elements of 8 bits, kEach a lane, by all lanes of a warp.
template <int kEach>
__device__ __forceinline__ void quantise_row(const Tensor& t, long long from, long long to, long long index, int lane) {
  float x[kEach];
  quantise::load_lane(t.rows, from, lane, x);
  const int element = t.rows.to_element;
  float factor;
  if (t.finds_factor != 0) {
    unsigned most = 0;  // lanes past the head dim hold zeros
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned magnitude = quantise::magnitude_of(x[i], element);
      most = most > magnitude ? most : magnitude;
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const unsigned other = __shfl_xor_sync(quantise::kWarp, most, lanes);
      most = most > other ? most : other;
    }
    factor = quantise::factor_of(most, element);
    if (lane == 0) t.rows.factors[index] = factor;
  } else {
    factor = t.rows.factors[index];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int column = lane * kEach + i;
    if (column >= t.rows.dim) continue;
    if (t.rows.scales.channel != 0) factor = t.rows.factors[index + column];
    t.rows.to[to + column * t.to_step] = quantise::element_of(x[i], factor, element);
  }
}

__device__ __forceinline__ void append_row(const Append& a, const Tensor& t, const Place& at, int i, int begin,
                                           int head, int lane) {
  const long long from = new_offset(a, t, at.entry, i, begin, head);
  const long long to = cache_offset(t, at, head);
  if (is_copied(t)) {
    if (t.rows.element == static_cast<int>(Element::fp32))
      copy_elements<unsigned>(t, from, to, lane);
    else
      copy_elements<unsigned short>(t, from, to, lane);
    return;
  }
  const long long index = factor_index(t, at, head);
  switch (quantise::elements_of_lane(t.rows.dim)) {
    case 2:
      return quantise_row<2>(t, from, to, index, lane);
    case 4:
      return quantise_row<4>(t, from, to, index, lane);
    default:  // head dims of GPUs' caches end at 256
      return quantise_row<8>(t, from, to, index, lane);
  }
}

/// A row of K and the row of V, 16 bytes at a time: half of a warp each.
__device__ __forceinline__ void copy_both(const Append& a, const Place& at, int i, int begin, int head, int lane) {
  const Tensor& t = lane < 16 ? a.k : a.v;
  const int bytes = t.rows.element == static_cast<int>(Element::fp32) ? 4 : 2;
  const char* const read = static_cast<const char*>(t.rows.from) + new_offset(a, t, at.entry, i, begin, head) * bytes;
  unsigned char* const written = t.rows.to + cache_offset(t, at, head) * bytes;
  for (int byte = lane % 16 * 16; byte < t.rows.dim * bytes; byte += 256)
    *reinterpret_cast<uint4*>(written + byte) = *reinterpret_cast<const uint4*>(read + byte);
}

/// A grid may have any number of blocks; a warp takes a row of a head, of K and of V.
/// @param shared kStaged + 1 numbers of shared memory
__device__ inline void append_rows(const Append& a, int* shared) {
  begin_dependent();
  const int thread = static_cast<int>(threadIdx.x);
  const int* begins = a.cu_seqlens;
  bool is_appended = true;
  if (begins != nullptr) {
    int& is_wrong = shared[kStaged];
    if (thread == 0) is_wrong = 0;
    __syncthreads();
    for (int entry = thread; entry <= a.batch; entry += kAppendThreads) {
      const int begin = a.cu_seqlens[entry];
      if (begin < (entry == 0 ? 0 : a.cu_seqlens[entry - 1]) || begin > a.total_new) is_wrong = 1;
      if (entry < kStaged) shared[entry] = begin;
    }
    __syncthreads();
    is_appended = is_wrong == 0;
    if (a.batch < kStaged) begins = shared;
  }
  if (blockIdx.x == 0 && a.lengths_after != nullptr)
    for (int entry = thread; entry < a.batch; entry += kAppendThreads)
      a.lengths_after[entry] = length_after(a, entry, is_appended);
  if (!is_appended) return;
  const int lane = thread % 32;
  const bool both = a.k.is_copied_wide != 0 && a.v.is_copied_wide != 0;
  const long long items = rows_of_all(a) * a.heads;
  const long long warps = static_cast<long long>(gridDim.x) * (kAppendThreads / 32);
  for (long long item = static_cast<long long>(blockIdx.x) * (kAppendThreads / 32) + thread / 32; item < items;
       item += warps) {
    const long long row = item / a.heads;
    const int head = static_cast<int>(item % a.heads);
    const int entry =
        begins != nullptr ? entry_of(begins, a.batch, static_cast<int>(row)) : static_cast<int>(row / a.len_new);
    if (entry < 0) continue;
    const int begin = begins != nullptr ? begins[entry] : 0;
    const int i = begins != nullptr ? static_cast<int>(row) - begin : static_cast<int>(row % a.len_new);
    const Place at = place_of(a, entry, i);
    if (at.row < 0) continue;
    if (both) {
      copy_both(a, at, i, begin, head, lane);
      continue;
    }
    append_row(a, a.k, at, i, begin, head, lane);
    append_row(a, a.v, at, i, begin, head, lane);
  }
}

}  // namespace heed::append

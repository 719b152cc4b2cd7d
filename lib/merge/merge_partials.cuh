/// heed_merge_partials: partial results of attention become one.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/ptx/math.cuh"
#include "lib/merge/merge_partials.hpp"

namespace heed::merge {

/// Eight elements of a row as fp32.
__device__ __forceinline__ void load_piece(const void* row, int element, int column, int dim, bool is_wide,
                                           float (&x)[kPieceElements]) {
  if (element == static_cast<int>(Element::fp32)) {
    const auto* const from = static_cast<const float*>(row) + column;
    if (is_wide) {
      const float4 low = *reinterpret_cast<const float4*>(from);
      const float4 high = *reinterpret_cast<const float4*>(from + 4);
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) x[i] = column + i < dim ? from[i] : 0.0F;
    return;
  }
  const auto* const from = static_cast<const unsigned short*>(row) + column;
  unsigned words[kPieceElements / 2];
  if (is_wide) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else {
#pragma unroll
    for (int i = 0; i < kPieceElements / 2; ++i) {
      const unsigned low = column + 2 * i < dim ? from[2 * i] : 0U;
      const unsigned high = column + 2 * i + 1 < dim ? from[2 * i + 1] : 0U;
      words[i] = low | high << 16;
    }
  }
#pragma unroll
  for (int i = 0; i < kPieceElements / 2; ++i) {
    const bool bf16 = element == static_cast<int>(Element::bf16);
    x[2 * i] = bf16 ? ptx::unpack_low<Element::bf16>(words[i]) : ptx::unpack_low<Element::fp16>(words[i]);
    x[2 * i + 1] = bf16 ? ptx::unpack_high<Element::bf16>(words[i]) : ptx::unpack_high<Element::fp16>(words[i]);
  }
}

__device__ __forceinline__ void store_piece(void* row, int element, int column, int dim, bool is_wide,
                                            const float (&x)[kPieceElements]) {
  if (element == static_cast<int>(Element::fp32)) {
    auto* const to = static_cast<float*>(row) + column;
    if (is_wide) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
      *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i)
      if (column + i < dim) to[i] = x[i];
    return;
  }
  unsigned words[kPieceElements / 2];
#pragma unroll
  for (int i = 0; i < kPieceElements / 2; ++i)
    words[i] = element == static_cast<int>(Element::bf16) ? ptx::cvt_rn_x2<Element::bf16>(x[2 * i], x[2 * i + 1])
                                                          : ptx::cvt_rn_x2<Element::fp16>(x[2 * i], x[2 * i + 1]);
  auto* const to = static_cast<unsigned short*>(row) + column;
  if (is_wide) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPieceElements; ++i)
    if (column + i < dim) to[i] = static_cast<unsigned short>(i % 2 == 0 ? words[i / 2] & 0xFFFFU : words[i / 2] >> 16);
}

/// What part i has of a row, as the log-sum-exp of its keys.
__device__ __forceinline__ float lse_of(const Partial& p, const RowPlace& at) {
  const int row = at.row - p.first_row;
  if (p.is_read == 0 || row < 0 || row >= p.rows) return -attention::kInfinity;
  return p.lse[offset_of(p.lse_strides, at, row)];
}

/// Blocks share the rows, each row by the threads of its pieces; a grid may have any size. expf and logf, not their
/// approximations: a merge is a few of them a row beside 16 bytes a thread from memory.
__device__ inline void merge_partials(const Merge& m) {
  const int pieces = (m.dim + kPieceElements - 1) / kPieceElements;
  const int rows_each = rows_of_block(m.dim);
  const int bytes = m.element == static_cast<int>(Element::fp32) ? 4 : 2;
  const bool works = static_cast<int>(threadIdx.x) < rows_each * pieces;
  const int column = static_cast<int>(threadIdx.x) % pieces * kPieceElements;
  const long long all = m.batch * m.heads * m.rows;
  for (long long base = static_cast<long long>(blockIdx.x) * rows_each; base < all;
       base += static_cast<long long>(gridDim.x) * rows_each) {
    const long long index = base + static_cast<int>(threadIdx.x) / pieces;
    const bool has_row = works && index < all;
    float sum = 0.0F;
    float largest = -attention::kInfinity;
    float out[kPieceElements];
    RowPlace at{};
#pragma unroll
    for (int c = 0; c < kPieceElements; ++c) out[c] = 0.0F;
    if (has_row) {
      at = place_of(m, index);
      bool is_nan = false;
      if (m.sinks != nullptr) {
        largest = m.sinks[at.head];
        is_nan = largest != largest;
      }
      for (int i = 0; i < m.count; ++i) {
        const float lse = lse_of(m.partials[i], at);
        is_nan = is_nan || lse != lse;
        largest = fmaxf(largest, lse);
      }
      if (is_nan) largest = __int_as_float(0x7FC00000);
      if (m.sinks != nullptr && m.sinks[at.head] != -attention::kInfinity) sum = expf(m.sinks[at.head] - largest);
      for (int i = 0; i < m.count; ++i) {
        const Partial& p = m.partials[i];
        const float lse = lse_of(p, at);
        if (lse == -attention::kInfinity) continue;
        const float weight = expf(lse - largest);
        sum += weight;
        const int part_bytes = p.element == static_cast<int>(Element::fp32) ? 4 : 2;
        const char* const row =
            static_cast<const char*>(p.o) + offset_of(p.o_strides, at, at.row - p.first_row) * part_bytes;
        float x[kPieceElements];
        load_piece(row, p.element, column, m.dim, m.is_wide != 0, x);
#pragma unroll
        for (int c = 0; c < kPieceElements; ++c) out[c] = fmaf(weight, x[c], out[c]);
      }
    }
    __syncthreads();  // all of a row's threads have read what one of them may now overwrite
    if (!has_row) continue;
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;  // of NaN it is NaN
#pragma unroll
    for (int c = 0; c < kPieceElements; ++c) out[c] *= inverse;
    char* const row = static_cast<char*>(m.o) + offset_of(m.o_strides, at, at.row) * bytes;
    store_piece(row, m.element, column, m.dim, m.is_wide != 0, out);
    if (column == 0 && m.lse != nullptr)
      m.lse[offset_of(m.lse_strides, at, at.row)] = sum == 0.0F ? -attention::kInfinity : largest + logf(sum);
  }
}

}  // namespace heed::merge

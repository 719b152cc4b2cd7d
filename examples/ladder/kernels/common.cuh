/// What every step needs and none is about: where rows lie, element conversion, tile copies, the online softmax of one
/// row, and the last step of a row.
#pragma once

#include "examples/ladder/kernels/config.hpp"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/memory.cuh"

namespace heed::ladder {

inline constexpr float kLog2e = 1.44269504F;

/// Two elements in one register as fp32, the low half first.
template <Element kElement>
__device__ __forceinline__ float2 unpack(unsigned packed) {
  if constexpr (kElement == Element::bf16)
    return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000U));
  else
    return make_float2(ptx::cvt_f32_f16(packed), ptx::cvt_f32_f16(packed >> 16));
}

/// One fp32 value in 16 bits.
template <Element kElement>
__device__ __forceinline__ unsigned short round_to(float x) {
  return static_cast<unsigned short>(ptx::cvt_rn_x2<kElement>(x, 0.0F));
}

/// The query rows of a block: rows first_row ... of one head of one batch entry.
template <const Problem& kProblem>
struct Rows {
  const ForwardParams& params;
  int first_row;
  int head;
  int batch;
  int keys_end;  ///< keys any of the block's rows may see

  __device__ __forceinline__ Rows(const ForwardParams& p, int row_tile, int block_m, int h, int b)
      : params(p), first_row(row_tile * block_m), head(h), batch(b) {
    keys_end = visible_keys(kProblem.mask, min(first_row + block_m, p.len_q) - 1, p.right_offset, p.len_k);
  }

  __device__ __forceinline__ const unsigned short* q() const {
    return static_cast<const unsigned short*>(params.q) + batch * params.q_strides.batch + head * params.q_strides.head;
  }
  __device__ __forceinline__ const unsigned short* k() const {
    return static_cast<const unsigned short*>(params.k) + batch * params.k_strides.batch +
           head / params.group_size * params.k_strides.head;
  }
  __device__ __forceinline__ const unsigned short* v() const {
    return static_cast<const unsigned short*>(params.v) + batch * params.v_strides.batch +
           head / params.group_size * params.v_strides.head;
  }
  __device__ __forceinline__ unsigned short* out_row(int row) const {
    return static_cast<unsigned short*>(params.o) + batch * params.o_strides.batch + head * params.o_strides.head +
           row * params.o_strides.row;
  }
  /// Keys that `row` sees, none for a row past the end.
  __device__ __forceinline__ int end_of(int row) const {
    return row < params.len_q ? visible_keys(kProblem.mask, row, params.right_offset, params.len_k) : 0;
  }
  __device__ __forceinline__ float scale_log2() const { return params.scale * kLog2e; }
};

/// Copies rows [first, first + kRows) of a (rows, kDim) tensor into shared memory, row after row; rows from `end` on
/// become zeros, for a weight of zero times what lies there must be zero.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void copy_rows(char* tile, const unsigned short* tensor, long long row_stride, int first,
                                          int end) {
  constexpr int kChunks = kDim / 8;  // of 16 bytes a row
#pragma unroll 4
  for (int index = threadIdx.x; index < kRows * kChunks; index += kThreads) {
    const int row = first + index / kChunks;
    const int chunk = index % kChunks;
    uint4 elements = make_uint4(0, 0, 0, 0);
    if (row < end) elements = *reinterpret_cast<const uint4*>(tensor + row * row_stride + 8 * chunk);
    *reinterpret_cast<uint4*>(tile + 16 * index) = elements;
  }
}

/// The same by cp.async, by threads `thread` = 0 ... kThreads - 1; the caller commits.
template <int kRows, int kDim, int kThreads, tile::SharedLayout kLayout>
__device__ __forceinline__ void copy_rows_async(unsigned tile, const unsigned short* tensor, long long row_stride,
                                                int first, int end, int thread) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int index = thread; index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks;
    const int chunk = index % kChunks;
    const bool inside = first + row < end;
    // An address past the end is never formed.
    const unsigned short* from = inside ? tensor + (first + row) * row_stride + 8 * chunk : tensor;
    ptx::cp_async_cg_16(tile + tile::chunk_offset(kLayout, kDim, row, chunk), from, inside ? 16 : 0);
  }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, distance));
  return x;
}

__device__ __forceinline__ float minus_infinity() {
  return -__int_as_float(0x7f800000);
}

/// Online softmax of one row (Milakov and Gimelshein, arXiv 1805.02867). Scores are in units of log2.
struct OnlineRow {
  float maximum = minus_infinity();
  float sum = 0.0F;

  /// Takes a new maximum in; returns what sum and partial output so far are worth under it.
  __device__ __forceinline__ float raise(float candidate) {
    const float next = fmaxf(maximum, candidate);
    const float factor = ptx::ex2_approx_ftz(maximum - attention::finite_row_max(next));
    maximum = next;
    sum *= factor;
    return factor;
  }
  __device__ __forceinline__ float weight(float score) const {
    return ptx::ex2_approx_ftz(score - attention::finite_row_max(maximum));
  }
  [[nodiscard]] __device__ __forceinline__ float inverse() const { return sum > 0.0F ? 1.0F / sum : 0.0F; }
};

/// Log-sum-exp of a row in natural log, where it is asked for.
template <const Problem& kProblem>
__device__ __forceinline__ void store_lse(const Rows<kProblem>& rows, int row, const OnlineRow& state) {
  const ForwardParams& p = rows.params;
  if (p.lse != nullptr && row < p.len_q)
    p.lse[(static_cast<long long>(rows.batch) * p.heads + rows.head) * p.len_q + row] =
        state.sum > 0.0F ? (state.maximum + ptx::lg2_approx_ftz(state.sum)) * 0.693147181F : minus_infinity();
}

}  // namespace heed::ladder

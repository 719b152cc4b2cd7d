/// What a warp does alone where others of its row group need not take part, as they would in an asynchronous product:
/// the scores of one tile of keys once more, and all keys of its 16 rows once more. mma's accumulators lie as wgmma's
/// do.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/stream/config.hpp"

namespace heed::stream {

/// The scores of this warp's 16 rows and one tile of keys in shared memory, under no scale and no mask.
/// @param s (16, kKeys) accumulator fragments
/// @param q shared address of the (64, head_dim) queries of the row group, in boxes of 64 columns
/// @param k shared address of the (kKeys, head_dim) keys, in boxes of 64 columns
/// @param box bytes from one box of the keys to the next
template <Problem kProblem, int kKeys>
__device__ __forceinline__ void scores_of_warp(float (&s)[kKeys / 2], unsigned q, unsigned k, int box) {
  unsigned thread = threadIdx.x;
  ptx::settle(thread);  // or addresses are worked out, and kept, for those who never come here
  const int at = thread % 32;
  q += (thread / 32 % 4 * 16 + at % 16) * tile::kBoxRowBytes;
  k += (at / 16 * 8 + at % 8) * tile::kBoxRowBytes;
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) s[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < padded_dim(kProblem.head_dim) / 16; ++i) {
    unsigned a[4];
    // Pieces of 16 bytes lie at their index xor their row's: kernels/tile/matrix_descriptor.hpp.
    ptx::ldmatrix_x4(a, q + i / 4 * kGroupRows * tile::kBoxRowBytes + ((2 * (i % 4) + at / 16) ^ at % 8) * 16);
#pragma unroll
    for (int t = 0; t < kKeys / 16; ++t) {
      unsigned b[4];  // 16 keys: the halves of the contraction for the first 8, then for the others
      ptx::ldmatrix_x4(b, k + i / 4 * box + 16 * t * tile::kBoxRowBytes + ((2 * (i % 4) + at / 8 % 2) ^ at % 8) * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float(&d)[4] = *reinterpret_cast<float(*)[4]>(s + 8 * t + 4 * j);
        ptx::mma_m16n8k16<kProblem.element>(d, a, b[2 * j], b[2 * j + 1]);
      }
    }
  }
}

/// All keys of a warp's 16 rows once more, where the probabilities of fwd_sm90_stream left the range of 16 bits and
/// nobody looked before the end of the row tile (Vote::row_tile). Rare: the stages have been given back by then, so the
/// warp reads everything from global memory, with the running maximum of FlashAttention-2 (Dao, arXiv 2307.08691).
template <Config kConfig, Problem kProblem>
struct Careful {
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kTiles = tile::kBoxColumns / 8;

  const ForwardParams& params;
  int lane;
  int row;  ///< of the lane's first row; its second is 8 further on
  int head;
  int batch;

  /// @param first the first key, a multiple of 16
  /// @param end behind the last key that any row of the warp sees
  /// @param out (16, kDim) of the warp's rows, unnormalised; accumulator fragments
  /// @param reference in log2 units, -inf without keys
  /// @param sum of this lane's columns
  __device__ __forceinline__ void run(int first, int end, float (&out)[kDim / 2], float (&reference)[2],
                                      float (&sum)[2]) const {
    const long long kv_head = head / params.group_size;
    const auto* q =
        static_cast<const unsigned short*>(params.q) + batch * params.q_strides.batch + head * params.q_strides.head;
    const auto* k =
        static_cast<const unsigned short*>(params.k) + batch * params.k_strides.batch + kv_head * params.k_strides.head;
    const auto* v =
        static_cast<const unsigned short*>(params.v) + batch * params.v_strides.batch + kv_head * params.v_strides.head;
    // A box of columns at a time, with the same scores each time: all at once would take registers from the loops that
    // run without mistakes.
#pragma unroll
    for (int box = 0; box < kDim / tile::kBoxColumns; ++box) {
      float partial[1][kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) partial[0][t][i] = 0.0F;
      attention::RowState<1> rows;
      rows.reset();
#pragma unroll 1
      for (int key = first; key < end; key += kStepKeys) {
        float scores[1][2][4];
        find_scores(scores[0], q, k, key, end);
        attention::softmax_tile<attention::Exp2::hardware, attention::Rescale::always>(scores, partial, rows,
                                                                                       params.scale * 1.44269504F);
        unsigned p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[i] = ptx::cvt_rn_x2<kProblem.element>(scores[0][i / 2][2 * (i % 2)], scores[0][i / 2][2 * (i % 2) + 1]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const int column = box * tile::kBoxColumns + 8 * t + lane / 4;
          const int from = key + 2 * (lane % 4);
          ptx::mma_m16n8k16<kProblem.element>(partial[0][t], p, two_values(v, from, column, end),
                                              two_values(v, from + 8, column, end));
        }
      }
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) out[box * 4 * kTiles + i] = partial[0][i / 4][i % 4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        reference[h] = rows.reference[0][h];
        sum[h] = rows.sum[0][h];
      }
    }
  }

 private:
  /// Scores of 16 keys; those that a row does not see are -inf.
  __device__ __forceinline__ void find_scores(float (&s)[2][4], const unsigned short* q, const unsigned short* k,
                                              int key, int end) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = 0.0F;
#pragma unroll 1
    for (int step = 0; step < kDim; step += 16) {
      const int column = step + 2 * (lane % 4);
      unsigned a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = two_columns(q, params.q_strides.row, row + 8 * (i % 2), params.len_q, column + 8 * (i / 2));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = key + 8 * j + lane / 4;
        ptx::mma_m16n8k16<kProblem.element>(s[j], a, two_columns(k, params.k_strides.row, at, end, column),
                                            two_columns(k, params.k_strides.row, at, end, column + 8));
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = key + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      const int seen = visible_keys(kProblem.causal, row + 8 * (i / 2 % 2), params.causal_offset, params.len_k);
      if (at >= min(seen, end)) s[i / 4][i % 4] = -__int_as_float(0x7f800000);
    }
  }

  /// Two neighbours of a row; zeros outside.
  __device__ __forceinline__ static unsigned two_columns(const unsigned short* from, long long stride, int at, int rows,
                                                         int column) {
    if (at >= rows || column >= kProblem.head_dim) return 0;
    return *reinterpret_cast<const unsigned*>(from + at * stride + column);
  }
  /// One column of two rows of V; zeros outside.
  __device__ __forceinline__ unsigned two_values(const unsigned short* v, int at, int column, int rows) const {
    if (column >= kProblem.head_dim) return 0;
    const unsigned low = at < rows ? v[at * params.v_strides.row + column] : 0;
    const unsigned high = at + 1 < rows ? v[(at + 1) * params.v_strides.row + column] : 0;
    return low | high << 16;
  }
};

}  // namespace heed::stream

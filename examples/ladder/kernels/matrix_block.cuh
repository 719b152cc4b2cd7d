/// The tensor-core steps' common ground: 64 rows of one head and eight warps that compute. For the products warp w has
/// 16 rows and half of the columns; for the softmax it has 8 whole rows. S, P and O therefore lie in shared memory.
///
///                  products                                     softmax
///   rows  0..15    | warp 0 | warp 1 |             rows  0.. 7  |     warp 0      |
///   rows 16..31    | warp 2 | warp 3 |             rows  8..15  |     warp 1      |
///   rows 32..47    | warp 4 | warp 5 |                ...
///   rows 48..63    | warp 6 | warp 7 |             rows 56..63  |     warp 7      |
#pragma once

#include "examples/ladder/kernels/common.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct MatrixBlock {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBlockM = kSteps[kStep].block_m;
  static constexpr int kBlockN = block_n(kStep, kDim);
  static constexpr int kComputeWarps = 8;
  static constexpr int kComputeThreads = 32 * kComputeWarps;
  static constexpr int kWarpRows = kBlockM / kComputeWarps;  // of the softmax
  static constexpr SharedPlan kPlan = shared_plan(kStep, kDim);
  static_assert(kBlockM == 16 * kComputeWarps / 2, "two warps for 16 rows");
  static_assert(kBlockN % 32 == 0 && kDim % 32 == 0, "half of the columns in pieces of 16");

  const Rows<kProblem>& rows;
  char* shared;
  unsigned shared_base;
  int warp;
  int lane;
  OnlineRow state[kWarpRows];  // the same in all lanes

  __device__ __forceinline__ MatrixBlock(const Rows<kProblem>& r, char* dynamic_shared)
      : rows(r),
        shared(dynamic_shared),
        shared_base(ptx::shared_address(dynamic_shared)),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  /// Among the warps that compute; a producer warp takes no part.
  __device__ __forceinline__ static void compute_barrier() { ptx::bar_sync(1, kComputeThreads); }

  __device__ __forceinline__ char* keys(int stage) const {
    return shared + kPlan.stages + stage * 2 * kPlan.tile_bytes;
  }
  __device__ __forceinline__ char* values(int stage) const { return keys(stage) + kPlan.tile_bytes; }
  /// S of row `r` of this warp's softmax rows.
  __device__ __forceinline__ float* scores_row(int r) const {
    return reinterpret_cast<float*>(shared + kPlan.scores) + (kWarpRows * warp + r) * kPlan.scores_pitch;
  }
  __device__ __forceinline__ float* out_row(int r) const {
    return reinterpret_cast<float*>(shared + kPlan.out) + (kWarpRows * warp + r) * kPlan.out_pitch;
  }
  __device__ __forceinline__ int row_of(int r) const { return rows.first_row + kWarpRows * warp + r; }

  /// O = 0 in this warp's rows.
  __device__ __forceinline__ void clear_out() const {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r)
#pragma unroll
      for (int c = 0; c < kDim; c += 32) out_row(r)[c + lane] = 0.0F;
  }

  /// This warp's rows of one tile: S is masked and becomes P, rounded to 16 bits and stored over the S it came from,
  /// and O is rescaled to the new maximum.
  __device__ __forceinline__ void softmax(int first_key) {
    const float scale_log2 = rows.scale_log2();
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const int end = rows.end_of(row_of(r));
      float* s = scores_row(r);
      float value[kBlockN / 32];
      float maximum = minus_infinity();
#pragma unroll
      for (int i = 0; i < kBlockN / 32; ++i) {
        const int key = lane + 32 * i;
        value[i] = first_key + key < end ? s[key] * scale_log2 : minus_infinity();
        maximum = fmaxf(maximum, value[i]);
      }
      const float factor = state[r].raise(warp_max(maximum));
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kBlockN / 32; ++i) {
        value[i] = state[r].weight(value[i]);
        sum += value[i];
      }
      state[r].sum += warp_sum(sum);
      __syncwarp();  // all of S is read before P is stored over it
      auto* p = reinterpret_cast<unsigned short*>(s);
#pragma unroll
      for (int i = 0; i < kBlockN / 32; ++i) p[lane + 32 * i] = round_to<kProblem.element>(value[i]);
#pragma unroll
      for (int c = 0; c < kDim; c += 32) out_row(r)[c + lane] *= factor;
    }
  }

  /// Two passes: the division in shared memory, then a store of 2 bytes a thread.
  __device__ __forceinline__ void store_in_two_passes() {
    compute_barrier();  // the last product is complete
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float inverse = state[r].inverse();
#pragma unroll
      for (int c = 0; c < kDim; c += 32) out_row(r)[c + lane] *= inverse;
      if (lane == 0) store_lse(rows, row_of(r), state[r]);
    }
    compute_barrier();
    const auto* out = reinterpret_cast<const float*>(shared + kPlan.out);
#pragma unroll 4
    for (int index = threadIdx.x; index < kBlockM * kDim; index += kComputeThreads) {
      const int row = index / kDim;
      const int column = index % kDim;
      if (rows.first_row + row < rows.params.len_q)
        rows.out_row(rows.first_row + row)[column] = round_to<kProblem.element>(out[row * kPlan.out_pitch + column]);
    }
  }
};

}  // namespace heed::ladder

/// Step tiled: 64 keys and values at a time in shared memory, read by 128 threads of one row each.
///
/// The textbook says: load once, read often. Predicted (tiled): 0.95 of the speed before. All threads of a warp read
/// the same key at the same time, which is one broadcast from the L1 cache as it is one from shared memory, and K and V
/// of a head (128 KiB) fit an H200's L1: there is nothing to save, and two barriers a tile to pay. On the NVIDIA L4 of
/// the project's founding notes, too, this step cost time (2870 us to 3652 us).
///
/// It teaches that a tile is no end in itself: it pays when it replaces slow or scattered reads.
#pragma once

#include "examples/ladder/kernels/common.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct Tiled {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kWords = kDim / 2;
  static constexpr int kBlockN = block_n(kStep, kDim);
  static constexpr int kThreads = threads(kStep);
  static constexpr SharedPlan kPlan = shared_plan(kStep, kDim);
  static_assert(kThreads == kSteps[kStep].block_m, "a thread a row");

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, kSteps[kStep].block_m, blockIdx.y, blockIdx.z);
    const int row = rows.first_row + static_cast<int>(threadIdx.x);
    const int end = rows.end_of(row);  // a row past the end sees nothing, but its thread helps to copy
    const float scale_log2 = rows.scale_log2();
    char* keys = shared + kPlan.stages;
    char* values = keys + kPlan.tile_bytes;

    unsigned query[kWords];
    float2 out[kWords];
    const auto* q = reinterpret_cast<const unsigned*>(rows.q() + min(row, params.len_q - 1) * params.q_strides.row);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      query[i] = q[i];
      out[i] = make_float2(0.0F, 0.0F);
    }

    OnlineRow state;
    for (int first_key = 0; first_key < rows.keys_end; first_key += kBlockN) {
      __syncthreads();  // everyone is done with the tile before
      copy_rows<kBlockN, kDim, kThreads>(keys, rows.k(), params.k_strides.row, first_key, rows.keys_end);
      copy_rows<kBlockN, kDim, kThreads>(values, rows.v(), params.v_strides.row, first_key, rows.keys_end);
      __syncthreads();  // the tile is there
      const int tile_end = min(kBlockN, end - first_key);
      for (int key = 0; key < tile_end; ++key) {
        const auto* k = reinterpret_cast<const unsigned*>(keys) + key * kWords;
        const auto* v = reinterpret_cast<const unsigned*>(values) + key * kWords;
        float score = 0.0F;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const float2 a = unpack<kProblem.element>(query[i]);
          const float2 b = unpack<kProblem.element>(k[i]);
          score = fmaf(a.x, b.x, fmaf(a.y, b.y, score));
        }
        score *= scale_log2;
        const float factor = state.raise(score);
        const float weight = state.weight(score);
        state.sum += weight;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const float2 b = unpack<kProblem.element>(v[i]);
          out[i] = make_float2(fmaf(weight, b.x, factor * out[i].x), fmaf(weight, b.y, factor * out[i].y));
        }
      }
    }

    if (row >= params.len_q) return;
    const float inverse = state.inverse();
    auto* o = reinterpret_cast<unsigned*>(rows.out_row(row));
#pragma unroll
    for (int i = 0; i < kWords; ++i) o[i] = ptx::cvt_rn_x2<kProblem.element>(out[i].x * inverse, out[i].y * inverse);
    store_lse(rows, row, state);
  }
};

}  // namespace heed::ladder

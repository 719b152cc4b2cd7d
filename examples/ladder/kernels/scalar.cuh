/// Step scalar: one thread a row.
///
/// The definition of attention written down: each thread holds its row of Q and its row of O in registers, walks over
/// the keys it sees, and rescales what it has whenever the maximum grows. No tile, no barrier, no shared memory.
///
/// It teaches what the problem is, and what a GPU is not: 4,096 rows are 4,096 threads, 128 warps for the 528
/// schedulers of an H200, and each waits for its own sums, one after another. This is where the ladder stands, so
/// nothing is predicted.
#pragma once

#include "examples/ladder/kernels/common.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct Scalar {
  static constexpr int kWords = kProblem.head_dim / 2;  // two elements a register

  __device__ __forceinline__ static void run(const ForwardParams& params, char*) {
    const Rows<kProblem> rows(params, blockIdx.x, kSteps[kStep].block_m, blockIdx.y, blockIdx.z);
    const int row = rows.first_row + static_cast<int>(threadIdx.x);
    if (row >= params.len_q) return;
    const int end = rows.end_of(row);
    const float scale_log2 = rows.scale_log2();

    unsigned query[kWords];
    float2 out[kWords];
    const auto* q = reinterpret_cast<const unsigned*>(rows.q() + row * params.q_strides.row);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      query[i] = q[i];
      out[i] = make_float2(0.0F, 0.0F);
    }

    OnlineRow state;
    for (int key = 0; key < end; ++key) {
      const auto* k = reinterpret_cast<const unsigned*>(rows.k() + key * params.k_strides.row);
      const auto* v = reinterpret_cast<const unsigned*>(rows.v() + key * params.v_strides.row);
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

    const float inverse = state.inverse();
    auto* o = reinterpret_cast<unsigned*>(rows.out_row(row));
#pragma unroll
    for (int i = 0; i < kWords; ++i) o[i] = ptx::cvt_rn_x2<kProblem.element>(out[i].x * inverse, out[i].y * inverse);
    store_lse(rows, row, state);
  }
};

}  // namespace heed::ladder

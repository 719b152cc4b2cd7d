/// A warp's view of one query row: lane i holds words i, i + 32, ... of Q and O, two elements a word.
#pragma once

#include "examples/ladder/kernels/common.cuh"

namespace heed::ladder {

template <const Problem& kProblem>
struct WarpRow {
  static constexpr int kRowWords = kProblem.head_dim / 2;
  static constexpr int kWords = kRowWords / 32;  // a lane

  float2 query[kWords];
  float2 out[kWords];
  OnlineRow state;

  __device__ __forceinline__ WarpRow(const unsigned short* q_row, int lane) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      query[w] = unpack<kProblem.element>(reinterpret_cast<const unsigned*>(q_row)[lane + 32 * w]);
      out[w] = make_float2(0.0F, 0.0F);
    }
  }

  /// Scores of 32 keys of a shared tile: every key is a sum over all lanes; lane i keeps that of key i.
  __device__ __forceinline__ float scores(const unsigned* keys, int lane, float scale_log2) const {
    float mine = 0.0F;
#pragma unroll 8
    for (int key = 0; key < 32; ++key) {
      float partial = 0.0F;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 k = unpack<kProblem.element>(keys[key * kRowWords + lane + 32 * w]);
        partial = fmaf(query[w].x, k.x, fmaf(query[w].y, k.y, partial));
      }
      const float score = warp_sum(partial);
      if (lane == key) mine = score;
    }
    return mine * scale_log2;
  }

  /// Takes the scores of 32 keys into the running softmax; returns this lane's weight.
  __device__ __forceinline__ float take(float score) {
    const float factor = state.raise(warp_max(score));
    const float weight = state.weight(score);
    state.sum += warp_sum(weight);
#pragma unroll
    for (int w = 0; w < kWords; ++w) out[w] = make_float2(out[w].x * factor, out[w].y * factor);
    return weight;
  }

  /// Adds 32 weighted rows of V; lane i brings the weight of key i.
  __device__ __forceinline__ void add(const unsigned* values, int lane, float weight) {
#pragma unroll 8
    for (int key = 0; key < 32; ++key) {
      const float p = __shfl_sync(0xffffffffU, weight, key);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 v = unpack<kProblem.element>(values[key * kRowWords + lane + 32 * w]);
        out[w] = make_float2(fmaf(p, v.x, out[w].x), fmaf(p, v.y, out[w].y));
      }
    }
  }

  __device__ __forceinline__ void store(const Rows<kProblem>& rows, int row, int lane) const {
    if (row >= rows.params.len_q) return;
    const float inverse = state.inverse();
    auto* o = reinterpret_cast<unsigned*>(rows.out_row(row));
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      o[lane + 32 * w] = ptx::cvt_rn_x2<kProblem.element>(out[w].x * inverse, out[w].y * inverse);
    if (lane == 0) store_lse(rows, row, state);
  }
};

}  // namespace heed::ladder

/// Partial results of fwd_sm80_decode, of groups of warps and of splits, and how they add up.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/math.cuh"

namespace heed::sm80_decode {

/// One row's softmax over some of its keys, 8 columns of it: partial output, sum of weights, and what was subtracted.
struct Partial {
  float row_max;
  float sum;
  float out[8];

  __device__ __forceinline__ void reset() {
    row_max = -attention::kInfinity;
    sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = 0.0F;
  }

  /// Adds `count` partials: the first at `from` and `state`, each of the next `pitch` and `state_pitch` floats further.
  /// kBatch of them are loaded at once. The order of additions depends on nothing but the arguments.
  template <int kBatch, bool kGlobal>
  __device__ __forceinline__ void add(const float* from, long long pitch, const float* state, long long state_pitch,
                                      int count) {
    for (int first = 0; first < count; first += kBatch) {
      float2 states[kBatch];
      float4 low[kBatch];
      float4 high[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = min(first + i, count - 1);  // beyond the last: the last again, at weight 0
        const float* values = from + index * pitch;
        if constexpr (kGlobal) {
          states[i] = ptx::ld_global_cg_v2(state + index * state_pitch);
          low[i] = ptx::ld_global_cg_v4(values);
          high[i] = ptx::ld_global_cg_v4(values + 4);
        } else {
          states[i] = *reinterpret_cast<const float2*>(state + index * state_pitch);
          low[i] = reinterpret_cast<const float4*>(values)[0];
          high[i] = reinterpret_cast<const float4*>(values)[1];
        }
      }
      float next = row_max;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) next = fmaxf(next, states[i].x);
      const float finite = attention::finite_row_max(next);
      const float factor = ptx::ex2_approx_ftz(row_max - finite);
      row_max = next;
      sum *= factor;
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] *= factor;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = first + i < count ? ptx::ex2_approx_ftz(states[i].x - finite) : 0.0F;
        sum = fmaf(weight, states[i].y, sum);
        attention::add_weighted(out, weight, low[i]);
        attention::add_weighted(out + 4, weight, high[i]);
      }
    }
  }

  __device__ __forceinline__ void put(float* to, float* state, bool with_state) const {
    reinterpret_cast<float4*>(to)[0] = make_float4(out[0], out[1], out[2], out[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(out[4], out[5], out[6], out[7]);
    if (with_state) *reinterpret_cast<float2*>(state) = make_float2(row_max, sum);
  }
};

}  // namespace heed::sm80_decode

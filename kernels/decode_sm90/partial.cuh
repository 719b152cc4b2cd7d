/// One row's softmax over some of its keys, 4 columns of it, and how blocks hand such partial results to each other.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/math.cuh"

namespace heed::decode_sm90 {

/// A float as a word that is never zero: zero means "not there yet", so +0 travels as -0.
__device__ __forceinline__ unsigned word_of(float x) {
  const unsigned word = __float_as_uint(x);
  return word == 0U ? 0x80000000U : word;
}

struct Partial {
  float reference;  ///< what was subtracted, in units of log2
  float sum;        ///< of weights
  float out[4];

  __device__ __forceinline__ void reset() {
    reference = -__int_as_float(0x7f800000);
    sum = 0.0F;
#pragma unroll
    for (float& x : out) x = 0.0F;
  }

  /// Adds kCount partials at once.
  template <int kCount>
  __device__ __forceinline__ void add(const float2 (&states)[kCount], const float4 (&outs)[kCount]) {
    float next = reference;
#pragma unroll
    for (int i = 0; i < kCount; ++i) next = fmaxf(next, states[i].x);
    const float finite = attention::finite_reference(next);
    const float factor = ptx::ex2_approx_ftz(reference - finite);
    reference = next;
    sum *= factor;
#pragma unroll
    for (float& x : out) x *= factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = ptx::ex2_approx_ftz(states[i].x - finite);
      sum = fmaf(weight, states[i].y, sum);
      out[0] = fmaf(weight, outs[i].x, out[0]);
      out[1] = fmaf(weight, outs[i].y, out[1]);
      out[2] = fmaf(weight, outs[i].z, out[2]);
      out[3] = fmaf(weight, outs[i].w, out[3]);
    }
  }

  /// Adds kCount partials in shared memory, `pitch` and `state_pitch` floats apart.
  template <int kCount>
  __device__ __forceinline__ void add_shared(const float* from, int pitch, const float* state, int state_pitch) {
    float2 states[kCount];
    float4 outs[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      states[i] = *reinterpret_cast<const float2*>(state + i * state_pitch);
      outs[i] = *reinterpret_cast<const float4*>(from + i * pitch);
    }
    add(states, outs);
  }

  __device__ __forceinline__ void put_shared(float* to, float* state, bool with_state) const {
    *reinterpret_cast<float4*>(to) = make_float4(out[0], out[1], out[2], out[3]);
    if (with_state) *reinterpret_cast<float2*>(state) = make_float2(reference, sum);
  }

  /// Sends it to the block that merges: no fence is needed, every word says itself that it is there.
  __device__ __forceinline__ void send(unsigned* to, unsigned* state, bool with_state) const {
    ptx::st_relaxed_gpu_v4(to, {word_of(out[0]), word_of(out[1]), word_of(out[2]), word_of(out[3])});
    if (with_state) ptx::st_relaxed_gpu_v2(state, {word_of(reference), word_of(sum)});
  }
};

}  // namespace heed::decode_sm90

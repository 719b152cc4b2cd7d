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

  /// Adds up to kCount partials that blocks sent, in order: `count` of them, `pitch` words apart from `from`
  /// on, the first one `shift` further; their states lie `state` words behind. Waits until they are there, and leaves
  /// zeros in their place once the warp has read them. For whole warps.
  template <int kCount>
  __device__ __forceinline__ void receive(unsigned* from, int state, int pitch, int shift, int count,
                                          bool clears_state) {
    uint4 out_words[kCount];
    uint2 state_words[kCount];
    const auto place = [&](int i) { return from + i * pitch + (i == 0 ? shift : 0); };
    bool missing = false;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        out_words[i] = {1, 1, 1, 1};
        state_words[i] = {0xff800000U, 0x80000000U};  // of no keys: reference -inf, sum -0
        ptx::ld_relaxed_gpu_v4(out_words[i], place(i), i < count);
        ptx::ld_relaxed_gpu_v2(state_words[i], place(i) + state, i < count);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        missing = missing || min(min(min(out_words[i].x, out_words[i].y), min(out_words[i].z, out_words[i].w)),
                                 min(state_words[i].x, state_words[i].y)) == 0;
    } while (missing);
    __syncwarp();
    float4 outs[kCount];
    float2 states[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) ptx::st_relaxed_gpu_v4(place(i), {0, 0, 0, 0});
      if (i < count && clears_state) ptx::st_relaxed_gpu_v2(place(i) + state, {0, 0});
      outs[i] = make_float4(__uint_as_float(out_words[i].x), __uint_as_float(out_words[i].y),
                            __uint_as_float(out_words[i].z), __uint_as_float(out_words[i].w));
      states[i] = make_float2(__uint_as_float(state_words[i].x), __uint_as_float(state_words[i].y));
    }
    add(states, outs);
  }
};

}  // namespace heed::decode_sm90

/// One row's softmax over some of its keys, 4 columns of it, and how blocks hand such partial results to each other.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/exchange.cuh"
#include "kernels/ptx/math.cuh"

namespace heed::sm90_decode {

/// A float as a word that is never zero: zero means "not there yet", so +0 travels as -0.
__device__ __forceinline__ unsigned word_of(float x) {
  const unsigned word = __float_as_uint(x);
  return word == 0U ? 0x80000000U : word;
}

/// Whether one of four words is not there yet.
__device__ __forceinline__ bool lacks(const uint4& words) {
  return min(min(words.x, words.y), min(words.z, words.w)) == 0;
}

/// Four words as the floats that they are.
__device__ __forceinline__ float4 floats_of(const uint4& words) {
  return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                     __uint_as_float(words.w));
}

struct Partial {
  float row_max;  ///< what was subtracted, in units of log2
  float sum;      ///< of weights
  float out[4];

  __device__ __forceinline__ void reset() {
    row_max = -attention::kInfinity;
    sum = 0.0F;
#pragma unroll
    for (float& x : out) x = 0.0F;
  }

  /// Adds kCount partials at once.
  template <int kCount>
  __device__ __forceinline__ void add(const float2 (&states)[kCount], const float4 (&outs)[kCount]) {
    float next = row_max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) next = fmaxf(next, states[i].x);
    const float finite = attention::finite_row_max(next);
    const float factor = attention::rescale_factor(row_max, next);
    row_max = next;
    sum *= factor;
#pragma unroll
    for (float& x : out) x *= factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = ptx::ex2_approx_ftz(states[i].x - finite);
      sum = fmaf(weight, states[i].y, sum);
      attention::add_weighted(out, weight, outs[i]);
    }
  }

  __device__ __forceinline__ void add(const Partial& other) {
    const float2 states[1] = {make_float2(other.row_max, other.sum)};
    const float4 outs[1] = {make_float4(other.out[0], other.out[1], other.out[2], other.out[3])};
    add(states, outs);
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
    if (with_state) *reinterpret_cast<float2*>(state) = make_float2(row_max, sum);
  }

  /// Sends it to the block that merges: no fence is needed, every word says itself that it is there.
  __device__ __forceinline__ void send(unsigned* to, unsigned* state, bool with_state) const {
    ptx::st_relaxed_gpu_v4_if(true, to, {word_of(out[0]), word_of(out[1]), word_of(out[2]), word_of(out[3])});
    ptx::st_relaxed_gpu_v2_if(with_state, state, {word_of(row_max), word_of(sum)});
  }
};

/// Partials that other blocks sent: each lane has 4 columns of a row of every one, and of one of them, whose number is
/// the lane's within its row, row maximum and sum. A row is kLanes lanes. All are of one row, or the first half of one
/// row and the second of another.
template <int kCount, int kLanes>
struct Batch {
  static constexpr int kHalf = kCount / 2;
  static_assert(kCount % 2 == 0 && kCount <= kLanes && (kLanes == 16 || kLanes == 32));

  uint4 outs[kCount];
  uint4 state[2];  // of which the first two words count: the others say the same

  __device__ __forceinline__ static int lane_of_row() { return static_cast<int>(threadIdx.x) % kLanes; }

  /// Where partials are: `pitch` words apart from `from` on, the second half `jump` further.
  struct Places {
    unsigned* from;
    unsigned pitch;
    int jump;

    __device__ __forceinline__ unsigned* of(int number) const {
      return from + number * static_cast<int>(pitch) + (number >= kHalf ? jump : 0);
    }
  };

  /// Waits until the partials whose bits are set in `sent` are there. All are asked for at once, and then again those
  /// that were not there yet. Leaves zeros in their place once the warp has read them. For whole warps.
  __device__ __forceinline__ void receive(Places places, unsigned sent) {
    const auto is_sent = [&](int i) { return (sent >> i & 1U) != 0; };
    const bool has_state = is_sent(lane_of_row());
    unsigned* const my_state = places.of(lane_of_row()) + 4 * kLanes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) outs[i] = {is_sent(i) ? 0U : 1U, 1, 1, 1};
#pragma unroll
    for (uint4& words : state) words = {has_state ? 0U : 0xff800000U, 0x80000000U, 1, 1};  // of no keys: -inf, -0
    bool missing = false;
    do {
      opaque(places.pitch);  // addresses are worked out anew: there are no registers for all of them
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        ptx::ld_relaxed_gpu_v4(outs[i], places.of(i) + 4 * lane_of_row(), lacks(outs[i]));
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ld_relaxed_gpu_v4(state[i], my_state + 4 * i, lacks(state[i]));
      missing = lacks(state[0]) || lacks(state[1]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) missing = missing || lacks(outs[i]);
    } while (__any_sync(0xffffffffU, missing));  // lanes that part company here would shuffle one by one below
    __syncwarp();
    opaque(places.pitch);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      ptx::st_relaxed_gpu_v4_if(is_sent(i), places.of(i) + 4 * lane_of_row(), {0, 0, 0, 0});
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::st_relaxed_gpu_v4_if(has_state, my_state + 4 * i, {0, 0, 0, 0});
  }

  /// Adds a half to `merged`, in order. For whole warps.
  template <int kWhich>
  __device__ __forceinline__ void add_half_to(Partial& merged) const {
    const bool counts = lane_of_row() / kHalf == kWhich;
    const float row_max = counts ? __uint_as_float(state[0].x) : -attention::kInfinity;
    float next = row_max;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) next = fmaxf(next, __shfl_xor_sync(0xffffffffU, next, mask));
    next = fmaxf(merged.row_max, next);
    const float finite = attention::finite_row_max(next);
    const float weight = ptx::ex2_approx_ftz(row_max - finite);
    float sum = counts ? weight * __uint_as_float(state[0].y) : 0.0F;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
    const float factor = ptx::ex2_approx_ftz(merged.row_max - finite);
    merged.row_max = next;
    merged.sum = fmaf(merged.sum, factor, sum);
#pragma unroll
    for (float& x : merged.out) x *= factor;
    const int first_lane = static_cast<int>(threadIdx.x) % 32 - lane_of_row();
#pragma unroll
    for (int i = kWhich * kHalf; i < (kWhich + 1) * kHalf; ++i) {
      const float w = __shfl_sync(0xffffffffU, weight, first_lane + i);
      attention::add_weighted(merged.out, w, floats_of(outs[i]));
    }
  }
};

}  // namespace heed::sm90_decode

/// Softcap, cap * tanh(s / cap) (Gemma 2, arXiv 2408.00118), of a score in a register: exact to rounding, or by a
/// polynomial where scores are small.
#pragma once

#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// cap * tanh(s / cap) for the score x * scale, with tanh(y) = 1 - 2 / (1 + 2^(2 y log2(e))): the absolute error is
/// some 2^-22 of the cap, tanh.approx.f32 is wrong by 2^-11 of the result. No infinity is divided by another: for large
/// y the quotient is 0, and for very negative ones 2, so that infinite scores become the cap and its negative. NaN
/// stays.
/// @param rate 2 * scale * log2(e) / cap
/// @param cap in the units of the result
__device__ __forceinline__ float capped(float x, float rate, float cap) {
  return fmaf(-2.0F * cap, ptx::rcp_approx_ftz(1.0F + ptx::ex2_approx_ftz(x * rate)), cap);
}

/// Up to this tanh is a polynomial.
inline constexpr float kSmallTanh = 0.75F;

/// The same where |s / cap| is at most kSmallTanh: cap * tanh(x rate) as an odd polynomial of x, the best of its
/// degree. Six instructions of the FMA pipe in place of two of the special-function unit, which exponentials keep busy.
/// @tparam kPrecise off by 2^-22.3 of the cap, with an instruction more, in place of 2^-18: with a cap of 50 that is
/// 2e-4 of a score, where 16 bits of a probability leave 4e-3
/// @tparam kInTerms rate and cap are in the terms, which takes four registers and saves two instructions. At head dim
/// 256 56 bytes were spilled.
template <bool kPrecise, bool kInTerms = true>
struct SmallCap {
  static constexpr int kTerms = kPrecise ? 5 : 4;
  float rate;
  float cap;
  float term[kTerms];  ///< of x, x^3, .. or of x * rate

  /// @param of_rate scale / cap
  /// @param of_cap in the units of the result
  __device__ __forceinline__ SmallCap(float of_rate, float of_cap) : rate(of_rate), cap(of_cap) {
    constexpr float kPreciseTerms[5] = {0.99999723F, -0.33323076F, 0.13226092F, -0.04928045F, 0.01231883F};
    constexpr float kTermsOf16[5] = {0.9999556F, -0.33222764F, 0.12577092F, -0.03377828F, 0.0F};
    float power = kInTerms ? cap * rate : 1.0F;
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      term[i] = power * (kPrecise ? kPreciseTerms[i] : kTermsOf16[i]);
      if (kInTerms) power *= rate * rate;
    }
  }

  /// Whether all lanes of a warp have small scores, so that they go one way. Of rates so small that terms leave the
  /// range of fp32 none are.
  /// @param largest of the lane's scores, without their signs, times their rate
  __device__ __forceinline__ bool is_for(float largest) const {
    constexpr float kLeastTerm = 0x1p-120F;
    return !__any_sync(0xffffffffU, !(largest <= kSmallTanh && fabsf(term[kTerms - 1]) >= kLeastTerm));
  }

  __device__ __forceinline__ float operator()(float x) const {
    const float y = kInTerms ? x : x * rate;
    const float u = y * y;
    float p = term[kTerms - 1];
#pragma unroll
    for (int i = kTerms - 2; i >= 0; --i) p = fmaf(p, u, term[i]);
    return (kInTerms ? y : y * cap) * p;
  }
};

}  // namespace heed::attention

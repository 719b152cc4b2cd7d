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

/// The same where |s / cap| is at most kSmallTanh, by the least polynomial that is off by 2^-21.9 there: seven
/// instructions of the FMA pipe in place of two of the special-function unit, which exponentials keep busy.
/// @param rate scale / cap
__device__ __forceinline__ float capped_small(float x, float rate, float cap) {
  const float y = x * rate;
  const float u = y * y;
  float p = fmaf(0.012318836F, u, -0.04928045F);
  p = fmaf(p, u, 0.13226092F);
  p = fmaf(p, u, -0.33323076F);
  p = fmaf(p, u, 0.9999972F);
  return y * cap * p;
}

/// Whether all lanes of a warp have small scores, so that they go one way.
/// @param largest of the lane's, without their signs
__device__ __forceinline__ bool is_small(float largest, float rate) {
  return !__any_sync(0xffffffffU, !(largest * rate <= kSmallTanh));
}

}  // namespace heed::attention

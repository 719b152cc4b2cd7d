/// 2^x for the softmax: the special-function unit, or a polynomial on the FMA pipe for a share of the values.
#pragma once

#include "kernels/attention/policies.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// 2^x for x <= 0 on the FMA pipe: nearest integer by adding 1.5 * 2^23, cubic on the rest, times a power of two made
/// of bits (Cody and Waite 1980). Coefficients minimise the relative error on [-0.5, 0.5] with p(0) = 1: 1.0e-4, below
/// the 2.4e-4 that rounding P to fp16 costs. Flushes to 0 below -126, where the rest means nothing. NaN stays NaN: a
/// product passes it on, which an integer added to the exponent of NaN would not.
__device__ __forceinline__ float exp2_polynomial(float x) {
  const float shifted = x + 12582912.0F;
  const float f = x - (shifted - 12582912.0F);
  const float p = fmaf(fmaf(fmaf(0.05500893294811249F, f, 0.2422109693288803F), f, 0.6932829022407532F), f, 1.0F);
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000U);
  return x < -126.0F ? 0.0F : p * power;
}

/// `index` is the compile-time position of the value in its fragment: it decides which unit takes it.
template <Exp2 kExp2>
__device__ __forceinline__ float exp2(float x, int index) {
  if (kExp2 == Exp2::poly_quarter && index % 4 == 3) return exp2_polynomial(x);
  if (kExp2 == Exp2::poly_half && index % 2 == 1) return exp2_polynomial(x);
  return ptx::ex2_approx_ftz(x);
}

}  // namespace heed::attention

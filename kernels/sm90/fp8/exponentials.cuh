/// 2^x for probabilities that are rounded to 8 bits: the special-function unit, or a polynomial on the FMA pipe for a
/// share of the values (FlashAttention-4's, kernels/attention/exp2.cuh), of a lower degree than 16 bits ask for.
#pragma once

#include "kernels/attention/policies.hpp"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/maximum.cuh"

namespace heed::sm90_fp8 {

/// 2^x for x <= 127: nearest integer by adding 1.5 * 2^23, a square on the rest, times a power of two made of bits
/// (Cody and Waite 1980). Coefficients minimise the relative error on [-0.5, 0.5] with p(0) = 1: 2.0e-3, of which e4m3,
/// with a unit roundoff of 6.3e-2, shows nothing. What is below -126 counts as that, and NaN stays NaN.
__device__ __forceinline__ float exp2_polynomial_8_bits(float x) {
  x = ptx::max_nan(x, -126.0F);
  const float shifted = x + 12582912.0F;
  const float f = x - (shifted - 12582912.0F);
  const float p = fmaf(fmaf(0.239864262F, f, 0.702941971F), f, 1.0F);
  return p * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000U);
}

/// `index` is the compile-time position of the value in its fragment: it decides which unit takes it.
template <attention::Exp2 kExp2>
__device__ __forceinline__ float exp2_8_bits(float x, int index) {
  if (kExp2 == attention::Exp2::poly_quarter && index % 4 == 3) return exp2_polynomial_8_bits(x);
  if (kExp2 == attention::Exp2::poly_half && index % 2 == 1) return exp2_polynomial_8_bits(x);
  return ptx::ex2_approx_ftz(x);
}

}  // namespace heed::sm90_fp8

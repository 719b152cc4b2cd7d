/// Divisions by factors, in fused multiplications and additions: the elements that true divisions have.
#pragma once

#include "kernels/ptx/math.cuh"
#include "lib/quantise/quantise_rows.hpp"

namespace heed::quantise {

/// A factor to divide by, with what divisions by it share.
struct Divisor {
  float scale;  ///< of numerator and factor: a power of two that brings the factor into [2^-49, 2^64]
  float factor;
  float reciprocal;
};
__device__ __forceinline__ Divisor divisor_of(float factor) {
  const unsigned magnitude = detail::bits_of_float(factor) & 0x7fffffffU;
  const float scale = magnitude < 0x21800000U ? 0x1.0p100F : magnitude > 0x5d800000U ? 0x1.0p-64F : 1.0F;
  const float scaled = __fmul_rn(factor, scale);
  const float guess = ptx::rcp_approx_ftz(scaled);
  const float near = __fmaf_rn(__fmaf_rn(-scaled, guess, 1.0F), guess, guess);
  float reciprocal = __fmaf_rn(__fmaf_rn(-scaled, near, 1.0F), near, near);
  // Of a mantissa of ones it comes out as the even neighbour.
  if ((magnitude & 0x7fffffU) == 0x7fffffU) reciprocal = detail::float_of_bits(detail::bits_of_float(reciprocal) | 1U);
  return {scale, scaled, reciprocal == reciprocal ? reciprocal : guess};  // of 0, infinity and NaN
}

/// What has the element of x / factor, for every x and factor.
///
/// Between 2^-20 and 2^20 it is x / factor, rounded once: x times the reciprocal is off by 1.5 units in the last place
/// at most, a correction by its remainder makes it one of the two floats beside x / factor, and a correction of one of
/// those by its remainder, then exact, is rounded as the quotient is where the reciprocal is (Markstein, "Computation
/// of elementary functions on the IBM RISC System/6000 processor", theorem 3). The last bit of no remainder is worth
/// less than 2^-116, so none is lost below fp32. Beyond, the product with the reciprocal has the same element: above
/// 2^20 all saturate, below 2^-20 all are zeros of the sign of x. So it has where it is infinite or NaN.
__device__ __forceinline__ float divided(float x, const Divisor& d) {
  const float scaled = __fmul_rn(x, d.scale);
  const float product = __fmul_rn(scaled, d.reciprocal);
  const float near = __fmaf_rn(__fmaf_rn(-product, d.factor, scaled), d.reciprocal, product);
  const float exact = __fmaf_rn(__fmaf_rn(-near, d.factor, scaled), d.reciprocal, near);
  const float magnitude = product < 0.0F ? -product : product;
  return magnitude < 0x1.0p20F && magnitude > 0x1.0p-20F ? exact : product;
}

/// factor_of without a division, whose call costs registers: mantissas are divided by the largest element, then have
/// their exponent again. A factor below normal numbers is the least of those in either way.
__device__ __forceinline__ float wide_factor_of(unsigned largest, int to_element) {
  if (largest == 0) return 1.0F;
  if (largest > 0x7f800000U) return detail::float_of_bits(kNan);
  const Divisor by = to_element == static_cast<int>(Element::e4m3)   ? Divisor{1.0F, 448.0F, 1.0F / 448.0F}
                     : to_element == static_cast<int>(Element::e5m2) ? Divisor{1.0F, 57344.0F, 1.0F / 57344.0F}
                                                                     : Divisor{1.0F, 127.0F, 1.0F / 127.0F};
  const unsigned mantissa =
      detail::bits_of_float(divided(detail::float_of_bits((largest & 0x7fffffU) | 0x3f800000U), by));
  const int bits = static_cast<int>(mantissa) + ((static_cast<int>(largest >> 23) - 127) << 23);
  constexpr int kLeast = 1 << 23;
  return detail::float_of_bits(static_cast<unsigned>(largest >> 23 == 0 || bits < kLeast ? kLeast : bits));
}

}  // namespace heed::quantise

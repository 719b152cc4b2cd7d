/// 2^x for probabilities that are rounded to 8 bits: the special-function unit, or a polynomial on the FMA pipe for a
/// share of the values (FlashAttention-4's, kernels/attention/exp2.cuh), of a lower degree than 16 bits ask for.
#pragma once

#include "kernels/attention/policies.hpp"
#include "kernels/attention/score_rows.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/maximum.cuh"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_fp8 {

/// 2^x for x <= 127: nearest integer by adding 1.5 * 2^23, a square on the rest, to whose exponent the integer is added
/// (Cody and Waite 1980). Coefficients minimise the relative error on [-0.5, 0.5] with p(0) = 1: 2.0e-3, of which e4m3,
/// with a unit roundoff of 6.3e-2, shows nothing. What is below -126 counts as that. NaN becomes a number: rows that
/// see one have to be NaN by their row maximum (row_maximum_or_nan).
__device__ __forceinline__ float exp2_polynomial_8_bits(float x) {
  x = fmaxf(x, -126.0F);
  const float shifted = x + 12582912.0F;
  const float f = x - (shifted - 12582912.0F);
  const float p = fmaf(fmaf(0.239864262F, f, 0.702941971F), f, 1.0F);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

/// The largest score of row h in the quad's columns; NaN where one is NaN.
template <int kRegisters>
__device__ __forceinline__ float row_maximum_or_nan(const float (&s)[kRegisters], int h) {
  float maximum = ptx::max_nan(s[2 * h], s[2 * h + 1]);
#pragma unroll
  for (int t = 1; t < kRegisters / 4; ++t)
    maximum = ptx::max_nan(maximum, ptx::max_nan(s[4 * t + 2 * h], s[4 * t + 2 * h + 1]));
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2)
    maximum = ptx::max_nan(maximum, __shfl_xor_sync(0xffffffffU, maximum, lanes));
  return maximum;
}

/// The row maximum of row h after a tile, whose scores are multiplied with `scale`.
template <attention::Exp2 kExp2, int kRegisters>
__device__ __forceinline__ float grown_row_max(float before, const float (&s)[kRegisters], int h, float scale) {
  if constexpr (kExp2 == attention::Exp2::hardware)
    return fmaxf(before, tile::quad_max(attention::row_maximum<kRegisters>(s, h)) * scale);
  else
    return ptx::max_nan(before, row_maximum_or_nan(s, h) * scale);
}

/// `index` is the compile-time position of the value in its fragment: it decides which unit takes it.
template <attention::Exp2 kExp2>
__device__ __forceinline__ float exp2_8_bits(float x, int index) {
  if (kExp2 == attention::Exp2::poly_quarter && index % 4 == 3) return exp2_polynomial_8_bits(x);
  if (kExp2 == attention::Exp2::poly_half && index % 2 == 1) return exp2_polynomial_8_bits(x);
  return ptx::ex2_approx_ftz(x);
}

}  // namespace heed::sm90_fp8

/// 2^x for probabilities that are rounded to 8 bits: the special-function unit, or a polynomial on the FMA pipe for a
/// share of the values (FlashAttention-4's, kernels/attention/exp2.cuh), of a lower degree than 16 bits ask for.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/attention/score_rows.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/bytes.cuh"
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

/// ptxas moves a wait for products in front of most exponentials, which would then run beside nothing; but it moves
/// none over a branch that needs all of them. This one is taken by warps with a sum that is NaN, and changes nothing.
__device__ __forceinline__ void stay_in_front(const float (&total)[2]) {
  unsigned has_nan = __any_sync(0xffffffffU, !(total[0] < attention::kInfinity && total[1] < attention::kInfinity));
  opaque(has_nan);
#pragma unroll 1
  for (unsigned i = 0; i < has_nan; ++i) ptx::fence_proxy_async();
}

/// Probabilities as they are the operand of P V: kernels/sm90/fp8/transposed_values.cuh says which key is where.
///
/// Probabilities are e4m3, which ends at 448 and has its last normal number at 2^-6: they are multiplied with 2^8, so
/// that what is 2^-14 of the row's largest keeps all its digits. The row sum is of the same numbers before they are
/// rounded, which costs no instruction: rounding to nearest is as often up as down, and the row's largest, 2^8, is
/// exact.
template <int kSteps>
__device__ __forceinline__ void round_to_operand(unsigned (&p)[kSteps][4], const float (&s)[16 * kSteps]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float* e = s + 16 * k + 8 * (r / 2) + 2 * (r % 2);
      p[k][r] = ptx::cvt_rn_satfinite_e4m3_x4(e[0], e[1], e[4], e[5]);
    }
}

}  // namespace heed::sm90_fp8

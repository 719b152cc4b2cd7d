/// 2^x and ln x for the softmax, without a library.
///
/// 2^x = 2^n p(x - n) with n the nearest integer; p is a polynomial with p(0) = 1 that minimises the largest relative
/// error on [-0.5, 0.5] (Lawson's iteratively reweighted least squares), so that 2^0 is exactly 1.
#pragma once

#include "cpu/config.hpp"
#include "cpu/simd.hpp"

namespace heed::cpu {

template <Exp2 kExp2>
inline Vec exp2_fraction(Vec f) {
  if constexpr (kExp2 == Exp2::degree3) {
    const Vec p = 0.05500893294811249F * f + 0.2422109693288803F;
    return (p * f + 0.6932829022407532F) * f + 1.0F;
  } else if constexpr (kExp2 == Exp2::degree4) {
    const Vec p = (0.009582852944731712F * f + 0.055906426161527634F) * f + 0.24024099111557007F;
    return (p * f + 0.6931241750717163F) * f + 1.0F;
  } else if constexpr (kExp2 == Exp2::degree5) {
    const Vec p =
        ((0.001326472731307149F * f + 0.009671512991189957F) * f + 0.05550733581185341F) * f + 0.24022242426872253F;
    return (p * f + 0.6931470036506653F) * f + 1.0F;
  } else {
    const Vec p = (((0.00015353361959569156F * f + 0.0013398875016719103F) * f + 0.00961843691766262F) * f +
                   0.055503323674201965F) *
                      f +
                  0.24022647738456726F;
    return (p * f + 0.6931471824645996F) * f + 1.0F;
  }
}

/// 2^x for x <= 0; 0 below -126 (fp32's smallest normal exponent; what lies below would make products slow), so that
/// -inf gives exactly 0. NaN gives NaN.
template <Exp2 kExp2>
inline Vec exp2(Vec x) {
#if defined(__AVX512DQ__)
  // fraction = x - n, 0 for -inf; p * 2^n where x is not below -126 (NaN is not), else 0.
  Vec fraction;
  asm("vreduceps $0, %1, %0" : "=v"(fraction) : "v"(x));
  const Vec polynomial = exp2_fraction<kExp2>(fraction);
  const Vec power = x - fraction;
  const Vec smallest = broadcast(-126.0F);
  Vec result;
  short in_range;
  asm("vcmpps $5, %4, %3, %1\n\tvscalefps %5, %2, %0%{%1%}%{z%}"
      : "=v"(result), "=&Yk"(in_range)
      : "v"(polynomial), "v"(x), "v"(smallest), "v"(power));
  return result;
#else
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  const IntVec below = x < -126.0F;
  const Vec clamped = select(below, Vec{}, x);
  const Vec shifted = clamped + kRound;
  const Vec fraction = clamped - (shifted - kRound);
  const IntVec power = (IntVec)shifted << 23;
  const Vec result = (Vec)((IntVec)exp2_fraction<kExp2>(fraction) + power);
  return select(x == x, select(below, Vec{}, result), x);
#endif
}

/// ln x for finite positive normal x, within 2 units in the last place: x = m 2^e with m in [2/3, 4/3),
/// ln m = 2 atanh((m - 1) / (m + 1)) by its series.
inline float natural_log(float x) {
  const int bits = __builtin_bit_cast(int, x);
  const int exponent = (bits - 0x3f2aaaab) >> 23;
  const float mantissa = __builtin_bit_cast(float, bits - (exponent << 23));
  const float t = (mantissa - 1.0F) / (mantissa + 1.0F);
  const float t2 = t * t;
  const float series = 2.0F * t * (1.0F + t2 * (0.333333333F + t2 * (0.2F + t2 * (0.142857143F + t2 * 0.111111111F))));
  return series + 0.693147181F * static_cast<float>(exponent);
}

}  // namespace heed::cpu

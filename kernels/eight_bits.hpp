/// Conversions of the 8-bit element types, for host, kernels and emulator alike: e4m3 and e5m2 (OCP 8-bit Floating
/// Point Specification, revision 1.0; Micikevicius et al., arXiv 2209.05433) and int8.
///
///            sign  exponent  mantissa   bias   largest            smallest   infinity   NaN
///     e4m3   1     4         3          7      448 (0x7e)         2^-9       none       0x7f, 0xff
///     e5m2   1     5         2          15     57344 (0x7b)       2^-16      0x7c       0x7d to 0x7f
///     int8   two's complement                  127                1          none       none
///
/// Conversions from fp32 round to nearest even and saturate: what lies beyond the largest number, infinity too, becomes
/// the largest number of the sign, as PTX's cvt.rn.satfinite. NaN stays NaN, and in int8 becomes 0, as cvt.rni.s8.
#pragma once

#include "kernels/contract.hpp"

namespace heed {

namespace detail {

HEED_HOST_DEVICE constexpr unsigned bits_of_float(float x) {
  return __builtin_bit_cast(unsigned, x);
}
HEED_HOST_DEVICE constexpr float float_of_bits(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}

/// A float of `kMantissa` mantissa bits and a bias that is `kBiasLess` below fp32's, from the 7 bits below the sign;
/// no NaN and no infinity.
template <int kMantissa, unsigned kBiasLess>
HEED_HOST_DEVICE constexpr float widened(unsigned sign, unsigned magnitude) {
  if (magnitude >> kMantissa != 0) return float_of_bits(sign | ((magnitude << (23 - kMantissa)) + (kBiasLess << 23)));
  // Zero or subnormal: a multiple of the smallest number, exact in fp32.
  const float smallest = float_of_bits((kBiasLess + 1 - kMantissa) << 23);
  return float_of_bits(sign | bits_of_float(static_cast<float>(magnitude) * smallest));
}

/// The reverse for numbers that are no NaN: to nearest even, at most `kLargest`, as the 7 bits below the sign.
template <int kMantissa, unsigned kBiasLess, unsigned kLargest>
HEED_HOST_DEVICE constexpr unsigned narrowed(unsigned magnitude) {
  if (magnitude < (kBiasLess + 1) << 23) {
    // Below the smallest normal number. To a float whose last bit is worth the smallest number an addition rounds.
    const unsigned round = (kBiasLess + 1 - kMantissa + 23) << 23;
    return bits_of_float(float_of_bits(magnitude) + float_of_bits(round)) - round;
  }
  constexpr int kCut = 23 - kMantissa;
  const unsigned rounded =
      (magnitude + ((1U << (kCut - 1)) - 1) + ((magnitude >> kCut) & 1U) - (kBiasLess << 23)) >> kCut;
  return rounded < kLargest ? rounded : kLargest;
}

}  // namespace detail

HEED_HOST_DEVICE constexpr float e4m3_to_float(unsigned char bits) {
  const unsigned sign = (bits & 0x80U) << 24;
  const unsigned magnitude = bits & 0x7fU;
  if (magnitude == 0x7f) return detail::float_of_bits(sign | 0x7fc00000U);
  return detail::widened<3, 120>(sign, magnitude);
}

HEED_HOST_DEVICE constexpr unsigned char float_to_e4m3(float x) {
  const unsigned bits = detail::bits_of_float(x);
  const unsigned sign = (bits >> 24) & 0x80U;
  const unsigned magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<unsigned char>(sign | 0x7fU);
  return static_cast<unsigned char>(sign | detail::narrowed<3, 120, 0x7e>(magnitude));
}

HEED_HOST_DEVICE constexpr float e5m2_to_float(unsigned char bits) {
  const unsigned sign = (bits & 0x80U) << 24;
  const unsigned magnitude = bits & 0x7fU;
  if (magnitude > 0x7c) return detail::float_of_bits(sign | 0x7fc00000U);
  if (magnitude == 0x7c) return detail::float_of_bits(sign | 0x7f800000U);
  return detail::widened<2, 112>(sign, magnitude);
}

HEED_HOST_DEVICE constexpr unsigned char float_to_e5m2(float x) {
  const unsigned bits = detail::bits_of_float(x);
  const unsigned sign = (bits >> 24) & 0x80U;
  const unsigned magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<unsigned char>(sign | 0x7fU);
  return static_cast<unsigned char>(sign | detail::narrowed<2, 112, 0x7b>(magnitude));
}

HEED_HOST_DEVICE constexpr float int8_to_float(unsigned char bits) {
  return static_cast<float>(static_cast<signed char>(bits));
}

HEED_HOST_DEVICE constexpr unsigned char float_to_int8(float x) {
  if (!(x == x)) return 0;
  const float bounded = x < -128.0F ? -128.0F : x > 127.0F ? 127.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: the last bit of a sum with it is worth 1
  const unsigned rounded = detail::bits_of_float(bounded + kRound) - detail::bits_of_float(kRound);
  return static_cast<unsigned char>(rounded & 0xffU);
}

/// One element of an 8-bit type as fp32.
template <Element kElement>
HEED_HOST_DEVICE constexpr float eight_bits_to_float(unsigned char bits) {
  static_assert(kElement == Element::e4m3 || kElement == Element::e5m2 || kElement == Element::int8);
  if constexpr (kElement == Element::e4m3) return e4m3_to_float(bits);
  if constexpr (kElement == Element::e5m2) return e5m2_to_float(bits);
  return int8_to_float(bits);
}

/// fp32 as one element of an 8-bit type.
template <Element kElement>
HEED_HOST_DEVICE constexpr unsigned char float_to_eight_bits(float x) {
  static_assert(kElement == Element::e4m3 || kElement == Element::e5m2 || kElement == Element::int8);
  if constexpr (kElement == Element::e4m3) return float_to_e4m3(x);
  if constexpr (kElement == Element::e5m2) return float_to_e5m2(x);
  return float_to_int8(x);
}

}  // namespace heed

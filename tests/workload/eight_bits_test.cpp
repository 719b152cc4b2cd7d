// Conversions of e4m3, e5m2 and int8: all 256 values, the points half way between neighbours, and what saturates.
#include "kernels/eight_bits.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/element.hpp"
#include "testing.hpp"
#include "workload/elements.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

struct Format {
  Dtype dtype;
  int mantissa;
  int bias;
  unsigned largest;    // as the bits below the sign
  unsigned first_nan;  // likewise
  float (*widen)(unsigned char);
  unsigned char (*narrow)(float);
};
constexpr Format kFormats[] = {{Dtype::e4m3, 3, 7, 0x7e, 0x7f, e4m3_to_float, float_to_e4m3},
                               {Dtype::e5m2, 2, 15, 0x7b, 0x7d, e5m2_to_float, float_to_e5m2}};

// The definition: (-1)^s 2^(e - bias) 1.m, and for e = 0 (-1)^s 2^(1 - bias) 0.m.
double defined(const Format& f, unsigned bits) {
  const unsigned exponent = (bits & 0x7f) >> f.mantissa;
  const double fraction = (bits & ((1U << f.mantissa) - 1)) / std::exp2(f.mantissa);
  const double size =
      exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1 + fraction, static_cast<int>(exponent) - f.bias);
  return (bits & 0x80) != 0 ? -size : size;
}

TEST(EightBits, EveryValueIsThatOfTheFormatAndSurvivesTheRoundTrip) {
  for (const Format& f : kFormats)
    for (unsigned bits = 0; bits < 256; ++bits) {
      const float value = f.widen(static_cast<unsigned char>(bits));
      if ((bits & 0x7f) >= f.first_nan) {
        ASSERT_TRUE(std::isnan(value)) << bits;
        ASSERT_GE(f.narrow(value) & 0x7f, f.first_nan);
        ASSERT_EQ(std::signbit(value), bits >= 0x80);
        continue;
      }
      if ((bits & 0x7f) > f.largest) {
        ASSERT_EQ(value, bits < 0x80 ? INFINITY : -INFINITY) << bits;
        ASSERT_EQ(f.narrow(value) & 0x7f, f.largest) << "saturates";
        continue;
      }
      ASSERT_EQ(value, defined(f, bits)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x80);
      ASSERT_EQ(f.narrow(value), bits);
    }
  for (unsigned bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<unsigned char>(bits);
    ASSERT_EQ(int8_to_float(byte), static_cast<float>(static_cast<std::int8_t>(byte)));
    ASSERT_EQ(float_to_int8(int8_to_float(byte)), byte);
  }
}

TEST(EightBits, RoundToNearestEven) {
  for (const Format& f : kFormats)
    for (unsigned bits = 0; bits < f.largest; ++bits)
      for (const unsigned sign : {0U, 0x80U}) {
        const double low = defined(f, bits | sign), high = defined(f, (bits + 1) | sign);
        const auto middle = static_cast<float>((low + high) / 2);
        ASSERT_EQ(middle, (low + high) / 2);  // exact in fp32
        ASSERT_EQ(f.narrow(middle), (bits % 2 == 0 ? bits : bits + 1) | sign) << bits;
        ASSERT_EQ(f.narrow(std::nextafter(middle, 0.0F)), bits | sign) << bits;
        ASSERT_EQ(f.narrow(std::nextafter(middle, sign == 0 ? INFINITY : -INFINITY)), (bits + 1) | sign) << bits;
      }
  for (int x = -128; x < 127; ++x) {
    const float middle = static_cast<float>(x) + 0.5F;
    ASSERT_EQ(int8_to_float(float_to_int8(middle)), static_cast<float>(x % 2 == 0 ? x : x + 1)) << x;
    ASSERT_EQ(int8_to_float(float_to_int8(std::nextafter(middle, -1000.0F))), static_cast<float>(x));
    ASSERT_EQ(int8_to_float(float_to_int8(std::nextafter(middle, 1000.0F))), static_cast<float>(x + 1));
  }
}

TEST(EightBits, OverflowSaturatesAndNaNStays) {
  for (const Format& f : kFormats) {
    const auto largest = static_cast<float>(defined(f, f.largest));
    for (const float beyond : {std::nextafter(largest, INFINITY), 2 * largest, 1e30F, INFINITY}) {
      EXPECT_EQ(f.narrow(beyond), f.largest) << beyond;
      EXPECT_EQ(f.narrow(-beyond), f.largest | 0x80) << beyond;
    }
    EXPECT_TRUE(std::isnan(f.widen(f.narrow(NAN))));
    EXPECT_TRUE(std::isnan(f.widen(f.narrow(-NAN))));
    EXPECT_EQ(f.narrow(1e-30F), 0);
    EXPECT_EQ(f.narrow(-1e-30F), 0x80);
    EXPECT_EQ(f.narrow(std::bit_cast<float>(1U)), 0);  // a subnormal number of fp32
  }
  for (const float beyond : {127.5F, 128.0F, 1e30F, INFINITY}) {
    EXPECT_EQ(int8_to_float(float_to_int8(beyond)), 127);
    EXPECT_EQ(int8_to_float(float_to_int8(-beyond - 1)), -128);
  }
  EXPECT_EQ(float_to_int8(NAN), 0);
}

// Usable where a kernel is compiled.
static_assert(e4m3_to_float(0x38) == 1.0F && float_to_e4m3(1.0F) == 0x38 && float_to_e4m3(500.0F) == 0x7e);
static_assert(e5m2_to_float(0x3c) == 1.0F && float_to_e5m2(1.0F) == 0x3c && float_to_e5m2(1e9F) == 0x7b);
static_assert(int8_to_float(0xff) == -1.0F && float_to_int8(-1.5F) == 0xfe);
static_assert(eight_bits_to_float<Element::e4m3>(0x01) == 0x1p-9F &&
              eight_bits_to_float<Element::e5m2>(0x01) == 0x1p-16F);

TEST(EightBits, ElementsOfAnArrayAreThoseOfTheFormats) {
  unsigned char bytes[256];
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<unsigned char>(i);
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8}) {
    EXPECT_EQ(size_of(dtype), 1U);
    double many[200];
    load_elements(dtype, bytes, 56, 200, many);
    for (std::size_t i = 0; i < 200; ++i) {
      const float one = load_element(dtype, bytes, 56 + i);
      ASSERT_TRUE(many[i] == one || (std::isnan(many[i]) && std::isnan(one))) << i;
      if (std::isnan(one)) continue;
      const float kept = std::isinf(one) ? std::copysign(57344.0F, one) : one;
      unsigned char stored = 0;
      store_element(dtype, &stored, 0, one);
      ASSERT_EQ(load_element(dtype, &stored, 0), kept);
      ASSERT_EQ(round_to(dtype, one), kept);
    }
  }
}

}  // namespace
}  // namespace heed

#include "workload/half.hpp"

#include <cmath>

#include "base/random.hpp"
#include "testing.hpp"

namespace heed {
namespace {

TEST(Half, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!std::isnan(fp16_to_float(half))) {
      ASSERT_EQ(float_to_fp16(fp16_to_float(half)), half);
    }
    if (!std::isnan(bf16_to_float(half))) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(half)), half);
    }
  }
}

// Between two neighbours the nearer one is chosen, the even one when they are equally near.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = fp16_to_float(static_cast<std::uint16_t>(bits));
    const double high = fp16_to_float(static_cast<std::uint16_t>(bits + 1));
    const double middle = (low + high) / 2;
    ASSERT_EQ(float_to_fp16(static_cast<float>(middle)), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(float_to_fp16(std::nextafter(static_cast<float>(middle), -INFINITY)), bits);
    ASSERT_EQ(float_to_fp16(std::nextafter(static_cast<float>(middle), INFINITY)), bits + 1);
  }
}

TEST(Half, LimitsAndSpecialValues) {
  EXPECT_EQ(float_to_fp16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_fp16(-INFINITY), 0xfc00);
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(NAN))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
  EXPECT_EQ(float_to_bf16(INFINITY), 0x7f80);
  EXPECT_EQ(float_to_fp16(0x1.0p-25F), 0);  // half of the smallest subnormal: to even
  EXPECT_EQ(float_to_fp16(0x1.8p-25F), 1);
  EXPECT_TRUE(std::isnan(fp16_to_float(0xffff))) << "the poison must be NaN";
  EXPECT_TRUE(std::isnan(bf16_to_float(0xffff)));
}

TEST(Half, Bf16RoundsLikeItsDefinition) {
  Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    const auto x = static_cast<float>(random.normal() * std::exp(random.uniform(-30, 30)));
    const float rounded = bf16_to_float(float_to_bf16(x));
    ASSERT_LE(std::abs(rounded - x), std::abs(x) * 0x1.0p-8F * 1.0001F + 1e-40F);
  }
}

}  // namespace
}  // namespace heed

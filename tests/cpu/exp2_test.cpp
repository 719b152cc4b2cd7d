// The vector functions of CPU candidates, compiled here for the baseline instruction set: the polynomials are the same.
#include "cpu/exp2.hpp"

#include <cmath>

#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::cpu {
namespace {

template <Exp2 kExp2>
double largest_error() {
  double worst = 0;
  for (double x = -126; x <= 0; x += 0.00137) {
    const auto f = static_cast<float>(x);
    const double got = exp2<kExp2>(broadcast(f))[0];
    worst = std::max(worst, std::abs(got / std::exp2(static_cast<double>(f)) - 1));
  }
  return worst;
}

TEST(CpuExp2, ErrorsAreWhatTheConfigSays) {
  EXPECT_LT(largest_error<Exp2::degree3>(), 1.05e-4);
  EXPECT_LT(largest_error<Exp2::degree4>(), 3.0e-6);
  EXPECT_LT(largest_error<Exp2::degree5>(), 2.5e-7);
  EXPECT_LT(largest_error<Exp2::degree6>(), 1.5e-7);
}

TEST(CpuExp2, ExactWhereItMatters) {
  EXPECT_EQ(exp2<Exp2::degree3>(broadcast(0.0F))[0], 1.0F);
  EXPECT_EQ(exp2<Exp2::degree5>(broadcast(-3.0F))[0], 0.125F);
  EXPECT_EQ(exp2<Exp2::degree5>(broadcast(-kInfinity))[0], 0.0F);
  EXPECT_EQ(exp2<Exp2::degree5>(broadcast(-200.0F))[0], 0.0F);
  EXPECT_EQ(exp2<Exp2::degree5>(broadcast(-126.0F))[0], 0x1.0p-126F);
}

TEST(CpuExp2, NaturalLogIsAccurate) {
  for (double x = 1e-30; x < 1e30; x *= 1.003) {
    const auto f = static_cast<float>(x);
    EXPECT_NEAR(natural_log(f), std::log(static_cast<double>(f)), 3e-7 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
  EXPECT_EQ(natural_log(1.0F), 0.0F);
}

TEST(CpuSimd, ConvertsEveryHalf) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<unsigned short>(bits);
    const float fp16 = to_float<Element::fp16>(half);
    if (std::isnan(fp16)) continue;
    ASSERT_EQ(fp16, fp16_to_float(half));
    ASSERT_EQ(from_float<Element::fp16>(fp16), half);
    ASSERT_EQ(to_float<Element::bf16>(half), bf16_to_float(half));
  }
}

}  // namespace
}  // namespace heed::cpu

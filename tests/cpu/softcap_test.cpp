// Softcap on a CPU, compiled here for the baseline instruction set: the polynomials are the same.
#include <cmath>

#include "cpu/features.hpp"
#include "testing.hpp"

namespace heed::cpu {
namespace {

float capped(float x, float cap) {
  return soft_capped<Exp2::degree6>(broadcast(x), cap)[0];
}

TEST(Softcap, IsRightToTheLastBitsOfScoresFarBelowTheCap) {
  for (const float cap : {0x1p-20F, 1.0F, 50.0F, 1e4F, 1e6F, 1e9F, 1e30F}) {
    for (double x = 1e-6; x < 1e5; x *= 1.0137) {
      const auto score = static_cast<float>(x);
      const double exact = cap * std::tanh(static_cast<double>(score) / cap);
      ASSERT_NEAR(capped(score, cap), exact, 0x1p-21 * exact) << "cap " << cap << ", score " << score;
      ASSERT_EQ(capped(-score, cap), -capped(score, cap));
    }
  }
}

TEST(Softcap, OfALaneDoesNotHangOnItsNeighbours) {
  Vec mixed = broadcast(3.0F);
  mixed[1] = 300.0F;
  mixed[2] = -kInfinity;
  mixed[3] = __builtin_nanf("");
  const Vec found = soft_capped<Exp2::degree6>(mixed, 50.0F);
  EXPECT_EQ(found[0], capped(3.0F, 50.0F));
  EXPECT_EQ(found[1], capped(300.0F, 50.0F));
  EXPECT_EQ(found[2], -50.0F);
  EXPECT_TRUE(std::isnan(found[3]));
}

TEST(Softcap, OfZeroIsZero) {
  EXPECT_EQ(capped(0.0F, 1.0F), 0.0F);
}

}  // namespace
}  // namespace heed::cpu

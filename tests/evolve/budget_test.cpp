#include "evolve/budget.hpp"

#include <cmath>

#include "testing.hpp"

namespace heed::evolve {
namespace {

TEST(Budget, WithoutALimitThereIsTimeForAll) {
  const Budget none;
  EXPECT_TRUE(std::isinf(none.left_s(1e6)));
  EXPECT_EQ(none.final_measurement_s(5), 5);
  EXPECT_EQ(none.reserve_s(10, 5), 0);
  EXPECT_GT(none.trials_left(1e6, 100, 10, 5), 1000);
}

// The search ends early enough for the final comparison, which is part of what was asked for.
TEST(Budget, TheEndIsPartOfIt) {
  const Budget budget{120};
  EXPECT_EQ(budget.final_measurement_s(5), 5);
  EXPECT_EQ(budget.reserve_s(1, 5), 24) << "three processes and a disturbed one";
  EXPECT_EQ(budget.trials_left(20, 4, 1, 5), 19) << "of 100 s 24 are kept";
  EXPECT_EQ(budget.trials_left(97, 4, 1, 5), 0);
  EXPECT_EQ(budget.trials_left(500, 4, 1, 5), 0);
}

TEST(Budget, ASmallOneLeavesHalfToTheSearchAndShortensTheEnd) {
  const Budget budget{10};
  EXPECT_EQ(budget.final_measurement_s(5), 0.5);
  EXPECT_EQ(budget.reserve_s(4, 5), 5);
  EXPECT_EQ(Budget{40}.final_measurement_s(5), 2);
}

}  // namespace
}  // namespace heed::evolve

#include "evolve/choice.hpp"

#include "testing.hpp"

namespace heed::evolve {
namespace {

TEST(Choice, TheFastestIsKept) {
  EXPECT_EQ(best_of({{1.1, 0}}), 0U);
  EXPECT_EQ(best_of({{1.1, 4.0}, {1.09, 3.0}}), 0U);  // 1% behind: its dependent launches do not count
}

TEST(Choice, DependentLaunchesBreakTies) {
  EXPECT_EQ(best_of({{1.006, 3.69}, {1.0052, 3.09}}), 1U);
  EXPECT_EQ(best_of({{1.006, 3.69}, {1.0055, 3.2}, {1.0052, 3.09}}), 2U);
  EXPECT_EQ(best_of({{1.006, 3.10}, {1.0052, 3.09}}), 0U);  // less than 1%
  EXPECT_EQ(best_of({{1.006, 3.10}, {1.0052, 0}}), 0U);     // cannot be one
  EXPECT_EQ(best_of({{1.006, 0}, {1.0052, 3.10}}), 1U);
  EXPECT_EQ(best_of({{1.006, 0}, {1.0052, 0}}), 0U);
  EXPECT_EQ(best_of({{1.006, 3.3}, {1.0055, 3.2}, {1.003, 3.0}}), 1U);  // the last does not tie with the first
}

TEST(Choice, FewerCyclesBreakTiesWhereNothingElseDoes) {
  EXPECT_EQ(best_of({{1.006, 0, 1.00}, {1.0052, 0, 1.05}}), 1U);
  EXPECT_EQ(best_of({{1.006, 0, 1.00}, {1.0052, 0, 1.005}}), 0U);
  EXPECT_EQ(best_of({{1.006, 0, 0}, {1.0052, 0, 1.05}}), 0U) << "one was not counted";
  EXPECT_EQ(best_of({{1.006, 3.1, 1.00}, {1.0052, 0, 1.05}}), 0U) << "cannot be a dependent";
}

TEST(Choice, TheCertainTheUndecidedAndWhoeverIsCalledUpAreFinalists) {
  using Numbers = std::vector<std::size_t>;
  const auto sharp = [](double ratio) { return measure::Ratio{ratio, ratio - 0.001, ratio + 0.001}; };
  std::vector<measure::Ratio> ratios = {sharp(1.0), sharp(1.02), {}, sharp(1.01), sharp(1.03), sharp(1.015)};
  EXPECT_EQ(finalists_of(ratios, {}, 0.002, {}), (Numbers{4, 1, 5}));
  EXPECT_EQ(finalists_of(ratios, {}, 0.002, {0, 1, 2}), (Numbers{4, 1, 5, 0})) << "one that has no ratio stays out";
  EXPECT_EQ(finalists_of({{}, {}}, {}, 0.002, {0}), Numbers{});
  ratios.push_back({1.93, 1.0, 2.25});
  ratios.push_back({1.005, 0.98, 1.02});  // as wide as that, and below the best
  EXPECT_EQ(finalists_of(ratios, {}, 0.002, {}), (Numbers{4, 1, 5, 6})) << "behind those that are certain";
  EXPECT_EQ(finalists_of(ratios, {.certain = 1, .undecided = 0}, 0.002, {}), (Numbers{4}));
}

TEST(Choice, ATieIsWithTheFaster) {
  EXPECT_TRUE(breaks_tie({0.9992, 3.0}, {1, 3.7}));
  EXPECT_FALSE(breaks_tie({0.997, 3.0}, {1, 3.7}));
  EXPECT_FALSE(breaks_tie({0.9992, 3.69}, {1, 3.7}));
}

}  // namespace
}  // namespace heed::evolve

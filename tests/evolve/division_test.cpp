// How trials are divided among the workloads of a model.
#include "evolve/division.hpp"

#include <numeric>

#include "testing.hpp"

namespace heed::evolve {
namespace {

Offer timed(double seconds, double floor_s = 0) {
  return {.calls = 10, .seconds = seconds, .floor_s = floor_s, .flops = 1e6};
}
Offer untimed(double calls, double flops) {
  return {.calls = calls, .flops = flops};
}

std::vector<int> trials_of(const std::vector<Part>& parts) {
  std::vector<int> trials;
  for (const Part& part : parts) trials.push_back(part.trials);
  return trials;
}

TEST(Division, FollowsTheSecondsOfCalls) {
  const std::vector<Part> parts = divide({timed(1), timed(6), timed(3)}, 40);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{4, 24, 12}));
  EXPECT_DOUBLE_EQ(parts[1].share, 0.6);
  EXPECT_EQ(by_trials(parts), (std::vector<std::size_t>{1, 2, 0}));
}

TEST(Division, SecondsBelowTheFloorAreNoGain) {
  // 10 calls of 0.1 s: one workload has 0.05 s of each to gain, the other 0.1 s.
  EXPECT_EQ(trials_of(divide({timed(1, 0.05), timed(1)}, 30)), (std::vector<int>{10, 20}));
  const std::vector<Part> parts = divide({timed(1, 0.2), timed(1)}, 30);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{0, 30}));
  EXPECT_EQ(parts[0].why, NoTrials::too_small);
  EXPECT_EQ(trials_of(divide({timed(1, 0.2), timed(3, 0.4)}, 8)), (std::vector<int>{2, 6}))
      << "none is above its floor";
}

TEST(Division, TheLargestRemaindersGetWhatIsLeft) {
  // Quotas of 4.7, 3.3 and 2.0.
  EXPECT_EQ(trials_of(divide({timed(4.7), timed(3.3), timed(2)}, 10)), (std::vector<int>{5, 3, 2}));
  EXPECT_EQ(trials_of(divide({timed(1), timed(1), timed(1)}, 11)), (std::vector<int>{4, 4, 3}));
}

TEST(Division, EveryWorkloadHasABaseAndATrialOrNothing) {
  // A quota of 1 is put up to 2; one of 0.2 is worth nothing.
  const std::vector<Part> parts = divide({timed(0.2), timed(1), timed(18.8)}, 20);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{0, 2, 18}));
  EXPECT_EQ(parts[0].why, NoTrials::too_small);
  // What one workload is put up by, another may have to be put up for.
  EXPECT_EQ(trials_of(divide({timed(1), timed(2.1), timed(6.9)}, 10)), (std::vector<int>{2, 2, 6}));
}

TEST(Division, TooFewTrialsGoToTheLargest) {
  const std::vector<Part> parts = divide({timed(1), timed(1.5), timed(2)}, 5);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(parts[0].why, NoTrials::too_few);
  EXPECT_EQ(trials_of(divide({timed(1), timed(2)}, 1)), (std::vector<int>{0, 1}));
  EXPECT_EQ(trials_of(divide({timed(1), timed(1)}, 2)), (std::vector<int>{2, 0}));
}

TEST(Division, WithoutSecondsOperationsCount) {
  EXPECT_EQ(trials_of(divide({untimed(1, 3e9), untimed(2, 0.5e9)}, 20)), (std::vector<int>{15, 5}));
  // An operation of the timed one has half of its time to gain, and the other has as many operations.
  const std::vector<Part> parts = divide({timed(1, 0.05), untimed(1, 1e7)}, 20);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{10, 10}));
  EXPECT_DOUBLE_EQ(parts[1].share, 0.5);
}

TEST(Division, RefusedWorkloadsTakeNothing) {
  Offer refused = timed(100);
  refused.refused = true;
  const std::vector<Part> parts = divide({refused, timed(1)}, 9);
  EXPECT_EQ(trials_of(parts), (std::vector<int>{0, 9}));
  EXPECT_EQ(parts[0].why, NoTrials::refused);
  EXPECT_EQ(parts[0].share, 0);
  EXPECT_DOUBLE_EQ(parts[1].share, 1);
  EXPECT_EQ(trials_of(divide({refused, refused}, 9)), (std::vector<int>{0, 0}));
  EXPECT_TRUE(by_trials(divide({refused}, 9)).empty());
  EXPECT_TRUE(divide({}, 9).empty());
}

TEST(Division, TimeIsDividedByTrialsToCome) {
  EXPECT_DOUBLE_EQ(time_of_first(60, {6, 4, 2}), 30);
  EXPECT_DOUBLE_EQ(time_of_first(40, {4, 2}), 40.0 * 4 / 6) << "what the first left over is the others'";
  EXPECT_DOUBLE_EQ(time_of_first(7, {2}), 7);
  EXPECT_DOUBLE_EQ(time_of_first(-1, {2}), 0);
  EXPECT_DOUBLE_EQ(time_of_first(7, {}), 0);
}

TEST(Division, TrialsAreNeitherLostNorMade) {
  for (int trials = 1; trials < 60; ++trials)
    for (const std::vector<Offer>& offers :
         {std::vector{timed(1)}, std::vector{timed(1), timed(0.01), timed(7), untimed(3, 1e7)},
          std::vector{timed(1), timed(1), timed(1), timed(1), timed(1), timed(1), timed(1)}}) {
      const std::vector<int> made = trials_of(divide(offers, trials));
      EXPECT_EQ(std::accumulate(made.begin(), made.end(), 0), trials);
      for (const int one : made) EXPECT_TRUE(one == 0 || one >= std::min(kLeastTrials, trials)) << one;
    }
}

}  // namespace
}  // namespace heed::evolve

// Who proposes how many trials.
#include "propose/schedule.hpp"

#include "testing.hpp"

namespace heed::propose {
namespace {

TEST(Schedule, AnyShareIsKeptOverGenerations) {
  for (const double share : {0.1, 0.25, 0.5, 0.6, 1.0}) {
    int models = 0;
    for (int generation = 0; generation < 40; ++generation) {
      const int places = places_at_share(share, 5, generation * 5);
      EXPECT_GE(places, 0);
      EXPECT_LE(places, 5);
      models += places;
    }
    EXPECT_NEAR(models, share * 200, 1) << share;
  }
}

TEST(Schedule, TheBanditTriesBothAndFollowsTheGain) {
  EXPECT_EQ(places_by_bandit({}, {}, 2), 1) << "one each";
  const Record good{.trials = 50, .gain = 1, .seconds = 100};
  const Record poor{.trials = 50, .gain = 0.01, .seconds = 100};
  EXPECT_GE(places_by_bandit(poor, good, 10), 8);
  EXPECT_LE(places_by_bandit(good, poor, 10), 2);
  const Record seldom{.trials = 1, .gain = 0, .seconds = 100};
  EXPECT_GE(places_by_bandit(good, seldom, 5), 1) << "none is left out for ever";
  const Record slow{.trials = 50, .gain = 1, .seconds = 10'000};
  EXPECT_GE(places_by_bandit(slow, good, 10), 8) << "gain a second, not a trial";
}

TEST(Schedule, WithoutAnyGainBothGetAsMany) {
  const Record same{.trials = 20, .gain = 0, .seconds = 100};
  EXPECT_NEAR(places_by_bandit(same, same, 10), 5, 1);
}

}  // namespace
}  // namespace heed::propose

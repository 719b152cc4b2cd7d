#include "evolve/draft.hpp"

#include "evolve/selection.hpp"

#include "testing.hpp"

namespace heed::evolve {
namespace {

trial::Screening screening(double ratio, double disagreement = 0) {
  int at = 0;
  const auto block = [&] { return 10 / ratio * (at++ < 2 ? 1 + disagreement : 1); };
  return {measure::measure_pair([] { return 10.0; }, block, {.least_quads = 2, .most_quads = 2}), ""};
}

Place place_of(const std::vector<double>& ratios) {
  Place place;
  for (const double ratio : ratios) {
    Draft& draft = place.drafts.emplace_back();
    if (ratio > 0) draft.take(screening(ratio));
  }
  return place;
}

TEST(Draft, LooksArePutTogether) {
  Draft draft;
  draft.take(screening(1.0));
  draft.take(screening(1.1));
  EXPECT_NEAR(draft.pair.ratio.value, 1.05, 1e-12);
  EXPECT_EQ(draft.pair.ratios.size(), 4U);
  EXPECT_EQ(draft.screenings.size(), 2U);
}

// Not with what it read before: a variant that died once may be timed, and is none to choose.
TEST(Draft, OneThatFailedStartsAnew) {
  Draft draft;
  draft.take(screening(1.3));
  draft.take({{}, "it died by signal 11"});
  EXPECT_EQ(draft.certain(), 0);
  EXPECT_TRUE(draft.screenings.empty());
  EXPECT_EQ(draft.reason, "it died by signal 11");
}

TEST(Draft, TheFastestIsTheBestAndElseTheFirst) {
  EXPECT_NEAR(place_of({1.0, 1.2, 1.1}).best().certain(), 1.2, 1e-12);
  Place none = place_of({0, 0, 0});
  EXPECT_EQ(&none.best(), &none.drafts.front());
}

// What its few readings disagree by is not certain.
TEST(Draft, ReadingsThatDisagreeDoNotLead) {
  Place place = place_of({1.1});
  place.drafts.emplace_back().take(screening(1.4, 0.5));
  EXPECT_GT(place.drafts[1].pair.ratio.value, 1.1);
  EXPECT_EQ(&place.best(), &place.drafts[0]);
}

// One lucky reading leads until it is looked at again, and one whose readings disagree oftener.
TEST(Draft, WhoLeadsByLuckFallsBack) {
  Place place = place_of({1.00, 1.02, 1.01});
  EXPECT_EQ(&place.best(), &place.drafts[1]);
  EXPECT_FALSE(place.best().is_settled());
  place.best().take(screening(0.98));  // 1.00 in the mean
  EXPECT_TRUE(place.drafts[1].is_settled());
  EXPECT_EQ(&place.best(), &place.drafts[2]);
  place.best().give_up("the same program as another");
  EXPECT_EQ(&place.best(), &place.drafts[0]);
  Draft disturbed;
  for (int taken = 1; taken <= kMostMeasurements; ++taken) {
    disturbed.take(screening(1.2, 0.4));
    EXPECT_EQ(disturbed.is_settled(), taken == kMostMeasurements) << taken;
  }
}

TEST(Draft, ProposalsOfAPlaceStayTogether) {
  std::vector<Proposal> proposals(5);
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    proposals[i].place = i < 1 ? 0 : i < 4 ? 2 : 3;
    proposals[i].why = std::to_string(i);
  }
  const std::vector<Place> places = places_of(proposals);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[0].drafts.size(), 1U);
  EXPECT_EQ(places[1].drafts.size(), 3U);
  EXPECT_EQ(places[2].drafts[0].proposal.why, "4");
  EXPECT_TRUE(places_of({}).empty());
}

}  // namespace
}  // namespace heed::evolve

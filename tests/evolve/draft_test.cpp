#include "evolve/draft.hpp"

#include "testing.hpp"

namespace heed::evolve {
namespace {

Place place_of(const std::vector<double>& ratios) {
  Place place;
  for (const double ratio : ratios) {
    Draft& draft = place.drafts.emplace_back();
    if (ratio > 0) draft.take({ratio, 10 / ratio, ""});
  }
  return place;
}

TEST(Draft, LooksAreAveraged) {
  Draft draft;
  draft.take({1.0, 10, ""});
  draft.take({1.1, 9, ""});
  draft.take({1.2, 8, ""});
  EXPECT_NEAR(draft.look.ratio, 1.1, 1e-12);
  EXPECT_NEAR(draft.look.us, 9, 1e-12);
  EXPECT_EQ(draft.looks, 3);
}

// Not with what it read before: a variant that died once may be timed, and is none to choose.
TEST(Draft, OneThatFailedStartsAnew) {
  Draft draft;
  draft.take({1.3, 10, ""});
  draft.take({0, 0, "it died by signal 11"});
  EXPECT_EQ(draft.look.ratio, 0);
  EXPECT_EQ(draft.looks, 0);
  EXPECT_EQ(draft.look.reason, "it died by signal 11");
}

TEST(Draft, TheFastestIsTheBestAndElseTheFirst) {
  EXPECT_EQ(place_of({1.0, 1.2, 1.1}).best().look.ratio, 1.2);
  Place none = place_of({0, 0, 0});
  EXPECT_EQ(&none.best(), &none.drafts.front());
}

// One lucky reading leads until it is looked at again.
TEST(Draft, WhoLeadsByLuckFallsBack) {
  Place place = place_of({1.00, 1.02, 1.01});
  EXPECT_EQ(&place.best(), &place.drafts[1]);
  place.best().take({0.98, 10.2, ""});  // 1.00 in the mean
  EXPECT_EQ(&place.best(), &place.drafts[2]);
  place.best().give_up("the same program as another");
  EXPECT_EQ(&place.best(), &place.drafts[0]);
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

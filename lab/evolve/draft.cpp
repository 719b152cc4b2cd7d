#include "evolve/draft.hpp"

#include <algorithm>

#include "evolve/selection.hpp"

namespace heed::evolve {

void Draft::take(const trial::Screening& one) {
  if (!one.reason.empty()) {
    give_up(one.reason);
    return;
  }
  screenings.push_back(one.pair);
  pair = measure::together(screenings);
}

void Draft::give_up(const std::string& why) {
  screenings.clear();
  pair = {};
  reason = why;
}

double Draft::certain() const {
  return pair.ratio.value * (1 - std::clamp(pair.ratio.uncertainty() - kSharp, 0.0, 1.0));
}

bool Draft::is_settled() const {
  const auto times = static_cast<int>(screenings.size());
  return times >= kMostMeasurements || (times >= 2 && pair.ratio.uncertainty() <= kCoarse);
}

Draft& Place::best() {
  return *std::max_element(drafts.begin(), drafts.end(),
                           [](const Draft& a, const Draft& b) { return a.certain() < b.certain(); });
}

std::vector<Place> places_of(std::vector<Proposal> proposals) {
  std::vector<Place> places;
  for (Proposal& proposal : proposals) {
    if (places.empty() || places.back().drafts.front().proposal.place != proposal.place) places.emplace_back();
    places.back().drafts.emplace_back().proposal = std::move(proposal);
  }
  return places;
}

}  // namespace heed::evolve

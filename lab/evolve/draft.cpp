#include "evolve/draft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.hpp"
#include "evolve/run.hpp"
#include "evolve/selection.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

void Draft::take(const trial::Look& one) {
  if (!one.reason.empty()) {
    give_up(one.reason);
    return;
  }
  looks.push_back(one.pair);
  pair = measure::together(looks);
}

void Draft::give_up(const std::string& why) {
  looks.clear();
  pair = {};
  reason = why;
}

double Draft::certain() const {
  return pair.ratio.value * (1 - std::clamp(pair.ratio.uncertainty() - kSharp, 0.0, 1.0));
}

bool Draft::is_settled() const {
  const auto times = static_cast<int>(looks.size());
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

void Evolution::start(Draft& draft) {
  draft.build = builder_.start(laboratory_.request_for(variant_of(draft.proposal)));
}

void Evolution::wait_for(Draft& draft) {
  if (draft.build.valid()) draft.outcome = draft.build.get();
  if (interrupted()) check_interrupt();  // a compiler killed by the interrupt is no verdict on the variant
}

void Evolution::look_at(Draft& draft) {
  HEED_CHECK(drafting_.has_value());
  check_interrupt();
  const bool is_late =
      draft.build.valid() && draft.build.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready;
  wait_for(draft);
  const Variant variant = variant_of(draft.proposal);
  if (const store::TrialRecord* twin = twin_of(variant, draft.outcome))
    draft.give_up(as_twin_of(*twin));
  else
    draft.take(drafting_->look(variant, draft.outcome, /*rested=*/is_late));
}

// Builds everything, and where a trial has several drafts looks at them and proposes more next to the best of them, as
// often as options.drafts allows. All places go through a round together, so that builds overlap with looks.
// @param history every trial and draft that is stored, those of this generation too where the run was interrupted in it
void Evolution::draft(int generation, const std::vector<Space>& where, std::vector<Individual> history,
                      std::vector<Place>& places) {
  const auto is_open = [&](const Place& place) {
    return place.drafts.size() > 1 && static_cast<int>(place.drafts.size()) < options_.strategy.drafts;
  };
  std::vector<std::size_t> known(places.size(), 0);  // how many of each place's drafts earlier rounds proposed
  for (int round = 0;; ++round) {
    for (std::size_t i = 0; i < places.size(); ++i)
      for (std::size_t n = known[i]; n < places[i].drafts.size(); ++n) start(places[i].drafts[n]);
    // On a GPU the first finished build is timed while the others are compiled. On a CPU the compiler would disturb
    // what is timed, so all builds come first.
    if (device_.kind == DeviceKind::cpu)
      for (Place& place : places)
        for (Draft& one : place.drafts) wait_for(one);
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::vector<Draft>& drafts = places[i].drafts;
      if (drafts.size() > 1) {
        for (std::size_t n = known[i]; n < drafts.size(); ++n) look_at(drafts[n]);
        while (places[i].best().certain() > 0 && !places[i].best().is_settled()) look_at(places[i].best());
      }
      for (std::size_t n = known[i]; n < drafts.size(); ++n) {
        const Proposal& p = drafts[n].proposal;
        history.push_back(
            {-1, generation, p.island, p.config, false, drafts[n].certain(), Bound::unknown, p.space, true});
      }
      known[i] = drafts.size();
    }
    std::vector<Proposal> leaders;
    for (Place& place : places)
      if (is_open(place) && place.best().certain() > 0) leaders.push_back(place.best().proposal);
    bool more = false;
    for (Proposal& proposal : refine(options_.strategy, where, generation, round, history, leaders))
      for (Place& place : places)
        if (is_open(place) && place.drafts.front().proposal.place == proposal.place) {
          place.drafts.emplace_back().proposal = std::move(proposal);
          more = true;
          break;
        }
    if (!more) return;
  }
}

// Makes a trial of the fastest draft. Where none could be timed the first is the trial, whose verdict says why.
store::TrialRecord Evolution::run_best_of(int number, int generation, Place& place) {
  for (Draft& one : place.drafts) {
    wait_for(one);
    // Trials of this generation came after the looks.
    if (!one.looks.empty())
      if (const store::TrialRecord* twin = twin_of(variant_of(one.proposal), one.outcome))
        one.give_up(as_twin_of(*twin));
  }
  const Draft& best = place.best();
  store::TrialRecord record = run_trial(number, generation, best.proposal, best.outcome);
  if (place.drafts.size() > 1)
    for (const Draft& one : place.drafts)
      record.drafts.push_back({{"config", describe(variant_of(one.proposal))},
                               {"operation", to_string(one.proposal.operation)},
                               {"why", one.proposal.why},
                               {"ratio", one.pair.ratio.value},
                               {"certain", one.certain()},
                               {"us", one.pair.trial_median_us},
                               {"looks", one.looks.size()},
                               {"reason", one.reason}});
  return record;
}

}  // namespace heed::evolve

#include "evolve/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/text.hpp"
#include "evolve/run_diagnosis.hpp"
#include "evolve/trials.hpp"
#include "process/interrupt.hpp"
#include "record/diagnosis.hpp"

namespace heed::evolve {
namespace {

constexpr double kFloorReached = 1.05;  // a champion within 5% of the floor has nothing left to gain

}  // namespace

std::vector<Individual> Search::individuals(int generation) const {
  std::vector<Individual> all;
  for (const store::TrialRecord& t : run_.trials) {
    const Variant variant = run_.variant_of(t);
    all.push_back({t.number, t.generation, t.island, values_of(variant), t.ok(), t.ratio_low,
                   record::bound_at(t.diagnosis, generation), run_.space_of(variant)});
    for (const store::DraftRecord& draft : t.drafts) {
      if (draft.config == t.config) continue;
      const Variant drafted = parse_variant(draft.config, run_.options.workload, run_.device);
      all.push_back({t.number, t.generation, t.island, values_of(drafted), false, draft.certain, Bound::unknown,
                     run_.space_of(drafted), true});
    }
  }
  return all;
}

std::vector<Space> Search::spaces() const {
  std::vector<Space> all;
  for (const Family* family : run_.families) all.push_back(space_of(*family, run_.options.workload, run_.device));
  for (const Variant& variant : run_.found)
    all[static_cast<std::size_t>(run_.space_of(variant))].found.push_back(values_of(variant));
  return all;
}

bool Search::is_out_of_time() const {
  if (run_.trials.empty() || run_.trials_that_fit() > 0) return false;
  run_.observer.message(
      fmt::format("the budget of {} has room for no other trial beside the final comparison; stopping "
                  "after {} trials",
                  human_duration(run_.options.budget_s), run_.trials.size()));
  return true;
}

bool Search::has_reached_the_floor() {
  floor_us_ = std::min(floor_us_, run_.laboratory.floor(run_.device.processors).us());
  for (const store::TrialRecord& t : run_.trials)
    if (t.ok() && t.trial_us <= kFloorReached * floor_us_) {
      run_.observer.message(
          fmt::format("trial {} is within 5% of the floor of {:.2f} us; stopping", t.number, floor_us_));
      return true;
    }
  return false;
}

void Search::run() {
  const std::vector<Space> where = spaces();
  const record::RunOptions& options = run_.options;
  const auto trials_done = [&] { return static_cast<int>(run_.trials.size()); };
  // A generation's number is fixed by the trials of those before it, so a resumed run finds its place again.
  int generation = run_.trials.empty() ? 0 : run_.trials.back().generation;
  while (trials_done() < options.trials) {
    if (is_out_of_time()) return;
    profile_elites(run_, generation);
    const auto first = static_cast<int>(std::count_if(run_.trials.begin(), run_.trials.end(),
                                                      [&](const auto& t) { return t.generation < generation; }));
    std::vector<Individual> known = individuals(generation);
    std::vector<Individual> earlier;
    std::copy_if(known.begin(), known.end(), std::back_inserter(earlier),
                 [&](const Individual& individual) { return individual.generation < generation; });
    std::vector<Place> places = places_of(propose(options.strategy, where, generation, earlier));
    if (static_cast<int>(places.size()) > options.trials - first)
      places.resize(static_cast<std::size_t>(options.trials - first));
    if (places.empty()) {
      run_.observer.message("the space holds no variant that was not tried; stopping");
      return;
    }
    run_.observer.generation_started(generation, first, options.trials);
    places.erase(places.begin(), places.begin() + (trials_done() - first));  // stored before the run was interrupted
    if (const auto fit = static_cast<std::size_t>(std::max(1, run_.trials_that_fit())); places.size() > fit)
      places.resize(fit);
    drafting_.draft(generation, where, std::move(known), places);
    for (Place& place : places) {
      check_interrupt();
      if (is_out_of_time()) return;
      run_.add_trial(run_best_of(run_, trials_done(), generation, place), options.trials);
    }
    ++generation;
    if (has_reached_the_floor()) return;
  }
}

}  // namespace heed::evolve

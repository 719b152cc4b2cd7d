#include "evolve/search_end.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"

namespace heed::evolve {
namespace {

constexpr double kFloorReached = 1.05;  // a champion within 5% of the floor has nothing left to gain

}  // namespace

bool is_out_of_time(const RunContext& run, int under_way) {
  if (run.trials.empty() || run.trials_that_fit() > under_way) return false;
  run.observer.message(
      fmt::format("the budget of {} has room for no other trial beside the final comparison; stopping "
                  "after {} trials",
                  human_duration(run.options.budget_s), run.trials.size() + static_cast<std::size_t>(under_way)));
  return true;
}

bool has_reached_the_floor(RunContext& run, double& floor_us) {
  floor_us = std::min(floor_us, run.trial_runner.floor(run.device.processors).us());
  for (const store::TrialRecord& t : run.trials)
    if (t.ok() && t.trial_us <= kFloorReached * floor_us) {
      run.observer.message(
          fmt::format("trial {} is within 5% of the floor of {:.2f} us; stopping", t.number, floor_us));
      return true;
    }
  return false;
}

}  // namespace heed::evolve

/// Generations of trials, from the default to the last one that the run's trials or budget allow.
#pragma once

#include <vector>

#include "evolve/drafting.hpp"
#include "evolve/run_context.hpp"

namespace heed::evolve {

class Search {
 public:
  /// The laboratory of `run` has its base by now. @param floor_us as measured before the search
  Search(RunContext& run, double floor_us) : run_(run), drafting_(run), floor_us_(floor_us) {}

  /// Goes on behind the trials that are stored.
  void run();

 private:
  /// Trials and drafts as they were known when `generation` was proposed.
  [[nodiscard]] std::vector<Individual> individuals(int generation) const;
  [[nodiscard]] std::vector<Space> spaces() const;
  /// Says so where the budget has no room for another trial.
  [[nodiscard]] bool is_out_of_time() const;
  [[nodiscard]] bool has_reached_the_floor();

  RunContext& run_;
  Drafting drafting_;
  double floor_us_;
};

}  // namespace heed::evolve

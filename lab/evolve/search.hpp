/// Generations of trials, from the default to the last one that the run's trials or budget allow.
#pragma once

#include <optional>
#include <vector>

#include "evolve/drafting.hpp"
#include "evolve/model_trials.hpp"
#include "evolve/run_context.hpp"

namespace heed::evolve {

class Search {
 public:
  /// The trial runner of `run` has its base by now. @param floor_us as measured before the search
  /// @throws Error(usage) where models are asked for that cannot be
  Search(RunContext& run, double floor_us);

  /// Goes on behind the trials that are stored.
  void run();

 private:
  /// A generation's places for which models have written, and what they wrote.
  [[nodiscard]] std::vector<ModelPlace> write_by_models(int generation, int before, std::vector<Place>& places,
                                                        int first);
  /// Empties places of knobs, of those from `done` on, that have no time any more beside what models wrote.
  void leave_out_knobs(const std::vector<ModelPlace>& written, int done, std::vector<Place>& places) const;
  /// The trial of a model's place, and where it was refused that of the repaired edits.
  void run_model_place(int generation, const ModelPlace& written, Place& place);
  void repair(int generation, ModelPlace refused);

  RunContext& run_;
  Drafting drafting_;
  double floor_us_;
  std::optional<ModelTrials> models_;
};

}  // namespace heed::evolve

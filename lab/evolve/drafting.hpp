/// The drafts of a generation: proposals built, looked at and refined before one of each place is a trial.
///
/// Most of a trial is its gate. So several drafts are proposed for each trial, built, and timed for a moment without
/// one, in rounds that begin with the fastest so far; the fastest of all is the trial. What a draft read decides that
/// alone: whatever is called faster was verified first and measured after.
#pragma once

#include <optional>
#include <vector>

#include "evolve/draft.hpp"
#include "evolve/run_context.hpp"

namespace heed::evolve {

class Drafting {
 public:
  /// The trial runner of `run` has its base by now. Where the memory is not enough for the inputs twice, every proposal
  /// of the run is a trial from now on.
  explicit Drafting(RunContext& run);

  /// Builds everything, and where a trial has several drafts screens them and proposes more next to the best of them,
  /// as often as options.drafts allows. All places go through a round together, so that builds overlap with screening.
  /// @param history every trial and draft that is stored, those of this generation too where the run was interrupted
  ///     in it
  void draft(int generation, const std::vector<Space>& where, std::vector<Individual> history,
             std::vector<Place>& places);

 private:
  /// @param best what the best draft of its place has for certain; 0 where none was timed
  void look_at(Draft& draft, double best);

  RunContext& run_;
  /// Screens drafts, which nobody has verified, in a worker of its own: what one of them leaves there reaches no
  /// trial.
  std::optional<trial::TrialRunner> trial_runner_;
};

}  // namespace heed::evolve

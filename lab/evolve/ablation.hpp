/// What each of a champion's changes bought, and the trials that follow from it.
#pragma once

#include <set>
#include <vector>

#include "evolve/run_context.hpp"
#include "record/run_result.hpp"

namespace heed::evolve {

class Ablation {
 public:
  explicit Ablation(RunContext& run) : run_(run) {}

  /// Every knob in which the champion differs from the default, put back by itself. The champion is the trial runner's
  /// base from now on. Empty where nothing differs or the budget is used up.
  std::vector<record::AblationRow> take_back(const trial::Built& champion);

  /// Tries the variant that an ablation found fastest, if it beats the champion, or is as fast and beats it where
  /// launches are dependent: it was measured against the champion then, and is now against the base like every trial.
  /// Where it was a trial already, but not among the best few, it is a finalist from now on (called_up).
  /// @param finalists of the last final comparison
  /// @return whether there is something new
  bool try_winner(const std::vector<record::AblationRow>& rows, int champion_trial,
                  const std::set<std::size_t>& finalists);

  /// Numbers of the trials that ablations want in the next final comparison.
  [[nodiscard]] const std::set<std::size_t>& called_up() const { return called_up_; }

 private:
  [[nodiscard]] std::vector<std::size_t> that_fit_the_budget(std::vector<std::size_t> changed) const;

  RunContext& run_;
  std::set<std::size_t> called_up_;
};

}  // namespace heed::evolve

// A run's time, all of it: search, final comparison and ablation.
#pragma once

namespace heed::evolve {

/// What of a run's budget each part may take. Pure arithmetic; 0 s is no limit.
struct Budget {
  double limit_s = 0;

  [[nodiscard]] bool is_limited() const { return limit_s > 0; }
  /// Infinite without a limit.
  [[nodiscard]] double left_s(double elapsed_s) const;
  /// Readings of one process of the final comparison: as long as wanted, and a twentieth of the budget where that is
  /// less (there may be a dozen of them), but half a second at least.
  [[nodiscard]] double final_measurement_s(double wanted_s) const;
  /// Kept back from the search for the final comparison: its least number of processes and one that is disturbed, but
  /// no more than half of the budget. @param gate_s what verifying takes, before each measurement
  [[nodiscard]] double reserve_s(double gate_s, double wanted_s) const;
  /// How many more trials of `trial_s` each the search has time for; a million without a limit.
  [[nodiscard]] int trials_left(double elapsed_s, double trial_s, double gate_s, double wanted_s) const;
};

}  // namespace heed::evolve

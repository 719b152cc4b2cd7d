/// Who is told how a run goes.
#pragma once

#include <string>

#include "store/records.hpp"

namespace heed::evolve {

/// Told what happens, in order. All calls come from the thread that runs the evolution.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void message(const std::string& text) = 0;
  virtual void generation_started(int generation, int first_trial, int trials_in_all) = 0;
  /// `best_certain` is the highest lower end of an interval so far, this trial's included.
  virtual void trial_finished(const store::TrialRecord& trial, double best_certain, int trials_in_all) = 0;
};

}  // namespace heed::evolve

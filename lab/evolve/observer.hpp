/// Who is told how a run goes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "store/records.hpp"

namespace heed::evolve {

/// A device of several that judge a run's trials, as it is now.
struct DeviceStatus {
  enum class Doing { preparing, judging, waiting, lost };
  std::string name;
  Doing doing = Doing::preparing;
  int under_way = 0;       ///< places
  std::size_t trials = 0;  ///< that it made in this process
};

/// Told what happens, in order. All calls come from the thread that runs the evolution.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void message(const std::string& text) = 0;
  virtual void generation_started(int generation, int first_trial, int trials_in_all) = 0;
  /// `best_certain` is the highest lower end of an interval so far, this trial's included.
  /// Where several devices judge: with each generation, and when one is lost.
  /// @param trials_a_minute of this process so far; 0 before the first
  virtual void devices_changed(const std::vector<DeviceStatus>& devices, double trials_a_minute) {
    (void)devices;
    (void)trials_a_minute;
  }
  virtual void trial_finished(const store::TrialRecord& trial, double best_certain, int trials_in_all) = 0;
};

}  // namespace heed::evolve

/// What the time of a run went to: the gate, screening of drafts, measurements, and in between nothing on the device.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "process/timeline.hpp"
#include "worker/worker.hpp"

namespace heed::trial {

struct PhaseTimes {
  double wall_s = 0;
  double busy_s = 0;      ///< of a GPU for this phase's workers; 0 on a CPU, where nothing counts it
  double recorded_s = 0;  ///< the part of busy_s that CUPTI's activity records say; the rest is worker::BusyTime's
  PhaseTimes& operator+=(const PhaseTimes& other);
};

struct Phases {
  PhaseTimes gate;
  PhaseTimes screen;
  PhaseTimes measure;
  double spot_checks_s = 0;  ///< of the wall clock of `measure`, what spot checks took
  Phases& operator+=(const Phases& other);
};

/// Parts of a run's time, which add up to 1 with `idle`.
struct Shares {
  double gate = 0;
  double screen = 0;
  double measure = 0;
  double idle = 0;     ///< nothing ran on the GPU: the host compared outputs, or waited. On a CPU, outside all phases
  double waiting = 0;  ///< the part of `idle` outside all phases: builds, models, the store
};

/// @param seconds of the run, all phases among them
/// @param of_gpu of the time of a GPU; else of the wall clock of the phases
Shares shares_of(const Phases& phases, double seconds, bool of_gpu);

/// Adds up the phases of a trial runner, whose work is one thing after the other.
struct PhaseClock {
  Phases times;
  std::shared_ptr<worker::BusyTime> busy = std::make_shared<worker::BusyTime>();  ///< of all its workers
  bool is_running = false;
};

/// A phase, from here to the end of the scope, and a range of the timeline. Within another it is a range alone.
class Phase {
 public:
  /// @param of what is gated, looked at or measured, for the timeline
  Phase(PhaseClock& clock, PhaseTimes Phases::*which, const std::string& of);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  PhaseClock& clock_;
  PhaseTimes Phases::*which_;
  bool is_outermost_;
  worker::BusyTime before_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  TimelineRange range_;
};

}  // namespace heed::trial

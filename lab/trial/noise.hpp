// How much of what is read on this machine is noise, and what that leaves to be said.
#pragma once

#include <string>

#include "process/machine_load.hpp"
#include "trial/trial_runner.hpp"

namespace heed::trial {

struct Noise {
  double self_spread = 0;   ///< how far from 1 the base's ratio to itself reached
  double block_spread = 0;  ///< of the base's blocks: (90th - 10th percentile) / median
  MachineLoad others;       ///< what ran on the processors while Heed waited
};

/// Watches the machine for a moment and takes the rest from the base against itself.
Noise noise_of(const TrialRunner::SelfComparison& self);

/// Whether gains that a search finds would drown in it (kTooNoisy).
[[nodiscard]] bool is_too_noisy(const Noise& noise);
/// What is wrong and what to do about it, in sentences. @param device_is_cpu
[[nodiscard]] std::string describe(const Noise& noise, bool device_is_cpu);

}  // namespace heed::trial

// How the trials of one command are divided among the workloads of a model. Pure arithmetic.
#pragma once

#include <string>
#include <vector>

namespace heed::evolve {

/// A workload as a division sees it.
struct Offer {
  double calls = 0;
  double seconds = 0;    ///< of all calls together; 0 where they were not timed
  double floor_s = 0;    ///< the least time of one call; 0 where it is not known
  double flops = 0;      ///< of one call
  bool refused = false;  ///< no kernel runs the workload
};

enum class NoTrials {
  none,       ///< the workload has trials
  refused,    ///< as its offer says
  too_small,  ///< its share is worth less than a quarter of a trial, and another is larger
  too_few,    ///< workloads of larger shares leave no trials for it
};

struct Part {
  double share = 0;  ///< of what all workloads together could gain, 0 to 1; 0 where refused
  int trials = 0;
  NoTrials why = NoTrials::none;
};

/// What a workload has at the least: a base, and a trial beside it.
inline constexpr int kLeastTrials = 2;

/// Divides trials by what each workload could gain: the seconds of its calls above their floor. Workloads that were not
/// timed count by their operations, at the gain that an operation of the timed ones has. Where none is above its floor,
/// all count by their seconds. The parts come to `trials`, by largest remainders, where any workload has a part.
/// @param trials at least 1
/// @return a part for each offer, in the order of the offers
std::vector<Part> divide(const std::vector<Offer>& offers, int trials);

/// Parts by their trials, largest first; those without are left out.
std::vector<std::size_t> by_trials(const std::vector<Part>& parts);

/// What the first of several searches may take of the time that is left for all of them: in proportion to trials.
/// @param trials of each that is still to come, in their order
double time_of_first(double left_s, const std::vector<int>& trials);

}  // namespace heed::evolve

/// Two things timed against each other.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "measure/statistics.hpp"
#include "measure/timed_sets.hpp"
#include "worker/worker.hpp"

namespace heed::measure {

/// Hardware events of one launch. They count work, not time: what another program takes from a processor is not in
/// them.
struct Counts {
  double instructions = 0;
  double cycles = 0;
};

/// One block, per launch.
struct Reading {
  Reading(double time_us, std::optional<Counts> counted = std::nullopt) : us(time_us), counts(counted) {}  // NOLINT
  double us;
  std::optional<Counts> counts;  ///< where the kernel of the system lets them be read
};

/// Times one block.
using Block = std::function<Reading()>;

struct PairOptions {
  int least_quads = 6;
  int most_quads = 40;
  double target_uncertainty = 0.003;  ///< stop when half the interval is below this share of the ratio
  double hopeless_below = 0;          ///< stop as well when the whole interval is below this ratio
  double limit_s = 3;                 ///< wall clock; at least least_quads are taken all the same
};

/// Base A against trial B, in quads A B B A, so that a drift of the clock hits both alike.
struct PairResult {
  std::vector<double> base_us;  ///< every block, in order
  std::vector<double> trial_us;
  std::vector<double> ratios;      ///< per quad: (A + A) / (B + B)
  std::vector<std::size_t> quads;  ///< how many of them are of each process
  Ratio ratio;                     ///< base time / trial time, over the calm quads: above 1 the trial is faster
  double base_median_us = 0;
  double trial_median_us = 0;
  std::optional<Counts> base_counts;  ///< medians, where every block had them
  std::optional<Counts> trial_counts;
};

PairResult measure_pair(const Block& base, const Block& trial, const PairOptions& options);

/// Measurements of one pair in several processes as one: all readings, and the interval over the calm quads of all.
PairResult together(const std::vector<PairResult>& processes);

/// Base over trial of what the processor counted: above 1 the trial takes less. None without counts.
std::optional<Counts> counted_ratios(const PairResult& pair);

/// Whether the clock calls the trial faster by more than `margin`, and both counts say that it is clearly not: more
/// than `margin` above the base's.
bool contradicts_counts(const PairResult& pair, double margin);

/// A worker reported times that do not fit the time it took.
class ForgedTime : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A block of as many replays of a slot as the sets' plan says, or `most_replays` where that is less: the median of its
/// readings. Worker and sets must outlive it. @throws ForgedTime
Block worker_block(worker::Worker& worker, int slot, const std::string& name, TimedSets& sets, double limit_s,
                   int most_replays = std::numeric_limits<int>::max());

/// Whether readings that add up to `reported_us` can come from a call that took `wall_us` here and moved
/// `untimed_bytes` outside of its readings. The call does one replay more than it reports; 0.5 GB/s for the bytes (a
/// build under sanitizers on a busy machine has little more), four times the work and a quarter of a second are room
/// for a busy machine.
bool times_are_plausible(double reported_us, double wall_us, double untimed_bytes);

}  // namespace heed::measure

/// A search on a landscape as a run goes: trials under way side by side, drafts chosen by what short readings say, and
/// gates that refuse.
#pragma once

#include <cstdint>
#include <vector>

#include "evolve/strategy.hpp"

namespace heed::landscape {

struct Landscape;

/// How the trials of a run follow each other.
struct Course {
  /// Trials under way at a time on a GPU: the next one is proposed when one is finished, from those that are finished
  /// by then. 0: a generation after the other, each from all before it, as on a CPU.
  int under_way = 0;
  /// Relative standard deviation of one reading of a draft; those that may lead are read twice.
  double noise = 0;
  /// Share of the points that the gate refuses, whatever their drafts read.
  double refused = 0;
};

/// Whether the gate refuses a point, a function of the seed and the point. Never the config that a search starts at.
/// @param share of the points that are refused
bool is_refused(const Config& config, const Config& start, std::uint64_t seed, double share);

/// The configs of a run's trials, in order, and whether each passed.
struct Tried {
  Config config;
  bool ok = false;
};
/// @param options drafts of a trial and seed among them; the points that a gate refuses are a function of the seed
/// @return fewer than `trials` where the space holds no more
std::vector<Tried> follow(const Landscape& landscape, const evolve::Space& space,
                          const evolve::StrategyOptions& options, const Course& course, int trials);

}  // namespace heed::landscape

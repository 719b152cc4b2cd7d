/// What proposals rest on: the spaces of a run, and its trials and drafts so far.
#pragma once

#include <cstddef>
#include <vector>

#include "evolve/run_context.hpp"
#include "evolve/strategy.hpp"

namespace heed::evolve {

struct Knowledge {
  std::vector<Space> spaces;
  std::vector<Individual> individuals;
};

/// The first `basis.known` trials of a run, of whatever generation, and their drafts; their edits as spaces of the
/// basis.
std::vector<Individual> individuals_of(const RunContext& run, const Basis& basis);

/// The same for a run whose places are proposed one by one: each trial is read from its record once, since a run of a
/// thousand trials has twelve thousand drafts, and would be read for every one of them.
class KnownTrials {
 public:
  explicit KnownTrials(const RunContext& run) : run_(run) {}
  /// individuals_of the first `known` trials, which are finished and do not change any more.
  [[nodiscard]] std::vector<Individual> first(std::size_t known);

 private:
  const RunContext& run_;
  std::vector<std::vector<Individual>> read_;  ///< by trial
};

/// Those of the families, then those of edits that trials of the basis brought.
std::vector<Space> spaces_of(const RunContext& run, const Basis& basis);

}  // namespace heed::evolve

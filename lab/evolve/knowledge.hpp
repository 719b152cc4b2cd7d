/// What proposals rest on: the spaces of a run, and its trials and drafts so far.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "evolve/run_context.hpp"
#include "evolve/strategy.hpp"

namespace heed::evolve {

/// What a trial or a draft was, whatever spaces there are for whoever asks: edits that passed are one for what rests on
/// them alone.
struct KnownConfig {
  Individual individual;
  const Family* family = nullptr;
  std::string edits = {};  ///< the digest of its edited sources; empty where they are as carried
};

struct Knowledge {
  std::vector<Space> spaces;
  std::vector<Individual> individuals;
};

/// All trials of a run and their drafts, with the spaces of a basis.
std::vector<Individual> individuals_of(const RunContext& run, const Basis& basis);

/// For a run whose places are proposed one by one: each trial is read from its record once, since a run of a
/// thousand trials has twelve thousand drafts, and would be read for every one of them.
class KnownTrials {
 public:
  explicit KnownTrials(const RunContext& run) : run_(run) {}
  /// The first `known` trials, which are finished and do not change any more, and their drafts, with the spaces of a
  /// basis.
  [[nodiscard]] std::vector<Individual> first(std::size_t known, const Basis& basis);

 private:
  const RunContext& run_;
  std::vector<KnownConfig> read_;
  std::vector<std::size_t> ends_;  ///< of each trial's in `read_`
};

/// Those of the families, then those of edits that trials of the basis brought.
std::vector<Space> spaces_of(const RunContext& run, const Basis& basis);

}  // namespace heed::evolve

/// What proposals rest on: the spaces of a run, and its trials and drafts so far.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "evolve/run_context.hpp"
#include "evolve/strategy.hpp"

namespace heed::evolve {

struct Knowledge {
  std::vector<Space> spaces;
  std::vector<Individual> individuals;
};

/// The first `known` trials of a run and their drafts, as they were known when `generation` was proposed.
std::vector<Individual> individuals_of(const RunContext& run, int generation,
                                       std::size_t known = std::numeric_limits<std::size_t>::max());

/// Those of the families, then those of edits that passed before `generation`.
std::vector<Space> spaces_of(const RunContext& run, int generation);

}  // namespace heed::evolve

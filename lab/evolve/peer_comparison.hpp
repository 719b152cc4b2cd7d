/// A champion beside PyTorch's scaled_dot_product_attention.
#pragma once

#include "evolve/run_context.hpp"
#include "record/run_result.hpp"

namespace heed::evolve {

/// Every backend of PyTorch that is there, each measured against the champion and stored as a "peer" comparison.
/// Where there is no PyTorch, or no time, the result says why. @throws Error(interrupted)
record::PeerComparison compare_with_peers(RunContext& run, const trial::Built& champion);

}  // namespace heed::evolve

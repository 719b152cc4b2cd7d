/// Runs of a plan, timed as a worker times launches: the same inputs in the same order, as many in one CUDA graph.
#pragma once

#include <memory>

#include "conformance/checked_plan.hpp"
#include "measure/pair.hpp"
#include "measure/timed_sets.hpp"

namespace heed::conformance {

/// A block for measure_pair: us of a run, the median over the replays of the sets' plan. On a GPU a captured graph is
/// replayed between events, behind one replay that is not timed, with the L2 full of lines of nobody's before that; on
/// a CPU libheed takes the time of all runs of a replay.
/// @param sets whose inputs are read; it may go once this returns
measure::Block plan_block(const measure::TimedSets& sets, const DeviceFacts& device, const Program& program);

}  // namespace heed::conformance

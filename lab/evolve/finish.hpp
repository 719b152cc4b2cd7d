/// The end of a run: final comparison and ablation in turn, then what the champion is beside base, floor and PyTorch.
#pragma once

#include "evolve/run_context.hpp"
#include "record/run_result.hpp"

namespace heed::evolve {

/// The run's trials are there, and the trial runner has its base. @throws Error(interrupted)
record::RunResult finish(RunContext& run);

}  // namespace heed::evolve

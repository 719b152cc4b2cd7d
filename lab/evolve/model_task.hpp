/// What a run knows of a kernel, as prompts tell it.
#pragma once

#include <optional>

#include "evolve/run_context.hpp"
#include "prompts/prompt.hpp"

namespace heed::evolve {

/// A problem in a sentence: "softmax(scale Q K^T) V for 1 batch entry, 8 query heads that share 2 key heads, ...".
std::string problem_in_words(const Workload& workload);

/// Whether a trial's sources were written by a model.
[[nodiscard]] bool is_of_models(const store::TrialRecord& trial);
/// Whether it was written after another one was refused. It has no place of its own.
[[nodiscard]] bool is_repair(const store::TrialRecord& trial);

/// The trial whose sources a model is asked to edit: the best where the preset keeps a single solution (free), else one
/// of the best few, the better ones more often. Trials of the basis alone, so that a resumed run takes the
/// same. None where none passed: the base then.
std::optional<std::size_t> parent_for(const RunContext& run, prompts::Preset preset, const Basis& basis, int generation,
                                      int place);

/// @param parent index of a trial; none: the base @param basis what the prompt may tell of
prompts::Task task_of(RunContext& run, std::optional<std::size_t> parent, const Basis& basis);

}  // namespace heed::evolve

/// What holds the variants of a run back, by their times and, where they can be read, by hardware counters.
#pragma once

#include <optional>

#include "evolve/run_context.hpp"
#include "profile/collect.hpp"
#include "profile/diagnosis.hpp"

namespace heed::evolve {

[[nodiscard]] profile::Diagnosis diagnose(RunContext& run, const Variant& variant, const jit::Resources& resources,
                                          double us, const std::optional<profile::Counters>& counters);

/// None when they are not wanted or cannot be read; says so once. @param seed of the inputs
std::optional<profile::Counters> read_counters(RunContext& run, const trial::Built& built, std::uint64_t seed);

/// Before the first trial, reads the counters of the base, the parent of the first prompts. Where they cannot be read,
/// or while other threads have devices, base_diagnosis has it from times.
void profile_base(RunContext& run);
/// What holds the base back, from times where profile_base read nothing; made once.
const nlohmann::json& base_diagnosis(RunContext& run);

/// Reads the counters of the best trials that were not read yet: prompts tell models what bounds a parent.
void profile_elites(RunContext& run, int generation);

}  // namespace heed::evolve

/// One trial of a run: from a proposal to a record, with its duplicate and its measurements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "evolve/draft.hpp"
#include "evolve/run_context.hpp"
#include "trial/trial_runner.hpp"

namespace heed::evolve {

/// An earlier trial that is the same program launched in the same way; null where there is none.
[[nodiscard]] const store::TrialRecord* duplicate_of(const RunContext& run, const Variant& variant,
                                                     const jit::BuildOutcome& build);
[[nodiscard]] const store::TrialRecord* duplicate_of(const RunContext& run, const Variant& variant,
                                                     std::string_view machine_code);
/// "the same machine code and launch as trial 7"
[[nodiscard]] std::string as_duplicate_of(const store::TrialRecord& duplicate);

/// The record of a trial that begins: what it is, and nothing yet of what became of it.
store::TrialRecord new_trial(std::int64_t run, int number, int generation, const Variant& variant,
                             std::string_view operation, const std::string& why);

/// What became of a trial, as its record has it: verdict, errors, times, resources.
void record_outcome(const trial::Outcome& judged, store::TrialRecord& record);

/// Which builds go first: those of earlier places, whatever round of drafts they are of.
[[nodiscard]] constexpr std::int64_t build_turn(int generation, int place) {
  return (std::int64_t{generation} << 16) + place + 1;
}

/// Begins to build a draft, once, and waits for the build. @throws Error(interrupted)
void start_build(const RunContext& run, Draft& draft, std::int64_t turn = 0);
void wait_for_build(RunContext& run, Draft& draft);

/// Makes a trial of the fastest draft. Where none could be timed the first is the trial, whose verdict says why.
/// @return not yet stored
store::TrialRecord run_best_of(RunContext& run, int number, int generation, Place& place);

}  // namespace heed::evolve

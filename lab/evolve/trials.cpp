#include "evolve/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/random.hpp"
#include "compile/embedded.hpp"
#include "evolve/run_diagnosis.hpp"
#include "evolve/selection.hpp"
#include "process/interrupt.hpp"
#include "record/diagnosis.hpp"
#include "record/json.hpp"
#include "source/stored.hpp"

namespace heed::evolve {
namespace {

std::string digest_of_edits(const Variant& variant) {
  return variant.overlay ? variant.overlay->digest() : std::string();
}

constexpr double kHopelessBelow = 0.9;  // a trial whose whole interval is below this is not measured further

double finite(double value) {
  return std::isfinite(value) ? value : 0.0;
}

// A trial is stored once, with all of its measurements: what a later generation rests on does not change any more.
void measure_until_settled(RunContext& run, trial::Outcome& judged, const trial::Built& built, int island,
                           const measure::PairOptions& pair) {
  std::vector<double> rivals;
  for (const store::TrialRecord& t : run.trials)
    if (t.ok() && (run.options.strategy.kind != StrategyKind::islands || t.island == island))
      rivals.push_back(t.ratio_low);
  const auto places =
      static_cast<std::size_t>(run.options.strategy.kind == StrategyKind::single ? 1 : run.options.strategy.population);
  const Again again = [&]() -> std::optional<measure::PairResult> {
    check_interrupt();
    if (run.trials_that_fit() == 0) return std::nullopt;
    trial::Outcome more = run.trial_runner.measure_again(built, judged.seed, pair);
    judged.measure_ms += more.measure_ms;
    judged.after = more.after;
    if (more.ok()) return std::move(more.pair);
    judged.verdict = more.verdict;
    judged.finding = more.finding;
    judged.reason = more.reason;
    judged.check = more.check;
    return std::nullopt;
  };
  judged.pair = settled(std::move(judged.pair), rivals, places, run.self_spread, again);
}

store::TrialRecord run_trial(RunContext& run, int number, int generation, const Proposal& proposal,
                             const jit::BuildOutcome& outcome) {
  const Variant variant = run.variant_of(proposal);
  store::TrialRecord record =
      new_trial(run.run, number, generation, variant, to_string(proposal.operation), proposal.why);
  record.island = proposal.island;
  record.parents = proposal.parents;

  trial::Outcome judged;
  if (const store::TrialRecord* duplicate = duplicate_of(run, variant, outcome)) {
    judged.verdict = Verdict::duplicate;
    judged.reason = as_duplicate_of(*duplicate);
    judged.artifact = outcome.artifact;
  } else {
    measure::PairOptions pair = run.as_sharp_as_useful(run.trial_runner.options().pair);
    pair.hopeless_below = kHopelessBelow;
    judged = run.trial_runner.judge(variant, outcome, record.seed, pair);
    if (judged.ok()) measure_until_settled(run, judged, {variant, *judged.artifact}, proposal.island, pair);
    if (judged.measure_ms > 0) run.timed_at = std::chrono::steady_clock::now();
  }
  record_outcome(judged, record);
  if (judged.ok())
    record.diagnosis = record::to_json(
        diagnose(run, variant, judged.artifact->resources, record.trial_us, std::nullopt), std::nullopt);
  record.run_elapsed_s = run.elapsed_s();
  record.finished = store::utc_now();
  return record;
}

}  // namespace

store::TrialRecord new_trial(std::int64_t run, int number, int generation, const Variant& variant,
                             std::string_view operation, const std::string& why) {
  store::TrialRecord record;
  record.run = run;
  record.number = number;
  record.generation = generation;
  record.variant = variant.id();
  record.config = describe(variant);
  record.edits = source::stored(variant, why);
  record.operation = operation;
  record.why = why;
  record.seed = fresh_seed() >> 1;  // fits SQLite's signed integers
  record.source_digest = compile::source_digest();
  record.resources = nlohmann::json::object();
  record.samples = nlohmann::json::object();
  record.clocks = nlohmann::json::object();
  return record;
}

void record_outcome(const trial::Outcome& judged, store::TrialRecord& record) {
  record.verdict = judged.verdict;
  record.finding = judged.finding;
  record.reason = judged.reason;
  record.check = judged.check;
  record.ratio = finite(judged.pair.ratio.value);
  record.ratio_low = finite(judged.pair.ratio.low);
  record.ratio_high = finite(judged.pair.ratio.high);
  record.base_us = finite(judged.pair.base_median_us);
  record.trial_us = finite(judged.pair.trial_median_us);
  record.max_abs = finite(judged.error.max_abs);
  record.rel_rms = finite(judged.error.rel_rms);
  record.worst_row = finite(judged.error.worst_row);
  for (const verify::CheckResult& check : judged.checks) record.gate_checks.push_back(record::to_json(check));
  record.samples = record::samples_json(judged.pair);
  record.clocks = {{"before", record::to_json(judged.before)}, {"after", record::to_json(judged.after)}};
  if (judged.artifact) {
    record.machine_code = judged.artifact->machine_code;
    record.resources = record::to_json(judged.artifact->resources);
    record.build_ms = judged.artifact->build_ms;
  }
  record.verify_ms = judged.verify_ms;
  record.measure_ms = judged.measure_ms;
}

std::string as_duplicate_of(const store::TrialRecord& duplicate) {
  return fmt::format("the same machine code and launch as trial {}", duplicate.number);
}

const store::TrialRecord* duplicate_of(const RunContext& run, const Variant& variant, const jit::BuildOutcome& build) {
  return build.artifact ? duplicate_of(run, variant, build.artifact->machine_code) : nullptr;
}

const store::TrialRecord* duplicate_of(const RunContext& run, const Variant& variant, std::string_view machine_code) {
  if (machine_code.empty()) return nullptr;
  const LaunchPlan plan = variant.plan(run.options.workload, run.device);
  const store::TrialRecord* duplicate = nullptr;
  for (const store::TrialRecord& earlier : run.trials)
    if (earlier.machine_code == machine_code && earlier.verdict != Verdict::duplicate &&
        run.variant_of(earlier).plan(run.options.workload, run.device) == plan)
      duplicate = &earlier;
  return duplicate;
}

void start_build(const RunContext& run, Draft& draft, std::int64_t turn) {
  if (draft.is_started) return;
  draft.is_started = true;
  draft.build = run.builder.start(run.trial_runner.request_for(run.variant_of(draft.proposal)), /*fresh=*/false, turn);
}

void wait_for_build(RunContext& run, Draft& draft) {
  if (draft.build.valid()) {
    const auto begin = std::chrono::steady_clock::now();
    draft.outcome = draft.build.get();
    record::BuildTimes times;
    times.waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (const auto& built = draft.outcome.artifact; built && !built->from_cache)
      times = {.made = 1, .made_s = built->build_ms / 1000, .waited_s = times.waited_s};
    run.builds.add(times);
  }
  if (interrupted()) check_interrupt();  // a compiler killed by the interrupt is no verdict on the variant
}

store::TrialRecord run_best_of(RunContext& run, int number, int generation, Place& place) {
  for (Draft& one : place.drafts) {
    wait_for_build(run, one);
    // Trials of this generation came after the screening.
    if (!one.screenings.empty())
      if (const store::TrialRecord* duplicate = duplicate_of(run, run.variant_of(one.proposal), one.outcome))
        one.give_up(as_duplicate_of(*duplicate));
  }
  const Draft& best = place.best();
  store::TrialRecord record = run_trial(run, number, generation, best.proposal, best.outcome);
  if (place.drafts.size() > 1)
    for (const Draft& one : place.drafts)
      record.drafts.push_back({.config = describe(run.variant_of(one.proposal)),
                               .edits = digest_of_edits(run.variant_of(one.proposal)),
                               .operation = std::string(to_string(one.proposal.operation)),
                               .why = one.proposal.why,
                               .ratio = one.pair.ratio.value,
                               .certain = one.certain(),
                               .us = one.pair.trial_median_us,
                               .screenings = static_cast<int>(one.screenings.size()),
                               .reason = one.reason});
  return record;
}

}  // namespace heed::evolve

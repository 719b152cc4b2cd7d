#include "evolve/run_diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "process/interrupt.hpp"
#include "record/diagnosis.hpp"

namespace heed::evolve {
namespace {

constexpr int kProfilesPerGeneration = 2;

bool may_read_counters(const RunContext& run) {
  return run.options.profile && run.counters_readable && run.device.kind == DeviceKind::cuda;
}

}  // namespace

profile::Diagnosis diagnose(RunContext& run, const Variant& variant, const jit::Resources& resources, double us,
                            const std::optional<profile::Counters>& counters) {
  profile::Evidence evidence;
  evidence.us = us;
  evidence.plan = variant.plan(run.options.workload, run.device);
  evidence.floor = run.trial_runner.floor(static_cast<int>(evidence.plan.threads));
  evidence.resources = resources;
  evidence.device = run.device;
  evidence.bytes = run.options.workload.bytes();
  evidence.counters = counters;
  return profile::diagnose(evidence, variant_knobs(*variant.family));
}

std::optional<profile::Counters> read_counters(RunContext& run, const trial::Built& built, std::uint64_t seed) {
  if (!may_read_counters(run)) return std::nullopt;
  profile::CollectOptions collect;
  collect.seed = seed;
  const Elsewhere elsewhere(run);
  profile::Reading reading = profile::collect(built.variant.plan(run.options.workload, run.device), built.artifact,
                                              run.options.workload, run.device, collect);
  if (!reading.counters) {
    run.counters_readable = false;
    run.observer.message(fmt::format("no hardware counters, diagnosing from times alone: {}", reading.reason));
  }
  return reading.counters;
}

namespace {

const nlohmann::json& note_base(RunContext& run, const std::optional<profile::Counters>& counters) {
  const trial::Built& base = run.trial_runner.base();
  const double us = run.trial_runner.base_against_itself().pair.base_median_us;
  run.base_diagnosis = record::to_json(diagnose(run, base.variant, base.artifact.resources, us, counters), counters);
  return run.base_diagnosis;
}

}  // namespace

void profile_base(RunContext& run) {
  if (!run.trials.empty()) return;
  note_base(run, read_counters(run, run.trial_runner.base(), run.options.strategy.seed));
}

const nlohmann::json& base_diagnosis(RunContext& run) {
  return run.base_diagnosis.is_null() ? note_base(run, std::nullopt) : run.base_diagnosis;
}

void profile_elites(RunContext& run, int generation) {
  if (run.trials.empty() || run.trials.back().generation >= generation || !may_read_counters(run)) return;
  std::vector<store::TrialRecord*> best;
  for (store::TrialRecord& t : run.trials)
    if (t.ok()) best.push_back(&t);
  std::stable_sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return a->ratio_low > b->ratio_low; });
  if (static_cast<int>(best.size()) > run.options.strategy.population)
    best.resize(static_cast<std::size_t>(run.options.strategy.population));
  int read = 0;
  for (store::TrialRecord* t : best) {
    if (record::has_counters(t->diagnosis)) continue;
    if (read++ == kProfilesPerGeneration) return;
    check_interrupt();
    const Variant variant = run.variant_of(*t);
    const jit::BuildOutcome build = run.builder.build(run.trial_runner.request_for(variant));  // from the cache
    if (!build.artifact) continue;
    const std::optional<profile::Counters> counters = read_counters(run, {variant, *build.artifact}, t->seed);
    if (!counters) return;
    const profile::Diagnosis diagnosis = diagnose(run, variant, build.artifact->resources, t->trial_us, counters);
    t->diagnosis = record::to_json(diagnosis, counters);
    run.store.set_diagnosis(t->id, t->diagnosis);
    run.observer.message(fmt::format("trial {}: {}", t->number, diagnosis.text));
  }
}

}  // namespace heed::evolve

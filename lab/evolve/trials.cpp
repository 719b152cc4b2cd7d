// One trial of a run: from a proposal to a record, with its twin, its measurements and its diagnosis.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.hpp"
#include "evolve/run.hpp"
#include "evolve/selection.hpp"
#include "jit/embedded.hpp"
#include "process/interrupt.hpp"
#include "record/json.hpp"

namespace heed::evolve {
namespace {

constexpr double kHopelessBelow = 0.9;  // a trial whose whole interval is below this is not measured further
constexpr int kProfilesPerGeneration = 2;

double finite(double value) {
  return std::isfinite(value) ? value : 0.0;
}

}  // namespace

std::string Evolution::as_twin_of(const store::TrialRecord& twin) {
  return fmt::format("the same machine code and launch as trial {}", twin.number);
}

// An earlier trial that is the same program launched in the same way; null where there is none.
const store::TrialRecord* Evolution::twin_of(const Variant& variant, const jit::BuildOutcome& build) const {
  if (!build.artifact) return nullptr;
  const LaunchPlan plan = variant.plan(options_.workload, device_);
  const store::TrialRecord* twin = nullptr;
  for (const store::TrialRecord& earlier : trials_)
    if (earlier.machine_code == build.artifact->machine_code && earlier.verdict != to_string(Verdict::duplicate) &&
        variant_of(earlier).plan(options_.workload, device_) == plan)
      twin = &earlier;
  return twin;
}

store::TrialRecord Evolution::run_trial(int number, int generation, const Proposal& proposal,
                                        const jit::BuildOutcome& outcome) {
  const Variant variant = variant_of(proposal);
  store::TrialRecord record;
  record.run = run_;
  record.number = number;
  record.generation = generation;
  record.island = proposal.island;
  record.variant = variant.id();
  record.config = describe(variant);
  record.operation = to_string(proposal.operation);
  record.parents = proposal.parents;
  record.why = proposal.why;
  record.seed = fresh_seed() >> 1;  // fits SQLite's signed integers
  record.source_digest = jit::source_digest();
  record.resources = nlohmann::json::object();
  record.samples = nlohmann::json::object();
  record.clocks = nlohmann::json::object();
  record.diagnosis = nullptr;

  trial::Outcome judged;
  if (const store::TrialRecord* twin = twin_of(variant, outcome)) {
    judged.verdict = Verdict::duplicate;
    judged.reason = as_twin_of(*twin);
    judged.artifact = outcome.artifact;
  } else {
    measure::PairOptions pair = as_sharp_as_useful(laboratory_.options().pair);
    pair.hopeless_below = kHopelessBelow;
    judged = laboratory_.judge(variant, outcome, record.seed, pair);
    if (judged.ok()) measure_until_settled(judged, {variant, *judged.artifact}, proposal.island, pair);
  }
  record.verdict = to_string(judged.verdict);
  record.finding = to_string(judged.finding);
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
  record.samples = record::samples_json(judged.pair);
  record.clocks = {{"before", record::to_json(judged.before)}, {"after", record::to_json(judged.after)}};
  if (judged.artifact) {
    record.machine_code = judged.artifact->machine_code;
    record.resources = record::to_json(judged.artifact->resources);
    record.build_ms = judged.artifact->build_ms;
  }
  if (judged.ok())
    record.diagnosis =
        to_json(diagnose(variant, judged.artifact->resources, record.trial_us, std::nullopt), std::nullopt);
  record.verify_ms = judged.verify_ms;
  record.measure_ms = judged.measure_ms;
  record.run_elapsed_s = elapsed_s();
  record.finished = store::utc_now();
  return record;
}

// A trial is stored once, with all of its measurements: what a later generation rests on does not change any more.
void Evolution::measure_until_settled(trial::Outcome& judged, const trial::Built& built, int island,
                                      const measure::PairOptions& pair) {
  std::vector<double> rivals;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok) && (options_.strategy.kind != StrategyKind::islands || t.island == island))
      rivals.push_back(t.ratio_low);
  const auto places =
      static_cast<std::size_t>(options_.strategy.kind == StrategyKind::single ? 1 : options_.strategy.population);
  const Again again = [&]() -> std::optional<measure::PairResult> {
    check_interrupt();
    if (trials_that_fit() == 0) return std::nullopt;
    trial::Outcome more = laboratory_.measure_again(built, judged.seed, pair);
    judged.measure_ms += more.measure_ms;
    judged.after = more.after;
    if (more.ok()) return std::move(more.pair);
    judged.verdict = more.verdict;
    judged.finding = more.finding;
    judged.reason = more.reason;
    judged.check = more.check;
    return std::nullopt;
  };
  judged.pair = settled(std::move(judged.pair), rivals, places, self_spread_, again);
}

profile::Diagnosis Evolution::diagnose(const Variant& variant, const jit::Resources& resources, double us,
                                       const std::optional<profile::Counters>& counters) {
  profile::Evidence evidence;
  evidence.us = us;
  evidence.plan = variant.plan(options_.workload, device_);
  evidence.floor = laboratory_.floor(static_cast<int>(evidence.plan.threads));
  evidence.resources = resources;
  evidence.device = device_;
  evidence.bytes = options_.workload.bytes();
  evidence.counters = counters;
  return profile::diagnose(evidence, variant_knobs(*variant.family));
}

std::size_t Evolution::drafts_looked_at() const {
  std::size_t drafts = 0;
  for (const store::TrialRecord& t : trials_) drafts += t.drafts.size();
  return drafts;
}

bool Evolution::may_read_counters() const {
  return options_.profile && counters_readable_ && device_.kind == DeviceKind::cuda;
}

// None when they are not wanted or cannot be read; says so once.
std::optional<profile::Counters> Evolution::read_counters(const trial::Built& built, std::uint64_t seed) {
  if (!may_read_counters()) return std::nullopt;
  profile::CollectOptions collect;
  collect.seed = seed;
  profile::Reading reading = profile::collect(built.variant.plan(options_.workload, device_), built.artifact,
                                              options_.workload, device_, collect);
  if (!reading.counters) {
    counters_readable_ = false;
    observer_.message(fmt::format("no hardware counters, diagnosing from times alone: {}", reading.reason));
  }
  return reading.counters;
}

// Reads the counters of the best trials that were not read yet, before their children are proposed. What is stored says
// from which generation on it counts, so the proposals of any generation can be made again.
void Evolution::profile_elites(int generation) {
  if (trials_.empty() || trials_.back().generation >= generation || !may_read_counters()) return;
  std::vector<store::TrialRecord*> best;
  for (store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) best.push_back(&t);
  std::stable_sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return a->ratio_low > b->ratio_low; });
  if (static_cast<int>(best.size()) > options_.strategy.population)
    best.resize(static_cast<std::size_t>(options_.strategy.population));
  int read = 0;
  for (store::TrialRecord* t : best) {
    if (profile::has_counters(t->diagnosis)) continue;
    if (read++ == kProfilesPerGeneration) return;
    check_interrupt();
    const Variant variant = variant_of(*t);
    const jit::BuildOutcome build = builder_.build(laboratory_.request_for(variant));  // from the cache
    if (!build.artifact) continue;
    const std::optional<profile::Counters> counters = read_counters({variant, *build.artifact}, t->seed);
    if (!counters) return;
    const profile::Diagnosis diagnosis = diagnose(variant, build.artifact->resources, t->trial_us, counters);
    t->diagnosis = profile::replacement(t->diagnosis, to_json(diagnosis, counters), generation);
    store_.set_diagnosis(t->id, t->diagnosis);
    observer_.message(fmt::format("trial {}: {}", t->number, diagnosis.text));
  }
}

// An interval much narrower than what the base shows against itself on this machine decides nothing more; one that is
// wide decides nothing either.
measure::PairOptions Evolution::as_sharp_as_useful(measure::PairOptions options) const {
  options.target_uncertainty =
      std::max(options.target_uncertainty, std::min(self_spread_ / 4, wide_above(self_spread_) / 2));
  return options;
}

}  // namespace heed::evolve

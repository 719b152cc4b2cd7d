// What becomes of a variant: judged behind the gate and a measurement, measured again, or looked at without a gate.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/text.hpp"
#include "trial/trial_runner.hpp"

namespace heed::trial {
namespace {

constexpr double kScreeningWarmUpShare = 0.1;  // of a measurement's, where one screening follows the other
constexpr int kScreeningQuads = 2;             // eight blocks; four of what is hopeless
constexpr int kAttempts = 6;                   // at work whose worker something outside has killed
constexpr double kCpuFloorShare = 0.85;        // the measured peak is itself uncertain on a shared machine

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// Everything after the gate. Fills verdict, finding and reason when something is wrong; lets WorkerFailure through.
void TrialRunner::measure_and_check(const Built& trial, const measure::PairOptions& pair, bool fresh,
                                    Outcome& outcome) {
  const Blocks warm = warm_blocks(trial, fresh, warm_up_ms());
  const double cooled_ms = device_.kind == DeviceKind::cuda ? warm_up_ms() : 0;
  measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot, kTrialSlot}, 4 * pair.least_quads, cooled_ms,
                             options_.launch_limit_s);
  const Blocks blocks = watched(warm, checks);
  outcome.before = device_state(device_.kind);
  outcome.pair = measure::measure_pair(blocks.base, blocks.trial, pair);
  outcome.after = device_state(device_.kind);
  const auto failure = checks.finish();
  clock_.times.spot_checks_s += checks.seconds();
  if (failure) {
    const verify::Comparison& comparison = failure->comparison;
    const bool of_base = failure->slot == kBaseSlot;
    if (of_base) check_base_alone(comparison);
    outcome.verdict = Verdict::cheating;  // it passed the gate: right when watched, wrong when timed
    outcome.finding = is_forbidden_write(comparison.finding) ? comparison.finding : Finding::timed_output;
    outcome.reason = of_base ? fmt::format("the base is right by itself, and beside this not: {}", comparison.text)
                             : comparison.text;
    return;
  }
  const measure::Floor bound = floor(static_cast<int>(plan_of(trial.variant).threads));
  const double least_us = bound.us() * (device_.kind == DeviceKind::cpu ? kCpuFloorShare : 1.0);
  if (outcome.pair.trial_median_us < least_us) {
    outcome.verdict = Verdict::faster_than_floor;
    outcome.reason = fmt::format("{:.2f} us is below the {:.2f} us that its {} take at least",
                                 outcome.pair.trial_median_us, least_us, bound.bound());
  }
}

Outcome TrialRunner::judge(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
                           const measure::PairOptions& pair, bool fresh) {
  int attempt = 0;
  return undisturbed(
      [&] {
        ++attempt;
        return judge_once(variant, build, seed, pair, fresh, attempt == kAttempts);
      },
      kAttempts);
}

Outcome TrialRunner::judge_once(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
                                const measure::PairOptions& pair, bool fresh, bool is_last) {
  HEED_CHECK(base_.has_value());
  Outcome outcome;
  outcome.seed = seed;
  if (!build.artifact) {
    outcome.verdict = Verdict::build_failed;
    outcome.reason = build.timed_out ? "the compiler did not end in time" : trim(build.log).substr(0, 2000);
    return outcome;
  }
  outcome.artifact = build.artifact;
  if (!build.artifact->violation.empty()) {
    outcome.verdict = Verdict::cheating;
    outcome.finding = Finding::breaks_contract;
    outcome.reason = build.artifact->violation;
    outcome.check = "admission";
    return outcome;
  }
  const Built trial{variant, *build.artifact};
  auto begin = std::chrono::steady_clock::now();
  try {
    verify::GateOptions options;
    options.seed = seed;
    options.tensors = tensors_;
    options.launch_limit_s = options_.launch_limit_s;
    const verify::GateReport report = [&] {
      const Phase phase(clock_, &Phases::gate, describe(variant));
      return verify::run_gate(worker_for(*base_, trial, fresh), kTrialSlot, variant, workload_, device_, options);
    }();
    outcome.verify_ms = milliseconds_since(begin);
    outcome.error = report.error;
    outcome.checks = report.checks;
    outcome.verdict = report.verdict;
    outcome.finding = report.finding;
    outcome.reason = report.reason;
    outcome.check = report.check;
    if (report.passed()) {
      passed_.insert(name_of(trial));
      begin = std::chrono::steady_clock::now();
      outcome.check = "measuring";
      const Phase phase(clock_, &Phases::measure, describe(variant));
      measure_and_check(trial, pair, /*fresh=*/false, outcome);
      outcome.measure_ms = milliseconds_since(begin);
      if (outcome.ok()) outcome.check.clear();
    }
  } catch (const worker::WorkerFailure& failure) {
    if (failure.kind() == worker::WorkerFailure::Kind::killed && !is_last) throw;
    outcome.verdict = verify::verdict_of(failure);
    outcome.finding = verify::finding_of(failure);
    outcome.reason = failure.what();
    if (outcome.check.empty()) outcome.check = "loading";
  } catch (const measure::ForgedTime& forged) {
    outcome.verdict = Verdict::cheating;
    outcome.finding = Finding::forged_time;
    outcome.reason = forged.what();
  }
  if (!outcome.ok() || device_.kind == DeviceKind::cpu) drop_worker();
  return outcome;
}

Outcome TrialRunner::measure_again(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair) {
  int attempt = 0;
  return undisturbed(
      [&] {
        ++attempt;
        return measure_again_once(trial, seed, pair, attempt == kAttempts);
      },
      kAttempts);
}

Outcome TrialRunner::measure_again_once(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair,
                                        bool is_last) {
  HEED_CHECK(base_.has_value());
  const Phase phase(clock_, &Phases::measure, describe(trial.variant));
  Outcome outcome;
  outcome.seed = seed;
  outcome.artifact = trial.artifact;
  outcome.check = "measuring again";
  const auto begin = std::chrono::steady_clock::now();
  try {
    measure_and_check(trial, pair, /*fresh=*/true, outcome);
    if (outcome.ok()) outcome.check.clear();
  } catch (const worker::WorkerFailure& failure) {
    if (failure.kind() == worker::WorkerFailure::Kind::killed && !is_last) throw;
    outcome.verdict = verify::verdict_of(failure);
    outcome.finding = verify::finding_of(failure);
    outcome.reason = failure.what();
  } catch (const measure::ForgedTime& forged) {
    outcome.verdict = Verdict::cheating;
    outcome.finding = Finding::forged_time;
    outcome.reason = forged.what();
  }
  outcome.measure_ms = milliseconds_since(begin);
  if (!outcome.ok() || device_.kind == DeviceKind::cpu) drop_worker();
  return outcome;
}

Screening TrialRunner::screen(const Variant& variant, const jit::BuildOutcome& build, const ScreeningOptions& options) {
  HEED_CHECK(base_.has_value());
  const Phase phase(clock_, &Phases::screen, describe(variant));
  const auto timed_at = std::max(screened_at_, device_.kind == DeviceKind::cuda ? options.timed_at : screened_at_);
  const double rested_ms = milliseconds_since(timed_at);
  const double warm_ms = std::clamp(rested_ms, kScreeningWarmUpShare * warm_up_ms(), warm_up_ms());
  Screening screening;
  if (!build.artifact) {
    screening.reason = "it did not build";
    return screening;
  }
  if (!build.artifact->violation.empty()) {
    screening.reason = build.artifact->violation;
    return screening;
  }
  try {
    measure::PairOptions pair = options_.pair;
    pair.least_quads = options.hopeless_below > 0 ? 1 : kScreeningQuads;
    pair.most_quads = kScreeningQuads;
    pair.target_uncertainty = -1;  // of one quad that is 0
    pair.hopeless_below = options.hopeless_below;
    screening.pair = undisturbed(
        [&] {
          const Blocks blocks = warm_blocks({variant, *build.artifact}, /*fresh=*/false, warm_ms, options.most_replays);
          return measure::measure_pair(blocks.base, blocks.trial, pair);
        },
        kAttempts);
    if (!std::isfinite(screening.pair.ratio.value) || screening.pair.ratio.value <= 0)
      screening = {{}, "its times are no numbers"};
  } catch (const worker::WorkerFailure& failure) {
    screening.reason = failure.what();
  } catch (const measure::ForgedTime& forged) {
    screening.reason = forged.what();
  }
  if (!screening.reason.empty() || device_.kind == DeviceKind::cpu) drop_worker();
  screened_at_ = std::chrono::steady_clock::now();
  return screening;
}

}  // namespace heed::trial

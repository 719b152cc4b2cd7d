#include "trial/laboratory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/check.hpp"
#include "base/random.hpp"
#include "base/text.hpp"

namespace heed::trial {
namespace {

constexpr int kSelfProcesses = 3;          // in which the base is compared with itself
constexpr int kRepeatedSelfProcesses = 8;  // where many such comparisons are made: a process may have its own bias
constexpr double kWarmUp_ms_gpu = 150;     // an idle GPU reads up to 12% high for about that long
constexpr double kWarmUp_ms_cpu = 60;
constexpr double kLookWarmUpShare = 0.2;  // of those, where one look follows the other
constexpr int kLookQuads = 2;             // eight blocks, less than a tenth of a second on a GPU
constexpr int kAttempts = 6;              // at work whose worker something outside has killed
constexpr double kCpuFloorShare = 0.85;   // the measured peak is itself uncertain on a shared machine

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

WrongWhenTimed::WrongWhenTimed(const Variant& variant, const verify::Comparison& comparison)
    : Error(ErrorCode::internal, fmt::format("{} is wrong where it is timed: {}", describe(variant), comparison.text)),
      finding_(is_trespass(comparison.finding) ? comparison.finding : Finding::timed_output) {}

Laboratory::Laboratory(const Workload& workload, const DeviceFacts& device, jit::Builder& builder,
                       const QkvTensors* tensors, const Options& options, Laboratory* done)
    : workload_(workload), device_(device), builder_(builder), tensors_(tensors), options_(options) {
  validate(workload_);
  if (done == nullptr) return;
  HEED_CHECK(device_.name == done->device_.name);
  arena_ = std::move(done->arena_);
  worker_ = std::move(done->worker_);
  done->drop_worker();  // base_in_worker_ stays empty here: the same binary may have another plan
}

Laboratory::~Laboratory() = default;

std::optional<std::string> Laboratory::refuses(const Variant& variant) const {
  if (auto reason = variant.family->refuses(workload_, device_)) return reason;
  return variant.is_illegal(workload_, device_);
}

LaunchPlan Laboratory::plan_of(const Variant& variant) const {
  return variant.plan(workload_, device_);
}

jit::BuildRequest Laboratory::request_for(const Variant& variant) const {
  return jit::request_for(variant, workload_, device_);
}

Built Laboratory::build(const Variant& variant, bool fresh) {
  if (const auto reason = refuses(variant))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} cannot run {} on {}: {}", describe(variant), to_string(workload_), device_.name, *reason),
        describe(variant));
  jit::BuildOutcome outcome = builder_.build(request_for(variant), fresh);
  if (!outcome.artifact)
    throw Error(ErrorCode::build_failed,
                fmt::format("{} did not build: {}", describe(variant),
                            outcome.timed_out ? "the compiler did not end in time" : trim(outcome.log)),
                describe(variant));
  if (!outcome.artifact->breach.empty())
    throw Error(ErrorCode::build_failed,
                fmt::format("{} breaks the kernel contract: {}", describe(variant), outcome.artifact->breach),
                describe(variant));
  return {variant, std::move(*outcome.artifact)};
}

void Laboratory::ensure_arena(std::uint64_t bytes) {
  if (arena_ && arena_->size() >= bytes) return;
  drop_worker();
  arena_.reset();  // before the new one: both at once may not fit
  arena_ = std::make_shared<worker::Arena>(bytes);
}

void Laboratory::ensure_sets(const LaunchMemory& memory) {
  if (sets_ && sets_->memory().holds(memory)) return;
  const LaunchMemory needed = sets_ ? memory.joined(sets_->memory()) : memory;
  sets_.reset();
  sets_ = std::make_unique<measure::TimedSets>(
      workload_, measure::plan_timing(workload_, device_, measure::Caches::warm), needed, fresh_seed());
}

void Laboratory::drop_worker() {
  worker_.reset();
  base_in_worker_.clear();
}

// Whoever deletes the cache while a run goes on costs a build, not the run.
void Laboratory::load(worker::Worker& worker, int slot, const Built& built) {
  builder_.keep(built.artifact, request_for(built.variant));
  worker.load(slot, built.artifact.path.string(), plan_of(built.variant));
}

// A worker with base and trial loaded, and memory for the gate; for timed inputs too, once there are any. What is only
// verified has none: to draw them took a fifth of the time on a CPU. On a GPU it lives on from trial to trial, for its
// context takes half a second to make; on a CPU it is sealed once its candidates are loaded, so each trial has its own.
worker::Worker& Laboratory::worker_for(const Built& base, const Built& trial, bool fresh) {
  const LaunchPlan base_plan = plan_of(base.variant);
  const LaunchPlan trial_plan = plan_of(trial.variant);
  if (sets_) ensure_sets(LaunchMemory::of(base_plan).joined(LaunchMemory::of(trial_plan)));
  ensure_arena(std::max({sets_ ? sets_->arena_bytes() : 0, verify::gate_arena_bytes(base.variant, workload_, device_),
                         verify::gate_arena_bytes(trial.variant, workload_, device_)}));
  if (fresh || device_.kind == DeviceKind::cpu) drop_worker();
  if (!worker_) worker_ = std::make_unique<worker::Worker>(device_.kind, arena_);
  if (base_in_worker_ != base.artifact.path.string()) {
    load(*worker_, kBaseSlot, base);
    base_in_worker_ = base.artifact.path.string();
  }
  load(*worker_, kTrialSlot, trial);
  if (!worker_->sealed()) worker_->seal();
  return *worker_;
}

void Laboratory::set_base(const Built& base) {
  ensure_sets(LaunchMemory::of(plan_of(base.variant)));  // before the gate, so that its worker has room for them
  const verify::GateReport report = verify(base, fresh_seed());
  if (!report.passed())
    throw Error(ErrorCode::internal,
                fmt::format("the base {} does not pass the gate on this machine ({}, check \"{}\"): {}",
                            describe(base.variant), to_string(report.verdict), report.check, report.reason));
  base_ = base;
  self_.reset();
}

verify::GateReport Laboratory::verify(const Built& built, std::uint64_t seed,
                                      const std::function<void(const std::string&)>& on_check) {
  verify::GateOptions options;
  options.seed = seed;
  options.tensors = tensors_;
  options.launch_limit_s = options_.launch_limit_s;
  options.on_check = on_check;
  verify::GateReport report;
  try {
    report = undisturbed([&] {
      return verify::run_gate(worker_for(built, built, false), kTrialSlot, built.variant, workload_, device_, options);
    });
  } catch (const worker::WorkerFailure& failure) {
    report.verdict = verify::verdict_of(failure);
    report.finding = verify::finding_of(failure);
    report.reason = failure.what();
    report.check = "loading";
  }
  if (!report.passed() || device_.kind == DeviceKind::cpu) drop_worker();
  return report;
}

const Laboratory::SelfComparison& Laboratory::base_against_itself() {
  if (self_) return *self_;
  measure::PairOptions pair = options_.pair;
  pair.target_uncertainty = 0;  // as many quads as the time allows: this is the yardstick
  pair.limit_s = options_.pair.limit_s / kSelfProcesses;
  self_ = compare_with_itself(pair);
  return *self_;
}

Laboratory::SelfComparison Laboratory::compare_with_itself(const measure::PairOptions& pair) {
  HEED_CHECK(base_.has_value());
  SelfComparison self;
  std::vector<measure::PairResult> processes;
  for (int process = 0; process < kSelfProcesses; ++process) {
    const measure::PairResult one = undisturbed([&] {
      Outcome outcome;
      measure_and_check(*base_, pair, /*fresh=*/true, outcome);
      return outcome.pair;
    });
    self.spread = std::max({self.spread, std::abs(one.ratio.low - 1), std::abs(one.ratio.high - 1)});
    processes.push_back(one);
  }
  self.pair = measure::together(processes);
  return self;
}

std::vector<measure::Ratio> Laboratory::compare_base_with_itself(
    int comparisons, const measure::PairOptions& pair, const std::function<void(const measure::Ratio&)>& on_each) {
  HEED_CHECK(base_.has_value());
  std::vector<measure::Ratio> ratios;
  const int processes = std::min(comparisons, kRepeatedSelfProcesses);
  for (int process = 0; process < processes; ++process) {
    const auto end = static_cast<std::size_t>(comparisons * (process + 1) / processes);
    undisturbed([&] {
      const Blocks warm = warm_blocks(*base_, /*fresh=*/true, warm_up_ms());
      measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot, kTrialSlot}, 4 * pair.least_quads, warm_up_ms(),
                                 options_.launch_limit_s);
      const Blocks blocks = watched(warm, checks);
      while (ratios.size() < end) {
        ratios.push_back(measure::measure_pair(blocks.base, blocks.trial, pair).ratio);
        on_each(ratios.back());
      }
      if (const auto failure = checks.finish()) throw WrongWhenTimed(base_->variant, failure->comparison);
    });
  }
  if (device_.kind == DeviceKind::cpu) drop_worker();
  return ratios;
}

double Laboratory::warm_up_ms() const {
  return device_.kind == DeviceKind::cuda ? kWarmUp_ms_gpu : kWarmUp_ms_cpu;
}

// A worker with base and trial, their timed launches prepared and warm.
Laboratory::Blocks Laboratory::warm_blocks(const Built& trial, bool fresh, double warm_up_ms) {
  worker::Worker& worker = worker_for(*base_, trial, fresh);
  sets_->prepare(worker, {{kBaseSlot, plan_of(base_->variant)}, {kTrialSlot, plan_of(trial.variant)}},
                 options_.launch_limit_s);
  worker.warm_up(kBaseSlot, warm_up_ms / 2, options_.launch_limit_s);
  worker.warm_up(kTrialSlot, warm_up_ms / 2, options_.launch_limit_s);
  return {measure::worker_block(worker, kBaseSlot, "the base", *sets_, options_.launch_limit_s),
          measure::worker_block(worker, kTrialSlot, "the candidate", *sets_, options_.launch_limit_s)};
}

Laboratory::Blocks Laboratory::watched(const Blocks& blocks, measure::SpotChecks& checks) const {
  const auto watch = [&checks](const measure::Block& block) {
    return [&checks, block] {
      checks.before_block();
      return block();
    };
  };
  return {watch(blocks.base), watch(blocks.trial)};
}

// What was found wrong of the base beside a trial may be the trial's doing. By itself it must be right.
void Laboratory::check_base_alone(const verify::Comparison& beside_trial) {
  undisturbed([&] {
    drop_worker();
    worker_ = std::make_unique<worker::Worker>(device_.kind, arena_);
    load(*worker_, kBaseSlot, *base_);
    worker_->seal();
    sets_->prepare(*worker_, {{kBaseSlot, plan_of(base_->variant)}}, options_.launch_limit_s);
    measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot}, 0, 0, options_.launch_limit_s);
    const auto failure = checks.finish();
    drop_worker();
    if (failure)
      throw Error(ErrorCode::internal,
                  fmt::format("the base {} is wrong where it is timed: {}; beside another variant: {}",
                              describe(base_->variant), failure->comparison.text, beside_trial.text));
  });
}

// Everything after the gate. Fills verdict, finding and reason when something is wrong; lets WorkerFailure through.
void Laboratory::measure_and_check(const Built& trial, const measure::PairOptions& pair, bool fresh, Outcome& outcome) {
  const Blocks warm = warm_blocks(trial, fresh, warm_up_ms());
  const double cooled_ms = device_.kind == DeviceKind::cuda ? warm_up_ms() : 0;
  measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot, kTrialSlot}, 4 * pair.least_quads, cooled_ms,
                             options_.launch_limit_s);
  const Blocks blocks = watched(warm, checks);
  outcome.before = device_state(device_.kind);
  outcome.pair = measure::measure_pair(blocks.base, blocks.trial, pair);
  outcome.after = device_state(device_.kind);
  if (const auto failure = checks.finish()) {
    const verify::Comparison& comparison = failure->comparison;
    const bool of_base = failure->slot == kBaseSlot;
    if (of_base) check_base_alone(comparison);
    outcome.verdict = Verdict::cheating;  // it passed the gate: right when watched, wrong when timed
    outcome.finding = is_trespass(comparison.finding) ? comparison.finding : Finding::timed_output;
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

Outcome Laboratory::judge(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
                          const measure::PairOptions& pair, bool fresh) {
  int attempt = 0;
  return undisturbed(
      [&] {
        ++attempt;
        return judge_once(variant, build, seed, pair, fresh, attempt == kAttempts);
      },
      kAttempts);
}

Outcome Laboratory::judge_once(const Variant& variant, const jit::BuildOutcome& build, std::uint64_t seed,
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
  if (!build.artifact->breach.empty()) {
    outcome.verdict = Verdict::cheating;
    outcome.finding = Finding::breaks_contract;
    outcome.reason = build.artifact->breach;
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
    const verify::GateReport report =
        verify::run_gate(worker_for(*base_, trial, fresh), kTrialSlot, variant, workload_, device_, options);
    outcome.verify_ms = milliseconds_since(begin);
    outcome.error = report.error;
    outcome.checks = report.checks;
    outcome.verdict = report.verdict;
    outcome.finding = report.finding;
    outcome.reason = report.reason;
    outcome.check = report.check;
    if (report.passed()) {
      begin = std::chrono::steady_clock::now();
      outcome.check = "measuring";
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

Outcome Laboratory::measure_again(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair) {
  int attempt = 0;
  return undisturbed(
      [&] {
        ++attempt;
        return measure_again_once(trial, seed, pair, attempt == kAttempts);
      },
      kAttempts);
}

Outcome Laboratory::measure_again_once(const Built& trial, std::uint64_t seed, const measure::PairOptions& pair,
                                       bool is_last) {
  HEED_CHECK(base_.has_value());
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

Look Laboratory::look(const Variant& variant, const jit::BuildOutcome& build, bool rested) {
  HEED_CHECK(base_.has_value());
  Look look;
  if (!build.artifact) {
    look.reason = "it did not build";
    return look;
  }
  if (!build.artifact->breach.empty()) {
    look.reason = build.artifact->breach;
    return look;
  }
  try {
    measure::PairOptions pair = options_.pair;
    pair.least_quads = pair.most_quads = kLookQuads;
    look.pair = undisturbed(
        [&] {
          const Blocks blocks =
              warm_blocks({variant, *build.artifact}, /*fresh=*/false, (rested ? 1 : kLookWarmUpShare) * warm_up_ms());
          return measure::measure_pair(blocks.base, blocks.trial, pair);
        },
        kAttempts);
    if (!std::isfinite(look.pair.ratio.value) || look.pair.ratio.value <= 0) look = {{}, "its times are no numbers"};
  } catch (const worker::WorkerFailure& failure) {
    look.reason = failure.what();
  } catch (const measure::ForgedTime& forged) {
    look.reason = forged.what();
  }
  if (!look.reason.empty() || device_.kind == DeviceKind::cpu) drop_worker();
  return look;
}

}  // namespace heed::trial

#include "trial/trial_runner.hpp"

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

}  // namespace

WrongWhenTimed::WrongWhenTimed(const Variant& variant, const verify::Comparison& comparison)
    : Error(ErrorCode::internal, fmt::format("{} is wrong where it is timed: {}", describe(variant), comparison.text)),
      finding_(is_forbidden_write(comparison.finding) ? comparison.finding : Finding::timed_output) {}

TrialRunner::TrialRunner(const Workload& workload, const DeviceFacts& device, jit::Builder& builder,
                         const QkvTensors* tensors, const Options& options, TrialRunner* done)
    : workload_(workload), device_(device), builder_(builder), tensors_(tensors), options_(options) {
  validate(workload_);
  if (done == nullptr) return;
  HEED_CHECK(device_.name == done->device_.name);
  arena_ = std::move(done->arena_);
  worker_ = std::move(done->worker_);
  if (worker_) worker_->report_busy_to(clock_.busy);
  done->drop_worker();  // base_in_worker_ stays empty here: the same binary may have another plan
}

TrialRunner::~TrialRunner() = default;

std::optional<std::string> TrialRunner::refuses(const Variant& variant) const {
  if (auto reason = variant.family->refuses(workload_, device_)) return reason;
  return variant.is_illegal(workload_, device_);
}

LaunchPlan TrialRunner::plan_of(const Variant& variant) const {
  return variant.plan(workload_, device_);
}

jit::BuildRequest TrialRunner::request_for(const Variant& variant) const {
  return jit::request_for(variant, workload_, device_);
}

Built TrialRunner::build(const Variant& variant, bool fresh) {
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
  if (!outcome.artifact->violation.empty())
    throw Error(ErrorCode::build_failed,
                fmt::format("{} breaks the kernel contract: {}", describe(variant), outcome.artifact->violation),
                describe(variant));
  return {variant, std::move(*outcome.artifact)};
}

void TrialRunner::ensure_arena(std::uint64_t bytes) {
  if (arena_ && arena_->size() >= bytes) return;
  drop_worker();
  arena_.reset();  // before the new one: both at once may not fit
  arena_ = std::make_shared<worker::Arena>(bytes);
}

void TrialRunner::ensure_sets(const LaunchMemory& memory) {
  if (sets_ && sets_->memory().holds(memory)) return;
  const LaunchMemory needed = sets_ ? memory.joined(sets_->memory()) : memory;
  sets_.reset();
  sets_ = std::make_unique<measure::TimedSets>(workload_, plan_timing(measure::Caches::warm), needed, fresh_seed());
}

std::unique_ptr<worker::Worker> TrialRunner::start_worker(const std::shared_ptr<worker::Arena>& arena) {
  auto started = std::make_unique<worker::Worker>(device_.kind, arena);
  started->report_busy_to(clock_.busy);
  return started;
}

// Workers that only time have nothing to record.
void TrialRunner::record_activities() {
  if (!options_.activity_records || device_.kind != DeviceKind::cuda || !no_records_.empty()) return;
  no_records_ = worker_->record_activities();
}

void TrialRunner::drop_worker() {
  worker_.reset();
  base_in_worker_.clear();
}

// Whoever deletes the cache while a run goes on costs a build, not the run.
void TrialRunner::load(worker::Worker& worker, int slot, const Built& built) {
  builder_.keep(built.artifact, request_for(built.variant));
  worker.load(slot, built.artifact.path.string(), plan_of(built.variant));
}

// A worker with base and trial loaded, and memory for the gate; for timed inputs too, once there are any. What is only
// verified has none: to draw them took a fifth of the time on a CPU. On a GPU it lives on from trial to trial, for its
// context takes half a second to make; on a CPU it is sealed once its candidates are loaded, so each trial has its own.
worker::Worker& TrialRunner::worker_for(const Built& base, const Built& trial, bool fresh) {
  const LaunchPlan base_plan = plan_of(base.variant);
  const LaunchPlan trial_plan = plan_of(trial.variant);
  if (sets_) ensure_sets(LaunchMemory::of(base_plan).joined(LaunchMemory::of(trial_plan)));
  ensure_arena(std::max({sets_ ? sets_->arena_bytes() : 0, verify::gate_arena_bytes(base.variant, workload_, device_),
                         verify::gate_arena_bytes(trial.variant, workload_, device_)}));
  if (fresh || device_.kind == DeviceKind::cpu) drop_worker();
  if (!worker_) {
    worker_ = start_worker(arena_);
    record_activities();
  }
  if (base_in_worker_ != base.artifact.path.string()) {
    load(*worker_, kBaseSlot, base);
    base_in_worker_ = base.artifact.path.string();
  }
  load(*worker_, kTrialSlot, trial);
  if (!worker_->sealed()) worker_->seal();
  return *worker_;
}

void TrialRunner::set_base(const Built& base) {
  ensure_sets(LaunchMemory::of(plan_of(base.variant)));  // before the gate, so that its worker has room for them
  if (!passed_.contains(name_of(base))) {
    const verify::GateReport report = verify(base, fresh_seed());
    if (!report.passed())
      throw Error(ErrorCode::internal,
                  fmt::format("the base {} does not pass the gate on this machine ({}, check \"{}\"): {}",
                              describe(base.variant), to_string(report.verdict), report.check, report.reason));
  }
  base_ = base;
  self_.reset();
}

verify::GateReport TrialRunner::verify(const Built& built, std::uint64_t seed,
                                       const std::function<void(const std::string&)>& on_check) {
  verify::GateOptions options;
  options.seed = seed;
  options.tensors = tensors_;
  options.launch_limit_s = options_.launch_limit_s;
  options.on_check = on_check;
  const Phase phase(clock_, &Phases::gate, describe(built.variant));
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
  if (report.passed()) passed_.insert(name_of(built));
  if (!report.passed() || device_.kind == DeviceKind::cpu) drop_worker();
  return report;
}

std::string TrialRunner::name_of(const Built& built) {
  return fmt::format("{} {} {}", built.variant.id(), built.artifact.machine_code, built.artifact.path.string());
}

const TrialRunner::SelfComparison& TrialRunner::base_against_itself() {
  if (self_) return *self_;
  measure::PairOptions pair = options_.pair;
  pair.target_uncertainty = 0;  // as many quads as the time allows: this is the yardstick
  pair.limit_s = options_.pair.limit_s / kSelfProcesses;
  self_ = compare_with_itself(pair);
  return *self_;
}

TrialRunner::SelfComparison TrialRunner::compare_with_itself(const measure::PairOptions& pair) {
  HEED_CHECK(base_.has_value());
  const Phase phase(clock_, &Phases::measure, "the base against itself");
  SelfComparison self;
  std::vector<measure::PairResult> processes;
  for (int process = 0; process < kSelfProcesses; ++process) {
    const measure::PairResult one = of_base([&] {
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

std::vector<measure::Ratio> TrialRunner::compare_base_with_itself(
    int comparisons, const measure::PairOptions& pair, const std::function<void(const measure::Ratio&)>& on_each) {
  HEED_CHECK(base_.has_value());
  const Phase phase(clock_, &Phases::measure, "the base against itself");
  std::vector<measure::Ratio> ratios;
  const int processes = std::min(comparisons, kRepeatedSelfProcesses);
  for (int process = 0; process < processes; ++process) {
    const auto end = static_cast<std::size_t>(comparisons * (process + 1) / processes);
    of_base([&] {
      const Blocks warm = warm_blocks(*base_, /*fresh=*/true, warm_up_ms());
      measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot, kTrialSlot}, 4 * pair.least_quads, warm_up_ms(),
                                 options_.launch_limit_s);
      const Blocks blocks = watched(warm, checks);
      while (ratios.size() < end) {
        ratios.push_back(measure::measure_pair(blocks.base, blocks.trial, pair).ratio);
        on_each(ratios.back());
      }
      const auto failure = checks.finish();
      clock_.times.spot_checks_s += checks.seconds();
      if (failure) throw WrongWhenTimed(base_->variant, failure->comparison);
    });
  }
  if (device_.kind == DeviceKind::cpu) drop_worker();
  return ratios;
}

measure::TimingPlan TrialRunner::plan_timing(measure::Caches caches) const {
  const auto block_us = [](const measure::PairOptions& pair) { return 1e6 * pair.limit_s / (4 * pair.least_quads); };
  return measure::plan_timing(workload_, device_, caches,
                              std::min(block_us(options_.pair), block_us(options_.final_pair)));
}

double TrialRunner::warm_up_ms() const {
  return device_.kind == DeviceKind::cuda ? kWarmUp_ms_gpu : kWarmUp_ms_cpu;
}

// A worker with base and trial, their timed launches prepared and warm.
TrialRunner::Blocks TrialRunner::warm_blocks(const Built& trial, bool fresh, double warm_up_ms, int most_replays) {
  worker::Worker& worker = worker_for(*base_, trial, fresh);
  sets_->prepare(worker, {{kBaseSlot, plan_of(base_->variant)}, {kTrialSlot, plan_of(trial.variant)}},
                 options_.launch_limit_s);
  worker.warm_up(kBaseSlot, warm_up_ms / 2, options_.launch_limit_s);
  worker.warm_up(kTrialSlot, warm_up_ms / 2, options_.launch_limit_s);
  return {measure::worker_block(worker, kBaseSlot, "the base", *sets_, options_.launch_limit_s, most_replays),
          measure::worker_block(worker, kTrialSlot, "the candidate", *sets_, options_.launch_limit_s, most_replays)};
}

TrialRunner::Blocks TrialRunner::watched(const Blocks& blocks, measure::SpotChecks& checks) const {
  const auto watch = [&checks](const measure::Block& block) {
    return [&checks, block] {
      checks.before_block();
      return block();
    };
  };
  return {watch(blocks.base), watch(blocks.trial)};
}

// What was found wrong of the base beside a trial may be the trial's doing. By itself it must be right.
void TrialRunner::check_base_alone(const verify::Comparison& beside_trial) {
  undisturbed([&] {
    drop_worker();
    worker_ = start_worker(arena_);
    load(*worker_, kBaseSlot, *base_);
    worker_->seal();
    sets_->prepare(*worker_, {{kBaseSlot, plan_of(base_->variant)}}, options_.launch_limit_s);
    measure::SpotChecks checks(*sets_, *worker_, {kBaseSlot}, 0, 0, options_.launch_limit_s);
    const auto failure = checks.finish();
    clock_.times.spot_checks_s += checks.seconds();
    drop_worker();
    if (failure)
      throw Error(ErrorCode::internal,
                  fmt::format("the base {} is wrong where it is timed: {}; beside another variant: {}",
                              describe(base_->variant), failure->comparison.text, beside_trial.text));
  });
}

}  // namespace heed::trial

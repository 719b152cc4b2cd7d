// Times of one variant by itself: warm, cold, dependent, eager, beside PyTorch, and the least time of a launch.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/check.hpp"
#include "base/random.hpp"
#include "trial/trial_runner.hpp"

namespace heed::trial {
namespace {

constexpr int kEagerCalls = 2000;
constexpr double kStandaloneShare = 0.1;  // of a block's calls that check its outputs

constexpr const char* kEmptyKernel =
    "#include \"kernels/contract.hpp\"\n"
    "extern \"C\" __global__ void heed_forward(const __grid_constant__ heed::ForwardParams) {}\n";

}  // namespace

double TrialRunner::time_alone(const Built& built, measure::TimedSets& sets, worker::Follow follow, Absolute* eager) {
  return undisturbed([&] { return time_alone_once(built, sets, follow, eager); });
}

double TrialRunner::time_alone_once(const Built& built, measure::TimedSets& sets, worker::Follow follow,
                                    Absolute* eager) {
  const Phase phase(clock_, &Phases::measure, describe(built.variant));
  const LaunchPlan plan = plan_of(built.variant);
  const bool gpu = device_.kind == DeviceKind::cuda;
  ensure_arena(sets.arena_bytes());
  drop_worker();
  const std::unique_ptr<worker::Worker> started = start_worker(arena_);
  worker::Worker& worker = *started;
  load(worker, kTrialSlot, built);
  worker.seal();
  sets.prepare(worker, {{kTrialSlot, plan}}, options_.launch_limit_s, follow);
  worker.warm_up(kTrialSlot, warm_up_ms(), options_.launch_limit_s);
  const measure::Block block = measure::worker_block(worker, kTrialSlot, "the variant", sets, options_.launch_limit_s);
  const int blocks = gpu ? 15 : 7;
  measure::SpotChecks checks(sets, worker, {kTrialSlot}, blocks, gpu ? warm_up_ms() : 0, options_.launch_limit_s);
  std::vector<double> readings;
  for (int i = 0; i < blocks; ++i) {
    checks.before_block();
    readings.push_back(block().us);
  }
  const auto failure = checks.finish();
  clock_.times.spot_checks_s += checks.seconds();
  if (failure) throw WrongWhenTimed(built.variant, failure->comparison);
  if (eager != nullptr && gpu) {
    const int launches = sets.plan().launches;  // whole passes, so that it is known which launch wrote what is there
    std::tie(eager->eager_us, eager->eager_synchronised_us) =
        worker.time_eager(kTrialSlot, std::max(1, kEagerCalls / launches) * launches, options_.launch_limit_s);
    measure::SpotCheck check = measure::SpotCheck::of_whole_passes(sets, fresh_seed());
    measure::SpotCheck::Image image = check.fetch(worker, options_.launch_limit_s);
    const verify::Comparison comparison = check.check(worker, image);
    if (comparison.finding != Finding::none) throw WrongWhenTimed(built.variant, comparison);
  }
  return measure::median(readings);
}

double TrialRunner::measure_dependent(const Built& built) {
  const LaunchPlan plan = plan_of(built.variant);
  if (!plan.supports_pdl || device_.kind != DeviceKind::cuda) return 0;
  ensure_sets(LaunchMemory::of(plan));
  return time_alone(built, *sets_, worker::Follow::dependent);
}

double TrialRunner::measure_large(const Built& built) {
  measure::TimedSets large(workload_, plan_timing(measure::Caches::warm), LaunchMemory::of(plan_of(built.variant)),
                           fresh_seed(), verify::InputClass::large_logits);
  return time_alone(built, large, worker::Follow::in_stream);
}

Absolute TrialRunner::measure_absolute(const Built& built) {
  Absolute result;
  const LaunchMemory memory = LaunchMemory::of(plan_of(built.variant));
  ensure_sets(memory);
  result.warm_us = time_alone(built, *sets_, worker::Follow::in_stream, &result);
  result.dependent_us = measure_dependent(built);
  measure::TimedSets cold(workload_, plan_timing(measure::Caches::cold), memory, fresh_seed());
  result.cold_us = time_alone(built, cold, worker::Follow::in_stream);
  return result;
}

measure::Block TrialRunner::standalone_block(const Built& built) {
  ensure_sets(LaunchMemory::of(plan_of(built.variant)));
  // Sets of its own: they keep account of what K in one worker is multiplied by.
  const auto sets = std::make_shared<measure::TimedSets>(workload_, sets_->plan(), sets_->memory(), fresh_seed());
  const auto arena = std::make_shared<worker::Arena>(sets->arena_bytes());
  const auto worker = std::make_shared<std::unique_ptr<worker::Worker>>();
  const auto random = std::make_shared<Random>(fresh_seed());
  const double limit_s = options_.launch_limit_s;
  return [this, built, sets, arena, worker, random, limit_s] {
    return undisturbed([&] {
      if (!*worker || !(*worker)->lives()) {
        *worker = std::make_unique<worker::Worker>(device_.kind, arena);
        load(**worker, kTrialSlot, built);
        (*worker)->seal();
        sets->prepare(**worker, {{kTrialSlot, plan_of(built.variant)}}, limit_s);
      }
      if (random->chance(kStandaloneShare)) {
        measure::SpotCheck check(*sets, random->next());
        measure::SpotCheck::Image image = check.take(**worker, kTrialSlot, false, limit_s);
        const verify::Comparison comparison = check.check(**worker, image);
        if (comparison.finding != Finding::none) throw WrongWhenTimed(built.variant, comparison);
      }
      (*worker)->warm_up(kTrialSlot, 5, limit_s);  // the other side has just used the device
      return measure::worker_block(**worker, kTrialSlot, "the variant", *sets, limit_s)();
    });
  };
}

double TrialRunner::peak_flops() const {
  return measure::peak_of(device_, workload_, device_.processors).flops;
}

double TrialRunner::measure_launch_floor() {
  if (device_.kind == DeviceKind::cpu) return 0;
  const Phase phase(clock_, &Phases::measure, "an empty kernel");
  const jit::BuildOutcome built = builder_.build({.device = device_.kind,
                                                  .arch = device_.arch,
                                                  .source = kEmptyKernel,
                                                  .entry = "heed_forward",
                                                  .supports_pdl = false,
                                                  .semaphores = false});
  HEED_CHECK(built.artifact.has_value());
  LaunchPlan plan;
  plan.entry = "heed_forward";
  plan.grid = {1, 1, 1};
  plan.threads = 32;
  ensure_sets({});
  const auto arena = std::make_shared<worker::Arena>(sets_->arena_bytes());
  std::vector<double> us;
  undisturbed([&] {
    us.clear();
    const std::unique_ptr<worker::Worker> started = start_worker(arena);
    worker::Worker& worker = *started;
    worker.load(kEmptySlot, built.artifact->path.string(), plan);
    sets_->prepare(worker, {{kEmptySlot, plan}}, options_.launch_limit_s);
    worker.warm_up(kEmptySlot, warm_up_ms(), options_.launch_limit_s);
    for (int i = 0; i < 10; ++i)
      for (const double reading : worker
                                      .time(kEmptySlot, sets_->plan().replays, sets_->flips(sets_->plan().replays + 1),
                                            options_.launch_limit_s)
                                      .us)
        us.push_back(reading);
  });
  return *std::min_element(us.begin(), us.end());
}

measure::Floor TrialRunner::floor(int threads) {
  if (!launch_us_) launch_us_ = measure_launch_floor();
  const int processors =
      device_.kind == DeviceKind::cpu ? std::clamp(threads, 1, device_.processors) : device_.processors;
  return measure::floor_of(measure::peak_of(device_, workload_, processors), workload_, *launch_us_);
}

}  // namespace heed::trial

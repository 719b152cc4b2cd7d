#include "profile/collect.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "verify/scene.hpp"
#include "worker/worker.hpp"

namespace heed::profile {

Reading collect(const LaunchPlan& plan, const jit::Artifact& artifact, const Workload& workload,
                const DeviceFacts& device, const CollectOptions& options) {
  Reading result;
  if (device.kind != DeviceKind::cuda) {
    result.reason = "they are read on NVIDIA GPUs only";
    return result;
  }
  try {
    const verify::Scene scene(workload, verify::make_inputs(workload, verify::InputClass::normal, options.seed), plan,
                              options.seed);
    const std::uint64_t bytes = scene.image().size();
    const auto arena = std::make_shared<worker::Arena>(bytes);
    std::memcpy(arena->data(), scene.image().data(), bytes);
    worker::Worker worker(device.kind, arena);
    constexpr int kSlot = 0;
    worker.load(kSlot, artifact.path.string(), plan);
    const CounterReading reading =
        worker.count(kSlot, 0, bytes, scene.launch(), options.library, metric_choices(), options.limit_s);
    result.schedule = reading.schedule;
    result.counters = counters_of(reading);
  } catch (const worker::WorkerFailure& failure) {
    result.reason = failure.what();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    result.reason = error.what();
  } catch (const nlohmann::json::exception& error) {
    result.reason = fmt::format("the profiler's answer cannot be read: {}", error.what());
  }
  return result;
}

Reading try_counters(jit::Builder& builder, const DeviceFacts& device) {
  const Workload workload = parse_workload("b1h1l64d64");
  const Variant variant =
      make_variant(default_family(device.kind), default_family(device.kind).default_config(workload, device), workload);
  const LaunchPlan plan = variant.plan(workload, device);
  Reading result;
  try {
    const jit::BuildOutcome build = builder.build(jit::request_for(variant, workload, device));
    if (build.artifact) return collect(plan, *build.artifact, workload, device, {});
    result.reason = "no kernel could be built to count";
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    result.reason = error.what();
  }
  return result;
}

std::string ncu_command(const std::string& program, const Variant& variant, const Workload& workload) {
  std::string sections;
  for (const char* section : {"SpeedOfLight", "LaunchStats", "Occupancy", "ComputeWorkloadAnalysis",
                              "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "SourceCounters"})
    sections += fmt::format(" --section {}", section);
  // Clocks as they are where the kernel is timed; a replayed launch takes longer than the usual limit allows.
  return fmt::format(
      "ncu --target-processes all --clock-control none --kernel-name {} --launch-skip 1 --launch-count 1{} {} verify "
      "'{}' --shape '{}' --device cuda --launch-limit 600",
      "heed_forward", sections, program, describe(variant), to_string(workload));
}

}  // namespace heed::profile

#include "profile/collect.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "verify/scene.hpp"
#include "worker/worker.hpp"

namespace heed::profile {

Reading collect(const LaunchPlan& plan, const jit::Artifact& artifact, const Workload& workload,
                const DeviceFacts& device, const CollectOptions& options) {
  Reading result;
  if (device.kind != DeviceKind::cuda) {
    result.reason = "hardware counters are read on NVIDIA GPUs only";
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

}  // namespace heed::profile

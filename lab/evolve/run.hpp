/// One evolution from start to result: generations of trials (Search), the final comparison in fresh processes
/// (Finals), the ablation (Ablation), PyTorch beside the champion (compare_with_peers).
///
/// The ablation is part of the search: where the champion is faster with one of its changes put back, that variant is
/// one more trial, and the final comparison begins again.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "evolve/devices.hpp"
#include "evolve/run_context.hpp"
#include "record/run_result.hpp"

namespace heed::evolve {

class Evolution {
 public:
  /// A new run, or `resume` to go on with a stored one (which then must be for this device and these sources).
  /// @param devices that judge its trials, of the kind of `device`, which is the first of them and the calling
  /// thread's;
  ///     none: `device` alone, one trial after the other
  /// @throws Error(usage, unsupported) when it cannot be
  Evolution(store::Store& store, jit::Builder& builder, const DeviceFacts& device, const record::RunOptions& options,
            const trial::Options& trial_options, const QkvTensors* tensors, Observer& observer,
            std::optional<std::int64_t> resume, std::vector<DeviceOfRun> devices = {});

  [[nodiscard]] std::int64_t run_id() const { return context_.run; }
  /// Those searched; the default of the first is the base.
  [[nodiscard]] const std::vector<const Family*>& families() const { return context_.families; }

  /// @param sanitize RunContext::sanitize
  void sanitize_champions_by(std::function<std::string(std::int64_t)> sanitize) {
    context_.sanitize = std::move(sanitize);
  }

  /// Runs to the end and stores the result. On Error(interrupted) the run is marked so and can be resumed; every
  /// finished trial is stored.
  record::RunResult run();

 private:
  /// Builds, verifies and measures the base. @return us of the floor
  double prepare_base();
  void search(double floor_us);

  RunContext context_;
  std::vector<DeviceOfRun> devices_;
};

}  // namespace heed::evolve

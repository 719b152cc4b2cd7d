#include "trial/false_alarms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.hpp"
#include "base/random.hpp"

namespace heed::trial {
namespace {

constexpr const char* kGpuShape = "b1h8l512d64:fp16";
constexpr const char* kCpuShape = "b1h2l128d64:fp16";
constexpr double kLimitShare =
    0.2;  // of a finalist's time: its least number of quads, and little more where it is noisy

}  // namespace

FalseAlarms count_false_alarms(const DeviceFacts& device, jit::Builder& builder, const Options& options,
                               int comparisons, const std::function<void(const measure::Ratio&)>& on_each) {
  if (comparisons < 1)
    throw Error(ErrorCode::usage, fmt::format("--aa {} compares nothing; at least 1 is needed", comparisons),
                std::to_string(comparisons));
  const auto begin = std::chrono::steady_clock::now();
  FalseAlarms result;
  result.workload = parse_workload(device.kind == DeviceKind::cuda ? kGpuShape : kCpuShape);
  TrialRunner trial_runner(result.workload, device, builder, nullptr, options);
  const Family& family = default_family(device.kind);
  const Variant variant = make_variant(family, family.default_config(result.workload, device), result.workload);
  const Built built = trial_runner.build(variant);
  result.variant = variant.id();
  result.config = describe(variant);
  result.machine_code = built.artifact.machine_code;
  trial_runner.set_base(built);
  const TrialRunner::SelfComparison& self = trial_runner.base_against_itself();
  result.spread = self.spread;
  result.us = self.pair.base_median_us;

  measure::PairOptions pair = options.final_pair;
  pair.limit_s *= kLimitShare;
  pair.target_uncertainty = std::max(pair.target_uncertainty, result.spread / 4);  // as in a run
  result.ratios = trial_runner.compare_base_with_itself(comparisons, pair, on_each);
  result.faster = static_cast<int>(std::count_if(result.ratios.begin(), result.ratios.end(), [&](const auto& ratio) {
    return measure::is_faster(ratio, result.spread);
  }));
  result.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace heed::trial

/// The other side of the self-test: how often an honest kernel looks faster than itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trial/trial_runner.hpp"

namespace heed::trial {

/// A/A comparisons: one binary as base and as trial, measured like a finalist and decided by the rule that decides runs
/// (measure::is_faster).
struct FalseAlarms {
  Workload workload;
  std::string variant;
  std::string config;                  ///< as `heed verify` takes it
  std::string machine_code;            ///< digest of its program
  std::vector<measure::Ratio> ratios;  ///< one a comparison
  int faster = 0;                      ///< of these would have been called faster
  double spread = 0;                   ///< what the base showed against itself beforehand: the rule's margin
  double us = 0;                       ///< of the kernel
  double elapsed_s = 0;

  /// One in a hundred, rounded down: 2 of 200.
  [[nodiscard]] int allowed() const { return static_cast<int>(ratios.size()) / 100; }
  [[nodiscard]] bool passed() const { return faster <= allowed(); }
};

/// Compares the device's default family as it comes with itself, at b1h8l512d64 on a GPU and at a smaller one
/// on a CPU. @param comparisons at least 1 @throws Error(usage) when it is not
FalseAlarms count_false_alarms(const DeviceFacts& device, jit::Builder& builder, const Options& options,
                               int comparisons, const std::function<void(const measure::Ratio&)>& on_each);

}  // namespace heed::trial

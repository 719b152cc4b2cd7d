/// Reading the counters of one variant in a process of its own.
#pragma once

#include <optional>
#include <string>

#include "jit/build.hpp"
#include "profile/counters.hpp"
#include "variant/family.hpp"

namespace heed::profile {

struct CollectOptions {
  std::string library;     ///< path of libcupti; empty: the usual places
  double limit_s = 60;     ///< wall clock for all passes
  std::uint64_t seed = 1;  ///< of the inputs, N(0,1)
};

/// Counters, or the reason why there are none.
struct Reading {
  std::optional<Counters> counters;
  MetricSchedule schedule;
  std::string reason;
};

/// Starts a worker that times nothing, and lets it count. Never throws for what the GPU, CUPTI or the kernel does.
/// @throws Error(interrupted)
Reading collect(const LaunchPlan& plan, const jit::Artifact& artifact, const Workload& workload,
                const DeviceFacts& device, const CollectOptions& options);

/// Whether this GPU lets itself be counted: a small attention problem on its default family.
Reading try_counters(jit::Builder& builder, const DeviceFacts& device);

/// The command line of NVIDIA Nsight Compute that profiles exactly this kernel: `heed verify` of the variant, whose
/// second launch is the workload itself (the first is a small neighbour, or for fixed sizes the workload, too).
/// @param program how heed is called
std::string ncu_command(const std::string& program, const Variant& variant, const Workload& workload);

}  // namespace heed::profile

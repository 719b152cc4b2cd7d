/// Measures every point of a reduced space.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "landscape/landscape.hpp"
#include "trial/trial_runner.hpp"

namespace heed::landscape {

/// An empty landscape of a family's knobs. @param wanted knobs that vary, "NAME" or "NAME=VALUE/VALUE"
/// @throws Error(usage) for a knob or value that there is none of, or one named twice
Landscape landscape_of(const Family& family, const Workload& workload, const DeviceFacts& device,
                       const std::vector<std::string>& wanted);

/// The variant of a point: its knobs, the others at the default.
Variant variant_at(const Landscape& landscape, const Config& config, const Workload& workload,
                   const DeviceFacts& device);

/// All points that are canonical and legal, in order.
std::vector<Config> legal_points(const Landscape& landscape, const Workload& workload, const DeviceFacts& device);

/// Measures what the landscape lacks, a batch of builds after the other: each point is looked at beside the default
/// until its readings agree, as drafts of a search are; with `verify` it passes the gate first.
/// @param on_batch called with what is measured by then, for files and progress; may throw
void record(Landscape& landscape, trial::TrialRunner& trial_runner, jit::Builder& builder, bool verify,
            const std::function<void(std::size_t done, std::size_t all)>& on_batch);

}  // namespace heed::landscape

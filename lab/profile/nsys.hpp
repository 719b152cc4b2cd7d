/// NVIDIA Nsight Systems around `heed bench` of one variant: the command, the recording, its exports.
/// https://docs.nvidia.com/nsight-systems/UserGuide/index.html, "CLI Profile Command Switch Options"
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profile/gpu_timeline.hpp"
#include "variant/family.hpp"

namespace heed::profile {

/// The command that records the variant against itself, so that nothing else is built, verified or timed.
/// @param program how heed is called  @param report path of the recording, without ".nsys-rep"
std::vector<std::string> nsys_command(const std::string& program, const Variant& variant, const Workload& workload,
                                      const std::string& report);

/// Runs the command and reads what it recorded. Exports are made in `folder`.
/// @param nsys path of the program  @param command as nsys_command made it  @param report as given there
/// @param limit_s wall clock for the recording, and as much again for the exports
/// @throws Error(unsupported) when nsys fails, Error(invalid_input) when an export is missing or cannot be read,
/// Error(interrupted)
GpuTimeline record_timeline(const std::string& nsys, std::vector<std::string> command, const std::string& report,
                            const std::filesystem::path& folder, double limit_s);

}  // namespace heed::profile

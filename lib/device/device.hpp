/// Finding out what this machine has.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "device/device_facts.hpp"

namespace heed {

/// The processor this process runs on.
DeviceFacts cpu_facts();

/// An NVIDIA GPU by its ordinal, or why there is none to use.
struct CudaProbe {
  std::optional<DeviceFacts> facts;
  std::string reason;  ///< when there are no facts, e.g. "no NVIDIA driver is installed (libcuda.so.1 was not found)"
};
CudaProbe probe_cuda(int ordinal = 0);

/// Build target of a GPU: "sm_90a" for compute capability 9.0 (wgmma and setmaxnreg exist only in the
/// architecture-specific target), "sm_89" and so on for the others.
std::string arch_of(int compute_capability);

/// What gpu_limits knows.
inline constexpr std::array<std::string_view, 6> kGpuArchitectures = {"sm_80", "sm_86",  "sm_89",
                                                                      "sm_90", "sm_90a", "compute_80"};
/// Limits of an architecture without a GPU at hand, for builds ahead of time: shared memory, registers, compute
/// capability (CUDA C++ programming guide, "Technical specifications per compute capability"). @throws Error(usage)
DeviceFacts gpu_limits(std::string_view arch);

/// What `--device` may say.
enum class DeviceChoice { automatic, cpu, cuda };
DeviceChoice parse_device_choice(std::string_view text);  ///< @throws Error(usage)

/// The GPU when there is one (automatic), or the one asked for.
/// @param otherwise what the caller can do without one, for the error
/// @throws Error(no_device) with the reason when "cuda" is asked for and cannot be had
DeviceFacts choose_device(DeviceChoice choice, std::string_view otherwise = "use --device cpu to run on the CPU");

/// SM clock, power and temperature at this moment, through NVML; zeros where that is not to be had.
struct DeviceState {
  double clock_mhz = 0;
  double power_w = 0;
  double temperature_c = 0;
};
DeviceState device_state(DeviceKind kind);

}  // namespace heed

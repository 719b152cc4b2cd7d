/// Which binaries run on a device.
#pragma once

#include <string>
#include <string_view>

#include "device/device_facts.hpp"

namespace heed::dispatch {

/// How programs of an architecture come to run on a device, the best way last.
enum class ArchFit {
  none,
  ptx,         ///< PTX of a virtual architecture, "compute_80", which the driver compiles for this GPU
  compatible,  ///< machine code of an older minor revision: sm_80 on sm_86
  exact
};

/// By the rules of binary and PTX compatibility: machine code runs on the same major revision from its own minor
/// revision on, unless the architecture ends with a letter; PTX on every revision from its own on.
/// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
ArchFit arch_fit(std::string_view program, const DeviceFacts& device);

/// What a user should know of it: ", machine code of sm_80"; empty for an exact fit.
std::string fit_remark(std::string_view program, const DeviceFacts& device);

}  // namespace heed::dispatch

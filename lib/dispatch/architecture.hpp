/// Which binaries run on a device.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "device/device_facts.hpp"
#include "variant/family.hpp"

namespace heed::dispatch {

/// How programs of an architecture come to run on a device, the best way last.
enum class ArchFit {
  none,
  ptx,         ///< PTX of a virtual architecture, "compute_80", which the driver compiles for this GPU
  compatible,  ///< machine code of an older minor revision: sm_80 on sm_86
  level,       ///< of the lowest CpuLevel; each higher level is one more
  exact = 100
};

/// By the rules of binary and PTX compatibility: machine code runs on the same major revision from its own minor
/// revision on, unless the architecture ends with a letter; PTX on every revision from its own on.
/// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
/// Programs of a CpuLevel run where DeviceFacts::level is that one or a higher one of the same instruction set.
ArchFit arch_fit(std::string_view program, const DeviceFacts& device);

/// A device as a program for `program` sees it, for rules and scratch: of a CPU level its vectors and matrix unit.
DeviceFacts facts_for(std::string_view program, const DeviceFacts& device);
/// Why a variant is illegal for a workload in a program for this device; empty where it is legal. The knob `threads`
/// counts for nothing: it says what a program's blocks were cut for, and any number of threads takes blocks off a
/// counter.
std::optional<std::string> program_is_illegal(const Variant& variant, const Workload& workload, DeviceFacts device);
/// The same for a program of any architecture that the device runs: empty where it is legal for one of them.
std::optional<std::string> every_program_is_illegal(const Variant& variant, const Workload& workload,
                                                    const DeviceFacts& device);

/// What a user should know of it, to be put behind a reason: "; it is machine code of sm_80, which sm_86 runs"; empty
/// for an exact fit.
std::string fit_remark(std::string_view program, const DeviceFacts& device);

}  // namespace heed::dispatch

#include "dispatch/architecture.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>

#include "compile/nvrtc.hpp"
#include "device/cpu_level.hpp"

namespace heed::dispatch {
namespace {

// 86 of "sm_86" or "compute_86"; nothing of "sm_90a", whose instructions no other revision has.
std::optional<int> revision_of(std::string_view arch) {
  const std::size_t at = arch.find('_');
  if (at == std::string_view::npos) return std::nullopt;
  int revision = 0;
  const char* const end = arch.data() + arch.size();
  const auto read = std::from_chars(arch.data() + at + 1, end, revision);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return revision;
}

}  // namespace

ArchFit arch_fit(std::string_view program, const DeviceFacts& device) {
  if (device.kind == DeviceKind::cpu) {
    const CpuLevel* const level = find_cpu_level(program);
    const CpuLevel* const highest = find_cpu_level(device.level);
    if (level != nullptr && highest != nullptr && level->machine == highest->machine && level <= highest)
      return static_cast<ArchFit>(static_cast<int>(ArchFit::level) + (level - cpu_levels().data()));
  }
  if (program == device.arch) return ArchFit::exact;
  if (device.kind == DeviceKind::cpu) return ArchFit::none;
  const std::optional<int> revision = revision_of(program);
  if (!revision || *revision > device.compute_capability) return ArchFit::none;
  if (compile::is_virtual_arch(program)) return ArchFit::ptx;
  return *revision / 10 == device.compute_capability / 10 ? ArchFit::compatible : ArchFit::none;
}

DeviceFacts facts_for(std::string_view program, const DeviceFacts& device) {
  const CpuLevel* const level = device.kind == DeviceKind::cpu ? find_cpu_level(program) : nullptr;
  return level == nullptr ? device : at_level(device, *level);
}

std::optional<std::string> program_is_illegal(const Variant& variant, const Workload& workload, DeviceFacts device) {
  if (device.kind == DeviceKind::cpu) device.processors = std::numeric_limits<int>::max();
  return variant.is_illegal(workload, device);
}

std::optional<std::string> every_program_is_illegal(const Variant& variant, const Workload& workload,
                                                    const DeviceFacts& device) {
  std::optional<std::string> why = program_is_illegal(variant, workload, device);
  if (device.kind != DeviceKind::cpu) return why;
  for (const CpuLevel& level : cpu_levels())
    if (why && arch_fit(level.name, device) != ArchFit::none &&
        !program_is_illegal(variant, workload, facts_for(level.name, device)))
      why.reset();
  return why;
}

std::string fit_remark(std::string_view program, const DeviceFacts& device) {
  const ArchFit fit = arch_fit(program, device);
  if (fit >= ArchFit::level && fit < ArchFit::exact) return fmt::format("; it is of the CPU level {}", program);
  switch (fit) {
    case ArchFit::ptx:
      return fmt::format("; it is PTX of {}, which the driver compiles for this {}", program, device.arch);
    case ArchFit::compatible:
      return fmt::format("; it is machine code of {}, which {} runs", program, device.arch);
    case ArchFit::none:
    case ArchFit::level:
    case ArchFit::exact:
      break;
  }
  return {};
}

}  // namespace heed::dispatch

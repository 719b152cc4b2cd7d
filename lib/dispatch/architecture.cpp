#include "dispatch/architecture.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "compile/nvrtc.hpp"

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
  if (program == device.arch) return ArchFit::exact;
  if (device.kind == DeviceKind::cpu) return ArchFit::none;
  const std::optional<int> revision = revision_of(program);
  if (!revision || *revision > device.compute_capability) return ArchFit::none;
  if (compile::is_virtual_arch(program)) return ArchFit::ptx;
  return *revision / 10 == device.compute_capability / 10 ? ArchFit::compatible : ArchFit::none;
}

std::string fit_remark(std::string_view program, const DeviceFacts& device) {
  switch (arch_fit(program, device)) {
    case ArchFit::ptx:
      return fmt::format("; it is PTX of {}, which the driver compiles for this {}", program, device.arch);
    case ArchFit::compatible:
      return fmt::format("; it is machine code of {}, which {} runs", program, device.arch);
    case ArchFit::none:
    case ArchFit::exact:
      break;
  }
  return {};
}

}  // namespace heed::dispatch

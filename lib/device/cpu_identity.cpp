#include "device/cpu_identity.hpp"

#include <fmt/format.h>

#include <map>

#include "base/text.hpp"

namespace heed {

CpuIdentity identity_of(std::istream& cpuinfo, std::string_view machine) {
  std::map<std::string, std::string, std::less<>> first;  // an empty line ends the first processor
  for (std::string line; std::getline(cpuinfo, line) && !trim(line).empty();) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos)
      first.emplace(trim(std::string_view(line).substr(0, colon)), trim(std::string_view(line).substr(colon + 1)));
  }
  CpuIdentity identity;
  identity.name = first["model name"];
  // x86's two, then Arm's: a machine has either.
  for (const char* key : {"model name", "flags", "CPU implementer", "CPU variant", "CPU part", "Features"})
    identity.instructions += first[key];
  if (identity.name.empty() && !first["CPU part"].empty())
    identity.name = fmt::format("{} {} {}", machine, first["CPU implementer"], first["CPU part"]);
  if (identity.name.empty()) identity.name = machine;
  return identity;
}

}  // namespace heed

#include "cli/build_costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace heed::cli {

void BuildCosts::add(const std::string& arch, const jit::Artifact& artifact) {
  Costs& costs = by_arch_[arch];
  ++costs.programs;
  if (!counted_.insert(artifact.path).second) return;
  costs.from_cache += artifact.from_cache ? 1 : 0;
  costs.unknown += artifact.processor_s > 0 ? 0 : 1;
  costs.processor_s += artifact.processor_s;
  costs.longest_s = std::max(costs.longest_s, artifact.processor_s);
}

void BuildCosts::add_bytes(const dispatch::ProgramFile& file) {
  std::set<std::uint64_t> counted;
  for (const dispatch::ProgramRecord& record : file.records())
    if (counted.insert(record.offset).second) by_arch_[record.arch].bytes += record.packed_bytes;
}

BuildCosts::Costs BuildCosts::sum() const {
  Costs all;
  for (const auto& [arch, costs] : by_arch_) {
    all.programs += costs.programs;
    all.from_cache += costs.from_cache;
    all.unknown += costs.unknown;
    all.processor_s += costs.processor_s;
    all.longest_s = std::max(all.longest_s, costs.longest_s);
    all.bytes += costs.bytes;
  }
  return all;
}

nlohmann::json BuildCosts::to_json() const {
  const auto times = [](const Costs& costs) {
    return nlohmann::json{{"processor_s", costs.processor_s},
                          {"longest_s", costs.longest_s},
                          {"from_cache", costs.from_cache},
                          {"unknown", costs.unknown}};
  };
  nlohmann::json archs = nlohmann::json::array();
  for (const auto& [arch, costs] : by_arch_) {
    nlohmann::json row = times(costs);
    row["arch"] = arch;
    row["programs"] = costs.programs;
    row["bytes"] = costs.bytes;
    archs.push_back(std::move(row));
  }
  return {{"compilers", times(sum())}, {"archs", std::move(archs)}};
}

std::string BuildCosts::text() const {
  std::string text;
  const auto line = [&](const std::string& name, const Costs& costs) {
    text += fmt::format("{:13} {:5} programs {:7.1f} s of compilers, {:5.1f} s the longest {:7.2f} MB\n", name,
                        costs.programs, costs.processor_s, costs.longest_s, static_cast<double>(costs.bytes) / 1e6);
  };
  for (const auto& [arch, costs] : by_arch_) line(arch, costs);
  const Costs all = sum();
  if (by_arch_.size() > 1) line("all", all);
  if (all.from_cache > 0)
    text += fmt::format("{} programs are of the cache, with the time of their builds{}\n", all.from_cache,
                        all.unknown == 0 ? "" : fmt::format("; of {} it is not known", all.unknown));
  return text;
}

}  // namespace heed::cli

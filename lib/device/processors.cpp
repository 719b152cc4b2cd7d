#include "device/processors.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <set>

#include "base/text.hpp"

namespace heed {
namespace {

constexpr std::size_t kSharedCoresAGpu = 2;
constexpr int kMostProcessors = 1 << 16;

std::vector<int> list_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return parse_processor_list(line);
}

std::string lower(std::string_view text) {
  std::string all(text);
  std::transform(all.begin(), all.end(), all.begin(), [](unsigned char c) { return std::tolower(c); });
  return all;
}

bool contains(const std::vector<int>& all, int one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

std::vector<int> parse_processor_list(std::string_view text) {
  std::vector<int> all;
  for (const std::string& part : split(std::string(trim(text)), ',')) {
    int first = 0;
    const char* const end = part.data() + part.size();
    auto [at, error] = std::from_chars(part.data(), end, first);
    if (error != std::errc() || first < 0) return {};
    int last = first;
    if (at != end && *at == '-') {
      const auto range = std::from_chars(at + 1, end, last);
      if (range.ec != std::errc()) return {};
      at = range.ptr;
    }
    if (at != end || last < first || last >= kMostProcessors) return {};
    for (int processor = first; processor <= last; ++processor) all.push_back(processor);
  }
  return all;
}

std::string processor_list(std::vector<int> processors) {
  std::sort(processors.begin(), processors.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < processors.size();) {
    std::size_t last = i;
    while (last + 1 < processors.size() && processors[last + 1] == processors[last] + 1) ++last;
    parts.push_back(last == i ? std::to_string(processors[i]) : fmt::format("{}-{}", processors[i], processors[last]));
    i = last + 1;
  }
  return join(parts, ",");
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> all;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return all;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) all.push_back(processor);
  return all;
}

std::vector<std::vector<int>> cores_of(const std::vector<int>& processors, const std::filesystem::path& root) {
  std::vector<std::vector<int>> cores;
  std::set<int> taken;
  for (const int processor : processors) {
    if (taken.count(processor) > 0) continue;
    std::vector<int>& core = cores.emplace_back();
    for (const int sibling :
         list_in(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", processor)))
      if (contains(processors, sibling) && taken.insert(sibling).second) core.push_back(sibling);
    if (taken.insert(processor).second) core.push_back(processor);
  }
  return cores;
}

std::vector<int> processors_near(std::string_view bus, const std::filesystem::path& root) {
  const std::string name = lower(bus);
  if (name.empty() || name.find('/') != std::string::npos) return {};
  return list_in(root / "sys/bus/pci/devices" / name / "local_cpulist");
}

ProcessorDivision divide_processors(const std::vector<std::vector<int>>& cores,
                                    const std::vector<std::vector<int>>& near) {
  ProcessorDivision division;
  std::vector<std::vector<int>> left = cores;
  if (left.size() >= (1 + kSharedCoresAGpu) * near.size())
    for (const std::vector<int>& local : near) {
      // The last core: interrupts and whatever else prefers the first ones stay away.
      auto chosen = std::find_if(left.rbegin(), left.rend(), [&](const std::vector<int>& core) {
        return std::all_of(core.begin(), core.end(), [&](int processor) { return contains(local, processor); });
      });
      if (chosen == left.rend()) chosen = left.rbegin();
      division.workers.push_back(*chosen);
      left.erase(std::next(chosen).base());
    }
  for (const std::vector<int>& core : left) division.shared.insert(division.shared.end(), core.begin(), core.end());
  std::sort(division.shared.begin(), division.shared.end());
  return division;
}

std::optional<ProcessorDivision> part_of(const ProcessorDivision& division, const std::vector<std::string>& all,
                                         const std::vector<std::string>& chosen) {
  if (!division.reserves()) return std::nullopt;
  ProcessorDivision part{{}, division.shared};
  for (const std::string& one : chosen) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& bus) { return lower(bus) == lower(one); });
    if (at == all.end()) return std::nullopt;
    part.workers.push_back(division.workers[static_cast<std::size_t>(at - all.begin())]);
  }
  return part;
}

}  // namespace heed

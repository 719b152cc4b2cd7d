#include "base/limits.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "base/files.hpp"
#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed {
namespace fs = std::filesystem;
namespace {

constexpr double kUnlookedBytes = 16 << 20;  // reading the limits takes about 0.2 ms
// Version 1 writes "no limit" as the largest multiple of a page.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// A whole number at the start of a text; empty for "max", for a missing file and for a limit that is none.
std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> limit_in(const fs::path& path) {
  const auto value = number_in(read_kernel_file(path));
  return value && *value >= 0 && *value < kNoLimit ? value : std::nullopt;
}

// The number behind `key` in lines of "key value" or "key: value".
std::int64_t field_in(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  std::string word;
  while (lines >> word) {
    std::string rest;
    std::getline(lines, rest);
    if (word == key) return number_in(trim(rest)).value_or(0);
  }
  return 0;
}

// Spaces and backslashes of paths are written as octal numbers in mountinfo (proc_pid_mountinfo(5)).
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8).ec == std::errc()) {
      plain += static_cast<char>(value);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string root;   // the folder of the hierarchy that is mounted
  std::string point;  // where
};

// The mount of version 2, or of the version 1 hierarchy that has the controller.
std::optional<Mount> find_mount(const fs::path& root, bool second, std::string_view controller) {
  std::istringstream lines(read_kernel_file(root / "proc/self/mountinfo"));
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream after(line.substr(dash + 3));
    std::string skipped, mounted, point, type, source, options;
    before >> skipped >> skipped >> skipped >> mounted >> point;
    after >> type >> source >> options;
    if (type != (second ? "cgroup2" : "cgroup")) continue;
    const std::vector<std::string> names = split(options, ',');
    if (!second && std::find(names.begin(), names.end(), controller) == names.end()) continue;
    return Mount{unescaped(mounted), unescaped(point)};
  }
  return std::nullopt;
}

// The group of this process in a hierarchy; empty when it is in none.
std::optional<std::string> group_of_process(const fs::path& root, bool second, std::string_view controller) {
  std::istringstream lines(read_kernel_file(root / "proc/self/cgroup"));
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t first = line.find(':');
    const std::size_t next = first == std::string::npos ? first : line.find(':', first + 1);
    if (next == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, next - first - 1);
    const std::vector<std::string> names = split(controllers, ',');
    const bool is_it = second ? controllers.empty() : std::find(names.begin(), names.end(), controller) != names.end();
    if (is_it) return line.substr(next + 1);
  }
  return std::nullopt;
}

// Folders of the group of this process and of its ancestors, as far as they are mounted.
std::vector<fs::path> group_folders(const fs::path& root, bool second, std::string_view controller) {
  const auto mount = find_mount(root, second, controller);
  const auto group = group_of_process(root, second, controller);
  if (!mount || !group) return {};
  // A container without a namespace of its own sees its group's name on the host, and that group mounted as the root.
  fs::path relative = fs::path(*group).relative_path();
  if (mount->root != "/") {
    relative = fs::path(*group).lexically_relative(mount->root);
    if (relative == ".") relative.clear();
  }
  for (const fs::path& part : relative)
    if (part == "..") {
      relative.clear();
      break;
    }
  const fs::path top = root / fs::path(mount->point).relative_path();
  std::vector<fs::path> folders;
  for (fs::path at = relative; !at.empty(); at = at.parent_path()) folders.push_back(top / at);
  folders.push_back(top);
  return folders;
}

void bound(MemoryRoom& room, std::int64_t limit, std::int64_t used, const std::string& by) {
  if (room.total_bytes == 0 || limit < room.total_bytes) room.total_bytes = limit;
  const std::int64_t left = std::max<std::int64_t>(1, limit - used);
  if (room.available_bytes > 0 && left >= room.available_bytes) return;
  room.available_bytes = left;
  room.bound_by = by;
}

void bound_by_groups(MemoryRoom& room, const fs::path& root) {
  for (const fs::path& folder : group_folders(root, true, "")) {
    const std::string stat = read_kernel_file(folder / "memory.stat");
    const std::int64_t used = number_in(read_kernel_file(folder / "memory.current")).value_or(0) -
                              field_in(stat, "inactive_file") - field_in(stat, "active_file") -
                              field_in(stat, "slab_reclaimable");
    for (const char* name : {"memory.max", "memory.high"})
      if (const auto limit = limit_in(folder / name)) bound(room, *limit, used, (folder / name).string());
  }
  for (const fs::path& folder : group_folders(root, false, "memory")) {
    const fs::path name = folder / "memory.limit_in_bytes";
    const auto limit = limit_in(name);
    if (!limit) continue;
    const std::string stat = read_kernel_file(folder / "memory.stat");
    const std::int64_t used = number_in(read_kernel_file(folder / "memory.usage_in_bytes")).value_or(0) -
                              field_in(stat, "total_inactive_file") - field_in(stat, "total_active_file");
    bound(room, *limit, used, name.string());
  }
}

}  // namespace

MemoryRoom memory_room(const fs::path& root) {
  const std::string memory = read_kernel_file(root / "proc/meminfo");
  MemoryRoom room;
  room.total_bytes = field_in(memory, "MemTotal:") * 1024;
  room.available_bytes = field_in(memory, "MemAvailable:") * 1024;
  room.bound_by = "MemAvailable";
  bound_by_groups(room, root);
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
      space.rlim_cur < static_cast<rlim_t>(kNoLimit))
    bound(room, static_cast<std::int64_t>(space.rlim_cur),
          number_in(read_kernel_file(root / "proc/self/statm")).value_or(0) * ::sysconf(_SC_PAGESIZE),
          "RLIMIT_AS (ulimit -v)");
  return room;
}

void require_memory(double bytes, std::string_view purpose, const fs::path& root) {
  if (bytes < kUnlookedBytes) return;
  const MemoryRoom room = memory_room(root);
  if (room.available_bytes == 0 || bytes <= static_cast<double>(room.available_bytes)) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{} needs {} of host memory; {} are available (bound by {})", purpose, human_bytes(bytes),
                          human_bytes(static_cast<double>(room.available_bytes)), room.bound_by));
}

std::optional<ProcessorQuota> processor_quota(const fs::path& root) {
  std::optional<ProcessorQuota> lowest;
  const auto take = [&](std::optional<std::int64_t> quota, std::optional<std::int64_t> period, const fs::path& file) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    const double processors = static_cast<double>(*quota) / static_cast<double>(*period);
    if (!lowest || processors < lowest->processors) lowest = ProcessorQuota{processors, file.string()};
  };
  for (const fs::path& folder : group_folders(root, true, "")) {
    const std::string text = read_kernel_file(folder / "cpu.max");  // "quota period" or "max period"
    const std::size_t space = text.find(' ');
    if (space != std::string::npos)
      take(number_in(text), number_in(std::string_view(text).substr(space + 1)), folder / "cpu.max");
  }
  for (const fs::path& folder : group_folders(root, false, "cpu"))
    take(number_in(read_kernel_file(folder / "cpu.cfs_quota_us")),
         number_in(read_kernel_file(folder / "cpu.cfs_period_us")), folder / "cpu.cfs_quota_us");
  return lowest;
}

int usable_processors(int allowed, const std::optional<ProcessorQuota>& quota) {
  if (!quota) return std::max(1, allowed);
  // A quota of 2 may be written as 1.999: what is within a hundredth of a whole one is that one.
  const double whole = std::floor(quota->processors + 0.01);
  return std::max(1, static_cast<int>(std::min<double>(allowed, whole)));
}

}  // namespace heed

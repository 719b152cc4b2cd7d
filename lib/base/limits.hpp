/// What this process may take of its machine: memory and processors, with the limits of control groups (containers),
/// which the totals of the machine do not show.
///
/// Control groups of version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html) and of version 1
/// (https://docs.kernel.org/admin-guide/cgroup-v1/memory.html); a limit of any ancestor counts. Functions take the root
/// of the file system, so that a test can give another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace heed {

/// Memory that can still be taken, and what bounds it.
struct MemoryRoom {
  std::int64_t available_bytes = 0;  ///< 0: unknown
  std::int64_t total_bytes = 0;      ///< the lowest limit: of the machine, of a control group or of the address space
  std::string bound_by;              ///< of the available bytes: "MemAvailable", "RLIMIT_AS" or the file of a limit
};

/// The least of MemAvailable, of the headroom of every control group this process is in (its limit less its usage, page
/// cache not counted, for the kernel drops that first) and of the address space left by RLIMIT_AS.
MemoryRoom memory_room(const std::filesystem::path& root = "/");

/// Throws Error(unsupported) when `bytes` more memory are not to be had: before they are asked for, since a process
/// that is over its control group's limit is killed without a word. Below 16 MiB nothing is looked at.
/// @param purpose what needs them, as the subject of the sentence, e.g. "the workload"
void require_memory(double bytes, std::string_view purpose, const std::filesystem::path& root = "/");

/// Processor time that a control group grants, in processors; may be a fraction.
struct ProcessorQuota {
  double processors = 0;
  std::string bound_by;  ///< the file of the limit
};

/// The lowest quota of the control groups this process is in; empty when there is none.
std::optional<ProcessorQuota> processor_quota(const std::filesystem::path& root = "/");

/// Threads that can run at once on `allowed` processors under a quota: the whole processors of the quota, at least one.
/// One thread more would have all of them stopped within every period of the quota, and times would hold the stops.
int usable_processors(int allowed, const std::optional<ProcessorQuota>& quota);

}  // namespace heed

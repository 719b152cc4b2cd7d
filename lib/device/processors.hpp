/// Which processors of this machine do what while several devices work: host work of one must not disturb what another
/// one times.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

/// Numbers of a list as Linux writes it, "0-3,8"; empty where it is no such list.
std::vector<int> parse_processor_list(std::string_view text);
/// "0-3,8"
std::string processor_list(std::vector<int> processors);

/// Processors that the calling thread may run on.
std::vector<int> allowed_processors();

/// Cores of `processors`, each with those of its hardware threads that are among them, as
/// /sys/devices/system/cpu/cpu*/topology/thread_siblings_list has them. Without that file each is a core of its own.
std::vector<std::vector<int>> cores_of(const std::vector<int>& processors, const std::filesystem::path& root = "/");

/// Processors near a GPU (local_cpulist of its PCI device); empty where Linux does not say.
/// @param bus as the CUDA driver writes it, "0000:3B:00.0"
std::vector<int> processors_near(std::string_view bus, const std::filesystem::path& root = "/");

/// A division of a machine's processors among GPUs and the host work of all.
struct ProcessorDivision {
  std::vector<std::vector<int>> workers;  ///< a core for each GPU, on which nothing runs but the process that launches
  std::vector<int> shared;                ///< for compilers, oracles and comparisons
  [[nodiscard]] bool reserves() const { return !workers.empty(); }
};

/// A core for each GPU, near it where there is one, and the others shared. Nothing is reserved where fewer than two
/// cores for each GPU would be left to share: a gate's oracle takes longer than the launches that it judges.
/// @param near processors near each GPU; empty lists where that is not known
ProcessorDivision divide_processors(const std::vector<std::vector<int>>& cores,
                                    const std::vector<std::vector<int>>& near);

/// The part of a division among all GPUs of a machine that some of them have, in the order of `chosen`: processes that
/// see a GPU each leave each other's cores alone. Nothing where one of `chosen` is not among `all`, or nothing is
/// reserved.
/// @param all,chosen GPUs by their place on the bus, in capitals or not
std::optional<ProcessorDivision> part_of(const ProcessorDivision& division, const std::vector<std::string>& all,
                                         const std::vector<std::string>& chosen);

}  // namespace heed

/// What `heed doctor` does to find out whether a run would work: each probe does what a run does, a little of it, and
/// returns what it found in words. @throws Error with what failed and what to do about it
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.hpp"

namespace heed::cli {

/// Builds the default variant of a tiny workload anew, loads it in a worker from the cache folder, on a CPU within the
/// sandbox, runs it and compares what it wrote with the reference.
std::string probe_kernel(const MachineOptions& machine, const DeviceFacts& device);

/// Writes, renames, reads and removes a file in a folder, and looks at the space that is left.
/// @param code of the errors
std::string probe_folder(const std::filesystem::path& folder, ErrorCode code);

/// Opens the database as a search does, writes within a transaction and rolls it back.
std::string probe_database(const StoreOptions& options);

/// Holds as many descriptors open at once as a run with `jobs` builds at a time does.
std::string probe_open_files(int jobs);

/// Has as many processes at once as a run with `jobs` builds at a time does.
std::string probe_processes(int jobs);

/// Memory that can still be taken, and the limit that bounds it.
std::string probe_memory();

/// Processors, and the quota of a container.
std::string probe_processors();

}  // namespace heed::cli

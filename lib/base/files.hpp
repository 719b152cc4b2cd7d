/// Whole-file reads and crash-safe writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "heed/heed.hpp"

namespace heed {

/// The file's bytes. Throws Error(code) naming the path and the system's reason, also for folders, and for devices that
/// hold anything, which have no end.
std::string read_file(const std::filesystem::path& path, ErrorCode code);
/// The same of what lies in a file system: of pipes and sockets, whose readers wait for a writer, it throws too, and of
/// files of more than `most` bytes before it reads any.
std::string read_stored_file(const std::filesystem::path& path, ErrorCode code, std::uint64_t most);

/// What tells a file from the one of that path before it: inode, size and time of change. Inodes tell files apart that
/// took each other's place within a step of the clock. Empty where there is none.
std::string file_stamp(const std::filesystem::path& path);

/// Writes beside the destination, fsyncs, renames over it and fsyncs the folder: a reader sees the old file, the new
/// file or none, never a part. A device or a pipe (/dev/null, /dev/stdout) is written to. Throws Error(code).
void write_file_atomically(const std::filesystem::path& path, std::string_view content, ErrorCode code);

/// Creates the folder of a file that will be written later, and throws Error(code) now when write_file_atomically would
/// fail then: before the work, not after it.
void expect_writable(const std::filesystem::path& path, ErrorCode code);

/// Creates a folder and its parents. Throws Error(code) naming the path and the system's reason.
void make_folder(const std::filesystem::path& path, ErrorCode code);

/// `$VARIABLE/heed`, else `heed` in a folder below $HOME; empty where the environment names neither. Relative paths are
/// ignored (XDG Base Directory Specification).
std::filesystem::path folder_of_environment(const char* variable, const char* below_home);

/// `$XDG_CACHE_HOME/heed` or `~/.cache/heed`, where a user without $HOME has the home that the system knows, or /tmp.
std::filesystem::path default_cache_folder();
/// `$XDG_DATA_HOME/heed/heed.db` or `~/.local/share/heed/heed.db`.
std::filesystem::path default_database_path();

/// The system's reason for the last failed call, e.g. "No space left on device".
std::string last_system_error();

/// A file of /proc or of a control group: "" where there is none, also where its process ends while it is read, which
/// streams of libstdc++ throw (ESRCH of read(2)).
std::string read_kernel_file(const std::filesystem::path& path);

}  // namespace heed

/// One writer of a file at a time, among processes of one machine.
#pragma once

#include <filesystem>

#include "heed/heed.hpp"

namespace heed {

/// Holds the lock of a file, which is another file beside it, FILE.lock: the file itself is replaced by renames, and a
/// lock on what was replaced locks nothing. The system lets go of it when a process ends, however it ends; the lock
/// file stays. https://man7.org/linux/man-pages/man2/flock.2.html
class FileLock {
 public:
  /// Waits for other writers. @param limit_s seconds after which it gives up
  /// @throws Error(code) naming the path: the folder cannot be written to, or another process holds on to the lock
  FileLock(const std::filesystem::path& path, ErrorCode code, double limit_s = 60);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace heed

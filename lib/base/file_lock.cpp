#include "base/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/files.hpp"

namespace heed {

FileLock::FileLock(const std::filesystem::path& path, ErrorCode code, double limit_s) {
  const std::string name = path.string() + ".lock";
  descriptor_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw Error(code, fmt::format("cannot write {}: {} cannot be opened: {}", path.string(), name, last_system_error()),
                path.string());
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const bool is_held = errno == EWOULDBLOCK || errno == EINTR;
    if (is_held && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    const std::string reason = is_held ? fmt::format("another process has held its lock {} for {:.0f} s", name, limit_s)
                                       : fmt::format("{} cannot be locked: {}", name, last_system_error());
    ::close(descriptor_);
    throw Error(code, fmt::format("cannot write {}: {}", path.string(), reason), path.string());
  }
}

FileLock::~FileLock() {
  ::close(descriptor_);
}

}  // namespace heed

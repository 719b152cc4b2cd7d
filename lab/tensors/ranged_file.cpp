#include "tensors/ranged_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "base/files.hpp"

namespace heed {

RangedFile::RangedFile(const std::filesystem::path& path, ErrorCode code) : path_(path), code_(code) {
  // Not waiting: to open a pipe that nobody writes to would never end.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  std::string reason;
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    reason = last_system_error();
  } else if (S_ISDIR(info.st_mode)) {
    reason = "it is a folder, not a file";
  } else if (!S_ISREG(info.st_mode)) {
    reason = "it is a pipe or a device, not a file whose parts can be read";
  }
  if (!reason.empty()) {
    if (fd_ >= 0) ::close(fd_);
    throw Error(code, fmt::format("cannot read {}: {}", path.string(), reason), path.string());
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

RangedFile::~RangedFile() {
  ::close(fd_);
}

std::string RangedFile::read(std::uint64_t offset, std::uint64_t bytes) const {
  HEED_CHECK(offset <= size_ && bytes <= size_ - offset);
  std::string content(bytes, '\0');
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::size_t most = std::min<std::uint64_t>(bytes - done, std::uint64_t{1} << 30);
    const ssize_t got = ::pread(fd_, content.data() + done, most, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw Error(code_,
                  fmt::format("cannot read {}: {}", path_.string(),
                              got < 0 ? last_system_error() : std::string("it became shorter while it was read")),
                  path_.string());
    done += static_cast<std::uint64_t>(got);
  }
  return content;
}

}  // namespace heed

#include "base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

namespace heed {
namespace fs = std::filesystem;
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close_now(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }
  bool close_now() {
    const bool closed = fd_ < 0 || ::close(fd_) == 0;
    fd_ = -1;
    return closed;
  }

 private:
  int fd_;
};

// Where the environment names no home.
fs::path home_of_system() {
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr) return entry->pw_dir;
  return "/tmp";
}

fs::path xdg_folder(const char* variable, const char* fallback) {
  const fs::path named = folder_of_environment(variable, fallback);
  return named.empty() ? home_of_system() / fallback / "heed" : named;
}

}  // namespace

fs::path folder_of_environment(const char* variable, const char* below_home) {
  if (const char* value = std::getenv(variable); value != nullptr && *value == '/') return fs::path(value) / "heed";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / below_home / "heed";
  return {};
}

std::string last_system_error() {
  return std::strerror(errno);
}

std::string file_stamp(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return fmt::format("{} {} {}.{}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

namespace {

// With O_NONBLOCK a pipe is opened without a writer at its other end; files are read as without it.
std::string read_opened(const fs::path& path, ErrorCode code, bool takes_pipes, std::uint64_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (takes_pipes ? 0 : O_NONBLOCK)));
  if (!file.ok())
    throw Error(code, fmt::format("cannot read {}: {}", path.string(), last_system_error()), path.string());
  struct stat info {};
  if (::fstat(file.get(), &info) == 0 && S_ISDIR(info.st_mode))
    throw Error(code, fmt::format("cannot read {}: it is a folder, not a file", path.string()), path.string());
  if (!takes_pipes && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode)))
    throw Error(code, fmt::format("cannot read {}: it is a pipe, not a file", path.string()), path.string());
  if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) > most)
    throw Error(code,
                fmt::format("cannot read {}: it has {} bytes, and what belongs there at most {}", path.string(),
                            info.st_size, most),
                path.string());
  // Most have no end; /dev/null is empty, and a terminal ends with Ctrl-D.
  const bool is_device = (S_ISCHR(info.st_mode) && ::isatty(file.get()) == 0) || S_ISBLK(info.st_mode);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got == 0) return content;
    if (got > 0 && is_device)
      throw Error(code, fmt::format("cannot read {}: it is a device, not a file", path.string()), path.string());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(code, fmt::format("cannot read {}: {}", path.string(), last_system_error()), path.string());
    content.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string read_file(const fs::path& path, ErrorCode code) {
  return read_opened(path, code, true, std::numeric_limits<std::uint64_t>::max());
}
std::string read_stored_file(const fs::path& path, ErrorCode code, std::uint64_t most) {
  return read_opened(path, code, false, most);
}

void write_file_atomically(const fs::path& path, std::string_view content, ErrorCode code) {
  static std::atomic<unsigned> counter{0};
  const fs::path temporary =
      path.parent_path() / fmt::format(".{}.{}.{}.tmp", path.filename().string(), ::getpid(), counter++);
  // A device or a pipe is written to; to put a file in its place would take it away from everybody.
  struct stat info {};
  const bool is_special = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
  const auto fail = [&](const char* step) {
    const std::string reason = last_system_error();
    if (!is_special) ::unlink(temporary.c_str());
    throw Error(code, fmt::format("cannot write {}: {} failed: {}", path.string(), step, reason), path.string());
  };
  Descriptor file(is_special ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC)
                             : ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.ok()) fail("open");
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (is_special) {
    if (!file.close_now()) fail("close");
    return;
  }
  if (::fsync(file.get()) != 0) fail("fsync");
  if (!file.close_now()) fail("close");
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
  const fs::path folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  if (const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); handle.ok())
    ::fsync(handle.get());
}

void expect_writable(const std::filesystem::path& path, ErrorCode code) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  make_folder(folder, code);
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw Error(code, fmt::format("cannot write {}: it is a folder", path.string()), path.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(code, fmt::format("cannot write {}: {}", path.string(), last_system_error()), path.string());
}

void make_folder(const fs::path& path, ErrorCode code) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path))
    throw Error(code,
                fmt::format("cannot create the folder {}: {}", path.string(),
                            error ? error.message() : std::string("a file of that name is in the way")),
                path.string());
}

fs::path default_cache_folder() {
  return xdg_folder("XDG_CACHE_HOME", ".cache");
}
fs::path default_database_path() {
  return xdg_folder("XDG_DATA_HOME", ".local/share") / "heed.db";
}

std::string read_kernel_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  try {
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

}  // namespace heed

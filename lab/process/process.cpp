#include "process/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "process/interrupt.hpp"
#include "process/processor_wait.hpp"

namespace heed {
namespace {

constexpr std::size_t kMostOutput = 1 << 20;
constexpr std::size_t kMostErrors = 64 << 10;

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0)
      throw Error(ErrorCode::worker, fmt::format("cannot create a pipe: {}", last_system_error()));
    read_end = fds[0];
    write_end = fds[1];
  }
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void close_end(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

// What a pipe holds by now, behind `text` up to `most` bytes. Whether more may come.
bool read_some(int fd, std::string& text, std::size_t most) {
  std::array<char, 1 << 16> buffer;
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0)
    text.append(buffer.data(), std::min(static_cast<std::size_t>(count), most - std::min(most, text.size())));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

// Readable when a child has ended; closed at the end of the scope.
class EndOfChild {
 public:
  explicit EndOfChild(pid_t child) : child_(child), fd_(static_cast<int>(::syscall(kOpen, child, 0))) {}
  ~EndOfChild() {
    if (fd_ >= 0) ::close(fd_);
  }
  EndOfChild(const EndOfChild&) = delete;
  EndOfChild& operator=(const EndOfChild&) = delete;
  [[nodiscard]] int fd() const { return fd_; }  ///< negative where the kernel has none (before Linux 5.3)
  /// The child stays to be waited for: until then no other process has its number.
  [[nodiscard]] bool is_there() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
  }

 private:
  static constexpr long kOpen = 434;  // pidfd_open, which headers of older systems lack
  pid_t child_;
  int fd_;
};

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, std::string_view input, double limit_s,
                          const Confinement& confinement, Errors errors) {
  Pipe in;
  Pipe out;
  Pipe complaints;
  Pipe failure;  // carries errno when exec fails; closed by a successful exec
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const PreparedConfinement prepared(confinement);
  const pid_t parent = ::getpid();

  const pid_t child = ::fork();
  if (child < 0)
    throw Error(ErrorCode::worker, fmt::format("cannot start {}: {}", argv[0], last_system_error()), argv[0]);
  if (child == 0) {
    // Only async-signal-safe calls until exec.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(in.read_end, STDIN_FILENO);
    ::dup2(out.write_end, STDOUT_FILENO);
    ::dup2(errors == Errors::apart ? complaints.write_end : out.write_end, STDERR_FILENO);
    std::signal(SIGPIPE, SIG_DFL);
    std::signal(SIGXFSZ, SIG_DFL);
    if (prepared.enter()) ::execvpe(arguments[0], arguments.data(), prepared.environment());
    const int error = errno;
    [[maybe_unused]] const ssize_t ignored = ::write(failure.write_end, &error, sizeof error);
    ::_exit(127);
  }
  ::setpgid(child, child);  // in both processes, so that it holds whichever runs first
  Pipe::close_end(in.read_end);
  Pipe::close_end(out.write_end);
  Pipe::close_end(complaints.write_end);
  Pipe::close_end(failure.write_end);
  ::fcntl(in.write_end, F_SETFL, O_NONBLOCK);

  ProcessResult result;
  PatientDeadline deadline(limit_s);
  std::size_t written = 0;
  if (input.empty()) Pipe::close_end(in.write_end);
  const std::size_t most = errors == Errors::apart ? kMostApart : kMostOutput;
  const EndOfChild end(child);
  // A program may close its stdout and go on.
  while (out.read_end >= 0 || !end.is_there()) {
    if (deadline.left_s() <= 0 && deadline.is_over(child)) {
      result.timed_out = true;
      break;
    }
    if (interrupted()) {
      result.interrupted = true;
      break;
    }
    // poll leaves out what is closed.
    const bool is_silent = out.read_end < 0;
    std::array<pollfd, 4> fds = {{{out.read_end, POLLIN, 0},
                                  {complaints.read_end, POLLIN, 0},
                                  {in.write_end, POLLOUT, 0},
                                  {is_silent ? end.fd() : -1, POLLIN, 0}}};
    const double longest_ms = is_silent && end.fd() < 0 ? 5 : 200;
    const int ready =
        ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp(1000 * deadline.left_s(), 0.0, longest_ms)) + 1);
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    if (fds[2].revents != 0 && in.write_end >= 0) {
      const ssize_t count = ::write(in.write_end, input.data() + written, input.size() - written);
      if (count > 0) written += static_cast<std::size_t>(count);
      if (written == input.size() || (count < 0 && errno != EAGAIN && errno != EINTR)) Pipe::close_end(in.write_end);
    }
    if (fds[1].revents != 0 && !read_some(complaints.read_end, result.errors, kMostErrors))
      Pipe::close_end(complaints.read_end);
    if (fds[0].revents != 0 && !read_some(out.read_end, result.output, most)) Pipe::close_end(out.read_end);
  }
  if (result.timed_out || result.interrupted) ::kill(-child, SIGKILL);
  // A program that wrote complaints last, and closed its stdout before.
  if (!result.timed_out && !result.interrupted)
    for (pollfd last{complaints.read_end, POLLIN, 0};
         last.fd >= 0 && ::poll(&last, 1, 0) > 0 && read_some(last.fd, result.errors, kMostErrors);) {
    }
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  int exec_error = 0;
  if (::read(failure.read_end, &exec_error, sizeof exec_error) == sizeof exec_error) {
    result.output = fmt::format("cannot execute {}: {}", argv[0], std::strerror(exec_error));
    return result;
  }
  result.started = true;
  result.processor_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string find_program(std::string_view name) {
  namespace fs = std::filesystem;
  if (name.find('/') != std::string_view::npos)
    return ::access(std::string(name).c_str(), X_OK) == 0 ? std::string(name) : std::string();
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
    const fs::path candidate = fs::path(folder) / name;
    std::error_code error;
    if (::access(candidate.c_str(), X_OK) == 0 && fs::is_regular_file(candidate, error)) return candidate.string();
  }
  return {};
}

std::string self_executable() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw Error(ErrorCode::worker, fmt::format("cannot find this program's own file: {}", error.message()));
  return path.string();
}

}  // namespace heed

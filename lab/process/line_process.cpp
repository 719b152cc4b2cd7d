#include "process/line_process.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "base/check.hpp"
#include "base/files.hpp"
#include "process/interrupt.hpp"

namespace heed {

LineProcess::LineProcess(const std::vector<std::string>& argv) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    throw Error(ErrorCode::worker, fmt::format("cannot create a socket: {}", last_system_error()));
  log_ = ::memfd_create("heed-helper-log", MFD_CLOEXEC);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0)
    throw Error(ErrorCode::worker, fmt::format("cannot start {}: {}", argv[0], last_system_error()), argv[0]);
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(sockets[1], STDIN_FILENO);
    ::dup2(sockets[1], STDOUT_FILENO);
    ::dup2(log_, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(sockets[1]);
  socket_ = sockets[0];
}

LineProcess::~LineProcess() {
  stop();
  if (log_ >= 0) ::close(log_);
}

void LineProcess::stop() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

std::optional<std::string> LineProcess::ask(const std::string& line, double limit_s) {
  if (socket_ < 0) return std::nullopt;
  const std::string text = line + "\n";
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = ::write(socket_, text.data() + sent, text.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      stop();
      return std::nullopt;
    }
    sent += static_cast<std::size_t>(count);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string answer = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return answer;
    }
    if (interrupted() || std::chrono::steady_clock::now() > deadline) break;
    pollfd fd{socket_, POLLIN, 0};
    if (::poll(&fd, 1, 100) <= 0) continue;
    char buffer[1 << 14];
    const ssize_t count = ::read(socket_, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) break;
    pending_.append(buffer, static_cast<std::size_t>(count));
  }
  stop();
  return std::nullopt;
}

std::string LineProcess::complaints() const {
  constexpr ssize_t kMost = 1500;
  const ssize_t size = ::lseek(log_, 0, SEEK_END);
  std::string text(kMost, '\0');
  const ssize_t got = ::pread(log_, text.data(), text.size(), std::max<ssize_t>(0, size - kMost));
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace heed

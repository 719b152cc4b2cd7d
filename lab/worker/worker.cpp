#include "worker/worker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/files.hpp"
#include "base/limits.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "device/placement.hpp"
#include "json/integer.hpp"
#include "process/process.hpp"
#include "process/processor_wait.hpp"

namespace heed::worker {
namespace {

constexpr double kStartLimit_s = 60;  // creating a CUDA context on a cold driver takes seconds
constexpr int kStarts = 3;            // a machine may be short of memory for a moment
constexpr double kLoadLimit_s = 30;
constexpr double kFrameLimit_s = 60;  // from the first byte of an answer to its last
constexpr double kArenaShare = 0.6;   // of the memory that is available: inputs and references lie outside the arena

// Signals that a program brings upon itself. All others come from outside.
bool is_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGTRAP ||
         signal == SIGABRT || signal == SIGSYS || signal == SIGXCPU || signal == SIGXFSZ;
}

}  // namespace

Arena::Arena(std::uint64_t bytes) : size_((bytes + 4095) / 4096 * 4096) {
  require_memory(static_cast<double>(size_) / kArenaShare, "the workload, with copies of its tensors for a check,");
  fd_ = ::memfd_create("heed-arena", MFD_CLOEXEC);
  if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(size_)) != 0)
    throw Error(ErrorCode::worker, fmt::format("cannot create {} of shared memory: {}",
                                               human_bytes(static_cast<double>(size_)), last_system_error()));
  void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::worker, fmt::format("cannot map shared memory: {}", last_system_error()));
  data_ = static_cast<std::byte*>(memory);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (fd_ >= 0) ::close(fd_);
}

Worker::Worker(DeviceKind device, std::shared_ptr<Arena> arena) : device_(device), arena_(std::move(arena)) {
  for (int start = 1;; ++start) try {
      spawn();
      call({{"op", "hello"}}, kStartLimit_s);
      return;
    } catch (const WorkerFailure& failure) {
      if (failure.kind() == WorkerFailure::Kind::killed) throw;
      // No candidate is loaded yet: a verdict on one would be wrong.
      if (start == kStarts)
        throw Error(ErrorCode::worker,
                    fmt::format("a worker does not start on this machine, {} times in a row: {}. Memory, open files "
                                "(ulimit -n) or processes (ulimit -u) may be short; heed doctor tries each",
                                kStarts, failure.what()));
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
}

void Worker::spawn() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    throw Error(ErrorCode::worker, fmt::format("cannot create a socket: {}", last_system_error()));
  log_ = ::memfd_create("heed-worker-log", MFD_CLOEXEC);
  const std::string executable = self_executable();
  const std::string device_name(to_string(device_));
  const char* const argv[] = {executable.c_str(), "worker", device_name.c_str(), nullptr};
  const Placement& where = placement();
  const std::vector<std::string> environment = environment_of(where);
  std::vector<char*> variables;
  for (const std::string& one : environment) variables.push_back(const_cast<char*>(one.c_str()));
  variables.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw Error(ErrorCode::worker, fmt::format("cannot start a worker: {}", last_system_error()));
  if (pid_ == 0) {
    // Only async-signal-safe calls until exec. The worker is out of the terminal's reach (Ctrl-C is the parent's
    // business) and dies with the parent.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    if (!run_on(where.workers)) ::_exit(127);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    // dup through high numbers first: a source may itself be 3 or 4
    const int socket = ::fcntl(sockets[1], F_DUPFD, 64);
    const int memory = ::fcntl(arena_->descriptor(), F_DUPFD, 64);
    ::dup2(log_, STDOUT_FILENO);
    ::dup2(log_, STDERR_FILENO);
    if (socket < 0 || memory < 0) {
      static constexpr char kText[] = "the limit of open files is below 66";
      if (::write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) ::_exit(126);
      ::_exit(127);
    }
    ::dup2(socket, kSocket);
    ::dup2(memory, kArena);
    ::close(socket);
    ::close(memory);
    // this very program, though its file was replaced
    ::execve("/proc/self/exe", const_cast<char* const*>(argv), variables.data());
    ::execve(executable.c_str(), const_cast<char* const*>(argv), variables.data());
    ::_exit(127);
  }
  ::close(sockets[1]);
  socket_ = sockets[0];
}

Worker::~Worker() {
  stop();
}

void Worker::stop() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  if (socket_ >= 0) ::close(socket_);
  if (log_ >= 0) ::close(log_);
  socket_ = log_ = -1;
}

// A time-out is a verdict, and a candidate must not get it because other programs have the processors: a launch whose
// two threads wait for each other takes 20 s beside a dozen compilers on two processors, and 0.01 s alone.
Received Worker::wait_for_answer(double limit_s) {
  PatientDeadline deadline(limit_s);
  for (;;) {
    const Received received = wait_for_frame(socket_, std::max(deadline.left_s(), 0.0), /*interruptible=*/true);
    if (received != Received::timed_out) return received;
    if (deadline.left_s() <= 0 && deadline.is_over(pid_)) return received;
  }
}

nlohmann::json Worker::call(nlohmann::json request, double limit_s) {
  if (pid_ < 0) throw WorkerFailure(WorkerFailure::Kind::crashed, "the worker is gone");
  const std::uint64_t nonce = fresh_seed();
  const std::string op = request.at("op").get<std::string>();
  request["nonce"] = nonce;
  nlohmann::json answer;
  const auto begin = std::chrono::steady_clock::now();
  const bool sent = send_frame(socket_, request);
  Received received = sent ? wait_for_answer(limit_s) : Received::closed;
  if (received == Received::frame) received = receive_frame(socket_, kFrameLimit_s, /*interruptible=*/true, answer);
  if (received == Received::frame && answer.value("nonce", std::uint64_t{0}) == nonce) {
    const std::string error = answer.value("error", std::string());
    if (error.empty()) {
      note_busy(answer, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      return answer;
    }
    const std::string text = answer.value("text", std::string());
    stop();  // after a device fault the context is lost; after any other it is simplest to start clean
    if (error == "launch") throw WorkerFailure(WorkerFailure::Kind::launch_failed, text);
    if (error == "killed") throw WorkerFailure(WorkerFailure::Kind::killed, text);
    if (error == "left_state") throw WorkerFailure(WorkerFailure::Kind::left_state, text);
    if (error == "no_device") throw Error(ErrorCode::no_device, text);
    throw WorkerFailure(WorkerFailure::Kind::crashed, text);
  }
  if (received == Received::interrupted) {
    stop();
    throw Error(ErrorCode::interrupted, "interrupted by the user");
  }
  if (received == Received::timed_out) {
    stop();
    throw WorkerFailure(WorkerFailure::Kind::timed_out,
                        fmt::format("no answer to \"{}\" within {:.0f} s; the worker was killed", op, limit_s));
  }
  if (received == Received::garbage || received == Received::frame) {
    stop();
    throw WorkerFailure(WorkerFailure::Kind::garbage,
                        fmt::format("the answer to \"{}\" was garbage; the worker was killed", op));
  }
  // Closed: how did it end, and what did it say?
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  std::string log(2000, '\0');
  const ssize_t size = ::lseek(log_, 0, SEEK_END);
  const ssize_t got = ::pread(log_, log.data(), log.size(), std::max<ssize_t>(0, size - 2000));
  log.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  stop();
  std::string how = "ended without an answer";
  const bool was_killed = WIFSIGNALED(status) && !is_fault(WTERMSIG(status));
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    how = number == SIGSYS ? "made a system call that the sandbox forbids"
                           : fmt::format("was ended by signal {} ({})", number, ::strsignal(number));
  } else if (WIFEXITED(status)) {
    how = fmt::format("exited with code {}", WEXITSTATUS(status));
  }
  throw WorkerFailure(was_killed ? WorkerFailure::Kind::killed : WorkerFailure::Kind::crashed,
                      fmt::format("the worker {} during \"{}\"{}", how, op, log.empty() ? "" : ": " + trim(log)));
}

void Worker::note_busy(const nlohmann::json& answer, double wall_us) {
  if (!busy_ || !answer.contains("busy_us")) return;
  // A device is not at work for longer than the request took.
  const double us = std::clamp(answer.at("busy_us").get<double>(), 0.0, wall_us);
  busy_->us += us;
  busy_->recorded_us += std::clamp(answer.at("recorded_us").get<double>(), 0.0, us);
}

std::string Worker::record_activities(const std::string& library) {
  return call({{"op", "record_activities"}, {"library", library}}, kLoadLimit_s).value("reason", std::string());
}

void Worker::load(int slot, const std::string& path, const LaunchPlan& plan) {
  call({{"op", "load"}, {"slot", slot}, {"path", path}, {"plan", plan_to_json(plan)}}, kLoadLimit_s);
}

void Worker::seal() {
  call({{"op", "seal"}}, kLoadLimit_s);
  sealed_ = true;
}

void Worker::run(int slot, std::uint64_t image, std::uint64_t bytes, std::uint64_t result, const Launch& launch,
                 double limit_s) {
  call({{"op", "run"}, {"slot", slot}, {"image", image}, {"bytes", bytes}, {"result", result}, {"launch", launch}},
       limit_s);
}

void Worker::run_chain(int slot, std::uint64_t image, std::uint64_t bytes, std::uint64_t result,
                       const std::vector<Launch>& launches, Follow follow, double limit_s) {
  call({{"op", "run_chain"},
        {"slot", slot},
        {"image", image},
        {"bytes", bytes},
        {"result", result},
        {"launches", launches},
        {"follow", follow}},
       limit_s);
}

void Worker::prepare(std::uint64_t image, std::uint64_t bytes,
                     const std::vector<std::pair<int, std::vector<Launch>>>& launches,
                     const std::vector<Range>& poisoned, const std::vector<ChannelRange>& keys, double limit_s,
                     Follow follow) {
  nlohmann::json slots = nlohmann::json::array();
  for (const auto& [slot, list] : launches) slots.push_back({{"slot", slot}, {"launches", launches_to_json(list)}});
  call({{"op", "prepare"},
        {"image", image},
        {"bytes", bytes},
        {"slots", slots},
        {"poisoned", poisoned},
        {"keys", keys},
        {"follow", follow}},
       limit_s);
}

void Worker::warm_up(int slot, double ms, double limit_s) {
  call({{"op", "warm_up"}, {"slot", slot}, {"ms", ms}}, limit_s);
}

Worker::Times Worker::time(int slot, int replays, const std::vector<ChannelFactors>& factors, double limit_s) {
  const auto begin = std::chrono::steady_clock::now();
  const nlohmann::json answer =
      call({{"op", "time"}, {"slot", slot}, {"replays", replays}, {"factors", factors}}, limit_s);
  Times times;
  times.wall_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  times.us = answer.at("us").get<std::vector<double>>();
  times.instructions = answer.value("instructions", std::vector<double>());
  times.cycles = answer.value("cycles", std::vector<double>());
  return times;
}

std::pair<double, double> Worker::time_eager(int slot, int calls, double limit_s) {
  const nlohmann::json answer = call({{"op", "time_eager"}, {"slot", slot}, {"calls", calls}}, limit_s);
  return {answer.at("back_to_back").get<double>(), answer.at("synchronised").get<double>()};
}

Stopped Worker::spot_check(int slot, int replays, int launches, const std::vector<ChannelFactors>& factors,
                           const std::vector<Range>& wanted, std::uint64_t result, std::uint64_t bytes, double limit_s,
                           const KeyChanges& changes) {
  const nlohmann::json answer = call({{"op", "spot_check"},
                                      {"slot", slot},
                                      {"replays", replays},
                                      {"launches", launches},
                                      {"factors", factors},
                                      {"changes", changes},
                                      {"wanted", wanted},
                                      {"result", result},
                                      {"bytes", bytes}},
                                     limit_s);
  return {integer<int>(answer.at("complete")), integer<int>(answer.at("begun")),
          answer.at("wrote_out_of_bounds").get<bool>(), answer.at("turned").get<std::vector<int>>()};
}

void Worker::fetch(const std::vector<Range>& wanted, std::uint64_t result, std::uint64_t bytes, double limit_s) {
  call({{"op", "fetch"}, {"wanted", wanted}, {"result", result}, {"bytes", bytes}}, limit_s);
}

CounterReading Worker::count(int slot, std::uint64_t image, std::uint64_t bytes, const Launch& launch,
                             const std::string& library, const std::vector<MetricChoice>& choices, double limit_s) {
  return reading_from_json(call({{"op", "count"},
                                 {"slot", slot},
                                 {"image", image},
                                 {"bytes", bytes},
                                 {"launch", launch},
                                 {"library", library},
                                 {"metrics", choices_to_json(choices)}},
                                limit_s));
}

}  // namespace heed::worker

#include "worker/runner.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>

#include "base/check.hpp"
#include "base/files.hpp"
#include "worker/arena_views.hpp"
#include "worker/executor.hpp"
#include "worker/syscall_filter.hpp"

namespace heed::worker {
namespace {

// Honest kernels keep a few kilobytes on the stack, which is wiped behind each replay.
constexpr std::size_t kStackBytes = 64 << 10;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t pages_for(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

// The end of the memory a process may map: nothing is ever mapped above what the kernel put there at the start.
std::uintptr_t end_of_memory() {
  static const std::uintptr_t end = [] {
    std::uintptr_t last = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const std::uintptr_t to = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      if (to >> 62 == 0) last = std::max(last, to);  // the vsyscall page is the kernel's, and the filter closes it
    }
    return last;
  }();
  return end;
}

const std::vector<int>& allowed_processors() {
  static const std::vector<int> processors = [] {
    std::vector<int> allowed;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
    return allowed;
  }();
  return processors;
}

// Where the thread's restartable-sequence area lies: glibc 2.35 and newer say it, from the thread pointer on.
// https://sourceware.org/glibc/manual/latest/html_node/Restartable-Sequences.html
std::uintptr_t rseq_area() {
  const auto* const size = static_cast<const unsigned*>(::dlsym(RTLD_DEFAULT, "__rseq_size"));
  const auto* const offset = static_cast<const std::ptrdiff_t*>(::dlsym(RTLD_DEFAULT, "__rseq_offset"));
  if (size == nullptr || offset == nullptr || *size == 0) return 0;
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()) + static_cast<std::uintptr_t>(*offset);
}

std::string_view name_of(inside::Step step) {
  using enum inside::Step;
  switch (step) {
    case none:
      return "nothing";
    case leave_parent:
      return "tying its life to the worker's (prctl PR_SET_PDEATHSIG)";
    case unregister_rseq:
      return "giving up restartable sequences (rseq)";
    case protect_memory:
      return "making memory read-only (mprotect)";
    case close_files:
      return "closing files (close_range)";
    case unmap_memory:
      return "giving up the worker's memory (munmap)";
    case pin_thread:
      return "pinning a thread (sched_setaffinity)";
    case close_clock:
      return "closing the time-stamp counter (prctl PR_SET_TSC)";
    case no_new_privileges:
      return "giving up privileges (prctl PR_SET_NO_NEW_PRIVS)";
    case start_thread:
      return "starting a thread (clone)";
    case load_filter:
      return "closing system calls (seccomp)";
  }
  return "an unknown step";
}

long futex(const std::uint32_t& word, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

int open_counter(pid_t pid, std::uint64_t event) {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = event;
  attributes.inherit = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attributes, pid, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

// Scaled where the kernel had more counters to run than the processor has; empty when it never ran.
std::optional<double> read_counter(int counter) {
  std::array<std::uint64_t, 3> values{};  // count, time enabled, time running
  if (counter < 0 || ::read(counter, values.data(), sizeof values) != sizeof values || values[2] == 0)
    return std::nullopt;
  return static_cast<double>(values[0]) * static_cast<double>(values[1]) / static_cast<double>(values[2]);
}

}  // namespace

Runner::Runner(const RunnerTask& task) : launch_count_(task.launches.size()) {
  lay_out(task);
  try {
    fork_runner();
    if (task.counts) open_counters();
    __atomic_store_n(&plan_->command->may_start, 1, __ATOMIC_RELEASE);
    futex(plan_->command->may_start, FUTEX_WAKE, 1, nullptr);
    wait_on(plan_->status->confined, 1);
  } catch (...) {
    stop();
    throw;
  }
}

Runner::~Runner() {
  stop();
}

// The shared region: what the runner reads, then what it writes, then a stack and scratch for each thread, with
// pages between them that it unmaps.
void Runner::lay_out(const RunnerTask& task) {
  HEED_CHECK(task.threads >= 1);
  const std::size_t page = page_bytes();
  const std::size_t scratch = pages_for(static_cast<std::size_t>(std::max<std::int64_t>(task.scratch_bytes, 0)));
  const auto threads = static_cast<std::size_t>(task.threads);

  std::vector<PageRange> pages;
  if (task.image != nullptr) pages = pages_in_reach(task.launches, task.image, task.image_bytes, page);

  // Sizes in the read-only part.
  std::size_t at = 0;
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = at;
    at = (at + bytes + 63) / 64 * 64;
    return begin;
  };
  const std::size_t most_unmapped = pages.size() + 2 * threads + 8;
  const std::size_t command_at = place(sizeof(inside::Command));
  const std::size_t plan_at = place(sizeof(inside::Plan));
  const std::size_t filter_at = place(sizeof(sock_fprog));
  const std::size_t program_at = place(candidate_filter().size_bytes());
  const std::size_t threads_at = place(threads * sizeof(inside::Thread));
  const std::size_t views_at = place((pages.size() + 1) * sizeof(inside::View));
  const std::size_t unmapped_at = place(most_unmapped * sizeof(inside::Range));
  const std::size_t launches_at = place(task.launches.size_bytes());
  const std::size_t read_bytes = pages_for(at);
  const std::size_t written_bytes = pages_for(sizeof(inside::Status) + task.launches.size() * sizeof(inside::Progress));
  const std::size_t thread_bytes = page + kStackBytes + page + scratch;
  region_bytes_ = read_bytes + written_bytes + threads * thread_bytes;
  void* memory =
      ::mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::worker, fmt::format("cannot allocate {} bytes for {} threads' stacks and scratch memory: {}",
                                               region_bytes_, threads, last_system_error()));
  region_ = static_cast<std::byte*>(memory);
  const auto address = [&](std::size_t offset) { return reinterpret_cast<std::uintptr_t>(region_) + offset; };

  plan_ = new (region_ + plan_at) inside::Plan{};
  inside::Plan& plan = *plan_;
  plan.command = new (region_ + command_at) inside::Command{};
  plan.status = new (region_ + read_bytes) inside::Status{};
  written_ = {region_ + read_bytes, written_bytes};
  plan.progress = reinterpret_cast<inside::Progress*>(region_ + read_bytes + sizeof(inside::Status));
  plan.launches = reinterpret_cast<CpuLaunch*>(region_ + launches_at);
  if (!task.launches.empty()) std::memcpy(region_ + launches_at, task.launches.data(), task.launches.size_bytes());
  plan.thread_count = task.threads;
  plan.entry = reinterpret_cast<CpuEntry>(task.entry);
  plan.parent = ::getpid();
  plan.stack_bytes = kStackBytes;
  inside::describe_registers(plan);
  plan.rseq = rseq_area();
  std::memcpy(region_ + program_at, candidate_filter().data(), candidate_filter().size_bytes());
  plan.filter = new (region_ + filter_at) sock_fprog{static_cast<unsigned short>(candidate_filter().size()),
                                                     reinterpret_cast<sock_filter*>(region_ + program_at)};

  // What stays in reach; everything between is unmapped.
  const auto round = [&](std::uintptr_t begin, std::size_t bytes) {
    const std::uintptr_t from = begin / page * page;
    return inside::Range{from, pages_for(begin + bytes - from)};
  };
  const inside::Range own_code = inside::code_of_the_runner();
  std::vector<inside::Range> kept = {round(own_code.address, own_code.bytes),
                                     round(task.code, task.code_bytes),
                                     {address(0), read_bytes + written_bytes}};
  auto* thread = reinterpret_cast<inside::Thread*>(region_ + threads_at);
  plan.threads = thread;
  const std::vector<int>& processors = allowed_processors();
  for (std::size_t i = 0; i < threads; ++i) {
    const std::size_t stack = read_bytes + written_bytes + i * thread_bytes + page;
    kept.push_back({address(stack), kStackBytes});
    thread[i] = {address(stack + kStackBytes), region_ + stack + kStackBytes + page,
                 processors.empty() ? -1 : processors[i % processors.size()]};
    if (scratch == 0) continue;
    scratch_.push_back({address(stack + kStackBytes + page), scratch});
    kept.push_back(scratch_.back());
  }
  auto* view = reinterpret_cast<inside::View*>(region_ + views_at);
  plan.views = view;
  plan.view_count = pages.size() + 1;
  for (const PageRange& range : pages) {
    const auto begin = reinterpret_cast<std::uintptr_t>(task.image) + range.begin;
    *view++ = {begin, range.end - range.begin, range.writable};
    kept.push_back({begin, range.end - range.begin});
  }
  *view = {address(0), read_bytes, false};
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  auto* unmapped = reinterpret_cast<inside::Range*>(region_ + unmapped_at);
  plan.unmapped = unmapped;
  std::uintptr_t end = page;  // of what is dealt with; nothing is mapped at zero
  const auto unmap_until = [&](std::uintptr_t begin) {
    HEED_CHECK(begin >= end);
    if (begin > end) unmapped[plan.unmapped_count++] = {end, begin - end};
    HEED_CHECK(plan.unmapped_count <= most_unmapped);
  };
  for (const inside::Range& range : kept) {
    unmap_until(range.address);
    end = range.address + range.bytes;
  }
  unmap_until(end_of_memory());
  poison_scratch();
}

void Runner::fork_runner() {
  // Not fork(): nothing that a library would do in a child is wanted there.
  const long pid = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid < 0) throw Error(ErrorCode::worker, fmt::format("cannot fork a runner: {}", last_system_error()));
  if (pid == 0) inside::become_runner(plan_);
  pid_ = static_cast<pid_t>(pid);
}

void Runner::open_counters() {
  static bool refused = false;  // asked once: a machine that has none at first has none later
  if (refused) return;
  instructions_ = open_counter(pid_, PERF_COUNT_HW_INSTRUCTIONS);
  cycles_ = open_counter(pid_, PERF_COUNT_HW_CPU_CYCLES);
  refused = instructions_ < 0 || cycles_ < 0;
}

std::optional<HardwareCounts> Runner::counts() const {
  const std::optional<double> instructions = read_counter(instructions_);
  const std::optional<double> cycles = read_counter(cycles_);
  if (!instructions || !cycles) return std::nullopt;
  return HardwareCounts{*instructions, *cycles};
}

void Runner::begin(std::size_t launches) {
  HEED_CHECK(launches >= 1 && launches <= launch_count_);
  std::memset(plan_->progress, 0, launches * sizeof(inside::Progress));
  begun_ = launches;
  plan_->command->launches = static_cast<std::uint32_t>(launches);
  __atomic_store_n(&plan_->command->generation, plan_->command->generation + 1, __ATOMIC_RELEASE);
  if (frozen_)
    thaw();  // its waits begin anew, and find the generation changed
  else
    futex(plan_->command->generation, FUTEX_WAKE, 0x7fffffff, nullptr);
}

void Runner::wait_on(const std::uint32_t& word, std::uint32_t value) {
  for (;;) {
    const std::uint32_t now = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
    if (now == value) return;
    const timespec limit{0, kLookEvery_ns};
    if (futex(word, FUTEX_WAIT, now, &limit) == 0 || errno == EAGAIN) continue;
    look_for_end();
  }
}

void Runner::look_for_end() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) ended(status);
}

void Runner::wait() {
  wait_on(plan_->status->finished, plan_->command->generation);
}

void Runner::freeze() {
  if (frozen_) return;
  ::kill(pid_, SIGSTOP);
  for (;;) {
    int status = 0;
    const pid_t changed = ::waitpid(pid_, &status, WUNTRACED);
    if (changed < 0 && errno == EINTR) continue;
    if (changed != pid_ || !WIFSTOPPED(status)) ended(status);
    break;
  }
  frozen_ = true;
}

void Runner::thaw() {
  frozen_ = false;
  ::kill(pid_, SIGCONT);
}

void Runner::poison_scratch() {
  for (const inside::Range& range : scratch_) std::memset(reinterpret_cast<void*>(range.address), 0xff, range.bytes);
}

void Runner::ended(int status) {
  pid_ = -1;
  if (const auto step = static_cast<inside::Step>(plan_->status->failed_step);
      step != inside::Step::none && plan_->status->confined == 0)
    throw Error(
        ErrorCode::worker,
        fmt::format("this machine cannot confine a CPU candidate: {} failed: {}; `heed doctor` says what is missing",
                    name_of(step), std::strerror(plan_->status->failed_errno)));
  std::string how = "ended without an answer";
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    how = number == SIGSYS ? "made a system call that the sandbox forbids"
                           : fmt::format("was ended by signal {} ({})", number, ::strsignal(number));
    if (number == SIGSEGV)
      how += "; it may read its inputs, write its outputs, workspace and scratch, and not look at the time";
  }
  // Of the signals that end a process a candidate can only bring faults upon itself.
  const bool killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM ||
                                              WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGHUP);
  throw DeviceFailure(killed ? DeviceFailure::Kind::killed : DeviceFailure::Kind::crash,
                      fmt::format("the candidate {}", how));
}

void Runner::stop() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  for (int* counter : {&instructions_, &cycles_})
    if (*counter >= 0) ::close(std::exchange(*counter, -1));
  if (region_ != nullptr) ::munmap(region_, region_bytes_);
  region_ = nullptr;
}

}  // namespace heed::worker

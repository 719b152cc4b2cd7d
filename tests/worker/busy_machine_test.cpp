// A worker beside other programs on its processor: what it waits for them is not held against a candidate.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>

#include "testing.hpp"
#include "worker/cpu_entry.hpp"
#include "worker/worker.hpp"

namespace heed::worker {
namespace {

double processor_s() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Programs that want the processor a runner's first thread is pinned to, as long as this lives.
class Others {
 public:
  explicit Others(int count) {
    cpu_set_t allowed;
    EXPECT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    for (int i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::sched_setaffinity(0, sizeof one, &one);
        ::alarm(100);
        for (volatile int spin = 0;; spin = 1 - spin) {
        }
      }
      children_.push_back(child);
    }
  }
  ~Others() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

 private:
  std::vector<pid_t> children_;
};

// One block counts up to `steps`.
std::string counting(const std::string& steps) {
  return build_entry("for (volatile long i = 0; block == 0 && i < " + steps + "; i = i + 1) {}");
}

void run(const std::string& path, double limit_s) {
  Worker worker(DeviceKind::cpu, std::make_shared<Arena>(1 << 16));
  worker.load(0, path, small_plan(1));
  worker.seal();
  worker.run(0, 0, 4096, 8192, small_launch(), limit_s);
}

TEST(BusyMachine, WaitingForAProcessorIsNoTimeOut) {
  if (!std::filesystem::exists("/proc/self/schedstat")) GTEST_SKIP() << "this kernel counts no waits";
  constexpr long kSteps = 10'000'000;
  const double begin_s = processor_s();
  for (volatile long i = 0; i < kSteps; i = i + 1) {
  }
  // A third of the limit alone; beside five others twice the limit.
  const auto steps = static_cast<long>(0.33 / (processor_s() - begin_s) * static_cast<double>(kSteps));
  const std::string path = counting(std::to_string(steps));
  const Others others(5);
  EXPECT_NO_THROW(run(path, 1));
}

TEST(BusyMachine, WhatNeverEndsIsEndedAllTheSame) {
  const std::string path = counting("9000000000000000000");
  const Others others(2);
  try {
    run(path, 0.3);
    FAIL() << "it ended";
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::timed_out) << failure.what();
  }
}

}  // namespace
}  // namespace heed::worker

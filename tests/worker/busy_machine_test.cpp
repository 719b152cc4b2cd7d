// A worker beside other programs on its processor. What it waits for them is no part of its limit (ProcessorWait).
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "process/process.hpp"
#include "testing.hpp"
#include "worker/cpu_entry.hpp"
#include "worker/worker.hpp"

namespace heed::worker {
namespace {

// The number of the processor that Others want.
int first_processor() {
  cpu_set_t allowed;
  EXPECT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  return first;
}

// Programs that want the processor a runner's first thread is pinned to, as long as this lives.
class Others {
 public:
  explicit Others(int count) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first_processor(), &one);
    for (int i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::sched_setaffinity(0, sizeof one, &one);
        ::alarm(100);
        const volatile bool always = true;
        while (always) {
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

void run_forever(double limit_s) {
  Worker worker(DeviceKind::cpu, std::make_shared<Arena>(1 << 16));
  worker.load(0, build_entry("for (volatile int i = 0;; i = i + 1) {}"), small_plan(1));
  worker.seal();
  worker.run(0, 0, 4096, 8192, small_launch(), limit_s);
}

TEST(BusyMachine, WhatNeverEndsIsEndedAllTheSame) {
  const Others others(2);
  try {
    run_forever(0.3);
    FAIL() << "it ended";
  } catch (const WorkerFailure& failure) {
    EXPECT_EQ(failure.kind(), WorkerFailure::Kind::timed_out) << failure.what();
  }
}

// A program, such as a compiler, that takes 0.1 to 0.5 s alone, and beside thirty others 31 times as long.
TEST(BusyMachine, WhatAProgramWaitsForAProcessorIsNoPartOfItsLimit) {
  const Others others(30);
  const std::string counts = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done";
  const ProcessResult result =
      run_process({"taskset", "-c", std::to_string(first_processor()), "sh", "-c", counts}, {}, 3);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output, "done\n");
  const ProcessResult never =
      run_process({"taskset", "-c", std::to_string(first_processor()), "sh", "-c", "while :; do :; done"}, {}, 0.1);
  EXPECT_TRUE(never.timed_out);
}

}  // namespace
}  // namespace heed::worker

#include "process/processor_wait.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "testing.hpp"

namespace heed {
namespace {

TEST(ProcessorWait, IsTheSecondNumberOfSchedstat) {
  EXPECT_DOUBLE_EQ(parse_processor_wait("123 4500000000 7\n").value_or(-1), 4.5);
  for (const char* text : {"", "123", "123 456", "a b c", "1 -2 3"}) EXPECT_FALSE(parse_processor_wait(text)) << text;
}

TEST(ProcessorWait, TheLongestIsOfOneThreadBetweenTwoLooks) {
  EXPECT_DOUBLE_EQ(longest_wait({{1, 2.0}, {2, 5.0}}, {{1, 2.5}, {2, 5.25}}), 0.5);
  EXPECT_DOUBLE_EQ(longest_wait({{1, 2.0}}, {{1, 2.0}, {9, 0.25}}), 0.25) << "a thread that began in between";
  EXPECT_DOUBLE_EQ(longest_wait({{1, 2.0}, {2, 1.0}}, {}), 0) << "all have ended";
}

// Three processes of one group on one processor: one of them runs.
TEST(ProcessorWait, IsCountedOfAGroup) {
  if (!std::filesystem::exists("/proc/self/schedstat")) GTEST_SKIP() << "this kernel counts no waits";
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::sched_setaffinity(0, sizeof one, &one);
      ::alarm(60);
      for (volatile int spin = 0;; spin = 1 - spin) {
      }
    }
    children.push_back(child);
    ASSERT_EQ(::setpgid(child, children.front()), 0);
  }
  const ProcessorWaits before = processor_waits(children.front());
  EXPECT_EQ(before.size(), 3U);
  double waited_s = 0;
  for (int look = 0; look < 100 && waited_s == 0; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    waited_s = longest_wait(before, processor_waits(children.front()));
  }
  EXPECT_GT(waited_s, 0);
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_TRUE(processor_waits(children.front()).empty());
}

}  // namespace
}  // namespace heed

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

TEST(ProcessorWait, IsNoPartOfALimit) {
  EXPECT_TRUE(is_over(20, 2, 0)) << "nothing kept it from running";
  EXPECT_TRUE(is_over(20, 2, 0.1));
  EXPECT_FALSE(is_over(20, 2, 1.8)) << "a tenth of 22 s";
  EXPECT_FALSE(is_over(20, 20, 11));
  EXPECT_TRUE(is_over(20, 20, 10)) << "half of 40 s";
  EXPECT_FALSE(is_over(20, 179, 179));
  EXPECT_TRUE(is_over(20, 180, 180)) << "ten limits";
  EXPECT_TRUE(is_over(20, 2, -1)) << "counters that went backwards say nothing";
  EXPECT_TRUE(is_over(20, 0, 0));
}

// A process and three children on one processor: one of them runs.
TEST(ProcessorWait, IsCountedOfAProcessAndItsChildren) {
  if (!std::filesystem::exists("/proc/self/schedstat")) GTEST_SKIP() << "this kernel counts no waits";
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  const pid_t family = ::fork();
  ASSERT_GE(family, 0);
  if (family == 0) {
    ::setpgid(0, 0);
    ::sched_setaffinity(0, sizeof one, &one);
    for (int child = 0; child < 3 && ::fork() != 0; ++child) {
    }
    ::alarm(60);
    const volatile bool always = true;
    while (always) {
    }
  }
  double waited_s = 0;
  std::size_t threads = 0;
  ProcessorWaits before = processor_waits(family);
  for (int look = 0; look < 200 && (waited_s == 0 || threads < 4); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ProcessorWaits after = processor_waits(family);
    threads = after.size();
    waited_s = longest_wait(before, after);
    before = std::move(after);
  }
  EXPECT_EQ(threads, 4U);
  EXPECT_GT(waited_s, 0);
  ::kill(-family, SIGKILL);
  ::waitpid(family, nullptr, 0);
  EXPECT_TRUE(processor_waits(family).empty());
}

}  // namespace
}  // namespace heed

// Scratch of threads: rooms that do not meet.
#include <cstdint>
#include <cstring>

#include "launch/cpu_threads.hpp"
#include "testing.hpp"

namespace heed {
namespace {

TEST(CpuScratch, EveryThreadHasItsRoom) {
  CpuScratch scratch;
  ASSERT_TRUE(scratch.reserve(5000, 3));
  for (const int i : {0, 1, 2}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.of(i)) % 4096, 0U);
    std::memset(scratch.of(i), i + 1, 5000);
  }
  for (const int i : {0, 1, 2}) EXPECT_EQ(static_cast<const char*>(scratch.of(i))[4999], i + 1);
  ASSERT_TRUE(scratch.reserve(100, 3));  // has them
  EXPECT_EQ(static_cast<const char*>(scratch.of(2))[4999], 3);
  ASSERT_TRUE(scratch.reserve(50000, 3));
  std::memset(scratch.of(2), 1, 50000);
}

TEST(CpuScratch, APageBehindARoomIsNobodys) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CpuScratch scratch;
  ASSERT_TRUE(scratch.reserve(8192, 2));
  auto* const room = static_cast<volatile char*>(scratch.of(0));
  room[8191] = 1;
  EXPECT_DEATH(room[8192] = 1, "");
}

}  // namespace
}  // namespace heed

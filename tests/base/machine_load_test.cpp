#include "process/machine_load.hpp"

#include "testing.hpp"

namespace heed {
namespace {

TEST(MachineLoad, IsReadFromTheCountersOfLinux) {
  const auto before = parse_processor_times("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
  const auto after = parse_processor_times("cpu  160 0 60 900 50 0 0 30 0 0\n");
  ASSERT_TRUE(before && after);
  EXPECT_EQ(before->all, 1000);
  EXPECT_EQ(before->idle, 850);
  const MachineLoad load = load_between(*before, *after);
  EXPECT_DOUBLE_EQ(load.busy, 0.5);
  EXPECT_DOUBLE_EQ(load.stolen, 0.15);
  EXPECT_EQ(load_between(*after, *before).busy, 0) << "counters that went backwards say nothing";
}

TEST(MachineLoad, WhatIsNoSuchLineIsNone) {
  EXPECT_FALSE(parse_processor_times(""));
  EXPECT_FALSE(parse_processor_times("cpu 1 2 3"));
  EXPECT_FALSE(parse_processor_times("intr 1 2 3 4 5 6 7 8 9"));
}

TEST(MachineLoad, SharesAreShares) {
  const MachineLoad load = watch_others(std::chrono::milliseconds(20));
  EXPECT_GE(load.busy, 0);
  EXPECT_LE(load.busy, 1);
  EXPECT_GE(load.stolen, 0);
  EXPECT_GE(load.load_average, 0);
}

}  // namespace
}  // namespace heed

#include "base/intervals.hpp"

#include "testing.hpp"

namespace heed {
namespace {

TEST(Intervals, AreMergedWhereTheyMeetOrOverlap) {
  EXPECT_EQ(merged({{30, 40}, {0, 10}, {5, 12}, {12, 20}, {32, 35}, {50, 50}, {61, 60}}),
            (std::vector<Interval>{{0, 20}, {30, 40}}));
  EXPECT_TRUE(merged({}).empty());
  EXPECT_EQ(length_of(merged({{0, 10}, {5, 20}, {30, 40}})), 30);
}

TEST(Intervals, OverlapCountsEveryInstantOnce) {
  const std::vector<Interval> a = merged({{0, 10}, {20, 30}, {40, 50}});
  EXPECT_EQ(overlap_of(a, merged({{5, 45}})), 5 + 10 + 5);
  EXPECT_EQ(overlap_of(merged({{5, 45}}), a), 20);
  EXPECT_EQ(overlap_of(a, merged({{10, 20}, {30, 40}})), 0);
  EXPECT_EQ(overlap_of(a, a), 30);
  EXPECT_EQ(overlap_of(a, {}), 0);
}

}  // namespace
}  // namespace heed

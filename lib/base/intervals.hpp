/// Sets of instants as sorted intervals that do not touch, for times when a device did something.
#pragma once

#include <cstdint>
#include <vector>

namespace heed {

/// [begin, end), in whatever unit its user counts.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Interval&) const = default;
};

/// Sorted, and joined where they meet or overlap; those that are empty or end before they begin are left out.
std::vector<Interval> merged(std::vector<Interval> intervals);

/// Of merged intervals, all together.
double length_of(const std::vector<Interval>& intervals);

/// Length of what two sets of merged intervals have in common.
double overlap_of(const std::vector<Interval>& a, const std::vector<Interval>& b);

}  // namespace heed

#include "base/intervals.hpp"

#include <algorithm>

namespace heed {

std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& one) { return one.end <= one.begin; });
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> result;
  for (const Interval& one : intervals) {
    if (!result.empty() && one.begin <= result.back().end)
      result.back().end = std::max(result.back().end, one.end);
    else
      result.push_back(one);
  }
  return result;
}

double length_of(const std::vector<Interval>& intervals) {
  double sum = 0;
  for (const Interval& one : intervals) sum += static_cast<double>(one.end - one.begin);
  return sum;
}

double overlap_of(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].begin, b[j].begin);
    const std::int64_t end = std::min(a[i].end, b[j].end);
    if (end > begin) sum += static_cast<double>(end - begin);
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return sum;
}

}  // namespace heed

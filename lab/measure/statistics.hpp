/// Medians, and intervals of paired measurements on a machine that others use, too.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/faster.hpp"

namespace heed::measure {

double median(std::vector<double> values);
/// Relative spread: (90th - 10th percentile) / median.
double spread(std::vector<double> values);

/// A ratio with its confidence interval.
struct Ratio {
  double value = 0;
  double low = 0;
  double high = 0;
  /// Half the interval's width, relative to the value.
  [[nodiscard]] double uncertainty() const { return value > 0 ? (high - low) / (2 * value) : 0; }
};

/// Median of the values and the 95% percentile-bootstrap interval of that median (Efron 1979), by the exact
/// distribution of the median of a resample instead of by resamples: the same values give the same interval.
Ratio median_interval(std::vector<double> values);

/// The readings of one process, in the order in which they were taken: two of the base and two of the trial a quad.
struct Readings {
  std::span<const double> base_us;
  std::span<const double> trial_us;
  [[nodiscard]] std::size_t quads() const { return base_us.size() / 2; }
};

/// A quad with a reading more than this above the calm time of its side was disturbed. On a machine of one's own
/// readings stay within 1 to 2%; a program beside takes a third of the time or more.
inline constexpr double kDisturbed = 0.05;

/// Which quads to judge by: the undisturbed ones, and where these are fewer than a third (or six) the calmest third (or
/// six). The calm time of a side is the lower quartile of its readings in that process. A quad is judged by its slowest
/// reading against those of the same side alone, never by its ratio: that says nothing of which side is faster, so the
/// choice favours neither.
/// @return of each quad, process after process, whether it is kept
std::vector<bool> calm_quads(std::span<const Readings> processes);

/// Base time / trial time: median_interval over the calm quads' (A + A) / (B + B).
Ratio paired_ratio(std::span<const Readings> processes);

/// The rule for "faster" (base/faster.hpp).
inline bool is_faster(const Ratio& ratio, double self_spread) {
  return heed::is_faster(ratio.low, self_spread);
}

}  // namespace heed::measure

/// Medians and bootstrap intervals of paired measurements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

/// Median of the ratios and the 95% percentile-bootstrap interval of that median (Efron 1979; 2,000 resamples). The
/// same ratios and seed give the same interval.
Ratio bootstrap(const std::vector<double>& ratios, std::uint64_t seed);

/// Ratios nearer to each other than this are one: the same program's ratio moves by 0.16% from process to process
/// (H200), which no interval of one process knows of.
inline constexpr double kBetweenProcesses = 0.002;

/// The rule for "faster": the whole interval lies above what the base shows against itself, and above what the same
/// program shows from process to process.
/// @param self_spread how far from 1 the base's ratio to itself was seen to reach
inline bool is_faster(const Ratio& ratio, double self_spread) {
  return ratio.low > 1 + std::max(self_spread, kBetweenProcesses);
}

}  // namespace heed::measure

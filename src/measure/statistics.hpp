/// Medians and bootstrap intervals of paired measurements.
#pragma once

#include <cstdint>
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

/// Median of the ratios and the 95% percentile-bootstrap interval of that median (Efron 1979; 2,000 resamples). The
/// same ratios and seed give the same interval.
Ratio bootstrap(const std::vector<double>& ratios, std::uint64_t seed);

/// The rule for "faster" (base/faster.hpp).
inline bool is_faster(const Ratio& ratio, double self_spread) {
  return heed::is_faster(ratio.low, self_spread);
}

}  // namespace heed::measure

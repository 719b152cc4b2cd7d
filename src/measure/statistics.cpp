#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>

#include "base/random.hpp"

namespace heed::measure {
namespace {

constexpr int kResamples = 2000;

double percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return percentile(values, 0.5);
}

double spread(std::vector<double> values) {
  if (values.size() < 2) return 0;
  std::sort(values.begin(), values.end());
  const double middle = percentile(values, 0.5);
  return middle > 0 ? (percentile(values, 0.9) - percentile(values, 0.1)) / middle : 0;
}

Ratio bootstrap(const std::vector<double>& ratios, std::uint64_t seed) {
  if (ratios.empty()) return {};
  Random random(seed);
  std::vector<double> medians(kResamples);
  std::vector<double> sample(ratios.size());
  for (double& value : medians) {
    for (double& ratio : sample) ratio = ratios[random.below(ratios.size())];
    value = median(sample);
  }
  std::sort(medians.begin(), medians.end());
  return {median(ratios), percentile(medians, 0.025), percentile(medians, 0.975)};
}

}  // namespace heed::measure

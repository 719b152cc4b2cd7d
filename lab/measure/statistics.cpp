#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"

namespace heed::measure {
namespace {

constexpr double kBelow = 0.025;         // of the bootstrap distribution lies below the interval, and as much above it
constexpr double kCalmTime = 0.25;       // quantile of a side's readings: nothing makes a launch shorter than it is
constexpr double kLeastShare = 1 / 3.0;  // of the quads is always judged by
constexpr std::size_t kLeastQuads = 6;   // and so many, if there are

double percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double binomial(std::size_t n, std::size_t k) {
  return std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(k) + 1) -
         std::lgamma(static_cast<double>(n - k) + 1);  // its logarithm
}

// That at least `least` of n draws are among the smallest share `p` of the values.
double at_least(std::size_t n, std::size_t least, double p) {
  if (p >= 1) return 1;
  double sum = 0;
  for (std::size_t k = least; k <= n; ++k)
    sum +=
        std::exp(binomial(n, k) + static_cast<double>(k) * std::log(p) + static_cast<double>(n - k) * std::log1p(-p));
  return sum;
}

struct Mass {
  double value;
  double probability;
};

// What the median of a resample may be. With an even number it is the mean of two neighbours of the sorted resample,
// x_i and x_j say: then half of the draws are x_i or less, not all of them less, and the others x_j or more.
std::vector<Mass> resampled_medians(const std::vector<double>& sorted) {
  const std::size_t n = sorted.size();
  const std::size_t half = (n + 1) / 2;
  const auto share = [&](std::size_t i) { return static_cast<double>(i) / static_cast<double>(n); };
  std::vector<Mass> masses;
  std::vector<double> reaches(n + 1, 0);  // that the half-th of the sorted draws is one of the first i values
  for (std::size_t i = 1; i <= n; ++i) reaches[i] = at_least(n, half, share(i));
  if (n % 2 == 1) {
    for (std::size_t i = 0; i < n; ++i) masses.push_back({sorted[i], reaches[i + 1] - reaches[i]});
    return masses;
  }
  const auto h = static_cast<double>(half);
  const double ways = std::exp(binomial(n, half));
  for (std::size_t i = 0; i < n; ++i) {
    const double lower = std::pow(share(i + 1), h) - std::pow(share(i), h);
    double both = reaches[i + 1] - reaches[i];
    for (std::size_t j = i + 1; j < n; ++j) {
      const double upper = std::pow(1 - share(j), h) - std::pow(1 - share(j + 1), h);
      masses.push_back({(sorted[i] + sorted[j]) / 2, ways * lower * upper});
      both -= masses.back().probability;
    }
    masses.push_back({sorted[i], std::max(both, 0.0)});
  }
  return masses;
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

Ratio median_interval(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  std::vector<Mass> masses = resampled_medians(values);
  std::sort(masses.begin(), masses.end(), [](const Mass& a, const Mass& b) { return a.value < b.value; });
  Ratio interval{percentile(values, 0.5), values.front(), values.back()};
  double before = 0;
  for (const Mass& mass : masses) {
    const double after = before + mass.probability;
    if (before < kBelow && after >= kBelow) interval.low = mass.value;
    if (before < 1 - kBelow && after >= 1 - kBelow) interval.high = mass.value;
    before = after;
  }
  return interval;
}

std::vector<bool> calm_quads(std::span<const Readings> processes) {
  std::vector<double> slowest;  // of each quad: how far its worst reading is above the calm time of its side
  for (const Readings& one : processes) {
    HEED_CHECK(one.base_us.size() == one.trial_us.size() && one.base_us.size() % 2 == 0);
    std::vector<double> excess(one.quads(), 0);
    for (const std::span<const double> side : {one.base_us, one.trial_us}) {
      std::vector<double> sorted(side.begin(), side.end());
      std::sort(sorted.begin(), sorted.end());
      if (sorted.empty()) continue;
      const double calm = percentile(sorted, kCalmTime);
      for (std::size_t i = 0; i < side.size(); ++i)
        if (calm > 0) excess[i / 2] = std::max(excess[i / 2], side[i] / calm - 1);
    }
    slowest.insert(slowest.end(), excess.begin(), excess.end());
  }
  const std::size_t all = slowest.size();
  const auto third = static_cast<std::size_t>(std::ceil(kLeastShare * static_cast<double>(all)));
  const std::size_t least = std::min(all, std::max(kLeastQuads, third));
  std::vector<std::size_t> order(all);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return slowest[a] < slowest[b]; });
  std::vector<bool> kept(all, false);
  for (std::size_t i = 0; i < all; ++i) kept[order[i]] = i < least || slowest[order[i]] <= kDisturbed;
  return kept;
}

Ratio paired_ratio(std::span<const Readings> processes) {
  const std::vector<bool> kept = calm_quads(processes);
  std::vector<double> ratios;
  std::size_t quad = 0;
  for (const Readings& one : processes)
    for (std::size_t i = 0; i + 1 < one.base_us.size(); i += 2, ++quad)
      if (kept[quad]) ratios.push_back((one.base_us[i] + one.base_us[i + 1]) / (one.trial_us[i] + one.trial_us[i + 1]));
  return median_interval(std::move(ratios));
}

}  // namespace heed::measure

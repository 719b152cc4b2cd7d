#include "evolve/budget.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "evolve/selection.hpp"

namespace heed::evolve {
namespace {

constexpr double kShareOfOne = 1 / 20.0;
constexpr double kLeastMeasurement_s = 0.5;
constexpr int kNoLimit = 1'000'000;

}  // namespace

double Budget::left_s(double elapsed_s) const {
  return is_limited() ? limit_s - elapsed_s : std::numeric_limits<double>::infinity();
}

double Budget::final_measurement_s(double wanted_s) const {
  return is_limited() ? std::min(wanted_s, std::max(kLeastMeasurement_s, kShareOfOne * limit_s)) : wanted_s;
}

double Budget::reserve_s(double gate_s, double wanted_s) const {
  if (!is_limited()) return 0;
  return std::min(limit_s / 2, (kFinalProcesses + 1) * (gate_s + final_measurement_s(wanted_s)));
}

int Budget::trials_left(double elapsed_s, double trial_s, double gate_s, double wanted_s) const {
  if (!is_limited()) return kNoLimit;
  const double left = left_s(elapsed_s) - reserve_s(gate_s, wanted_s);
  return static_cast<int>(std::clamp(std::floor(left / std::max(trial_s, 1e-3)), 0.0, static_cast<double>(kNoLimit)));
}

}  // namespace heed::evolve

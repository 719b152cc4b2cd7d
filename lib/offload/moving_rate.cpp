#include "offload/moving_rate.hpp"

#include <algorithm>
#include <cmath>

namespace heed::offload {
namespace {

constexpr double kWeight = 0.25;       // of a step: of a rate that halves 94% are seen after ten
constexpr double kMostOfStep = 2;      // a step counts as this many times the average at most, or the inverse at least,
                                       // since a thread that was put to sleep once says little
constexpr double kMostOfMeasured = 8;  // the average stays within this factor of what was measured, so that a part that
                                       // has become small still shows when it is fast again
constexpr double kWorthIt = 1.0 / 32.0;  // a part of a step is then 3% longer than it might be

}  // namespace

void MovingRate::begin(double measured) {
  const std::lock_guard lock(mutex_);
  measured_ = average_ = planned_ = measured;
  steps_ = 0;
}

void MovingRate::add(double bytes, double seconds) {
  const double rate = bytes / seconds;
  if (!(bytes > 0) || !(seconds > 0) || !std::isfinite(rate)) return;
  const std::lock_guard lock(mutex_);
  if (!(measured_ > 0)) return;
  average_ += kWeight * (std::clamp(rate, average_ / kMostOfStep, average_ * kMostOfStep) - average_);
  average_ = std::clamp(average_, measured_ / kMostOfMeasured, measured_ * kMostOfMeasured);
  if (std::abs(average_ - planned_) > kWorthIt * planned_) planned_ = average_;
  ++steps_;
}

double MovingRate::planned() const {
  const std::lock_guard lock(mutex_);
  return planned_;
}

std::int64_t MovingRate::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

}  // namespace heed::offload

/// A rate that was measured alone, and what steps of decoding show that it is beside everything else.
#pragma once

#include <cstdint>
#include <mutex>

namespace heed::offload {

/// A moving average of bytes over busy time. Threads may add and read at the same time; nothing is allocated.
class MovingRate {
 public:
  /// Of a rate that nobody measured nothing is learnt.
  void begin(double measured);
  /// What a step moved and how long it was at work. Times that are none are left out.
  void add(double bytes, double seconds);
  /// What to plan with: the measured rate, and the average as soon as the one planned with is off by 1/32, so that a
  /// share changes where a step is shorter for it, and stays else.
  [[nodiscard]] double planned() const;
  [[nodiscard]] std::int64_t steps() const;

 private:
  mutable std::mutex mutex_;
  double measured_ = 0;
  double average_ = 0;
  double planned_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace heed::offload

/// A rate that was measured alone, and what steps of decoding show that it is beside everything else.
#pragma once

#include <cstdint>
#include <mutex>

namespace heed::offload {

/// A moving average of bytes over busy time. Threads may add and read at the same time; nothing is allocated.
class MovingRate {
 public:
  /// Starts from a measured rate. With 0 steps are ignored, and 0 stays the rate.
  void begin(double measured);
  /// Adds a step: bytes, and seconds of work. A step whose rate is not positive and finite is ignored.
  void add(double bytes, double seconds);
  /// The rate to plan with: the measured one, replaced by the average whenever the two differ by more than 1/32, so
  /// that a share changes only where a step becomes shorter.
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

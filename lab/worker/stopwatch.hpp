/// Time that has passed in a worker's own process.
#pragma once

#include <chrono>

namespace heed::worker {

using Clock = std::chrono::steady_clock;

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace heed::worker

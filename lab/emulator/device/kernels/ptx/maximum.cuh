// Stand-ins for kernels/ptx/maximum.cuh.
#pragma once

#include "emulator/device/device.hpp"

namespace heed::ptx {

inline float max_nan(float x, float y) {
  return x != x || y != y ? NAN : std::fmax(x, y);
}

inline float min_nan(float x, float y) {
  return x != x || y != y ? NAN : std::fmin(x, y);
}

}  // namespace heed::ptx

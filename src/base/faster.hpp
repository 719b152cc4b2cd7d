/// The rule for "faster", for those who measure and those who read what was stored.
#pragma once

#include <algorithm>

namespace heed {

/// Ratios nearer to each other than this are one: the same program's ratio moves by 0.16% from process to process
/// (H200), which no interval of one process knows of.
inline constexpr double kBetweenProcesses = 0.002;

/// Whether a ratio's whole interval lies above what the base shows against itself, and above what one program shows
/// from process to process.
/// @param low the interval's lower end
/// @param self_spread how far from 1 the base's ratio to itself was seen to reach
inline bool is_faster(double low, double self_spread) {
  return low > 1 + std::max(self_spread, kBetweenProcesses);
}

}  // namespace heed

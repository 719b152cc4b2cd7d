/// The rules for "faster" and "too noisy to say", for those who measure and those who read what was stored.
#pragma once

#include <algorithm>

namespace heed {

/// Ratios nearer to each other than this are one: the same program's ratio moves by 0.16% from process to process
/// (H200), which no interval of one process knows of.
inline constexpr double kBetweenProcesses = 0.002;

/// Where one program differs from itself by more than this, or half of an interval is wider, a machine is too noisy to
/// say that nothing is faster: most of what a search finds is a gain of 1 to 10%.
inline constexpr double kTooNoisy = 0.05;

/// Whether a ratio's whole interval lies above what the base shows against itself, and above what one program shows
/// from process to process.
/// @param low the interval's lower end
/// @param self_spread how far from 1 the base's ratio to itself was seen to reach
inline bool is_faster(double low, double self_spread) {
  return low > 1 + std::max(self_spread, kBetweenProcesses);
}

/// Whether nothing can be said: it is not shown to be faster, its interval reaches above 1, and noise is why.
/// @param low, high the interval
inline bool is_too_noisy_to_say(double low, double high, double self_spread) {
  return !is_faster(low, self_spread) && high > 1 + kBetweenProcesses &&
         std::max(self_spread, (high - low) / 2) > kTooNoisy;
}

}  // namespace heed

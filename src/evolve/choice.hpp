// Which of several measured variants is kept.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "base/faster.hpp"

namespace heed::evolve {

/// Ratios nearer than this are one.
inline constexpr double kTie = kBetweenProcesses;
/// A gain of dependent launches that counts between such.
inline constexpr double kDependentGain = 0.01;

/// A variant as it was measured.
struct Standing {
  double ratio = 0;         ///< base time over its time, plain launches: what decides
  double dependent_us = 0;  ///< of a dependent launch; 0 where there is none
};

/// Whether both are equally fast as plain launches, and `a` is faster than `b` where launches are dependent, or can be
/// launched so at all.
[[nodiscard]] constexpr bool breaks_tie(const Standing& a, const Standing& b) {
  return a.ratio > b.ratio * (1 - kTie) && a.dependent_us > 0 &&
         (b.dependent_us == 0 || a.dependent_us < b.dependent_us * (1 - kDependentGain));
}

/// Index of the one to keep: the fastest, or of those that tie with it the one whose dependent launches are shortest.
/// @param standings  at least one, the highest ratio first
[[nodiscard]] std::size_t best_of(const std::vector<Standing>& standings);

/// Who is measured once more at the end, the highest ratio first: the `most` with the highest ratios, and whoever was
/// called up and has one.
/// @param ratios  0 where there is none
[[nodiscard]] std::vector<std::size_t> finalists_of(const std::vector<double>& ratios, std::size_t most,
                                                    const std::set<std::size_t>& called_up);

}  // namespace heed::evolve

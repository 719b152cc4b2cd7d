// Which of several measured variants is kept.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "base/faster.hpp"
#include "measure/statistics.hpp"

namespace heed::evolve {

/// Ratios nearer than this are one.
inline constexpr double kTie = kBetweenProcesses;
/// A gain of dependent launches that counts between such.
inline constexpr double kDependentGain = 0.01;
/// A difference in cycles that counts between such.
inline constexpr double kFewerCycles = 0.01;

/// A variant as it was measured.
struct Standing {
  double ratio = 0;         ///< base time over its time, plain launches: what decides
  double dependent_us = 0;  ///< of a dependent launch; 0 where there is none
  double cycles = 0;        ///< base's over its, as the processor counted them; 0 where it did not
};

/// Whether both are equally fast as plain launches, and `a` is faster than `b` where launches are dependent, or can be
/// launched so at all; or, where neither can, takes clearly fewer cycles, which no other program has a part in.
[[nodiscard]] constexpr bool breaks_tie(const Standing& a, const Standing& b) {
  if (a.ratio <= b.ratio * (1 - kTie)) return false;
  if (a.dependent_us > 0) return b.dependent_us == 0 || a.dependent_us < b.dependent_us * (1 - kDependentGain);
  return b.dependent_us == 0 && b.cycles > 0 && a.cycles > b.cycles * (1 + kFewerCycles);
}

/// Index of the one to keep: the fastest, or of those that tie with it the one whose dependent launches are shortest.
/// @param standings  at least one, the highest ratio first
[[nodiscard]] std::size_t best_of(const std::vector<Standing>& standings);

/// Which trials are measured once more at the end.
struct Seats {
  std::size_t certain = 3;    ///< for the highest lower ends
  std::size_t undecided = 2;  ///< for wide intervals that reach beyond the best's lower end: the search could not tell
};

/// The finalists: the highest lower ends first, then the undecided, the highest ratio first, then whoever was called up
/// and has a ratio.
/// @param ratios  all 0 where there is none
[[nodiscard]] std::vector<std::size_t> finalists_of(const std::vector<measure::Ratio>& ratios, Seats seats,
                                                    double self_spread, const std::set<std::size_t>& called_up);

}  // namespace heed::evolve

// What a run decides by: the lower ends of intervals, measured until they are worth deciding by.
//
// A ratio read on a machine that others use, too, may be anything; what is certain of it is where its interval begins.
// So variants are ranked by that alone, and an interval that is wide where a decision hangs on it is measured again, in
// another process and at another time. All this is a function of measurements, whoever makes them.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "measure/pair.hpp"

namespace heed::evolve {

/// An interval is wide where half of it is more than what the base shows against itself on this machine, but never
/// called so below the first of these (no decision of a search hangs on less) and always above the second (two of the
/// changes that a search tries differ by as much).
inline constexpr double kSharp = 0.005;
inline constexpr double kCoarse = 0.03;
[[nodiscard]] double wide_above(double self_spread);
[[nodiscard]] bool is_wide(const measure::Ratio& ratio, double self_spread);

/// How often a trial is measured before the search goes on, and a finalist before an order is made of what there is.
inline constexpr int kMostMeasurements = 4;
inline constexpr int kMostFinalMeasurements = 6;
/// Processes that the interval which is quoted spans.
inline constexpr int kFinalProcesses = 3;

/// Whether one more measurement of a trial may change which variants a search goes on with: its interval is wide, and
/// its upper end is among the elites, or it would lead on a machine whose noise is noticed by one measurement alone.
/// @param rivals lower ends of the trials that it competes with
/// @param places how many of all go on
[[nodiscard]] bool is_undecided(const measure::PairResult& trial, const std::vector<double>& rivals, std::size_t places,
                                double self_spread);

/// One more measurement in a process of its own; none where that process refused the variant.
using Again = std::function<std::optional<measure::PairResult>()>;

/// A trial's measurement, made again and put together with those before as long as it is undecided.
[[nodiscard]] measure::PairResult settled(measure::PairResult first, const std::vector<double>& rivals,
                                          std::size_t places, double self_spread, const Again& again);

/// A finalist with its measurements in fresh processes.
struct Contender {
  std::size_t trial = 0;
  std::vector<measure::PairResult> processes;
  [[nodiscard]] measure::PairResult together() const { return measure::together(processes); }
};
using MeasureFresh = std::function<std::optional<measure::PairResult>(std::size_t trial)>;

/// The finalists, the highest lower end first. Each is measured once; then whoever's interval is wide is measured again
/// as long as the order of the first is open and `may_go_on` says so. One that a process refuses drops out.
[[nodiscard]] std::vector<Contender> final_order(const std::vector<std::size_t>& finalists, double self_spread,
                                                 const MeasureFresh& measure, const std::function<bool()>& may_go_on);

/// Measures a winner until kFinalProcesses of its measurements are not wide, or there are kMostFinalMeasurements, or
/// `may_go_on` says no; kFinalProcesses in any case. Says whether no process refused it.
[[nodiscard]] bool complete(Contender& winner, double self_spread, const MeasureFresh& measure,
                            const std::function<bool()>& may_go_on);

/// What is quoted: the kFinalProcesses narrowest measurements as one, with an interval that spans all of theirs, since
/// where the loader puts code and data moves a ratio from process to process. How wide an interval is says nothing of
/// which side is faster.
[[nodiscard]] measure::PairResult quoted(const Contender& winner);

}  // namespace heed::evolve

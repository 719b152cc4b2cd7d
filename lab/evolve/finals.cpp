// The final comparison of a run: its best few once more, in fresh processes.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "evolve/run.hpp"
#include "evolve/selection.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

// Longer than a trial's: this is the number that is quoted.
measure::PairOptions Evolution::final_pair() const {
  measure::PairOptions pair = as_sharp_as_useful(laboratory_.options().final_pair);
  pair.limit_s = budget().final_measurement_s(pair.limit_s);
  return pair;
}

double Evolution::final_process_s() const {
  return gate_s() + final_pair().limit_s;
}

// The base against itself beside the finalists: what else runs on this machine comes and goes during a search. Where
// that was noticed before, a process takes as long as a finalist's does, so that both are equally certain.
trial::Laboratory::SelfComparison Evolution::measure_yardstick() {
  check_interrupt();
  measure::PairOptions pair = laboratory_.options().final_pair;
  pair.target_uncertainty = 0;
  pair.limit_s = self_spread_ > kSharp ? final_pair().limit_s : laboratory_.options().pair.limit_s / kFinalProcesses;
  observer_.message("measuring the base against itself once more");
  return laboratory_.compare_with_itself(pair);
}

// What won among many by luck falls back here. Where plain launches do not tell some apart, dependent ones do. One that
// a fresh process refuses makes room for the next best.
Finals Evolution::compare_finalists() {
  std::vector<measure::Ratio> ratios;
  for (const store::TrialRecord& t : trials_)
    ratios.push_back(t.verdict == to_string(Verdict::ok) ? measure::Ratio{t.ratio, t.ratio_low, t.ratio_high}
                                                         : measure::Ratio{});
  Seats seats;
  if (!has_time_for((kFinalProcesses + 2) * final_process_s())) seats = {.certain = 1, .undecided = 0};
  const std::vector<std::size_t> best = finalists_of(ratios, seats, self_spread_, called_up_);
  in_final_ = {best.begin(), best.end()};

  Finals finals;
  finals.yardstick = measure_yardstick();
  const double self_spread = finals.yardstick.spread;
  std::map<std::size_t, trial::Outcome> last;
  const MeasureFresh measure = [&](std::size_t number) -> std::optional<measure::PairResult> {
    const store::TrialRecord& t = trials_[number];
    observer_.message(fmt::format("measuring trial {} in a fresh process ({:.3f} [{:.3f}, {:.3f}] in the search)",
                                  t.number, t.ratio, t.ratio_low, t.ratio_high));
    std::optional<trial::Outcome> outcome = compare_in_fresh_process(t, finals.refused);
    if (!outcome) return std::nullopt;
    last[number] = *outcome;
    return std::move(outcome->pair);
  };
  const auto may_go_on = [&] { return has_time_for((kFinalProcesses + 1) * final_process_s()); };
  std::vector<FinalComparison> finalists;
  for (Contender& contender : final_order(best, self_spread, measure, may_go_on)) {
    FinalComparison& one = finalists.emplace_back();
    one.trial = trials_[contender.trial];
    one.variant = variant_of(one.trial).id();
    one.pair = contender.together();
    one.contender = std::move(contender);
  }
  prefer_short_dependents(finalists);
  for (FinalComparison& one : finalists) {
    if (!keeps_pace(one, finals.refused)) continue;
    if (!complete(one.contender, self_spread, measure, [&] { return has_time_for(2 * final_process_s()); })) continue;
    one.pair = quoted(one.contender);
    const trial::Outcome& outcome = last.at(one.contender.trial);
    one.error = outcome.error;
    one.before = outcome.before;
    one.after = outcome.after;
    finals.winner = std::move(one);
    break;
  }
  return finals;
}

// Timed inputs are normal. Whether a finalist has its time from being slow on others: large scores tell.
bool Evolution::keeps_pace(FinalComparison& finalist, std::vector<std::string>& refused) {
  check_interrupt();
  if (base_large_us_ <= 0) base_large_us_ = laboratory_.measure_large(laboratory_.base());
  try {
    finalist.large_us = laboratory_.measure_large(laboratory_.build(variant_of(finalist.trial)));
  } catch (const trial::WrongWhenTimed& wrong) {
    refused.push_back(fmt::format("trial {}: {}", finalist.trial.number, wrong.what()));
    observer_.message(refused.back());
    return false;
  }
  finalist.base_large_us = base_large_us_;
  if (finalist.large_us <= laboratory_.options().most_slowdown * base_large_us_) return true;
  refused.push_back(fmt::format("trial {}: slow where scores are large: {:.2f} us, {:.1f} times the base's {:.2f} us",
                                finalist.trial.number, finalist.large_us, finalist.large_us / base_large_us_,
                                base_large_us_));
  observer_.message(refused.back());
  return false;
}

double Evolution::dependent_us(const Variant& variant) {
  if (device_.kind != DeviceKind::cuda || !variant.plan(options_.workload, device_).dependent) return 0;
  return laboratory_.measure_dependent(laboratory_.build(variant));
}

// Puts the one first that best_of() keeps. `finalists` stand in the order of their lower ends.
void Evolution::prefer_short_dependents(std::vector<FinalComparison>& finalists) {
  if (finalists.empty()) return;
  std::vector<Standing> standings;
  for (FinalComparison& one : finalists) {
    Standing standing{one.pair.ratio.low};
    if (const std::optional<measure::Counts> counted = counted_ratios(one.pair)) standing.cycles = counted->cycles;
    const bool ties = standings.empty() || standing.ratio > standings.front().ratio * (1 - kTie);
    if (ties && finalists.size() > 1) standing.dependent_us = one.dependent_us = dependent_us(variant_of(one.trial));
    standings.push_back(standing);
  }
  const auto best = static_cast<std::ptrdiff_t>(best_of(standings));
  std::rotate(finalists.begin(), finalists.begin() + best, finalists.begin() + best + 1);
  if (best > 0)
    observer_.message(fmt::format(
        "trial {} is as fast as trial {}, and {}", finalists[0].trial.number, finalists[1].trial.number,
        finalists[0].dependent_us > 0 ? "faster where launches are dependent" : "takes fewer cycles of its processor"));
}

// One finished trial against the base once more, in a worker of its own; stored as a "final" comparison.
std::optional<trial::Outcome> Evolution::compare_in_fresh_process(const store::TrialRecord& t,
                                                                  std::vector<std::string>& refused) {
  check_interrupt();
  const Variant variant = variant_of(t);
  const jit::BuildOutcome build = builder_.build(laboratory_.request_for(variant));
  trial::Outcome outcome = laboratory_.judge(variant, build, fresh_seed() >> 1, final_pair(), /*fresh=*/true);
  const nlohmann::json data = {
      {"trial", t.number},
      {"trial_id", t.id},
      {"variant", variant.id()},
      {"config", t.config},
      {"verdict", to_string(outcome.verdict)},
      {"reason", outcome.reason},
      {"search_ratio", t.ratio},
      {"ratio", record::to_json(outcome.pair.ratio)},
      {"base_us", outcome.pair.base_median_us},
      {"trial_us", outcome.pair.trial_median_us},
      {"error", record::to_json(outcome.error)},
      {"clocks", {{"before", record::to_json(outcome.before)}, {"after", record::to_json(outcome.after)}}},
      {"samples", record::samples_json(outcome.pair)}};
  store_.add_comparison({0, run_, "final", variant.id(), laboratory_.base().variant.id(), data});
  if (outcome.ok()) return outcome;
  refused.push_back(fmt::format("trial {}: {}: {}", t.number, to_string(outcome.verdict), outcome.reason));
  observer_.message(refused.back());
  return std::nullopt;
}

}  // namespace heed::evolve

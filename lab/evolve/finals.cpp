#include "evolve/finals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

// The base against itself beside the finalists: what else runs on this machine comes and goes during a search. Where
// that was noticed before, a process takes as long as a finalist's does, so that both are equally certain.
trial::Laboratory::SelfComparison Finals::measure_yardstick() {
  check_interrupt();
  measure::PairOptions pair = run_.laboratory.options().final_pair;
  pair.target_uncertainty = 0;
  pair.limit_s =
      run_.self_spread > kSharp ? run_.final_pair().limit_s : run_.laboratory.options().pair.limit_s / kFinalProcesses;
  run_.observer.message("measuring the base against itself once more");
  return run_.laboratory.compare_with_itself(pair);
}

FinalOutcome Finals::compare(const std::set<std::size_t>& called_up) {
  std::vector<measure::Ratio> ratios;
  for (const store::TrialRecord& t : run_.trials)
    ratios.push_back(t.ok() ? measure::Ratio{t.ratio, t.ratio_low, t.ratio_high} : measure::Ratio{});
  Seats seats;
  if (!run_.has_time_for((kFinalProcesses + 2) * run_.final_process_s())) seats = {.certain = 1, .undecided = 0};
  const std::vector<std::size_t> best = finalists_of(ratios, seats, run_.self_spread, called_up);
  finalists_ = {best.begin(), best.end()};

  FinalOutcome outcome;
  outcome.yardstick = measure_yardstick();
  const double self_spread = outcome.yardstick.spread;
  std::map<std::size_t, record::FinalComparison> last;
  std::map<std::size_t, int> processes;  // of each trial, so far
  const MeasureFresh measure = [&](std::size_t number) -> std::optional<measure::PairResult> {
    const store::TrialRecord& t = run_.trials[number];
    run_.observer.message(fmt::format("measuring trial {} in fresh process {} ({:.3f} [{:.3f}, {:.3f}] in the search)",
                                      t.number, ++processes[number], t.ratio, t.ratio_low, t.ratio_high));
    std::optional<record::FinalComparison> one = compare_in_fresh_process(t, outcome.refused);
    if (!one) return std::nullopt;
    return (last[number] = std::move(*one)).pair;
  };
  const auto may_go_on = [&] { return run_.has_time_for((kFinalProcesses + 1) * run_.final_process_s()); };
  std::vector<Finalist> finalists;
  for (Contender& contender : final_order(best, self_spread, measure, may_go_on)) {
    Finalist& one = finalists.emplace_back();
    one.champion.comparison = last.at(contender.trial);
    one.champion.comparison.pair = contender.together();
    one.contender = std::move(contender);
  }
  prefer_short_dependents(finalists);
  for (Finalist& one : finalists) {
    if (!keeps_pace(one.champion, outcome.refused)) continue;
    const auto has_time = [&] { return run_.has_time_for(2 * run_.final_process_s()); };
    if (!complete(one.contender, self_spread, measure, has_time)) continue;
    one.champion.comparison = last.at(one.contender.trial);
    one.champion.comparison.pair = quoted(one.contender);
    one.champion.measured_processes = one.contender.processes.size();
    outcome.champion = std::move(one.champion);
    break;
  }
  return outcome;
}

void Finals::refuse(const std::string& why, std::vector<std::string>& refused) {
  refused.push_back(why);
  run_.observer.message(why);
}

// Timed inputs are normal. Whether a finalist has its time from being slow on others: large scores tell.
bool Finals::keeps_pace(record::Champion& finalist, std::vector<std::string>& refused) {
  check_interrupt();
  trial::Laboratory& laboratory = run_.laboratory;
  const int number = finalist.comparison.trial;
  const store::TrialRecord& trial = run_.trials[static_cast<std::size_t>(number)];
  if (base_large_us_ <= 0) base_large_us_ = laboratory.measure_large(laboratory.base());
  try {
    finalist.large_us = laboratory.measure_large(laboratory.build(run_.variant_of(trial)));
  } catch (const trial::WrongWhenTimed& wrong) {
    refuse(fmt::format("trial {}: {}", number, wrong.what()), refused);
    return false;
  }
  finalist.base_large_us = base_large_us_;
  if (finalist.large_us <= laboratory.options().most_slowdown * base_large_us_) return true;
  refuse(fmt::format("trial {}: slow where scores are large: {:.2f} us, {:.1f} times the base's {:.2f} us", number,
                     finalist.large_us, finalist.large_us / base_large_us_, base_large_us_),
         refused);
  return false;
}

// Puts the one first that best_of() keeps. `finalists` stand in the order of their lower ends.
void Finals::prefer_short_dependents(std::vector<Finalist>& finalists) {
  if (finalists.empty()) return;
  std::vector<Standing> standings;
  for (Finalist& one : finalists) {
    const record::FinalComparison& comparison = one.champion.comparison;
    Standing standing{comparison.pair.ratio.low};
    if (const std::optional<measure::Counts> counted = counted_ratios(comparison.pair))
      standing.cycles = counted->cycles;
    const bool ties = standings.empty() || standing.ratio > standings.front().ratio * (1 - kTie);
    if (ties && finalists.size() > 1)
      standing.dependent_us = one.champion.dependent_us =
          run_.dependent_us(run_.variant_of(run_.trials[one.contender.trial]));
    standings.push_back(standing);
  }
  const auto best = static_cast<std::ptrdiff_t>(best_of(standings));
  std::rotate(finalists.begin(), finalists.begin() + best, finalists.begin() + best + 1);
  if (best > 0)
    run_.observer.message(fmt::format("trial {} is as fast as trial {}, and {}", finalists[0].contender.trial,
                                      finalists[1].contender.trial,
                                      finalists[0].champion.dependent_us > 0 ? "faster where launches are dependent"
                                                                             : "takes fewer cycles of its processor"));
}

// One finished trial against the base once more, in a worker of its own; stored as a "final" comparison.
std::optional<record::FinalComparison> Finals::compare_in_fresh_process(const store::TrialRecord& t,
                                                                        std::vector<std::string>& refused) {
  check_interrupt();
  const Variant variant = run_.variant_of(t);
  const jit::BuildOutcome build = run_.builder.build(run_.laboratory.request_for(variant));
  trial::Outcome outcome = run_.laboratory.judge(variant, build, fresh_seed() >> 1, run_.final_pair(), /*fresh=*/true);
  record::FinalComparison comparison{.trial = t.number,
                                     .trial_id = t.id,
                                     .variant = variant.id(),
                                     .config = t.config,
                                     .search_ratio = t.ratio,
                                     .verdict = outcome.verdict,
                                     .reason = outcome.reason,
                                     .pair = std::move(outcome.pair),
                                     .error = outcome.error,
                                     .before = outcome.before,
                                     .after = outcome.after};
  run_.store.add_comparison(
      {0, run_.run, "final", comparison.variant, run_.laboratory.base().variant.id(), record::to_json(comparison)});
  if (comparison.verdict == Verdict::ok) return comparison;
  refuse(fmt::format("trial {}: {}: {}", t.number, to_string(comparison.verdict), comparison.reason), refused);
  return std::nullopt;
}

}  // namespace heed::evolve

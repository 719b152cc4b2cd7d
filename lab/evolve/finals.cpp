#include "evolve/finals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "process/interrupt.hpp"
#include "record/emulation.hpp"

namespace heed::evolve {
namespace {

constexpr int kLargeAgain = 2;  // readings more of times at large scores before a finalist is refused for them

}  // namespace

// The base against itself beside the finalists: what else runs on this machine comes and goes during a search. Where
// that was noticed before, a process takes as long as a finalist's does, so that both are equally certain.
trial::TrialRunner::SelfComparison Finals::measure_yardstick() {
  check_interrupt();
  measure::PairOptions pair = run_.trial_runner.options().final_pair;
  pair.target_uncertainty = 0;
  pair.limit_s = run_.self_spread > kSharp ? run_.final_pair().limit_s
                                           : run_.trial_runner.options().pair.limit_s / kFinalProcesses;
  run_.observer.message("measuring the base against itself once more");
  return run_.trial_runner.compare_with_itself(pair);
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
  if (!yardstick_ || yardstick_->spread > kSharp) yardstick_ = measure_yardstick();
  outcome.yardstick = *yardstick_;
  const double self_spread = outcome.yardstick.spread;
  std::map<std::size_t, record::FinalComparison> last;
  std::map<std::size_t, std::size_t> taken;  // of what was measured of a trial, in this round
  const MeasureFresh measure = [&](std::size_t number) -> std::optional<measure::PairResult> {
    const store::TrialRecord& t = run_.trials[number];
    std::vector<record::FinalComparison>& known = measured_[number];
    const std::size_t next = taken[number]++;
    if (next < known.size()) {
      store_comparison(known[next]);
      return (last[number] = known[next]).pair;
    }
    run_.observer.message(fmt::format("measuring trial {} in fresh process {} ({:.3f} [{:.3f}, {:.3f}] in the search)",
                                      t.number, next + 1, t.ratio, t.ratio_low, t.ratio_high));
    std::optional<record::FinalComparison> one = compare_in_fresh_process(t, outcome.refused);
    if (!one) return std::nullopt;
    known.push_back(*one);
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
    if (!passes_tools(run_.trials[one.contender.trial], outcome.refused)) continue;
    one.champion.comparison = last.at(one.contender.trial);
    one.champion.comparison.pair = quoted(one.contender);
    one.champion.measured_processes = one.contender.processes.size();
    outcome.champion = std::move(one.champion);
    break;
  }
  return outcome;
}

void Finals::store_comparison(const record::FinalComparison& comparison) {
  run_.store.add_comparison(
      {0, run_.run, "final", comparison.variant, run_.trial_runner.base().variant.id(), record::to_json(comparison)});
}

void Finals::refuse(const std::string& why, std::vector<std::string>& refused) {
  refused.push_back(why);
  run_.observer.message(why);
}

// Timed inputs are normal. Whether a finalist has its time from being slow on others: large scores tell.
bool Finals::keeps_pace(record::Champion& finalist, std::vector<std::string>& refused) {
  check_interrupt();
  trial::TrialRunner& trial_runner = run_.trial_runner;
  const int number = finalist.comparison.trial;
  const store::TrialRecord& trial = run_.trials[static_cast<std::size_t>(number)];
  if (base_large_us_ <= 0) base_large_us_ = trial_runner.measure_large(trial_runner.base());
  const auto is_slow = [&](double us) { return us > trial_runner.options().most_slowdown * base_large_us_; };
  try {
    const auto [large_us, is_new] = large_us_.try_emplace(number, 0);
    if (is_new) {
      const trial::Built built = trial_runner.build(run_.variant_of(trial));
      large_us->second = trial_runner.measure_large(built);
      // What else runs on the machine may have lengthened one of the two, which are measured one after the other.
      for (int again = 0; again < kLargeAgain && is_slow(large_us->second); ++again) {
        base_large_us_ = std::min(base_large_us_, trial_runner.measure_large(trial_runner.base()));
        large_us->second = std::min(large_us->second, trial_runner.measure_large(built));
      }
    }
    finalist.large_us = large_us->second;
  } catch (const trial::WrongWhenTimed& wrong) {
    refuse(fmt::format("trial {}: {}", number, wrong.what()), refused);
    return false;
  }
  finalist.base_large_us = base_large_us_;
  if (!is_slow(finalist.large_us)) return true;
  refuse(fmt::format("trial {}: slow where scores are large: {:.2f} us, {:.1f} times the base's {:.2f} us", number,
                     finalist.large_us, finalist.large_us / base_large_us_, base_large_us_),
         refused);
  return false;
}

bool Finals::passes_emulator(const store::TrialRecord& trial, std::vector<std::string>& refused) {
  if (!run_.emulate) return true;
  const auto [known, is_new] = emulated_.try_emplace(trial.number);
  emulator::Report& report = known->second;
  if (is_new) {
    run_.observer.message(fmt::format("trial {} edits sources: the emulated GPU runs them", trial.number));
    report = run_.emulate(run_.variant_of(trial));
    if (report.outcome == emulator::Outcome::not_run)
      run_.observer.message(fmt::format("the emulated GPU does not run trial {}: {}", trial.number, report.reason));
  }
  // A final comparison begins without those of the round before.
  run_.store.add_comparison({0, run_.run, std::string(record::kEmulated), trial.variant,
                             run_.trial_runner.base().variant.id(), record::of_trial(report, trial.id)});
  if (report.outcome != emulator::Outcome::failed) return true;
  refuse(fmt::format("trial {}: on the emulated GPU: {}: {}", trial.number, to_string(report.verdict), report.reason),
         refused);
  return false;
}

bool Finals::passes_tools(const store::TrialRecord& trial, std::vector<std::string>& refused) {
  if (trial.edits.is_null()) return true;
  if (!passes_emulator(trial, refused)) return false;  // seconds, where the tools take minutes
  if (!run_.sanitize) return true;
  const auto [objection, is_new] = objections_.try_emplace(trial.number);
  if (is_new) {
    run_.observer.message(fmt::format("trial {} edits sources: compute-sanitizer looks at it", trial.number));
    objection->second = run_.sanitize(trial.id);
  }
  if (objection->second.empty()) return true;
  refuse(fmt::format("trial {}: {}", trial.number, objection->second), refused);
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
    if (ties && finalists.size() > 1) {
      const auto [dependent_us, is_new] = dependent_us_.try_emplace(one.contender.trial, 0);
      if (is_new) dependent_us->second = run_.dependent_us(run_.variant_of(run_.trials[one.contender.trial]));
      standing.dependent_us = one.champion.dependent_us = dependent_us->second;
    }
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
  const jit::BuildOutcome build = run_.builder.build(run_.trial_runner.request_for(variant));
  // Verified once more in the first of its processes; the others measure the very same program.
  const std::uint64_t seed = fresh_seed() >> 1;
  const auto verified = verified_.find(t.number);
  trial::Outcome outcome =
      verified == verified_.end() || !build.artifact || build.artifact->machine_code != verified->second.machine_code
          ? run_.trial_runner.judge(variant, build, seed, run_.final_pair(), /*fresh=*/true)
          : run_.trial_runner.measure_again({variant, *build.artifact}, seed, run_.final_pair());
  if (verified != verified_.end() && outcome.checks.empty())
    outcome.error = verified->second.error;
  else if (outcome.ok())
    verified_[t.number] = {outcome.artifact->machine_code, outcome.error};
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
  store_comparison(comparison);
  if (comparison.verdict == Verdict::ok) return comparison;
  refuse(fmt::format("trial {}: {}: {}", t.number, to_string(comparison.verdict), comparison.reason), refused);
  return std::nullopt;
}

}  // namespace heed::evolve

#include "evolve/finish.hpp"

#include <fmt/format.h>

#include "evolve/ablation.hpp"
#include "evolve/finals.hpp"
#include "evolve/peer_comparison.hpp"
#include "evolve/run_diagnosis.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

constexpr int kAblationWinners = 3;   // trials that the ablation may add to a run
constexpr int kLeastForWinners = 20;  // a shorter run is a sample, not a search: it stays within its number of trials

std::string summary_of(record::Ending ending, const measure::Ratio& ratio, const trial::Noise& noise,
                       bool device_is_cpu) {
  switch (ending) {
    case record::Ending::faster:
      return fmt::format("{:.3f} times as fast as the base, 95% interval [{:.3f}, {:.3f}]", ratio.value, ratio.low,
                         ratio.high);
    case record::Ending::too_noisy:
      return fmt::format(
          "too noisy to say: the best variant reads {:.3f} times as fast as the base, 95% interval "
          "[{:.3f}, {:.3f}]; {}",
          ratio.value, ratio.low, ratio.high, describe(noise, device_is_cpu));
    case record::Ending::not_faster:
    case record::Ending::no_variant:
      break;
  }
  return "no variant is faster than the base beyond what the base shows against itself";
}

record::Alone timed_alone(RunContext& run, const trial::Built& built, double large_us) {
  check_interrupt();
  record::Alone alone;
  alone.times = run.trial_runner.measure_absolute(built);
  alone.large_us = large_us;
  return alone;
}

// After all times: whoever counts disturbs the processor.
void add_diagnosis(RunContext& run, const trial::Built& built, double us, record::Alone& alone) {
  alone.counters = read_counters(run, built, run.options.strategy.seed);
  alone.diagnosis = diagnose(run, built.variant, built.artifact.resources, us, alone.counters);
}

}  // namespace

record::RunResult finish(RunContext& run) {
  const trial::Built base = run.trial_runner.base();
  Finals finals(run);
  Ablation ablation(run);
  FinalOutcome last;
  std::optional<trial::Built> champion;
  std::vector<record::AblationRow> rows;
  for (int added = 0;; ++added) {
    run.store.remove_comparisons(run.run);  // of an earlier attempt that was interrupted here, or of the round before
    {
      const PartOfRun part(run, "finals");
      last = finals.compare(ablation.called_up());
    }
    champion.reset();
    if (!last.champion) break;
    const PartOfRun part(run, "ablation");
    const int number = last.champion->comparison.trial;
    champion = run.trial_runner.build(run.variant_of(run.trials[static_cast<std::size_t>(number)]));
    rows = ablation.take_back(*champion);
    run.trial_runner.set_base(base);
    const bool may_add = run.options.trials >= kLeastForWinners && added < kAblationWinners &&
                         run.has_time_for((kFinalProcesses + 3) * run.final_process_s());
    if (!may_add || !ablation.try_winner(rows, number, finals.finalists())) break;
  }
  record::RunResult result;
  result.trials = run.trials.size();
  result.drafts = run.drafts_looked_at();
  result.self_spread = last.yardstick.spread;
  result.noise = trial::noise_of(last.yardstick);
  result.refused = last.refused;
  if (!champion) {
    result.summary = "no variant passed the gate and the final comparison";
    if (!result.refused.empty()) result.summary += "; " + result.refused.back();
    result.elapsed_s = run.elapsed_s();
    return result;
  }
  record::MeasuredChampion& measured = result.measured.emplace();
  measured.champion = std::move(*last.champion);
  measured.champion.resources = champion->artifact.resources;
  measured.ablation = std::move(rows);
  const measure::PairResult& pair = measured.champion.comparison.pair;
  // The winner's interval must clear what the base shows against itself.
  result.ending = record::ending_of(pair.ratio, result.self_spread);
  result.summary = summary_of(result.ending, pair.ratio, result.noise, run.device.kind == DeviceKind::cpu);
  run.observer.message("measuring base and champion with warm and cold caches");
  {
    const PartOfRun part(run, "alone");
    measured.base_alone = timed_alone(run, base, measured.champion.base_large_us);
    measured.champion_alone = timed_alone(run, *champion, measured.champion.large_us);
  }
  measured.floor = run.trial_runner.floor(run.device.processors);
  measured.flops = run.options.workload.flops();
  measured.peak_flops = run.trial_runner.peak_flops();
  {
    const PartOfRun part(run, "counters");
    add_diagnosis(run, base, pair.base_median_us, measured.base_alone);
    add_diagnosis(run, *champion, pair.trial_median_us, measured.champion_alone);
  }
  {
    const PartOfRun part(run, "peers");
    measured.peers = compare_with_peers(run, *champion);
  }
  if (result.ending == record::Ending::too_noisy) run.observer.message(result.summary);
  result.elapsed_s = run.elapsed_s();
  return result;
}

}  // namespace heed::evolve

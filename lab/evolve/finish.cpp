// The end of a run: the final comparison, the ablation, PyTorch beside it, and the result.
#include <fmt/format.h>

#include <algorithm>

#include "base/random.hpp"
#include "evolve/run.hpp"
#include "measure/peer.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

constexpr int kAblationWinners = 3;   // trials that the ablation may add to a run
constexpr int kLeastForWinners = 20;  // a shorter run is a look, not a search: it stays within its number of trials
constexpr double kPeers_s = 30;       // PyTorch takes 5 to 10 s to start, then as long as a finalist for each backend

std::string summary_of(Ending ending, const measure::Ratio& ratio, const Noise& noise, bool device_is_cpu) {
  switch (ending) {
    case Ending::faster:
      return fmt::format("{:.3f} times as fast as the base, 95% interval [{:.3f}, {:.3f}]", ratio.value, ratio.low,
                         ratio.high);
    case Ending::too_noisy:
      return fmt::format(
          "too noisy to say: the best variant reads {:.3f} times as fast as the base, 95% interval "
          "[{:.3f}, {:.3f}]; {}",
          ratio.value, ratio.low, ratio.high, describe(noise, device_is_cpu));
    default:
      return "no variant is faster than the base beyond what the base shows against itself";
  }
}

}  // namespace

nlohmann::json Evolution::compare_with_peers(const trial::Built& champion) {
  nlohmann::json peers = {{"rows", nlohmann::json::array()}};
  if (!options_.peers) {
    peers["reason"] = "not asked for";
    return peers;
  }
  if (!has_time_for(kPeers_s)) {
    peers["reason"] = "the budget was used up";
    observer_.message("no comparison with PyTorch: the budget is used up");
    return peers;
  }
  observer_.message("looking for PyTorch");
  const measure::TimingPlan timing = laboratory_.timing();
  measure::SdpaPeer sdpa(options_.python, options_.workload, device_, timing, fresh_seed());
  if (!sdpa.available()) {
    peers["reason"] = sdpa.reason();
    observer_.message(fmt::format("no comparison with PyTorch: {}", sdpa.reason()));
    return peers;
  }
  peers["torch"] = sdpa.torch_version();
  peers["cudnn"] = sdpa.cudnn_version();
  const measure::Block ours = laboratory_.standalone_block(champion);
  for (const measure::PeerBackend& backend : sdpa.backends()) {
    check_interrupt();
    nlohmann::json row = {{"backend", backend.name}, {"kernels", backend.kernels}, {"refused", backend.refused}};
    if (backend.refused.empty()) {
      try {
        observer_.message(fmt::format("measuring against {}", backend.name));
        const measure::Block theirs = sdpa.block(backend.name);
        (void)theirs();  // captures its graph
        const measure::PairResult pair = measure::measure_pair(theirs, ours, laboratory_.options().final_pair);
        row["us"] = pair.base_median_us;
        row["champion_us"] = pair.trial_median_us;
        row["ratio"] = record::to_json(pair.ratio);
        row["max_abs"] = sdpa.max_abs_error(backend.name);
        row["samples"] = record::samples_json(pair);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) throw;
        row["refused"] = error.what();
      }
    }
    store_.add_comparison({0, run_, "peer", champion.variant.id(), backend.name, row});
    peers["rows"].push_back(row);
  }
  for (const auto& row : peers["rows"])
    if (row.contains("us") && (!peers.contains("best") || row["ratio"]["value"] < peers["best_ratio"]["value"])) {
      peers["best"] = row["backend"];
      peers["best_us"] = row["us"];
      peers["best_ratio"] = row["ratio"];
    }
  return peers;
}

nlohmann::json Evolution::finish() {
  nlohmann::json result;
  const trial::Built base = laboratory_.base();
  Finals finals;
  nlohmann::json ablation;
  std::optional<trial::Built> winner;
  for (int added = 0;; ++added) {
    store_.remove_comparisons(run_);  // of an earlier attempt that was interrupted here, or of the round before
    finals = compare_finalists();
    if (!finals.winner) {
      result["self_spread"] = finals.yardstick.spread;
      result["noise"] = to_json(noise_of(finals.yardstick));
      result["trials"] = trials_.size();
      result["drafts"] = drafts_looked_at();
      result["outcome"] = to_string(Ending::no_variant);
      result["refused"] = finals.refused;
      result["summary"] = "no variant passed the gate and the final comparison";
      if (!finals.refused.empty())
        result["summary"] = fmt::format("{}; {}", result["summary"].get<std::string>(), finals.refused.back());
      result["elapsed_s"] = elapsed_s();
      return result;
    }
    winner = laboratory_.build(variant_of(finals.winner->trial));
    ablation = ablate(*winner);
    laboratory_.set_base(base);
    const bool may_add = options_.trials >= kLeastForWinners && added < kAblationWinners &&
                         has_time_for((kFinalProcesses + 3) * final_process_s());
    if (!may_add || !try_ablation_winner(ablation, finals.winner->trial.number)) break;
  }
  result["trials"] = trials_.size();
  result["drafts"] = drafts_looked_at();
  const trial::Built& champion = *winner;
  const measure::Ratio& ratio = finals.winner->pair.ratio;
  const double self_spread = finals.yardstick.spread;
  // The winner's interval must clear what the base shows against itself.
  const Ending ending = ending_of(ratio, self_spread);
  const Noise noise = noise_of(finals.yardstick);
  result["self_spread"] = self_spread;
  result["noise"] = to_json(noise);
  result["outcome"] = to_string(ending);
  result["final"] = to_json(*finals.winner);
  result["final"]["resources"] = record::to_json(champion.artifact.resources);

  const auto absolute = [&](const trial::Built& built) {
    check_interrupt();
    const trial::Absolute a = laboratory_.measure_absolute(built);
    return nlohmann::json{{"warm_us", a.warm_us},
                          {"cold_us", a.cold_us},
                          {"eager_us", a.eager_us},
                          {"eager_synchronised_us", a.eager_synchronised_us},
                          {"dependent_us", a.dependent_us}};
  };
  observer_.message("measuring base and champion with warm and cold caches");
  result["base_times"] = absolute(base);
  result["champion_times"] = absolute(champion);
  result["base_times"]["large_us"] = finals.winner->base_large_us;
  result["champion_times"]["large_us"] = finals.winner->large_us;
  const double champion_us = finals.winner->pair.trial_median_us;
  const measure::Floor floor = laboratory_.floor(device_.processors);
  result["floor"] = record::to_json(floor);
  result["tflops"] = options_.workload.flops() / champion_us * 1e-6;
  result["peak_share"] = options_.workload.flops() / (champion_us * 1e-6) / laboratory_.peak_flops();
  result["floor_share"] = floor.us() / champion_us;
  const auto diagnosis = [&](const trial::Built& built, double us) {
    const std::optional<profile::Counters> counters = read_counters(built, options_.strategy.seed);
    return to_json(diagnose(built.variant, built.artifact.resources, us, counters), counters);
  };
  result["profile"] = {{"base", diagnosis(base, finals.winner->pair.base_median_us)},
                       {"champion", diagnosis(champion, champion_us)}};
  result["peers"] = compare_with_peers(champion);
  result["ablation"] = ablation;
  result["summary"] = summary_of(ending, ratio, noise, device_.kind == DeviceKind::cpu);
  if (ending == Ending::too_noisy) observer_.message(result["summary"].get<std::string>());
  result["elapsed_s"] = elapsed_s();
  return result;
}

}  // namespace heed::evolve

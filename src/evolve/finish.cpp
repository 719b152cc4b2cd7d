// The end of a run: the final comparison in fresh processes, PyTorch beside it, and the ablation.
#include <fmt/format.h>

#include <algorithm>

#include "base/interrupt.hpp"
#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "evolve/run.hpp"
#include "measure/peer.hpp"

namespace heed::evolve {
namespace {

constexpr int kFinalists = 3;
constexpr int kFinalProcesses = 3;    // fresh processes in which the winner is measured
constexpr int kAblationWinners = 3;   // trials that the ablation may add to a run
constexpr int kLeastForWinners = 20;  // a shorter run is a look, not a search: it stays within its number of trials

}  // namespace

// The best few of the run once more against the base, each in a fresh process: what won among many by luck falls back
// here. Where plain launches do not tell some apart, dependent ones do: their time is "dependent_us". The winner is
// measured in two processes more; one that a fresh process refuses makes room for the next best. Where all were
// refused, "refused" says why.
nlohmann::json Evolution::compare_finalists() {
  std::vector<double> ratios;
  for (const store::TrialRecord& t : trials_) ratios.push_back(t.verdict == to_string(Verdict::ok) ? t.ratio : 0);
  const std::vector<std::size_t> best = finalists_of(ratios, kFinalists, called_up_);
  in_final_ = {best.begin(), best.end()};

  std::vector<Finalist> finalists;
  nlohmann::json refused = nlohmann::json::array();
  for (const std::size_t number : best) {
    const store::TrialRecord* t = &trials_[number];
    observer_.message(
        fmt::format("measuring trial {} again in a fresh process ({:.3f} in the search)", t->number, t->ratio));
    nlohmann::json data = compare_in_fresh_process(*t);
    if (passed(data, refused)) finalists.emplace_back(t, std::move(data));
  }
  std::stable_sort(finalists.begin(), finalists.end(), [](const auto& a, const auto& b) {
    return a.second["ratio"]["value"] > b.second["ratio"]["value"];
  });
  prefer_short_dependents(finalists);
  for (auto& [t, data] : finalists)
    if (keeps_pace(*t, data, refused) && measure_in_more_processes(*t, data, refused)) return data;
  return {{"verdict", "none"}, {"refused", refused}};
}

// Timed inputs are normal. Whether a finalist has its time from being slow on others: large scores tell.
bool Evolution::keeps_pace(const store::TrialRecord& t, nlohmann::json& data, nlohmann::json& refused) {
  check_interrupt();
  if (base_large_us_ <= 0) base_large_us_ = laboratory_.measure_large(laboratory_.base());
  double us = 0;
  try {
    us = laboratory_.measure_large(laboratory_.build(variant_of(t)));
  } catch (const trial::WrongWhenTimed& wrong) {
    refused.push_back(fmt::format("trial {}: {}", t.number, wrong.what()));
    observer_.message(refused.back().get<std::string>());
    return false;
  }
  data["large_us"] = us;
  data["base_large_us"] = base_large_us_;
  if (us <= laboratory_.options().most_slowdown * base_large_us_) return true;
  refused.push_back(fmt::format("trial {}: slow where scores are large: {:.2f} us, {:.1f} times the base's {:.2f} us",
                                t.number, us, us / base_large_us_, base_large_us_));
  observer_.message(refused.back().get<std::string>());
  return false;
}

double Evolution::dependent_us(const Variant& variant) {
  if (device_.kind != DeviceKind::cuda || !variant.plan(options_.workload, device_).dependent) return 0;
  return laboratory_.measure_dependent(laboratory_.build(variant));
}

// Puts the one first that best_of() keeps. `finalists` stand in the order of their ratios.
void Evolution::prefer_short_dependents(std::vector<Finalist>& finalists) {
  std::vector<Standing> standings;
  for (auto& [t, data] : finalists) {
    Standing standing{data["ratio"]["value"], 0};
    const bool ties = standings.empty() || standing.ratio > standings.front().ratio * (1 - kTie);
    if (ties && finalists.size() > 1) {
      standing.dependent_us = dependent_us(variant_of(*t));
      if (standing.dependent_us > 0) data["dependent_us"] = standing.dependent_us;
    }
    standings.push_back(standing);
  }
  if (finalists.empty()) return;
  const auto best = static_cast<std::ptrdiff_t>(best_of(standings));
  std::rotate(finalists.begin(), finalists.begin() + best, finalists.begin() + best + 1);
  if (best > 0)
    observer_.message(fmt::format("trial {} is as fast as trial {}, and faster where launches are dependent",
                                  finalists[0].first->number, finalists[1].first->number));
}

bool Evolution::passed(const nlohmann::json& comparison, nlohmann::json& refused) {
  if (comparison["verdict"] == to_string(Verdict::ok)) return true;
  refused.push_back(fmt::format("trial {}: {}: {}", comparison["trial"].get<int>(),
                                comparison["verdict"].get<std::string>(), comparison["reason"].get<std::string>()));
  observer_.message(refused.back().get<std::string>());
  return false;
}

// Where the loader puts code and data moves a ratio from process to process; the interval quoted must span that.
bool Evolution::measure_in_more_processes(const store::TrialRecord& t, nlohmann::json& data, nlohmann::json& refused) {
  std::vector<double> ratios = data["samples"]["ratios"].get<std::vector<double>>();
  std::vector<double> base_us = data["samples"]["base_us"].get<std::vector<double>>();
  std::vector<double> trial_us = data["samples"]["trial_us"].get<std::vector<double>>();
  measure::Ratio span = ratio_from_json(data["ratio"]);
  for (int process = 1; process < kFinalProcesses; ++process) {
    observer_.message(
        fmt::format("measuring trial {} in fresh process {} of {}", t.number, process + 1, kFinalProcesses));
    const nlohmann::json more = compare_in_fresh_process(t);
    if (!passed(more, refused)) return false;
    const measure::Ratio one = ratio_from_json(more["ratio"]);
    span.low = std::min(span.low, one.low);
    span.high = std::max(span.high, one.high);
    const auto append = [&](std::vector<double>& all, const char* key) {
      for (const auto& value : more["samples"][key]) all.push_back(value.get<double>());
    };
    append(ratios, "ratios");
    append(base_us, "base_us");
    append(trial_us, "trial_us");
  }
  span.value = measure::median(ratios);
  data["ratio"] = to_json(span);
  data["base_us"] = measure::median(base_us);
  data["trial_us"] = measure::median(trial_us);
  data["samples"] = {{"ratios", ratios}, {"base_us", base_us}, {"trial_us", trial_us}};
  data["processes"] = kFinalProcesses;
  return true;
}

// One finished trial against the base once more, in a worker of its own; stored as a "final" comparison.
nlohmann::json Evolution::compare_in_fresh_process(const store::TrialRecord& t) {
  check_interrupt();
  const Variant variant = variant_of(t);
  const jit::BuildOutcome build = builder_.build(laboratory_.request_for(variant));
  const trial::Outcome outcome =
      laboratory_.judge(variant, build, fresh_seed() >> 1, as_sharp_as_useful(laboratory_.options().final_pair),
                        /*fresh=*/true);
  const nlohmann::json data = {{"trial", t.number},
                               {"trial_id", t.id},
                               {"variant", variant.id()},
                               {"config", t.config},
                               {"verdict", to_string(outcome.verdict)},
                               {"reason", outcome.reason},
                               {"search_ratio", t.ratio},
                               {"ratio", to_json(outcome.pair.ratio)},
                               {"base_us", outcome.pair.base_median_us},
                               {"trial_us", outcome.pair.trial_median_us},
                               {"error", to_json(outcome.error)},
                               {"clocks", {{"before", to_json(outcome.before)}, {"after", to_json(outcome.after)}}},
                               {"samples", samples_json(outcome.pair)}};
  store_.add_comparison({0, run_, "final", variant.id(), laboratory_.base().variant.id(), data});
  return data;
}

nlohmann::json Evolution::compare_with_peers(const trial::Built& champion) {
  nlohmann::json peers = {{"rows", nlohmann::json::array()}};
  if (!options_.peers) {
    peers["reason"] = "not asked for";
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
        row["ratio"] = to_json(pair.ratio);
        row["max_abs"] = sdpa.max_abs_error(backend.name);
        row["samples"] = samples_json(pair);
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

// Every knob in which the champion differs from the default, put back by itself.
nlohmann::json Evolution::ablate(const trial::Built& champion) {
  nlohmann::json rows = nlohmann::json::array();
  const Family& family = *champion.variant.family;
  const Config defaults = family.default_config(options_.workload, device_);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < defaults.size(); ++i)
    if (champion.variant.config[i] != defaults[i]) changed.push_back(i);
  if (changed.empty()) return rows;
  observer_.message(fmt::format("ablation: taking back the champion's {} changes one by one", changed.size()));
  try {
    laboratory_.set_base(champion);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    observer_.message(fmt::format("no ablation: {}", error.what()));  // the result stands without it
    return rows;
  }
  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<Variant> variants;
  for (const std::size_t i : changed) {
    Config config = champion.variant.config;
    config[i] = defaults[i];
    variants.push_back(make_variant(family, config, options_.workload));
    const bool legal = !laboratory_.refuses(variants.back());
    builds.push_back(legal ? builder_.start(laboratory_.request_for(variants.back()))
                           : std::future<jit::BuildOutcome>());
  }
  if (device_.kind == DeviceKind::cpu)
    for (auto& build : builds)
      if (build.valid()) build.wait();
  for (std::size_t n = 0; n < changed.size(); ++n) {
    check_interrupt();
    const Knob& knob = family.knobs()[changed[n]];
    nlohmann::json row = {{"knob", knob.name},
                          {"default", knob.text_of(defaults[changed[n]])},
                          {"champion", knob.text_of(champion.variant.config[changed[n]])},
                          {"config", describe(variants[n])}};
    if (!builds[n].valid()) {
      row["verdict"] = to_string(Verdict::illegal);
      row["reason"] = *laboratory_.refuses(variants[n]);
    } else {
      const trial::Outcome outcome = laboratory_.judge(variants[n], builds[n].get(), fresh_seed() >> 1);
      row["verdict"] = to_string(outcome.verdict);
      row["reason"] = outcome.reason;
      if (outcome.ok()) {
        // How much slower without the change: the interval turns round with the ratio.
        const measure::Ratio& r = outcome.pair.ratio;
        row["bought"] = to_json(measure::Ratio{1 / r.value, 1 / r.high, 1 / r.low});
        row["without_us"] = outcome.pair.trial_median_us;
      }
    }
    rows.push_back(row);
  }
  // Where a change bought nothing that shows: what it costs where launches are dependent.
  std::optional<double> of_champion;
  for (std::size_t n = 0; n < changed.size(); ++n) {
    nlohmann::json& row = rows[n];
    if (row.contains("bought") && row["bought"]["value"].get<double>() < 1 + kTie) {
      if (const double without = dependent_us(variants[n]); without > 0) {
        if (!of_champion) of_champion = dependent_us(champion.variant);
        row["dependent_us"] = *of_champion;
        row["without_dependent_us"] = without;
      }
    }
    store_.add_comparison({0, run_, "ablation", variants[n].id(), champion.variant.id(), row});
  }
  return rows;
}

// Tries the variant that the ablation found fastest, if it beats the champion, or is as fast and beats it where
// launches are dependent: it was measured against the champion then, and is now against the base like every trial.
// Where it was a trial already, but not among the best few, it is a finalist from now on. Says whether there is
// something new.
bool Evolution::try_ablation_winner(const nlohmann::json& ablation, int champion_trial) {
  const nlohmann::json* winner = nullptr;
  for (const auto& row : ablation)
    if (row.contains("bought") && row["bought"]["high"].get<double>() < 1 - self_spread_ &&
        (winner == nullptr || row["bought"]["value"] < (*winner)["bought"]["value"]))
      winner = &row;
  if (winner == nullptr)
    for (const auto& row : ablation)
      if (row.contains("without_dependent_us") &&
          breaks_tie({1 / row["bought"]["value"].get<double>(), row["without_dependent_us"]}, {1, row["dependent_us"]}))
        winner = &row;
  if (winner == nullptr) return false;
  const Variant variant = parse_variant((*winner)["config"].get<std::string>(), options_.workload, device_);
  const Proposal proposal{
      variant.config,
      Operation::revert,
      {champion_trial},
      fmt::format("{} {} -> {} of trial {}", (*winner)["knob"].get<std::string>(),
                  (*winner)["champion"].get<std::string>(), (*winner)["default"].get<std::string>(), champion_trial),
      0,
      space_of(variant)};
  std::vector<Place> alone = places_of({proposal});
  Draft& draft = alone.front().drafts.front();
  start(draft);
  wait_for(draft);
  if (const store::TrialRecord* twin = twin_of(variant, draft.outcome)) {
    const auto number = static_cast<std::size_t>(twin->number);
    if (twin->verdict != to_string(Verdict::ok) || in_final_.contains(number)) return false;  // it had its chance
    observer_.message(fmt::format("better with one change put back, which is trial {}", number));
    called_up_.insert(number);
    return true;
  }
  observer_.message(fmt::format("better with one change put back: {}", proposal.why));
  store::TrialRecord record =
      run_best_of(static_cast<int>(trials_.size()), trials_.back().generation + 1, alone.front());
  record.id = store_.add_trial(record);
  trials_.push_back(std::move(record));
  double best = 0;
  for (const store::TrialRecord& t : trials_)
    if (t.verdict == to_string(Verdict::ok)) best = std::max(best, t.ratio);
  observer_.trial_finished(trials_.back(), best, static_cast<int>(trials_.size()));
  return true;
}

nlohmann::json Evolution::finish() {
  nlohmann::json result;
  result["self_spread"] = self_spread_;
  const trial::Built base = laboratory_.base();
  nlohmann::json final;
  nlohmann::json ablation;
  std::optional<trial::Built> winner;
  for (int added = 0;; ++added) {
    store_.remove_comparisons(run_);  // of an earlier attempt that was interrupted here, or of the round before
    final = compare_finalists();
    if (final["verdict"] != to_string(Verdict::ok)) {
      result["trials"] = trials_.size();
      result["drafts"] = drafts_looked_at();
      result["outcome"] = "no_variant";
      result["refused"] = final["refused"];
      result["summary"] = "no variant passed the gate and the final comparison";
      if (!final["refused"].empty())
        result["summary"] =
            fmt::format("{}; {}", result["summary"].get<std::string>(), final["refused"].back().get<std::string>());
      result["elapsed_s"] = elapsed_s();
      return result;
    }
    const int trial = final.at("trial").get<int>();
    winner = laboratory_.build(parse_variant(final.at("config").get<std::string>(), options_.workload, device_));
    ablation = ablate(*winner);
    laboratory_.set_base(base);
    const bool may_add = options_.trials >= kLeastForWinners && added < kAblationWinners && !budget_is_used_up();
    if (!may_add || !try_ablation_winner(ablation, trial)) break;
  }
  result["trials"] = trials_.size();
  result["drafts"] = drafts_looked_at();
  const trial::Built& champion = *winner;
  // The winner's interval must clear what the base shows against itself.
  const bool faster = measure::is_faster(ratio_from_json(final["ratio"]), self_spread_);
  result["outcome"] = faster ? "faster" : "not_faster";
  final["resources"] = to_json(champion.artifact.resources);
  result["final"] = final;

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
  result["base_times"]["large_us"] = final["base_large_us"];
  result["champion_times"]["large_us"] = final["large_us"];
  const double champion_us = final["trial_us"].get<double>();
  const measure::Floor floor = laboratory_.floor(device_.processors);
  result["floor"] = to_json(floor);
  result["tflops"] = options_.workload.flops() / champion_us * 1e-6;
  result["peak_share"] = options_.workload.flops() / (champion_us * 1e-6) / laboratory_.peak_flops();
  result["floor_share"] = floor.us() / champion_us;
  const auto diagnosis = [&](const trial::Built& built, double us) {
    const std::optional<profile::Counters> counters = read_counters(built, options_.strategy.seed);
    return to_json(diagnose(built.variant, built.artifact.resources, us, counters), counters);
  };
  result["profile"] = {{"base", diagnosis(base, final["base_us"].get<double>())},
                       {"champion", diagnosis(champion, champion_us)}};
  result["peers"] = compare_with_peers(champion);
  result["ablation"] = ablation;
  result["summary"] = faster ? fmt::format("{:.3f} times as fast as the base, 95% interval [{:.3f}, {:.3f}]",
                                           final["ratio"]["value"].get<double>(), final["ratio"]["low"].get<double>(),
                                           final["ratio"]["high"].get<double>())
                             : "no variant is faster than the base beyond what the base shows against itself";
  result["elapsed_s"] = elapsed_s();
  return result;
}

}  // namespace heed::evolve

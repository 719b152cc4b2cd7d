// What each of a champion's changes bought, and the trials that follow from it.
#include <fmt/format.h>

#include <algorithm>

#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "evolve/run.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {

// Every knob in which the champion differs from the default, put back by itself.
nlohmann::json Evolution::ablate(const trial::Built& champion) {
  nlohmann::json rows = nlohmann::json::array();
  const Family& family = *champion.variant.family;
  const Config defaults =
      values_of(make_variant(family, family.default_config(options_.workload, device_), options_.workload));
  const Config champions = values_of(champion.variant);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < defaults.size(); ++i)
    if (champions[i] != defaults[i]) changed.push_back(i);
  if (changed.empty()) return rows;
  observer_.message(fmt::format("ablation: taking back the champion's {} changes one by one", changed.size()));
  try {
    laboratory_.set_base(champion);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    observer_.message(fmt::format("no ablation: {}", error.what()));  // the result stands without it
    return rows;
  }
  // Builds are from the search as often as not; each of the changes then takes about as long as a trial.
  if (budget().is_limited()) {
    const double one_s = gate_s() + laboratory_.options().pair.limit_s;
    const auto fit = static_cast<std::size_t>(std::max(0.0, budget().left_s(elapsed_s()) / one_s - 1));
    if (fit < changed.size()) {
      observer_.message(fmt::format("the budget leaves time to take back {} of them", fit));
      changed.resize(fit);
    }
  }
  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<Variant> variants;
  for (const std::size_t i : changed) {
    Config values = champions;
    values[i] = defaults[i];
    variants.push_back(heed::variant_of(family, values, options_.workload));
    const bool legal = !laboratory_.refuses(variants.back());
    builds.push_back(legal ? builder_.start(laboratory_.request_for(variants.back()))
                           : std::future<jit::BuildOutcome>());
  }
  if (device_.kind == DeviceKind::cpu)
    for (auto& build : builds)
      if (build.valid()) build.wait();
  for (std::size_t n = 0; n < changed.size(); ++n) {
    check_interrupt();
    const Knob& knob = variant_knobs(family)[changed[n]];
    nlohmann::json row = {{"knob", knob.name},
                          {"default", knob.text_of(defaults[changed[n]])},
                          {"champion", knob.text_of(champions[changed[n]])},
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
        row["bought"] = record::to_json(measure::Ratio{1 / r.value, 1 / r.high, 1 / r.low});
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
      values_of(variant),
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
  observer_.trial_finished(trials_.back(), best_certain(), static_cast<int>(trials_.size()));
  return true;
}

}  // namespace heed::evolve

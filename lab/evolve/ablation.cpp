#include "evolve/ablation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>

#include "base/random.hpp"
#include "evolve/choice.hpp"
#include "evolve/trials.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

constexpr std::size_t kSources = static_cast<std::size_t>(-1);  // the change that is no knob: all edits of sources
constexpr const char* kEdits = "edits";                         // what a row calls it

// The row of the variant that takes the champion's place; null where there is none.
const record::AblationRow* winner_of(const std::vector<record::AblationRow>& rows, double self_spread) {
  const record::AblationRow* winner = nullptr;
  for (const record::AblationRow& row : rows)
    if (row.bought && row.bought->high < 1 - self_spread &&
        (winner == nullptr || row.bought->value < winner->bought->value))
      winner = &row;
  if (winner != nullptr) return winner;
  for (const record::AblationRow& row : rows)
    if (row.bought && row.without_dependent_us > 0 &&
        breaks_tie({1 / row.bought->value, row.without_dependent_us}, {1, row.dependent_us}))
      winner = &row;
  return winner;
}

}  // namespace

// Builds are from the search as often as not; each of the changes then takes about as long as a trial.
std::vector<std::size_t> Ablation::that_fit_the_budget(std::vector<std::size_t> changed) const {
  if (!run_.budget().is_limited()) return changed;
  const double one_s = run_.gate_s() + run_.trial_runner.options().pair.limit_s;
  const auto fit = static_cast<std::size_t>(std::max(0.0, run_.budget().left_s(run_.elapsed_s()) / one_s - 1));
  if (fit < changed.size()) {
    run_.observer.message(fmt::format("the budget leaves time to take back {} of them", fit));
    changed.resize(fit);
  }
  return changed;
}

std::vector<record::AblationRow> Ablation::take_back(const trial::Built& champion) {
  std::vector<record::AblationRow> rows;
  const Family& family = *champion.variant.family;
  const Config defaults = values_of(default_with(family, run_.options.hold, run_.options.workload, run_.device));
  const Config champions = values_of(champion.variant);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < defaults.size(); ++i)
    if (champions[i] != defaults[i]) changed.push_back(i);
  if (champion.variant.overlay) changed.push_back(kSources);
  if (changed.empty()) return rows;
  run_.observer.message(fmt::format("ablation: taking back the champion's {} changes one by one", changed.size()));
  trial::TrialRunner& trial_runner = run_.trial_runner;
  try {
    trial_runner.set_base(champion);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    run_.observer.message(fmt::format("no ablation: {}", error.what()));  // the result stands without it
    return rows;
  }
  changed = that_fit_the_budget(std::move(changed));
  std::vector<std::future<jit::BuildOutcome>> builds;
  std::vector<Variant> variants;
  for (const std::size_t i : changed) {
    Config values = champions;
    if (i != kSources) values[i] = defaults[i];
    variants.push_back(heed::variant_of(family, values, run_.options.workload));
    if (i != kSources) variants.back().overlay = champion.variant.overlay;
    const bool legal = !trial_runner.refuses(variants.back());
    builds.push_back(legal ? run_.builder.start(trial_runner.request_for(variants.back()))
                           : std::future<jit::BuildOutcome>());
  }
  if (run_.device.kind == DeviceKind::cpu)
    for (auto& build : builds)
      if (build.valid()) build.wait();
  for (std::size_t n = 0; n < changed.size(); ++n) {
    check_interrupt();
    record::AblationRow& row = rows.emplace_back();
    if (changed[n] == kSources) {
      row.knob = kEdits;
      row.of_default = "none";
      row.of_champion = champion.variant.overlay->digest().substr(0, 8);
    } else {
      const Knob& knob = variant_knobs(family)[changed[n]];
      row.knob = knob.name;
      row.of_default = knob.text_of(defaults[changed[n]]);
      row.of_champion = knob.text_of(champions[changed[n]]);
    }
    row.config = describe(variants[n]);
    if (!builds[n].valid()) {
      row.verdict = Verdict::illegal;
      row.reason = *trial_runner.refuses(variants[n]);
      continue;
    }
    const trial::Outcome outcome = trial_runner.judge(variants[n], builds[n].get(), fresh_seed() >> 1);
    row.verdict = outcome.verdict;
    row.reason = outcome.reason;
    if (!outcome.ok()) continue;
    // How much slower without the change: the interval turns round with the ratio.
    const measure::Ratio& r = outcome.pair.ratio;
    row.bought = measure::Ratio{1 / r.value, 1 / r.high, 1 / r.low};
    row.without_us = outcome.pair.trial_median_us;
  }
  // Where a change bought nothing that shows: what it costs where launches are dependent.
  std::optional<double> of_champion;
  for (std::size_t n = 0; n < changed.size(); ++n) {
    record::AblationRow& row = rows[n];
    if (row.bought && row.bought->value < 1 + kTie) {
      row.without_dependent_us = run_.dependent_us(variants[n]);
      if (row.without_dependent_us > 0) {
        if (!of_champion) of_champion = run_.dependent_us(champion.variant);
        row.dependent_us = *of_champion;
      }
    }
    run_.store.add_comparison({0, run_.run, "ablation", variants[n].id(), champion.variant.id(), record::to_json(row)});
  }
  return rows;
}

bool Ablation::try_winner(const std::vector<record::AblationRow>& rows, int champion_trial,
                          const std::set<std::size_t>& finalists) {
  const record::AblationRow* winner = winner_of(rows, run_.self_spread);
  if (winner == nullptr) return false;
  Variant variant = parse_variant(winner->config, run_.options.workload, run_.device);
  if (winner->knob != kEdits)
    variant.overlay = run_.variant_of(run_.trials.at(static_cast<std::size_t>(champion_trial))).overlay;
  const Proposal proposal{
      values_of(variant),
      Operation::revert,
      {champion_trial},
      fmt::format("{} {} -> {} of trial {}", winner->knob, winner->of_champion, winner->of_default, champion_trial),
      0,
      run_.space_of(variant),
      0,
      variant.overlay};
  std::vector<Place> alone = places_of({proposal});
  Draft& draft = alone.front().drafts.front();
  start_build(run_, draft);
  wait_for_build(run_, draft);
  if (const store::TrialRecord* duplicate = duplicate_of(run_, variant, draft.outcome)) {
    const auto number = static_cast<std::size_t>(duplicate->number);
    if (!duplicate->ok() || finalists.contains(number)) return false;  // it had its chance
    run_.observer.message(fmt::format("better with one change put back, which is trial {}", number));
    called_up_.insert(number);
    return true;
  }
  run_.observer.message(fmt::format("better with one change put back: {}", proposal.why));
  const auto number = static_cast<int>(run_.trials.size());
  run_.add_trial(run_best_of(run_, number, run_.trials.back().generation + 1, alone.front()), number + 1);
  return true;
}

}  // namespace heed::evolve

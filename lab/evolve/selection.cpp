#include "evolve/selection.hpp"

#include <algorithm>

#include "evolve/strategy.hpp"

namespace heed::evolve {

double wide_above(double self_spread) {
  return std::clamp(self_spread, kSharp, kCoarse);
}

bool is_wide(const measure::Ratio& ratio, double self_spread) {
  return ratio.uncertainty() > wide_above(self_spread);
}

bool is_undecided(const measure::PairResult& trial, const std::vector<double>& rivals, std::size_t places,
                  double self_spread) {
  const measure::Ratio& ratio = trial.ratio;
  const double best = rivals.empty() ? 0 : *std::max_element(rivals.begin(), rivals.end());
  if (ratio.high < kNearlyAsFast * best) return false;
  const auto ahead = static_cast<std::size_t>(
      std::count_if(rivals.begin(), rivals.end(), [&](double low) { return low >= ratio.high; }));
  if (ahead >= places) return false;
  if (is_wide(ratio, self_spread) || measure::contradicts_counts(trial, wide_above(self_spread))) return true;
  return ratio.low > best && trial.quads.size() == 1 && self_spread > kSharp;
}

measure::PairResult settled(measure::PairResult first, const std::vector<double>& rivals, std::size_t places,
                            double self_spread, const Again& again) {
  std::vector<measure::PairResult> all = {first};
  measure::PairResult result = std::move(first);
  while (static_cast<int>(all.size()) < kMostMeasurements && is_undecided(result, rivals, places, self_spread)) {
    std::optional<measure::PairResult> more = again();
    if (!more) break;
    all.push_back(std::move(*more));
    result = measure::together(all);
  }
  return result;
}

namespace {

void sort_by_lower_ends(std::vector<Contender>& contenders) {
  std::stable_sort(contenders.begin(), contenders.end(), [](const Contender& a, const Contender& b) {
    return a.together().ratio.low > b.together().ratio.low;
  });
}

bool has_room(const Contender& contender) {
  return static_cast<int>(contender.processes.size()) < kMostFinalMeasurements;
}

// Which contender's wide interval keeps the first place open; none where the order is certain, or as certain as it
// gets.
std::optional<std::size_t> keeps_open(const std::vector<Contender>& sorted, double self_spread) {
  if (sorted.size() < 2) return std::nullopt;
  const measure::Ratio leader = sorted.front().together().ratio;
  std::optional<std::size_t> widest;
  double width = 0;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const measure::Ratio rival = sorted[i].together().ratio;
    if (rival.high <= leader.low) continue;
    for (const std::size_t one : {std::size_t{0}, i}) {
      const measure::Ratio& ratio = one == 0 ? leader : rival;
      if (!has_room(sorted[one]) || !is_wide(ratio, self_spread) || ratio.uncertainty() <= width) continue;
      widest = one;
      width = ratio.uncertainty();
    }
  }
  return widest;
}

}  // namespace

std::vector<Contender> final_order(const std::vector<std::size_t>& finalists, double self_spread,
                                   const MeasureFresh& measure, const std::function<bool()>& may_go_on) {
  std::vector<Contender> contenders;
  for (const std::size_t trial : finalists)
    if (std::optional<measure::PairResult> one = measure(trial)) contenders.push_back({trial, {std::move(*one)}});
  sort_by_lower_ends(contenders);
  for (std::optional<std::size_t> open; may_go_on() && (open = keeps_open(contenders, self_spread));) {
    if (std::optional<measure::PairResult> more = measure(contenders[*open].trial))
      contenders[*open].processes.push_back(std::move(*more));
    else
      contenders.erase(contenders.begin() + static_cast<std::ptrdiff_t>(*open));
    sort_by_lower_ends(contenders);
  }
  return contenders;
}

bool complete(Contender& winner, double self_spread, const MeasureFresh& measure,
              const std::function<bool()>& may_go_on) {
  const auto narrow = [&] {
    return std::count_if(winner.processes.begin(), winner.processes.end(),
                         [&](const measure::PairResult& one) { return !is_wide(one.ratio, self_spread); });
  };
  while (static_cast<int>(winner.processes.size()) < kFinalProcesses ||
         (narrow() < kFinalProcesses && has_room(winner) && may_go_on())) {
    std::optional<measure::PairResult> more = measure(winner.trial);
    if (!more) return false;
    winner.processes.push_back(std::move(*more));
  }
  return true;
}

measure::PairResult quoted(const Contender& winner) {
  std::vector<measure::PairResult> chosen = winner.processes;
  std::stable_sort(chosen.begin(), chosen.end(), [](const measure::PairResult& a, const measure::PairResult& b) {
    return a.ratio.uncertainty() < b.ratio.uncertainty();
  });
  if (static_cast<int>(chosen.size()) > kFinalProcesses) chosen.resize(kFinalProcesses);
  measure::PairResult all = measure::together(chosen);
  for (const measure::PairResult& one : chosen) {
    all.ratio.low = std::min(all.ratio.low, one.ratio.low);
    all.ratio.high = std::max(all.ratio.high, one.ratio.high);
  }
  return all;
}

}  // namespace heed::evolve

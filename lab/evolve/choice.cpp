#include "evolve/choice.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "evolve/selection.hpp"

namespace heed::evolve {

std::size_t best_of(const std::vector<Standing>& standings) {
  HEED_CHECK(!standings.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < standings.size() && standings[i].ratio > standings[0].ratio * (1 - kTie); ++i)
    if (breaks_tie(standings[i], standings[best])) best = i;
  return best;
}

std::vector<std::size_t> finalists_of(const std::vector<measure::Ratio>& ratios, Seats seats, double self_spread,
                                      const std::set<std::size_t>& called_up) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (ratios[i].value > 0) order.push_back(i);
  const auto sort_by = [&](double measure::Ratio::*end) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return ratios[a].*end > ratios[b].*end; });
  };
  std::vector<std::size_t> finalists;
  const auto is_in = [&](std::size_t i) { return std::find(finalists.begin(), finalists.end(), i) != finalists.end(); };
  sort_by(&measure::Ratio::low);
  for (const std::size_t i : order)
    if (finalists.size() < seats.certain) finalists.push_back(i);
  sort_by(&measure::Ratio::value);
  for (const std::size_t i : order)
    if (!is_in(i) && finalists.size() < seats.certain + seats.undecided && is_wide(ratios[i], self_spread) &&
        ratios[i].high > ratios[finalists.front()].low)
      finalists.push_back(i);
  for (const std::size_t i : order)
    if (!is_in(i) && called_up.contains(i)) finalists.push_back(i);
  return finalists;
}

}  // namespace heed::evolve

#include "evolve/choice.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace heed::evolve {

std::size_t best_of(const std::vector<Standing>& standings) {
  HEED_CHECK(!standings.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < standings.size() && standings[i].ratio > standings[0].ratio * (1 - kTie); ++i)
    if (breaks_tie(standings[i], standings[best])) best = i;
  return best;
}

std::vector<std::size_t> finalists_of(const std::vector<double>& ratios, std::size_t most,
                                      const std::set<std::size_t>& called_up) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (ratios[i] > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ratios[a] > ratios[b]; });
  std::vector<std::size_t> finalists;
  for (const std::size_t i : order)
    if (finalists.size() < most || called_up.contains(i)) finalists.push_back(i);
  return finalists;
}

}  // namespace heed::evolve

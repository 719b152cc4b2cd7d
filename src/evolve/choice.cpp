#include "evolve/choice.hpp"

#include "base/check.hpp"

namespace heed::evolve {

std::size_t best_of(const std::vector<Standing>& standings) {
  HEED_CHECK(!standings.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < standings.size() && standings[i].ratio > standings[0].ratio * (1 - kTie); ++i)
    if (breaks_tie(standings[i], standings[best])) best = i;
  return best;
}

}  // namespace heed::evolve

// A search without kernels: spaces whose scores are known, and generations as a run makes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "evolve/strategy.hpp"

namespace heed::evolve {

// A space with one best point, and as score how near a config is to it.
struct Toy {
  Toy() {
    for (const char* name : {"a", "b", "c", "d", "e"}) knobs.push_back({name, "", {1, 2, 4, 8, 16, 32}, {}});
    space.knobs = &knobs;
    space.default_config = {1, 1, 1, 1, 1};
    space.is_legal = [](const Config& c) { return c[0] + c[1] <= 40; };
  }
  [[nodiscard]] double score(const Config& config) const {
    const Config best = {8, 32, 2, 16, 4};
    double distance = 0;
    for (std::size_t i = 0; i < config.size(); ++i) distance += std::abs(std::log2(config[i]) - std::log2(best[i]));
    return 2 - 0.05 * distance;
  }
  std::vector<Individual> evolve(const StrategyOptions& options, int generations) {
    std::vector<Individual> history;
    for (int g = 0; g < generations; ++g) {
      const std::vector<Proposal> proposals = propose(options, {&space, 1}, g, history);
      for (const Proposal& p : proposals)
        history.push_back({static_cast<int>(history.size()), g, p.island, p.config, true, score(p.config)});
    }
    return history;
  }
  std::vector<Knob> knobs;
  Space space;
};

inline double best(const std::vector<Individual>& history) {
  double value = 0;
  for (const Individual& i : history)
    if (i.ok) value = std::max(value, i.certain);
  return value;
}

// A generation as a run makes it: of each place's drafts, of which there are more next to the best of each round, the
// fastest is the trial. `read` says what a screening reads, `measured` what a trial does.
inline void add_generation(std::vector<Individual>& history, const StrategyOptions& options,
                           std::span<const Space> spaces, int generation,
                           const std::function<double(const Proposal&)>& read,
                           const std::function<double(const Proposal&)>& measured) {
  std::map<int, std::vector<Proposal>> places;
  std::vector<Individual> drafts = history;
  const auto add = [&](const std::vector<Proposal>& proposals) {
    for (const Proposal& p : proposals) {
      places[p.place].push_back(p);
      drafts.push_back({-1, generation, p.island, p.config, false, read(p), p.space, true});
    }
    return !proposals.empty();
  };
  const auto best_of = [&](const std::vector<Proposal>& of) {
    return *std::max_element(of.begin(), of.end(),
                             [&](const Proposal& a, const Proposal& b) { return read(a) < read(b); });
  };
  bool more = add(propose(options, spaces, generation, history));
  for (int round = 0; more; ++round) {
    std::vector<Proposal> leaders;
    for (const auto& [place, of] : places)
      if (of.size() > 1 && static_cast<int>(of.size()) < options.drafts) leaders.push_back(best_of(of));
    more = add(refine(options, spaces, generation, round, drafts, leaders));
  }
  int number =
      static_cast<int>(std::count_if(history.begin(), history.end(), [](const auto& i) { return !i.is_draft; }));
  for (const auto& [place, of] : places) {
    const Proposal chosen = best_of(of);
    for (const Proposal& p : of) {
      const bool is_trial = p.config == chosen.config && p.space == chosen.space;
      history.push_back(
          {number, generation, p.island, p.config, is_trial, is_trial ? measured(p) : read(p), p.space, !is_trial});
    }
    ++number;
  }
}

}  // namespace heed::evolve

#include "evolve/variation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace heed::evolve {
namespace {

constexpr double kSecondMutation = 0.3;  // a mutation changes a second knob with this probability
constexpr double kNeighbourStep = 0.7;   // a numeric knob moves to a neighbouring value with this probability
constexpr double kUntriedWeight = 30;    // of a value that no config near the parent has
constexpr double kFarWeight = 0.3;       // of a number's values but the next ones
constexpr int kNear = 3;                 // knobs by which near configs differ
constexpr int kFits = 32;                // single changes tried on work shared anew that does not fit as it is

}  // namespace

Variation::Variation(std::span<const Space> spaces, const std::vector<Individual>& history)
    : spaces_(spaces), history_(history) {
  for (const Individual& individual : history) seen_.emplace(individual.space, individual.config);
  for (const Space& one : spaces) {
    std::vector<std::size_t>& together = sharing_knobs_.emplace_back();
    for (std::size_t i = 0; i < one.knobs->size(); ++i)
      if ((*one.knobs)[i].shares_work) together.push_back(i);
  }
  for (const Individual& individual : history)
    if (individual.is_under_way) under_way_.emplace(individual.space, sharing(individual.space, individual.config));
}

void Variation::take(const Proposal& proposal) {
  seen_.emplace(proposal.space, proposal.config);
  under_way_.emplace(proposal.space, sharing(proposal.space, proposal.config));
}

bool Variation::is_new(int index, const Config& config) const {
  return seen_.count({index, config}) == 0 && config == with_held(space(index), config) &&
         space(index).is_legal(config);
}

Config Variation::canonical(int index, Config config) const {
  config = with_held(space(index), std::move(config));
  return space(index).canonical ? space(index).canonical(config) : std::move(config);
}

Config Variation::sharing(int index, const Config& config) const {
  Config values;
  for (const std::size_t i : sharing_knobs(index)) values.push_back(config[i]);
  return values;
}

const std::vector<std::size_t>& Variation::sharing_knobs(int index) const {
  return sharing_knobs_[static_cast<std::size_t>(index)];
}

void Variation::change_knob(Config& config, const std::vector<Knob>& knobs, std::size_t index, Random& random) {
  const Knob& knob = knobs[index];
  const int at = knob.index_of(config[index]);
  const int count = static_cast<int>(knob.values.size());
  if (count < 2) return;
  int next = at;
  if (!knob.is_named() && at >= 0 && random.chance(kNeighbourStep)) {
    next = at + (random.chance(0.5) ? 1 : -1);
    if (next < 0 || next >= count) next = at == 0 ? 1 : count - 2;
  } else {
    next = static_cast<int>(random.below(static_cast<std::uint64_t>(count - 1)));
    if (next >= at && at >= 0) ++next;
  }
  config[index] = knob.values[static_cast<std::size_t>(next)];
}

int Variation::distance(const Config& a, const Config& b) {
  int knobs = 0;
  for (std::size_t i = 0; i < a.size(); ++i) knobs += a[i] != b[i] ? 1 : 0;
  return knobs;
}

std::vector<Variation::Change> Variation::changes_of(const Individual& parent) const {
  const std::vector<Knob>& table = knobs(parent.space);
  std::set<std::pair<std::size_t, int>> tried;
  for (const Individual& other : history_)
    if (other.space == parent.space && distance(other.config, parent.config) <= kNear)
      for (std::size_t i = 0; i < table.size(); ++i) tried.emplace(i, other.config[i]);
  const auto& prior = space(parent.space).prior;
  const std::vector<std::size_t>& held = space(parent.space).held;
  std::vector<Change> changes;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (std::find(held.begin(), held.end(), i) != held.end()) continue;
    const int at = table[i].index_of(parent.config[i]);
    for (int v = 0; v < static_cast<int>(table[i].values.size()); ++v) {
      if (v == at) continue;
      const int value = table[i].values[static_cast<std::size_t>(v)];
      const bool far = !table[i].is_named() && at >= 0 && std::abs(v - at) > 1;
      changes.push_back({i, value,
                         (prior ? prior(parent.config, i, value) : 1) * (far ? kFarWeight : 1) *
                             (tried.count({i, value}) == 0 ? kUntriedWeight : 1)});
    }
  }
  return changes;
}

const Variation::Change& Variation::draw(const std::vector<Change>& changes, Random& random) {
  double all = 0;
  for (const Change& change : changes) all += change.weight;
  double left = all * random.uniform();
  std::size_t i = 0;
  while (i + 1 < changes.size() && left >= changes[i].weight) left -= changes[i++].weight;
  return changes[i];
}

std::string Variation::name_of(const Individual& parent) {
  return parent.number < 0 ? "the default" : fmt::format("trial {}", parent.number);
}

std::vector<int> Variation::numbers_of(const Individual& parent) {
  return parent.number < 0 ? std::vector<int>{} : std::vector<int>{parent.number};
}

std::optional<Proposal> Variation::mutate(const Individual& parent, Random& random) const {
  const std::vector<Knob>& table = knobs(parent.space);
  const std::vector<Change> changes = changes_of(parent);
  if (changes.empty()) return std::nullopt;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Config child = parent.config;
    const Change& one = draw(changes, random);
    child[one.knob] = one.value;
    // A second change leads out of corners where no single one is legal or new.
    if (random.chance(kSecondMutation) || attempt > kAttempts / 4) {
      const Change& other = draw(changes, random);
      if (other.knob != one.knob) child[other.knob] = other.value;
    }
    child = canonical(parent.space, std::move(child));
    if (!is_new(parent.space, child)) continue;
    return Proposal{child,
                    Operation::mutate,
                    numbers_of(parent),
                    fmt::format("{} of {}", difference(table, parent.config, child), name_of(parent)),
                    0,
                    parent.space};
  }
  return std::nullopt;
}

std::optional<Proposal> Variation::crossover(const std::vector<const Individual*>& parents, Random& random) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Individual& a = tournament(parents, random);
    const Individual& b = *parents[random.below(parents.size())];
    if (a.number == b.number || a.space != b.space) continue;
    Config child = a.config;
    for (std::size_t i = 0; i < child.size(); ++i)
      if (random.chance(0.5)) child[i] = b.config[i];
    if (attempt > kAttempts / 4) change_knob(child, knobs(a.space), random.below(child.size()), random);
    child = canonical(a.space, std::move(child));
    if (!is_new(a.space, child)) continue;
    return Proposal{
        child,
        Operation::crossover,
        {a.number, b.number},
        fmt::format("trial {} with {} of trial {}", a.number, difference(knobs(a.space), a.config, child), b.number),
        0,
        a.space};
  }
  return std::nullopt;
}

const Individual& Variation::tournament(const std::vector<const Individual*>& parents, Random& random) {
  const Individual& a = *parents[random.below(parents.size())];
  const Individual& b = *parents[random.below(parents.size())];
  return a.certain >= b.certain ? a : b;
}

std::optional<Config> Variation::fitted(int index, const Config& wanted, Random& random) const {
  const std::vector<Knob>& table = knobs(index);
  Config child = wanted;
  for (int fit = 0; fit <= kFits; ++fit) {
    child = canonical(index, std::move(child));
    if (sharing(index, child) == sharing(index, wanted) && is_new(index, child)) return child;
    child = wanted;
    const auto at = static_cast<std::size_t>(random.below(table.size()));
    if (!table[at].shares_work) change_knob(child, table, at, random);
  }
  return std::nullopt;
}

std::map<Config, double> Variation::tried_sharings(int index) const {
  std::map<Config, double> best;
  for (const Individual& individual : history_)
    if ((individual.ok || (individual.is_draft && individual.certain > 0)) && individual.space == index) {
      double& of_way = best[sharing(index, individual.config)];
      of_way = std::max(of_way, individual.certain);
    }
  return best;
}

std::optional<Proposal> Variation::regroup(const Individual& parent, Random& random) const {
  const std::vector<Knob>& table = knobs(parent.space);
  const std::vector<std::size_t>& together = sharing_knobs(parent.space);
  if (together.size() < 2) return std::nullopt;
  const std::map<Config, double> tried = tried_sharings(parent.space);
  double enough = 0;
  for (const Individual& individual : history_)
    if (individual.ok && individual.space == parent.space)
      enough = std::max(enough, kNearlyAsFast * individual.certain);
  const Config of_parent = sharing(parent.space, parent.config);
  std::set<Config> untried;
  std::set<Config> near;
  Config combination = parent.config;
  for (const std::size_t i : together) combination[i] = table[i].values.front();
  for (bool more = true; more;) {
    const Config way = sharing(parent.space, combination);
    const auto known = tried.find(way);
    std::set<Config>& candidates = known == tried.end() ? untried : near;
    if (way != of_parent && under_way_.count({parent.space, way}) == 0 &&
        (known == tried.end() || known->second >= enough))
      if (auto child = fitted(parent.space, combination, random)) candidates.insert(std::move(*child));
    more = false;
    for (const std::size_t i : together) {
      const int next = table[i].index_of(combination[i]) + 1;
      more = next < static_cast<int>(table[i].values.size());
      combination[i] = table[i].values[more ? static_cast<std::size_t>(next) : 0];
      if (more) break;
    }
  }
  const std::set<Config>& candidates = untried.empty() ? near : untried;
  if (candidates.empty()) return std::nullopt;
  auto chosen = candidates.begin();
  std::advance(chosen, static_cast<std::ptrdiff_t>(random.below(candidates.size())));
  return Proposal{
      *chosen,
      Operation::regroup,
      numbers_of(parent),
      fmt::format("the work of {} shared out anew: {}", name_of(parent), difference(table, parent.config, *chosen)),
      0,
      parent.space};
}

std::optional<Proposal> Variation::specialised() const {
  const std::vector<Knob>& table = knobs(0);
  Config child = space(0).default_config;
  for (std::size_t i = 0; i < table.size(); ++i) child[i] = table[i].known.value_or(child[i]);
  child = canonical(0, std::move(child));
  if (!is_new(0, child)) return std::nullopt;
  return Proposal{
      child, Operation::specialise,
      {},    fmt::format("the default, made for its workload: {}", difference(table, space(0).default_config, child)),
      0,     0};
}

std::optional<Proposal> Variation::revert(const Individual& parent, Random& random) const {
  std::vector<Config> candidates;
  for (std::size_t i = 0; i < parent.config.size(); ++i) {
    Config child = parent.config;
    child[i] = space(parent.space).default_config[i];
    child = canonical(parent.space, std::move(child));
    if (is_new(parent.space, child)) candidates.push_back(std::move(child));
  }
  if (candidates.empty()) return std::nullopt;
  Config& child = candidates[random.below(candidates.size())];
  const std::string change = difference(knobs(parent.space), parent.config, child);
  return Proposal{
      std::move(child), Operation::revert, {parent.number}, fmt::format("{} of trial {}", change, parent.number), 0,
      parent.space};
}

std::optional<Proposal> Variation::restart(int index, Random& random) const {
  const std::vector<Knob>& table = knobs(index);
  const auto of = [&] { return spaces_.size() == 1 ? std::string() : " of " + space(index).name; };
  for (int attempt = 0; attempt < 50 * kAttempts; ++attempt) {  // legal configs may be rare
    Config child;
    for (const Knob& knob : table) child.push_back(knob.values[random.below(knob.values.size())]);
    child = canonical(index, std::move(child));
    if (is_new(index, child)) return Proposal{child, Operation::restart, {}, "a random point" + of(), 0, index};
  }
  // Nearly exhausted: walk through everything once, if that is possible at all.
  if (space_size(table) > 2e5) return std::nullopt;
  Config child;
  for (const Knob& knob : table) child.push_back(knob.values.front());
  for (;;) {
    if (is_new(index, child))
      return Proposal{child, Operation::restart, {}, "one of the last points left" + of(), 0, index};
    std::size_t i = 0;
    for (; i < child.size(); ++i) {
      const Knob& knob = table[i];
      const int next = knob.index_of(child[i]) + 1;
      if (next < static_cast<int>(knob.values.size())) {
        child[i] = knob.values[static_cast<std::size_t>(next)];
        break;
      }
      child[i] = knob.values.front();
    }
    if (i == child.size()) return std::nullopt;
  }
}

}  // namespace heed::evolve

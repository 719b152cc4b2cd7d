#include "evolve/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/check.hpp"
#include "base/random.hpp"

namespace heed::evolve {
namespace {

// Shares of the operators once there is more than one elite.
constexpr double kMutateShare = 0.61;
constexpr double kCrossoverShare = 0.07;
constexpr double kRegroupShare = 0.23;
constexpr double kRevertShare = 0.03;        // the rest are restarts
constexpr double kSecondMutation = 0.3;      // a mutation changes a second knob with this probability
constexpr double kNeighbourStep = 0.7;       // a numeric knob moves to a neighbouring value with this probability
constexpr double kDiagnosedWeight = 3;       // of a knob that acts on what bounds the parent; 1 for any other
constexpr double kUntriedWeight = 30;        // of a value that no config near the parent has
constexpr double kFarWeight = 0.3;           // of a number's values but the next ones
constexpr int kNear = 3;                     // knobs by which near configs differ
constexpr int kFits = 32;                    // single changes tried on work shared anew that does not fit as it is
constexpr int kPlacesForOthers = 2;          // of five elites
constexpr double kRestartWithTheBest = 0.5;  // of the restarts, in the space of the best so far; the rest in any
constexpr double kLendShare = 0.2;           // of the drafts of later rounds: knobs of another trial's best draft
constexpr std::uint64_t kRefining = 7;       // of the random numbers of later rounds
constexpr int kAttempts = 400;               // draws until a legal, new config is found; then the operator is given up

class Proposer {
 public:
  Proposer(const StrategyOptions& options, std::span<const Space> spaces, int generation,
           const std::vector<Individual>& history)
      : options_(options), spaces_(spaces), generation_(generation), history_(history) {
    for (const Individual& individual : history) seen_.emplace(individual.space, individual.config);
    for (const Space& one : spaces) {
      std::vector<std::size_t>& together = sharing_knobs_.emplace_back();
      for (std::size_t i = 0; i < one.knobs->size(); ++i)
        if ((*one.knobs)[i].shares_work) together.push_back(i);
    }
  }

  std::vector<Proposal> run() {
    std::vector<Proposal> proposals;
    for (int slot = 0; slot < options_.population; ++slot) {
      Random random(
          substream(options_.seed, static_cast<std::uint64_t>(generation_) * 4096 + static_cast<std::uint64_t>(slot)));
      const int island = options_.kind == StrategyKind::islands ? slot % options_.islands : 0;
      const std::size_t before = proposals.size();
      for (int draft = 0; draft < std::min(options_.drafts, kDraftsARound); ++draft) {
        std::optional<Proposal> proposal = propose_one(slot, island, random);
        if (!proposal) break;
        seen_.emplace(proposal->space, proposal->config);
        under_way_.emplace(proposal->space, sharing(proposal->space, proposal->config));
        proposal->place = slot;
        proposals.push_back(std::move(*proposal));
        if (is_known(proposals.back().operation)) break;
      }
      if (proposals.size() == before) break;
    }
    return proposals;
  }

  std::vector<Proposal> refine(int round, const std::vector<Proposal>& leaders) {
    std::vector<Proposal> proposals;
    for (const Proposal& leader : leaders) {
      const auto stream =
          (static_cast<std::uint64_t>(generation_) * 64 + static_cast<std::uint64_t>(round) + 1) * 4096 +
          static_cast<std::uint64_t>(leader.place);
      Random random(substream(substream(options_.seed, kRefining), stream));
      for (int draft = 0; draft < kDraftsARound; ++draft) {
        std::optional<Proposal> proposal;
        if (options_.kind != StrategyKind::single && random.chance(kLendShare))
          proposal = lent(leader, leaders[random.below(leaders.size())], random);
        if (!proposal) proposal = changed(leader, random);
        if (!proposal) break;
        seen_.emplace(leader.space, proposal->config);
        proposals.push_back(std::move(*proposal));
      }
    }
    return proposals;
  }

 private:
  // The leader with one change or two, as a mutation has them.
  std::optional<Proposal> changed(const Proposal& leader, Random& random) const {
    const Individual* parent = parent_of(leader);
    Individual start{-1, generation_, leader.island, leader.config, true, 1};
    start.bound = parent == nullptr ? Bound::unknown : parent->bound;
    start.space = leader.space;
    std::optional<Proposal> mutation = mutate(start, random);
    if (!mutation) return std::nullopt;
    Proposal child = refined(leader, std::move(mutation->config), Operation::mutate);
    if (start.bound != Bound::unknown) child.why += fmt::format(" (bound by {})", to_string(start.bound));
    return child;
  }

  // The leader with half of the knobs in which another one of its island differs.
  std::optional<Proposal> lent(const Proposal& leader, const Proposal& other, Random& random) const {
    if (leader.space != other.space || leader.island != other.island || leader.config == other.config)
      return std::nullopt;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Config config = leader.config;
      for (std::size_t i = 0; i < config.size(); ++i)
        if (random.chance(0.5)) config[i] = other.config[i];
      config = canonical(leader.space, std::move(config));
      if (!is_new(leader.space, config)) continue;
      Proposal child = refined(leader, std::move(config), Operation::crossover);
      for (const int parent : other.parents)
        if (std::find(child.parents.begin(), child.parents.end(), parent) == child.parents.end())
          child.parents.push_back(parent);
      return child;
    }
    return std::nullopt;
  }

  // A draft next to the leader, in words: what became of the trial that the leader was made from; or of the leader,
  // where it was made from none.
  [[nodiscard]] Proposal refined(const Proposal& leader, Config config, Operation operation) const {
    const std::vector<Knob>& table = knobs(leader.space);
    const Individual* parent = parent_of(leader);
    Proposal child = leader;
    child.operation = operation;
    child.why = parent == nullptr || parent->space != leader.space
                    ? fmt::format("{}, then {}", leader.why, difference(table, leader.config, config))
                    : fmt::format("{} of {}", difference(table, parent->config, config), name_of(*parent));
    child.config = std::move(config);
    return child;
  }

  [[nodiscard]] const Individual* parent_of(const Proposal& proposal) const {
    if (proposal.parents.empty()) return nullptr;
    for (const Individual& individual : history_)
      if (!individual.is_draft && individual.number == proposal.parents.front()) return &individual;
    return nullptr;
  }

  [[nodiscard]] static bool is_known(Operation operation) {
    return operation == Operation::initial_default || operation == Operation::recall ||
           operation == Operation::specialise;
  }

  [[nodiscard]] const Space& space(int index) const { return spaces_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const std::vector<Knob>& knobs(int index) const { return *space(index).knobs; }

  [[nodiscard]] bool is_new(int index, const Config& config) const {
    return seen_.count({index, config}) == 0 && space(index).is_legal(config);
  }

  [[nodiscard]] Config canonical(int index, Config config) const {
    return space(index).canonical ? space(index).canonical(config) : std::move(config);
  }

  // Best first; ties by age. On an island only its own, and those that migrated to it.
  [[nodiscard]] std::vector<const Individual*> elites(int island) const {
    std::vector<const Individual*> ok;
    for (const Individual& individual : history_)
      if (individual.ok && (options_.kind != StrategyKind::islands || individual.island == island))
        ok.push_back(&individual);
    std::stable_sort(ok.begin(), ok.end(),
                     [](const Individual* a, const Individual* b) { return a->certain > b->certain; });
    const std::size_t most = options_.kind == StrategyKind::single ? 1 : static_cast<std::size_t>(options_.population);
    if (ok.empty()) return ok;
    // The best, then what may take the places of those that are its like.
    const Config of_best = sharing(ok.front()->space, ok.front()->config);
    const std::size_t for_others = most * kPlacesForOthers / 5;
    std::vector<const Individual*> chosen;
    std::vector<const Individual*> passed_over;
    std::size_t alike = 0;
    for (const Individual* individual : ok) {
      const bool is_alike =
          individual->space == ok.front()->space && sharing(individual->space, individual->config) == of_best;
      const bool may_stay =
          is_alike ? alike < most - for_others : individual->certain >= kNearlyAsFast * ok.front()->certain;
      if (may_stay && chosen.size() < most) {
        alike += is_alike ? 1 : 0;
        chosen.push_back(individual);
      } else {
        passed_over.push_back(individual);
      }
    }
    for (const Individual* individual : passed_over)
      if (chosen.size() < most) chosen.push_back(individual);
    std::erase_if(chosen, [&](const Individual* i) { return i->certain < kNearlyAsFast * ok.front()->certain; });
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const Individual* a, const Individual* b) { return a->certain > b->certain; });
    return chosen;
  }

  // In which way a config shares out the work: the values of the knobs that say so.
  [[nodiscard]] Config sharing(int index, const Config& config) const {
    Config values;
    for (const std::size_t i : sharing_knobs(index)) values.push_back(config[i]);
    return values;
  }
  [[nodiscard]] const std::vector<std::size_t>& sharing_knobs(int index) const {
    return sharing_knobs_[static_cast<std::size_t>(index)];
  }

  std::optional<Proposal> propose_one(int slot, int island, Random& random) {
    // The default of every space, over as many generations as it takes.
    const int place = generation_ * options_.population + slot;
    if (place < static_cast<int>(spaces_.size()) && is_new(place, space(place).default_config))
      return Proposal{
          space(place).default_config,
          Operation::initial_default,
          {},
          spaces_.size() == 1 ? "the family's default" : fmt::format("the default of {}", space(place).name),
          island,
          place};
    // Then what earlier runs found.
    int known = static_cast<int>(spaces_.size());
    for (int index = 0; index < static_cast<int>(spaces_.size()); ++index)
      for (const Config& config : space(index).found)
        if (place == known++ && is_new(index, config))
          return Proposal{config, Operation::recall, {}, "what an earlier run found", island, index};
    // And of the first space the default that knows its workload, which one change at a time may not come to.
    if (place == std::max(known, options_.population - 1))
      if (auto p = specialised()) return finish(std::move(*p), island, false);
    std::vector<const Individual*> parents = elites(island);
    bool migrated = false;
    if (options_.kind == StrategyKind::islands && generation_ > 0 && generation_ % options_.migration_every == 0) {
      // The best of the next island joins this one's parents for a generation.
      const std::vector<const Individual*> guests = elites((island + 1) % options_.islands);
      if (!guests.empty()) {
        parents.insert(parents.begin(), guests.front());
        migrated = true;
      }
    }
    if (generation_ == 0) {
      // Half of the first generation next to the default, its work shared out anew if that can be; half anywhere.
      if (slot % 2 == 1) {
        const Individual start{-1, 0, island, space(0).default_config, true, 1};
        auto p = regroup(start, random);
        if (!p) p = mutate(start, random);
        if (p) return finish(std::move(*p), island, false);
      }
      return finish_optional(restart(0, random), island, false);
    }
    if (!parents.empty()) {
      const double draw = options_.kind == StrategyKind::single ? 0 : random.uniform();
      constexpr double kCrossoverEnds = kMutateShare + kCrossoverShare;
      constexpr double kRegroupEnds = kCrossoverEnds + kRegroupShare;
      constexpr double kRevertEnds = kRegroupEnds + kRevertShare;
      std::optional<Proposal> p;
      if (draw >= kMutateShare && draw < kCrossoverEnds && parents.size() > 1) p = crossover(parents, random);
      if (draw >= kCrossoverEnds && draw < kRegroupEnds) p = regroup(tournament(parents, random), random);
      if (draw >= kRegroupEnds && draw < kRevertEnds) p = revert(tournament(parents, random), random);
      if (p) return finish(std::move(*p), island, migrated);
      if (draw < kRevertEnds)
        for (int attempt = 0; attempt < 8; ++attempt)  // another elite when one's neighbourhood is exhausted
          if (auto m = mutate(tournament(parents, random), random)) return finish(std::move(*m), island, migrated);
    }
    return finish_optional(restart(space_to_restart_in(parents, random), random), island, false);
  }

  int space_to_restart_in(const std::vector<const Individual*>& parents, Random& random) const {
    if (spaces_.size() == 1) return 0;
    if (!parents.empty() && random.chance(kRestartWithTheBest)) return parents.front()->space;
    return static_cast<int>(random.below(spaces_.size()));
  }

  static Proposal finish(Proposal proposal, int island, bool migrated) {
    proposal.island = island;
    if (migrated && proposal.operation == Operation::mutate) proposal.operation = Operation::migrate;
    return proposal;
  }
  static std::optional<Proposal> finish_optional(std::optional<Proposal> proposal, int island, bool migrated) {
    if (!proposal) return std::nullopt;
    return finish(std::move(*proposal), island, migrated);
  }

  // The better of two elites drawn at random: strong pressure towards the best without forgetting the others.
  static const Individual& tournament(const std::vector<const Individual*>& parents, Random& random) {
    const Individual& a = *parents[random.below(parents.size())];
    const Individual& b = *parents[random.below(parents.size())];
    return a.certain >= b.certain ? a : b;
  }

  static void change_knob(Config& config, const std::vector<Knob>& knobs, std::size_t index, Random& random) {
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

  // Another value of one knob, and how likely it is to be the next one tried.
  struct Change {
    std::size_t knob;
    int value;
    double weight;
  };

  // How many knobs of two configs differ.
  static int distance(const Config& a, const Config& b) {
    int knobs = 0;
    for (std::size_t i = 0; i < a.size(); ++i) knobs += a[i] != b[i] ? 1 : 0;
    return knobs;
  }

  // Every other value of a parent's knobs. Those that no config near it has come first, and knobs that act on what
  // bounds the parent: where nothing is known of it, or no knob acts on its bound, every knob is equally likely.
  [[nodiscard]] std::vector<Change> changes_of(const Individual& parent) const {
    const std::vector<Knob>& table = knobs(parent.space);
    std::set<std::pair<std::size_t, int>> tried;
    for (const Individual& other : history_)
      if (other.space == parent.space && distance(other.config, parent.config) <= kNear)
        for (std::size_t i = 0; i < table.size(); ++i) tried.emplace(i, other.config[i]);
    std::vector<Change> changes;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const int at = table[i].index_of(parent.config[i]);
      for (int v = 0; v < static_cast<int>(table[i].values.size()); ++v) {
        if (v == at) continue;
        const int value = table[i].values[static_cast<std::size_t>(v)];
        const bool far = !table[i].is_named() && at >= 0 && std::abs(v - at) > 1;
        changes.push_back({i, value,
                           (table[i].acts(parent.bound) ? kDiagnosedWeight : 1) * (far ? kFarWeight : 1) *
                               (tried.count({i, value}) == 0 ? kUntriedWeight : 1)});
      }
    }
    return changes;
  }

  static const Change& draw(const std::vector<Change>& changes, Random& random) {
    double all = 0;
    for (const Change& change : changes) all += change.weight;
    double left = all * random.uniform();
    std::size_t i = 0;
    while (i + 1 < changes.size() && left >= changes[i].weight) left -= changes[i++].weight;
    return changes[i];
  }

  // The default, from which the first generation starts, is no trial.
  static std::string name_of(const Individual& parent) {
    return parent.number < 0 ? "the default" : fmt::format("trial {}", parent.number);
  }
  static std::vector<int> numbers_of(const Individual& parent) {
    return parent.number < 0 ? std::vector<int>{} : std::vector<int>{parent.number};
  }

  std::optional<Proposal> mutate(const Individual& parent, Random& random) const {
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
      const std::string bound =
          parent.bound == Bound::unknown ? std::string() : fmt::format(" (bound by {})", to_string(parent.bound));
      return Proposal{child,
                      Operation::mutate,
                      numbers_of(parent),
                      fmt::format("{} of {}{}", difference(table, parent.config, child), name_of(parent), bound),
                      0,
                      parent.space};
    }
    return std::nullopt;
  }

  std::optional<Proposal> crossover(const std::vector<const Individual*>& parents, Random& random) const {
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

  // A new config that shares out the work as this one does, with one other knob changed if it takes that. What
  // canonical() puts back is another way.
  std::optional<Config> fitted(int index, const Config& wanted, Random& random) const {
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

  // Each way of sharing out the work that was tried in a space, if only as a draft, with its best ratio.
  [[nodiscard]] std::map<Config, double> tried_sharings(int index) const {
    std::map<Config, double> best;
    for (const Individual& individual : history_)
      if ((individual.ok || (individual.is_draft && individual.certain > 0)) && individual.space == index) {
        double& of_way = best[sharing(index, individual.config)];
        of_way = std::max(of_way, individual.certain);
      }
    return best;
  }

  // The parent with another combination of the knobs that share out the work: of those that nobody tried, else of those
  // that came near the best, each as likely; none that this generation tries anyway. One that does not fit as it is
  // gets another value of one other knob. None where fewer than two knobs say so, or nothing new is legal.
  std::optional<Proposal> regroup(const Individual& parent, Random& random) const {
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

  // The default of the first space with every knob by which programs know their workload at that value.
  [[nodiscard]] std::optional<Proposal> specialised() const {
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

  // None when every change of this parent has been put back before.
  std::optional<Proposal> revert(const Individual& parent, Random& random) const {
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

  std::optional<Proposal> restart(int index, Random& random) const {
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

  const StrategyOptions& options_;
  std::span<const Space> spaces_;
  int generation_;
  const std::vector<Individual>& history_;
  std::set<std::pair<int, Config>> seen_;
  std::vector<std::vector<std::size_t>> sharing_knobs_;  // of each space
  std::set<std::pair<int, Config>> under_way_;           // how this generation's proposals share out the work
};

}  // namespace

std::vector<Proposal> propose(const StrategyOptions& options, std::span<const Space> spaces, int generation,
                              const std::vector<Individual>& history) {
  HEED_CHECK(!spaces.empty() && options.population > 0 && options.drafts > 0);
  for (const Space& space : spaces) HEED_CHECK(space.knobs != nullptr);
  return Proposer(options, spaces, generation, history).run();
}

std::vector<Proposal> refine(const StrategyOptions& options, std::span<const Space> spaces, int generation, int round,
                             const std::vector<Individual>& history, const std::vector<Proposal>& leaders) {
  return Proposer(options, spaces, generation, history).refine(round, leaders);
}

}  // namespace heed::evolve

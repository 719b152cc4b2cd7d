#include "evolve/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/random.hpp"
#include "evolve/variation.hpp"

namespace heed::evolve {
namespace {

// Shares of the operators once there is more than one elite.
constexpr double kMutateShare = 0.61;
constexpr double kCrossoverShare = 0.07;
constexpr double kRegroupShare = 0.23;
constexpr double kRevertShare = 0.03;        // the rest are restarts
constexpr int kPlacesForOthers = 2;          // of five elites
constexpr double kRestartWithTheBest = 0.5;  // of the restarts, in the space of the best so far; the rest in any
constexpr double kLendShare = 0.2;           // of the drafts of later rounds: knobs of another trial's best draft
constexpr std::uint64_t kRefining = 7;       // of the random numbers of later rounds

class Proposer {
 public:
  Proposer(const StrategyOptions& options, std::span<const Space> spaces, int generation,
           const std::vector<Individual>& history)
      : options_(options), spaces_(spaces), generation_(generation), history_(history), variation_(spaces, history) {}

  std::vector<Proposal> run(Slots slots) {
    std::vector<Proposal> proposals;
    for (int slot = slots.first; slot < options_.population && slot - slots.first < slots.count; ++slot) {
      Random random(
          substream(options_.seed, static_cast<std::uint64_t>(generation_) * 4096 + static_cast<std::uint64_t>(slot)));
      const int island = options_.kind == StrategyKind::islands ? slot % options_.islands : 0;
      const std::size_t before = proposals.size();
      for (int draft = 0; draft < std::min(options_.drafts, kDraftsARound); ++draft) {
        std::optional<Proposal> proposal = propose_one(slot, island, random);
        if (!proposal) break;
        variation_.take(*proposal);
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
          proposal = donated(leader, leaders[random.below(leaders.size())], random);
        if (!proposal) proposal = changed(leader, random);
        if (!proposal) break;
        variation_.take(*proposal);
        proposals.push_back(std::move(*proposal));
      }
    }
    return proposals;
  }

 private:
  // The leader with one change or two, as a mutation has them.
  std::optional<Proposal> changed(const Proposal& leader, Random& random) const {
    const Individual start{-1, generation_, leader.island, leader.config, true, 1, leader.space};
    std::optional<Proposal> mutation = variation_.mutate(start, random);
    if (!mutation) return std::nullopt;
    return refined(leader, std::move(mutation->config), Operation::mutate);
  }

  // The leader with half of the knobs in which another one of its island differs.
  std::optional<Proposal> donated(const Proposal& leader, const Proposal& other, Random& random) const {
    if (leader.space != other.space || leader.island != other.island || leader.config == other.config)
      return std::nullopt;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Config config = leader.config;
      for (std::size_t i = 0; i < config.size(); ++i)
        if (random.chance(0.5)) config[i] = other.config[i];
      config = variation_.canonical(leader.space, std::move(config));
      if (!variation_.is_new(leader.space, config)) continue;
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
    const std::vector<Knob>& table = variation_.knobs(leader.space);
    const Individual* parent = parent_of(leader);
    Proposal child = leader;
    child.operation = operation;
    child.why = parent == nullptr || parent->space != leader.space
                    ? fmt::format("{}, then {}", leader.why, difference(table, leader.config, config))
                    : fmt::format("{} of {}", difference(table, parent->config, config), Variation::name_of(*parent));
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
    const Config of_best = variation_.sharing(ok.front()->space, ok.front()->config);
    const std::size_t for_others = most * kPlacesForOthers / 5;
    std::vector<const Individual*> chosen;
    std::vector<const Individual*> passed_over;
    std::size_t alike = 0;
    for (const Individual* individual : ok) {
      const bool is_alike = individual->space == ok.front()->space &&
                            variation_.sharing(individual->space, individual->config) == of_best;
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

  std::optional<Proposal> propose_one(int slot, int island, Random& random) {
    // The default of every space, over as many generations as it takes.
    const int place = generation_ * options_.population + slot;
    if (place < static_cast<int>(spaces_.size()) && variation_.is_new(place, variation_.space(place).default_config))
      return Proposal{
          variation_.space(place).default_config,
          Operation::initial_default,
          {},
          spaces_.size() == 1 ? "the family's default" : fmt::format("the default of {}", variation_.space(place).name),
          island,
          place};
    // Then what earlier runs found.
    int known = static_cast<int>(spaces_.size());
    for (int index = 0; index < static_cast<int>(spaces_.size()); ++index)
      for (const Config& config : variation_.space(index).found)
        if (place == known++ && variation_.is_new(index, config))
          return Proposal{config, Operation::recall, {}, "what an earlier run found", island, index};
    // And of the first space the default that knows its workload, which one change at a time may not come to.
    if (place == std::max(known, options_.population - 1))
      if (auto p = variation_.specialised()) return finish(std::move(*p), island, false);
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
        const Individual start{-1, 0, island, variation_.space(0).default_config, true, 1};
        auto p = variation_.regroup(start, random);
        if (!p) p = variation_.mutate(start, random);
        if (p) return finish(std::move(*p), island, false);
      }
      return finish_optional(variation_.restart(0, random), island, false);
    }
    if (!parents.empty()) {
      const double draw = options_.kind == StrategyKind::single ? 0 : random.uniform();
      constexpr double kCrossoverEnds = kMutateShare + kCrossoverShare;
      constexpr double kRegroupEnds = kCrossoverEnds + kRegroupShare;
      constexpr double kRevertEnds = kRegroupEnds + kRevertShare;
      std::optional<Proposal> p;
      if (draw >= kMutateShare && draw < kCrossoverEnds && parents.size() > 1)
        p = variation_.crossover(parents, random);
      if (draw >= kCrossoverEnds && draw < kRegroupEnds)
        p = variation_.regroup(Variation::tournament(parents, random), random);
      if (draw >= kRegroupEnds && draw < kRevertEnds)
        p = variation_.revert(Variation::tournament(parents, random), random);
      if (p) return finish(std::move(*p), island, migrated);
      if (draw < kRevertEnds)
        for (int attempt = 0; attempt < 8; ++attempt)  // another elite when one's neighbourhood is exhausted
          if (auto m = variation_.mutate(Variation::tournament(parents, random), random))
            return finish(std::move(*m), island, migrated);
    }
    return finish_optional(variation_.restart(space_to_restart_in(parents, random), random), island, false);
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

  const StrategyOptions& options_;
  std::span<const Space> spaces_;
  int generation_;
  const std::vector<Individual>& history_;
  Variation variation_;
};

}  // namespace

std::vector<Proposal> propose(const StrategyOptions& options, std::span<const Space> spaces, int generation,
                              const std::vector<Individual>& history, Slots slots) {
  HEED_CHECK(!spaces.empty() && options.population > 0 && options.drafts > 0);
  for (const Space& space : spaces) HEED_CHECK(space.knobs != nullptr);
  return Proposer(options, spaces, generation, history).run(slots);
}

std::vector<Proposal> refine(const StrategyOptions& options, std::span<const Space> spaces, int generation, int round,
                             const std::vector<Individual>& history, const std::vector<Proposal>& leaders) {
  return Proposer(options, spaces, generation, history).refine(round, leaders);
}

}  // namespace heed::evolve

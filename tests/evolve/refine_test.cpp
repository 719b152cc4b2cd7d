// Several proposals for a trial, and more next to the best of them.
#include <map>
#include <set>

#include "evolve/toy.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

class EveryStrategyDrafts : public ::testing::TestWithParam<StrategyKind> {};

// Eight drafts a trial: new ones all of them, whichever of them were chosen; the default has a trial to itself.
TEST_P(EveryStrategyDrafts, DraftsOfATrialAreProposedTogether) {
  Toy toy;
  StrategyOptions options;
  options.kind = GetParam();
  options.drafts = 8;
  std::vector<Individual> history;
  const auto score = [&](const Proposal& p) { return toy.score(p.config); };
  for (int g = 0; g < 9; ++g) {
    const std::vector<Proposal> proposals = propose(options, {&toy.space, 1}, g, history);
    std::map<int, int> drafts;
    for (std::size_t i = 0; i < proposals.size(); ++i) {
      ++drafts[proposals[i].place];
      EXPECT_TRUE(i == 0 || proposals[i - 1].place <= proposals[i].place) << "not together";
    }
    EXPECT_EQ(drafts.size(), 5U);
    for (const auto& [place, count] : drafts) EXPECT_EQ(count, g == 0 && place == 0 ? 1 : 8) << g << " " << place;
    add_generation(history, options, {&toy.space, 1}, g, score, score);
  }
  std::set<Config> seen;
  for (const Individual& i : history) EXPECT_TRUE(seen.insert(i.config).second) << "proposed twice";
  StrategyOptions alone = options;
  alone.drafts = 1;
  const std::vector<Proposal> one = propose(alone, {&toy.space, 1}, 0, {});
  for (std::size_t place = 0; place < one.size(); ++place) EXPECT_EQ(one[place].place, static_cast<int>(place));
}

// In few generations eight drafts a trial lead further than none, and three rounds of eight further than one.
TEST_P(EveryStrategyDrafts, DraftsLeadFurtherThanTrialsAlone) {
  Toy toy;
  const auto score = [&](const Proposal& p) { return toy.score(p.config); };
  const auto reached = [&](int drafts) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      StrategyOptions options;
      options.kind = GetParam();
      options.seed = seed;
      options.drafts = drafts;
      std::vector<Individual> history;
      for (int g = 0; g < 3; ++g) add_generation(history, options, {&toy.space, 1}, g, score, score);
      sum += best(history);
    }
    return sum;
  };
  const double one = reached(1);
  const double eight = reached(8);
  EXPECT_GT(eight, one + 0.3) << "sums over 12 seeds";
  EXPECT_GT(reached(24), eight + 0.3) << "sums over 12 seeds";
}

// Each begins with the best so far, and says what became of the trial that the first draft was made from.
TEST(Drafts, LaterRoundsAreNextToTheBestOfTheirPlace) {
  Toy toy;
  std::vector<Individual> history;
  history.push_back({0, 0, 0, {1, 1, 1, 1, 1}, true, 1.0});
  StrategyOptions options;
  options.drafts = 24;
  std::vector<Proposal> drafts = propose(options, {&toy.space, 1}, 1, history);
  const auto leader = std::find_if(drafts.begin(), drafts.end(),
                                   [](const Proposal& p) { return p.operation == Operation::mutate && p.place == 2; });
  ASSERT_NE(leader, drafts.end());
  for (const Proposal& p : drafts) history.push_back({-1, 1, 0, p.config, false, 1.0, 0, true});
  const std::vector<Proposal> next = refine(options, {&toy.space, 1}, 1, 0, history, {*leader});
  EXPECT_EQ(next.size(), static_cast<std::size_t>(kDraftsARound));
  std::set<Config> seen;
  for (const Individual& i : history) seen.insert(i.config);
  for (const Proposal& p : next) {
    EXPECT_TRUE(seen.insert(p.config).second) << "known";
    EXPECT_EQ(p.place, 2);
    EXPECT_EQ(p.parents, std::vector<int>{0});
    EXPECT_EQ(p.operation, Operation::mutate);
    EXPECT_EQ(p.why, difference(toy.knobs, history[0].config, p.config) + " of trial 0");
    int changes = 0;
    for (std::size_t i = 0; i < p.config.size(); ++i) changes += p.config[i] != leader->config[i] ? 1 : 0;
    EXPECT_GE(changes, 1);
    EXPECT_LE(changes, 2);
  }
  const auto configs = [&](int round) {
    std::vector<Config> all;
    for (const Proposal& p : refine(options, {&toy.space, 1}, 1, round, history, {*leader})) all.push_back(p.config);
    return all;
  };
  EXPECT_EQ(configs(0), configs(0)) << "of the seed alone";
  EXPECT_NE(configs(0), configs(1));
  EXPECT_TRUE(refine(options, {&toy.space, 1}, 1, 0, history, {}).empty());
}

// What lends its knobs is of the same island, and a single line of descent borrows none: every draft is near its
// leader.
TEST(Drafts, LaterRoundsBorrowWithinAnIslandAlone) {
  Toy toy;
  std::vector<Proposal> leaders(2);
  leaders[0].config = {1, 1, 1, 1, 1};
  leaders[1].config = {32, 8, 32, 32, 32};
  leaders[0].parents = {3};
  leaders[1].parents = {4};
  leaders[1].place = 1;
  std::vector<Individual> history;
  for (const Proposal& p : leaders) history.push_back({-1, 1, 0, p.config, false, 1.0, 0, true});
  const auto furthest = [&](StrategyKind kind) {
    StrategyOptions options;
    options.kind = kind;
    int most = 0;
    for (int round = 0; round < 8; ++round)
      for (const Proposal& p : refine(options, {&toy.space, 1}, 1, round, history, leaders)) {
        int changes = 0;
        for (std::size_t i = 0; i < p.config.size(); ++i)
          changes += p.config[i] != leaders[static_cast<std::size_t>(p.place)].config[i] ? 1 : 0;
        most = std::max(most, changes);
        EXPECT_EQ(p.parents.size(), p.operation == Operation::crossover ? 2U : 1U);
        EXPECT_EQ(p.parents[0], p.place == 0 ? 3 : 4);
      }
    return most;
  };
  EXPECT_GT(furthest(StrategyKind::elite), 2);
  EXPECT_LE(furthest(StrategyKind::single), 2);
  leaders[1].island = 1;
  EXPECT_LE(furthest(StrategyKind::islands), 2);
}

// A draft that was not chosen is no parent, however fast its screening said it was: nobody has verified it.
TEST_P(EveryStrategyDrafts, DraftsAreNoParents) {
  Toy toy;
  StrategyOptions options;
  options.kind = GetParam();
  std::vector<Individual> history;
  history.push_back({0, 0, 0, {1, 1, 1, 1, 1}, true, 1.0});
  history.push_back({1, 0, 0, {2, 1, 1, 1, 1}, false, 3.0, 0, true});
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    options.seed = seed;
    for (const Proposal& p : propose(options, {&toy.space, 1}, 1, history)) {
      EXPECT_NE(p.config, history[1].config);
      for (const int parent : p.parents) EXPECT_EQ(parent, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryStrategyDrafts,
                         ::testing::Values(StrategyKind::single, StrategyKind::elite, StrategyKind::islands),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace heed::evolve

// Proposals that share out the work anew: the knobs that say how it is shared change together.
#include <map>
#include <set>

#include "device/device.hpp"
#include "evolve/strategy.hpp"
#include "evolve/toy.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

// Two knobs that only make sense together: their product is fixed, so no single change is legal.
struct Shared : Toy {
  Shared() {
    knobs[0].shares_work = knobs[1].shares_work = true;
    space.default_config = {2, 16, 1, 1, 1};
    space.is_legal = [](const Config& c) { return c[0] * c[1] == 32 && (c[0] < 16 || c[2] > 1); };
  }
};

TEST(Strategy, WorkIsSharedOutAnewByAllKnobsThatSayHow) {
  Shared shared;
  StrategyOptions options;
  const std::vector<Individual> history = {{0, 0, 0, shared.space.default_config, true, 1.0}};
  std::set<Config> ways;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    options.seed = seed;
    for (const Proposal& p : propose(options, {&shared.space, 1}, 1, history)) {
      if (p.operation != Operation::regroup) continue;
      EXPECT_EQ(p.parents, std::vector<int>{0});
      EXPECT_THAT(p.why, ::testing::StartsWith("the work of trial 0 shared out anew: a 2 -> "));
      ways.insert({p.config[0], p.config[1]});
      // The others stay, but for one where the new way asks for it.
      int others = 0;
      for (std::size_t i = 2; i < p.config.size(); ++i) others += p.config[i] != 1;
      EXPECT_EQ(others, p.config[0] < 16 ? 0 : 1);
    }
  }
  EXPECT_EQ(ways, (std::set<Config>{{1, 32}, {4, 8}, {8, 4}, {16, 2}, {32, 1}}));
}

TEST(Strategy, WaysThatWereTriedWaitForOthersAndAreGivenUpWhereTheyAreSlow) {
  Shared shared;
  // Of generations that begin with it: later proposals leave alone what earlier ones try.
  const auto ways = [&](const std::vector<Individual>& history) {
    std::set<Config> all;
    StrategyOptions options;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      options.seed = seed;
      const Proposal first = propose(options, {&shared.space, 1}, 1, history).at(0);
      if (first.operation == Operation::regroup) all.insert({first.config[0], first.config[1]});
    }
    return all;
  };
  std::vector<Individual> history = {{0, 0, 0, {2, 16, 1, 1, 1}, true, 1.0},
                                     {1, 0, 0, {1, 32, 1, 1, 1}, true, 0.95},
                                     {2, 0, 0, {4, 8, 1, 1, 1}, true, 0.5},
                                     {3, 0, 0, {8, 4, 1, 1, 1}, true, 0.5},
                                     {4, 0, 0, {16, 2, 2, 1, 1}, true, 0.5}};
  EXPECT_EQ(ways(history), (std::set<Config>{{32, 1}})) << "the only one left";
  history.push_back({5, 0, 0, {32, 1, 2, 1, 1}, true, 0.5});
  EXPECT_EQ(ways(history), (std::set<Config>{{1, 32}, {2, 16}})) << "the best and what is near, of each other";
}

// A draft counts as a way that was tried, but no other way is given up for what only a screening says.
TEST(Strategy, NoWayIsGivenUpForAnUnverifiedReading) {
  Shared shared;
  std::vector<Individual> history = {{0, 0, 0, {2, 16, 1, 1, 1}, true, 1.0},
                                     {1, 0, 0, {4, 8, 1, 1, 1}, true, 0.95},
                                     {2, 0, 0, {8, 4, 1, 1, 1}, true, 0.93}};
  for (const int a : {1, 16, 32}) history.push_back({3, 0, 0, {a, 32 / a, 2, 1, 1}, false, 0.5, 0, true});
  const auto ways_with = [&](double reading) {
    history.back().certain = reading;
    std::set<int> ways;
    StrategyOptions options;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      options.seed = seed;
      for (const Proposal& p : propose(options, {&shared.space, 1}, 1, history))
        if (p.operation == Operation::regroup) ways.insert(p.config[0]);
    }
    return ways;
  };
  EXPECT_EQ(ways_with(0.5), (std::set<int>{2, 4, 8})) << "all ways were tried; those near the best come again";
  EXPECT_THAT(ways_with(3.0), ::testing::IsSupersetOf({2, 4, 8})) << "one draft read three times as fast";
}

// Of a place by itself: what places before it are at counts, as within one call.
TEST(Strategy, PlacesProposedOneAtATimeShareOutWorkInOtherWays) {
  Shared shared;
  StrategyOptions options;
  int regrouped = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    options.seed = seed;
    std::vector<Individual> history = {{0, 0, 0, shared.space.default_config, true, 1.0}};
    std::set<Config> ways;
    std::set<Config> configs;
    for (int slot = 0; slot < options.population; ++slot) {
      const std::vector<Proposal> one = propose(options, {&shared.space, 1}, 1, history, {slot, 1});
      ASSERT_EQ(one.size(), 1U);
      EXPECT_EQ(one[0].place, slot);
      if (slot == 0) {
        EXPECT_EQ(one[0].config, propose(options, {&shared.space, 1}, 1, history).at(0).config);
      }
      EXPECT_TRUE(configs.insert(one[0].config).second);
      if (one[0].operation == Operation::regroup) {
        ++regrouped;
        EXPECT_TRUE(ways.insert({one[0].config[0], one[0].config[1]}).second) << "a way that is under way";
      }
      history.push_back({-1, 1, 0, one[0].config, false, 0, 0, true, true});
    }
    EXPECT_TRUE(propose(options, {&shared.space, 1}, 1, history, {options.population, 1}).empty());
  }
  EXPECT_GT(regrouped, 50);
}

TEST(Strategy, WorkIsSharedOutAnewInTheFirstGeneration) {
  Shared shared;
  const std::vector<Proposal> first = propose({}, {&shared.space, 1}, 0, {});
  EXPECT_EQ(
      std::count_if(first.begin(), first.end(), [](const Proposal& p) { return p.operation == Operation::regroup; }),
      2);
  // One knob alone says nothing.
  shared.knobs[0].shares_work = false;
  for (const Proposal& p : propose({}, {&shared.space, 1}, 0, {})) EXPECT_NE(p.operation, Operation::regroup);
}

// What no single change leads to: at b1h8l2048d64 four row groups in clusters of two are 1.02 times as fast as two row
// groups with two key groups.
TEST(Strategy, FortyFiveTrialsGoThroughTheWaysOfARealFamily) {
  const Family& family = find_family("fwd_sm90_persistent");
  const Workload workload = parse_workload("b1h8l2048d64");
  DeviceFacts hopper = gpu_limits("sm_90a");
  hopper.processors = 132;
  const Variant start = parse_variant(
      "fwd_sm90_persistent:m_warpgroups=2,kv_groups=2,cluster=1,stages=3,pingpong=on,tile_order=row_major", workload,
      hopper);
  Space space = space_of(family, workload, hopper);
  space.default_config = values_of(start);
  int reached = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    StrategyOptions options;
    options.seed = seed;
    std::vector<Individual> history;
    std::set<Config> ways;
    for (int g = 0; g < 9; ++g)
      for (const Proposal& p : propose(options, {&space, 1}, g, history)) {
        ways.insert({p.config[0], p.config[1], p.config[2]});
        history.push_back({static_cast<int>(history.size()), g, p.island, p.config, true, 1.0});
      }
    reached += static_cast<int>(ways.count({4, 1, 2}));
  }
  EXPECT_GE(reached, 40) << "of fifty runs";
}

TEST(Strategy, OtherWaysOfSharingKeepAPlaceWhileTheyAreNearlyAsFast) {
  Shared shared;
  // Six ways of the best kind in front of another one.
  const auto parents_with = [&](double ratio) {
    std::vector<Individual> history;
    for (int c : {1, 2, 4, 8, 16, 32})
      history.push_back({static_cast<int>(history.size()), 0, 0, {2, 16, c, 1, 1}, true, 1.2 - 0.001 * c});
    history.push_back({6, 0, 0, {4, 8, 1, 1, 1}, true, ratio});
    std::set<int> parents;
    StrategyOptions options;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      options.seed = seed;
      for (const Proposal& p : propose(options, {&shared.space, 1}, 1, history))
        parents.insert(p.parents.begin(), p.parents.end());
    }
    return parents;
  };
  EXPECT_EQ(parents_with(1.1), (std::set<int>{0, 1, 2, 3, 6}));
  EXPECT_EQ(parents_with(1.0), (std::set<int>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace heed::evolve

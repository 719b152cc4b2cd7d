// Which places are judged next where devices do not wait for each other.
#include <set>

#include "evolve/planner.hpp"
#include "testing.hpp"
#include "toy.hpp"

namespace heed::evolve {
namespace {

StrategyOptions three_a_generation() {
  StrategyOptions options;
  options.population = 3;
  return options;
}

// A run of the toy space by its planner: what finished, in that order.
struct ToyRun {
  explicit ToyRun(int trials, StrategyOptions with = three_a_generation())
      : options(with),
        planner(trials, [this](int generation, std::size_t count, const std::vector<Proposal>& under_way) {
          calls.push_back({generation, count, under_way.size()});
          auto knowledge = std::make_shared<Knowledge>();
          knowledge->spaces = {toy.space};
          knowledge->individuals.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(count));
          for (const Proposal& p : under_way)
            knowledge->individuals.push_back({-1, generation, p.island, p.config, false, 0, p.space, true});
          return Planner::Generation{
              places_of(evolve::propose(options, knowledge->spaces, generation, knowledge->individuals)), knowledge};
        }) {}
  struct Call {
    int generation;
    std::size_t known;
    std::size_t under_way;
    bool operator==(const Call&) const = default;
  };

  Job take() {
    if (!planner.has_open()) {
      const std::size_t count = history.size();
      EXPECT_TRUE(planner.propose(count));
      known.push_back(count);
    }
    return planner.take();
  }
  void finish(const Job& job) {
    const Proposal& p = job.place.drafts.front().proposal;
    history.push_back(
        {static_cast<int>(history.size()), job.generation, p.island, p.config, true, toy.score(p.config)});
    taken.emplace_back(std::pair{job.generation, job.index});
    planner.finish(job.generation, job.index);
  }

  Toy toy;
  StrategyOptions options;
  std::vector<Individual> history;
  std::vector<std::size_t> known;
  std::vector<Planner::Taken> taken;
  std::vector<Call> calls;
  Planner planner;
};

// What is under way and open, in order: all that decides what comes next.
std::vector<Config> open_configs(Planner& planner) {
  std::vector<Config> all;
  for (const Job* job : planner.open()) all.push_back(job->place.drafts.front().proposal.config);
  return all;
}

TEST(Planner, OneDeviceGoesGenerationByGeneration) {
  ToyRun run(8);
  const StrategyOptions options = three_a_generation();
  std::vector<Individual> plain = Toy().evolve(options, 3);
  for (int i = 0; i < 8; ++i) run.finish(run.take());
  ASSERT_EQ(run.history.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(run.history[i].config, plain[i].config) << i;
  EXPECT_FALSE(run.planner.has_room());
  EXPECT_FALSE(run.planner.has_open());
  EXPECT_EQ(run.known, (std::vector<std::size_t>{0, 3, 6}));
}

TEST(Planner, WhatIsUnderWayIsNotProposedAgain) {
  ToyRun run(30);
  std::set<Config> configs;
  std::vector<Job> jobs;
  for (int i = 0; i < 10; ++i) jobs.push_back(run.take());  // ten devices, none of which has finished
  for (const Job& job : jobs) EXPECT_TRUE(configs.insert(job.place.drafts.front().proposal.config).second);
  EXPECT_EQ(run.calls.back(), (ToyRun::Call{3, 0, 9}));
  EXPECT_EQ(run.planner.under_way(), 10);
}

// Whatever finishes first: a run that was killed proposes the same again, open places first.
TEST(Planner, AResumedRunProposesWhatTheFirstDid) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    ToyRun first(40);
    std::vector<Job> under_way;
    Random random(seed);
    for (int step = 0; step < 25; ++step) {
      while (under_way.size() < 4) under_way.push_back(first.take());
      const std::size_t which = random.below(under_way.size());
      first.finish(under_way[which]);
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ToyRun second(40);
    second.history = first.history;
    second.planner.replay(first.known, first.taken);
    for (std::size_t i = 0; i < second.calls.size(); ++i) EXPECT_EQ(second.calls[i], first.calls[i]) << i;
    EXPECT_EQ(second.planner.next_generation(), first.planner.next_generation());
    // The places that were under way are open again, before those that were open.
    std::set<Config> lost;
    for (const Job& job : under_way) lost.insert(job.place.drafts.front().proposal.config);
    std::vector<Config> expected = open_configs(first.planner);
    expected.insert(expected.end(), lost.begin(), lost.end());
    std::vector<Config> open = open_configs(second.planner);
    EXPECT_EQ(std::set<Config>(open.begin(), open.end()), std::set<Config>(expected.begin(), expected.end()));
    // And with other devices it goes on to the end.
    while (second.planner.has_open() || second.planner.has_room()) second.finish(second.take());
    EXPECT_EQ(second.history.size(), 40U);
  }
}

TEST(Planner, TrialsBoundTheLastGeneration) {
  ToyRun run(4);
  for (int i = 0; i < 4; ++i) run.finish(run.take());
  EXPECT_FALSE(run.planner.has_room());
  // More trials open what the last generation had no room for.
  ToyRun longer(8);
  longer.history = run.history;
  longer.planner.replay(run.known, run.taken);
  EXPECT_EQ(longer.planner.open().size(), 2U);
  // Fewer leave nothing open.
  ToyRun shorter(3);
  shorter.history = run.history;
  shorter.planner.replay(run.known, run.taken);
  EXPECT_FALSE(shorter.planner.has_open());
  EXPECT_FALSE(shorter.planner.has_room());
}

TEST(Planner, ATrialWithoutAPlaceTakesRoomAlone) {
  ToyRun run(7);
  for (int i = 0; i < 3; ++i) run.finish(run.take());
  run.taken.emplace_back(std::nullopt);  // what an ablation found
  run.history.push_back({3, 1, 0, {2, 2, 2, 2, 2}, true, 1.5});
  ToyRun resumed(7);
  resumed.history = run.history;
  resumed.planner.replay(run.known, run.taken);
  int more = 0;
  while (resumed.planner.has_open() || resumed.planner.has_room()) {
    resumed.finish(resumed.take());
    ++more;
  }
  EXPECT_EQ(more, 3);
  EXPECT_EQ(resumed.calls[1], (ToyRun::Call{1, 4, 0})) << "it is known";
}

TEST(Planner, APlaceThatIsPutBackIsNext) {
  ToyRun run(9);
  Job first = run.take();
  const Job second = run.take();
  const int index = first.index;
  run.planner.put_back(std::move(first));
  EXPECT_EQ(run.planner.under_way(), 1);
  EXPECT_EQ(run.take().index, index);
  EXPECT_THROW(run.planner.finish(7, 0), Error) << "which was never proposed";
}

TEST(Planner, AnExhaustedSpaceHasNoPlace) {
  Planner planner(5, [](int, std::size_t, const std::vector<Proposal>&) { return Planner::Generation{}; });
  EXPECT_FALSE(planner.propose(0));
  EXPECT_FALSE(planner.has_open());
  EXPECT_EQ(planner.next_generation(), 0) << "it may have one later";
}

}  // namespace
}  // namespace heed::evolve

// Which places are judged next where devices do not wait for each other.
#include <limits>
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
  explicit ToyRun(int trials, StrategyOptions with = three_a_generation(), int together = Slots{}.count)
      : options(with),
        places(together),
        planner(trials, with.population, [this](const Planner::Batch& batch, const std::vector<Proposal>& under_way) {
          calls.push_back({batch.generation, batch.slots.first, batch.known, under_way.size()});
          auto knowledge = std::make_shared<Knowledge>();
          knowledge->spaces = {toy.space};
          knowledge->individuals.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(batch.known));
          for (const Proposal& p : under_way)
            knowledge->individuals.push_back({-1, batch.generation, p.island, p.config, false, 0, p.space, true, true});
          return Planner::Generation{places_of(evolve::propose(options, knowledge->spaces, batch.generation,
                                                               knowledge->individuals, batch.slots)),
                                     knowledge, first_of_models};
        }) {}
  struct Call {
    int generation;
    int place;
    std::size_t known;
    std::size_t under_way;
    bool operator==(const Call&) const = default;
  };

  Job take() {
    if (!planner.has_open()) {
      const Planner::Batch next = {planner.next_generation(), {planner.next_place(), places}, history.size()};
      EXPECT_TRUE(planner.propose(next.known, places));
      batches.push_back(next);
    }
    return planner.take();
  }
  void finish(const Job& job, bool ok = true) {
    const Proposal& p = job.place.drafts.front().proposal;
    history.push_back({static_cast<int>(history.size()), job.generation, p.island, p.config, ok, toy.score(p.config)});
    taken.emplace_back(std::pair{job.generation, job.index});
    planner.finish(job.generation, job.index);
  }

  Toy toy;
  StrategyOptions options;
  int places;  ///< proposed together at most
  int first_of_models = std::numeric_limits<int>::max();
  std::vector<Individual> history;
  std::vector<Planner::Batch> batches;
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
  std::vector<std::size_t> known;
  for (const Planner::Batch& batch : run.batches) known.push_back(batch.known);
  EXPECT_EQ(known, (std::vector<std::size_t>{0, 3, 6}));
}

TEST(Planner, WhatIsUnderWayIsNotProposedAgain) {
  ToyRun run(30);
  std::set<Config> configs;
  std::vector<Job> jobs;
  for (int i = 0; i < 10; ++i) jobs.push_back(run.take());  // ten devices, none of which has finished
  for (const Job& job : jobs) EXPECT_TRUE(configs.insert(job.place.drafts.front().proposal.config).second);
  EXPECT_EQ(run.calls.back(), (ToyRun::Call{3, 0, 0, 9}));
  EXPECT_EQ(run.planner.under_way(), 10);
}

// Whatever finishes first: a run that was killed proposes the same again, open places first.
TEST(Planner, AResumedRunProposesWhatTheFirstDid) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const int together = seed % 2 == 0 ? 1 : Slots{}.count;  // a place at a time, or generations
    ToyRun first(40, three_a_generation(), together);
    std::vector<Job> under_way;
    Random random(seed);
    for (int step = 0; step < 25; ++step) {
      while (under_way.size() < 4) under_way.push_back(first.take());
      const std::size_t which = random.below(under_way.size());
      first.finish(under_way[which]);
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ToyRun second(40, three_a_generation(), together);
    second.history = first.history;
    second.planner.replay(first.batches, first.taken);
    for (std::size_t i = 0; i < second.calls.size(); ++i) EXPECT_EQ(second.calls[i], first.calls[i]) << i;
    EXPECT_EQ(second.planner.next_generation(), first.planner.next_generation());
    EXPECT_EQ(second.planner.next_place(), first.planner.next_place());
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

// A place at a time, four under way: each rests on all that is finished, and on nothing that is not. What is under way
// may still be refused by its gate, or overtaken by another one; neither is waste, since no proposal rests on it.
TEST(Planner, PlacesRestOnWhatIsFinishedAlone) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    ToyRun run(60, three_a_generation(), 1);
    run.options.seed = seed;
    Random random(seed);
    std::vector<Job> under_way;
    std::size_t step = 0;
    for (; run.planner.has_room() || !under_way.empty(); ++step) {
      while (under_way.size() < 4 && run.planner.has_room()) {
        under_way.push_back(run.take());
        EXPECT_EQ(run.calls.back().known, run.history.size()) << "no trial waits for a generation's end";
        EXPECT_EQ(run.calls.back().under_way, under_way.size() - 1);
        for (const int parent : under_way.back().place.drafts.front().proposal.parents) {
          ASSERT_LT(static_cast<std::size_t>(parent), run.history.size());
          EXPECT_TRUE(run.history[static_cast<std::size_t>(parent)].ok) << "what its gate refused is no parent";
        }
      }
      const std::size_t which = step % 3 == 2 ? 0 : random.below(under_way.size());  // some are overtaken by all others
      const bool ok = random.chance(0.8);
      run.finish(under_way[which], ok);
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
    }
    EXPECT_EQ(run.history.size(), 60U);
    std::set<std::pair<int, int>> places;
    for (const Planner::Taken& one : run.taken) EXPECT_TRUE(places.insert(*one).second);
    EXPECT_TRUE(places.contains({19, 2})) << "three a generation, whatever finished first";
  }
}

// Interrupted between proposing a place and its trial, and gone on with generation by generation, as on a CPU.
TEST(Planner, WhatOneAtATimeBeganGenerationsEnd) {
  ToyRun first(12, three_a_generation(), 1);
  std::vector<Job> under_way;
  for (int i = 0; i < 4; ++i) under_way.push_back(first.take());
  first.finish(under_way[2]);
  under_way.push_back(first.take());  // place 1 of generation 1
  ToyRun second(12);
  second.history = first.history;
  second.planner.replay(first.batches, first.taken);
  EXPECT_EQ(second.planner.open().size(), 4U) << "what was under way is lost and proposed again";
  EXPECT_EQ(second.planner.next_generation(), 1);
  EXPECT_EQ(second.planner.next_place(), 2);
  while (second.planner.has_open() || second.planner.has_room()) second.finish(second.take());
  EXPECT_EQ(second.batches.front().slots.first, 2) << "the rest of the generation";
  std::set<Config> configs;
  for (const Individual& one : second.history) EXPECT_TRUE(configs.insert(one.config).second);
  EXPECT_EQ(configs.size(), 12U);
}

TEST(Planner, TrialsBoundTheLastGeneration) {
  ToyRun run(4);
  for (int i = 0; i < 4; ++i) run.finish(run.take());
  EXPECT_FALSE(run.planner.has_room());
  // More trials open what the last generation had no room for.
  ToyRun longer(8);
  longer.history = run.history;
  longer.planner.replay(run.batches, run.taken);
  EXPECT_EQ(longer.planner.open().size(), 2U);
  // Fewer leave nothing open.
  ToyRun shorter(3);
  shorter.history = run.history;
  shorter.planner.replay(run.batches, run.taken);
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
  resumed.planner.replay(run.batches, run.taken);
  int more = 0;
  while (resumed.planner.has_open() || resumed.planner.has_room()) {
    resumed.finish(resumed.take());
    ++more;
  }
  EXPECT_EQ(more, 3);
  EXPECT_EQ(resumed.calls[1], (ToyRun::Call{1, 0, 4, 0})) << "it is known";
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

// Of three places a generation models write for the last.
TEST(Planner, PlacesThatModelsWriteForAreNotOpen) {
  ToyRun run(6);
  run.first_of_models = 2;
  EXPECT_EQ(run.take().index, 0);
  EXPECT_EQ(run.planner.open().size(), 1U);
  ASSERT_EQ(run.planner.awaited().size(), 1U);
  Job* awaited = run.planner.awaited().front();
  EXPECT_EQ(awaited->index, 2);
  EXPECT_EQ(awaited->known, 0U);
  EXPECT_FALSE(awaited->place.drafts.empty()) << "what knobs propose there";
  EXPECT_EQ(run.take().index, 1);
  EXPECT_FALSE(run.planner.has_open());
  Job next = run.take();
  EXPECT_EQ(next.generation, 1) << "devices do not wait for it";
  EXPECT_EQ(run.calls.back().under_way, 3U) << "nobody proposes what its place may become";
  run.planner.awaited().front()->is_awaited = false;
  EXPECT_EQ(run.take().generation, 0) << "before those of later generations";
  // The last one gets no reply, and knobs nothing more: its room is another's.
  EXPECT_FALSE(run.planner.has_room());
  run.planner.drop(1, 2);
  EXPECT_TRUE(run.planner.has_room());
  EXPECT_THROW(run.planner.end(1, 1), Error) << "which is not awaited";
}

TEST(Planner, ARepairHasRoomAndComesFirst) {
  ToyRun run(7);
  run.first_of_models = 2;
  const Job first = run.take();
  ASSERT_TRUE(run.planner.reserve());
  Job repair;
  repair.index = Job::index_of_repair(2);
  EXPECT_EQ(repair.place_number(), 2);
  run.planner.add_repair(std::move(repair));
  EXPECT_LT(run.take().index, 0);
  run.planner.finish(0, Job::index_of_repair(2));
  run.take();  // the last of this generation, and the first of the next
  run.take();
  EXPECT_FALSE(run.planner.has_room()) << "three, a repair, three";
  EXPECT_FALSE(run.planner.reserve());
}

// Killed while replies were awaited: they are awaited again, and the places of those that came are finished.
TEST(Planner, AResumedRunAwaitsWhatTheFirstDid) {
  ToyRun first(12);
  first.first_of_models = 1;
  first.finish(first.take());
  const Job next = first.take();  // of the second generation, with both of the first awaited
  first.history.push_back({1, 0, 0, {1, 1, 1, 1, 1}, false, 0});
  first.taken.emplace_back(std::pair{0, 2});
  first.planner.end(0, 2);
  first.finish(next);
  ToyRun second(12);
  second.first_of_models = 1;
  second.history = first.history;
  second.planner.replay(first.batches, first.taken);
  for (std::size_t i = 0; i < second.calls.size(); ++i) EXPECT_EQ(second.calls[i], first.calls[i]) << i;
  std::vector<std::pair<int, int>> awaited;
  for (const Job* job : second.planner.awaited()) awaited.emplace_back(job->generation, job->index);
  EXPECT_EQ(awaited, (std::vector<std::pair<int, int>>{{0, 1}, {1, 1}, {1, 2}}));
  EXPECT_EQ(second.planner.awaited().back()->known, 1U);
  EXPECT_FALSE(second.planner.has_open());
}

TEST(Planner, AnExhaustedSpaceHasNoPlace) {
  Planner planner(5, 3, [](const Planner::Batch&, const std::vector<Proposal>&) { return Planner::Generation{}; });
  EXPECT_FALSE(planner.propose(0));
  EXPECT_FALSE(planner.has_open());
  EXPECT_EQ(planner.next_generation(), 0) << "it may have one later";
}

}  // namespace
}  // namespace heed::evolve

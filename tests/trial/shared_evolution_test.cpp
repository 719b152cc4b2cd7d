// Runs whose trials several devices judge: here groups of processors, which may be the same one.
#include <fmt/format.h>

#include <set>

#include "base/files.hpp"
#include "device/processors.hpp"
#include "evolve/run.hpp"
#include "evolve/shared_search.hpp"
#include "quick_trials.hpp"
#include "record/json.hpp"
#include "store/exchanges.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;
using testing_support::TemporaryFolder;

class Watcher final : public evolve::Observer {
 public:
  void message(const std::string& text) override { messages.push_back(text); }
  void generation_started(int, int, int) override {}
  void devices_changed(const std::vector<evolve::DeviceStatus>& now, double) override { devices = now; }
  void trial_finished(const store::TrialRecord& trial, double, int) override {
    if (on_trial) on_trial(trial);
  }
  std::vector<std::string> messages;
  std::vector<evolve::DeviceStatus> devices;
  std::function<void(const store::TrialRecord&)> on_trial;
};

record::RunOptions small_run(int trials) {
  record::RunOptions options;
  options.workload = parse_workload("b1h2l64d32:fp32");
  options.trials = trials;
  options.strategy.population = 3;
  options.peers = false;
  return options;
}

evolve::DeviceOfRun device_on(const std::string& name, int processor) {
  evolve::DeviceOfRun device{name, {}};
  device.placement.host = {processor};
  return device;
}

// What a search has before its first trial.
struct RunContextOfTest {
  // of a new run where `number` is 0
  RunContextOfTest(store::Store& store, evolve::Observer& observer, const record::RunOptions& options,
                   std::int64_t number)
      : run(store, builder(), cpu_facts(), options, quick(), nullptr, observer) {
    const Variant base = evolve::default_with(*run.families.front(), "", options.workload, run.device);
    run.trial_runner.set_base(run.trial_runner.build(base));
    run.self_spread = 0.01;
    run.run = number;
    if (number > 0) {
      run.take_trials(store.trials(number));
      return;
    }
    store::RunRecord record;
    record.created = store::utc_now();
    record.workload = to_string(options.workload);
    record.device_kind = "cpu";
    record.device = record::to_json(run.device);
    record.options = record::to_json(run.options);
    run.run = store.add_run(record);
  }
  evolve::RunContext run;
};

class SharedEvolution : public ::testing::Test {
 protected:
  // On one processor: whatever the machine has, every device is of its kind.
  SharedEvolution() : processor_(allowed_processors().front()) {
    Placement where;
    where.host = {processor_};
    place_.emplace(where);
  }
  record::RunResult evolve(const record::RunOptions& options, std::vector<evolve::DeviceOfRun> devices,
                           std::optional<std::int64_t> resume = std::nullopt) {
    evolve::Evolution evolution(store_, builder(), cpu_facts(), options, quick(), nullptr, watcher_, resume,
                                std::move(devices));
    run_ = evolution.run_id();
    return evolution.run();
  }
  // Every place of every generation once, and no config twice.
  void expect_whole(std::size_t trials) {
    const std::vector<store::TrialRecord> stored = store_.trials(run_);
    ASSERT_EQ(stored.size(), trials) << ::testing::PrintToString(watcher_.messages);
    std::set<std::string> configs;
    std::set<std::pair<int, int>> places;
    for (const store::TrialRecord& t : stored) {
      EXPECT_TRUE(configs.insert(t.config).second) << t.config;
      EXPECT_TRUE(places.insert({t.generation, t.place >= 0 ? t.place : t.number % 3}).second);
    }
    for (std::size_t i = 0; i < trials; ++i)
      EXPECT_EQ(places.count({static_cast<int>(i / 3), static_cast<int>(i % 3)}), 1U) << i;
  }

  int processor_;
  std::optional<Placed> place_;
  TemporaryFolder folder_;
  store::Store store_{folder_.file("a.db")};
  Watcher watcher_;
  std::int64_t run_ = 0;
};

TEST_F(SharedEvolution, DevicesShareTheTrialsOfOneRun) {
  const record::RunResult result =
      evolve(small_run(5), {device_on("first", processor_), device_on("second", processor_)});
  EXPECT_EQ(result.trials, 5U);
  expect_whole(5);
  std::map<std::string, std::size_t> judged;
  for (const store::TrialRecord& t : store_.trials(run_)) ++judged[t.device];
  EXPECT_EQ(judged.size(), 2U) << ::testing::PrintToString(judged);
  EXPECT_EQ(judged["first"] + judged["second"], 5U);
  const nlohmann::json base = store_.find_run(run_)->base;
  ASSERT_EQ(base["devices"].size(), 2U);
  for (const nlohmann::json& device : base["devices"]) {
    EXPECT_GT(device["us"].get<double>(), 0) << "the base is measured on each";
    EXPECT_GT(device["self_spread"].get<double>(), 0);
    EXPECT_TRUE(device["lost"].is_null());
  }
  EXPECT_EQ(base["searches"].size(), 1U);
  EXPECT_EQ(store_.generations(run_).size(), 2U);
  ASSERT_EQ(watcher_.devices.size(), 2U);
  EXPECT_EQ(watcher_.devices[0].trials + watcher_.devices[1].trials, 5U);
}

// Interrupted with trials under way; one device goes on where two were, and then two where one was.
TEST_F(SharedEvolution, AResumedRunMayHaveOtherDevices) {
  const auto stop_after = [&](std::size_t count) {
    watcher_.on_trial = [this, count](const store::TrialRecord&) {
      if (store_.trials(run_).size() == count) throw Error(ErrorCode::interrupted, "stopped by the test");
    };
  };
  const record::RunOptions options = small_run(6);
  run_ = 1;
  stop_after(2);
  EXPECT_THROW(evolve(options, {device_on("first", processor_), device_on("second", processor_)}), Error);
  EXPECT_EQ(store_.find_run(1)->state, store::RunState::interrupted);
  const std::vector<store::TrialRecord> before = store_.trials(1);
  ASSERT_GE(before.size(), 2U);
  stop_after(before.size() + 2);
  EXPECT_THROW(evolve(options, {}, 1), Error);  // what two began one goes on with
  watcher_.on_trial = nullptr;
  (void)evolve(options, {device_on("third", processor_), device_on("second", processor_)}, 1);
  expect_whole(6);
  const std::vector<store::TrialRecord> after = store_.trials(1);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].id, before[i].id);
}

// One that a single device began, place after place.
TEST_F(SharedEvolution, SeveralGoOnWithARunOfOne) {
  run_ = 1;
  watcher_.on_trial = [](const store::TrialRecord& t) {
    if (t.number == 3) throw Error(ErrorCode::interrupted, "stopped by the test");
  };
  EXPECT_THROW(evolve(small_run(5), {}), Error);
  EXPECT_TRUE(store_.generations(1).empty());
  watcher_.on_trial = nullptr;
  (void)evolve(small_run(5), {device_on("first", processor_), device_on("second", processor_)}, 1);
  expect_whole(5);
}

// As on a GPU: a place is proposed when one is finished, with others under way. Interrupted and gone on with, each
// trial still rests on trials that had passed when it was proposed.
TEST_F(SharedEvolution, SteadyTrialsRestOnWhatIsFinished) {
  const auto search = [&](std::int64_t run) {
    RunContextOfTest context(store_, watcher_, small_run(6), run);
    evolve::SharedSearch(context.run, {device_on("first", processor_)}, 0, {.lanes = 3, .is_steady = true}).run();
  };
  run_ = RunContextOfTest(store_, watcher_, small_run(6), 0).run.run;
  watcher_.on_trial = [this](const store::TrialRecord&) {
    if (store_.trials(run_).size() == 3) throw Error(ErrorCode::interrupted, "stopped by the test");
  };
  EXPECT_THROW(search(run_), Error);
  const std::size_t before = store_.trials(run_).size();
  EXPECT_GE(before, 3U);
  watcher_.on_trial = nullptr;
  search(run_);
  expect_whole(6);
  const std::vector<store::GenerationRecord> batches = store_.generations(run_);
  EXPECT_EQ(batches.size(), 6U) << "each place by itself";
  std::map<std::pair<int, int>, int> known;
  for (const store::GenerationRecord& one : batches) known[{one.generation, one.place}] = one.known;
  const std::vector<store::TrialRecord> trials = store_.trials(run_);
  for (const store::TrialRecord& t : trials) {
    EXPECT_GE((known[{t.generation, t.place}]), t.generation * 3 + t.place - 2) << "all but the two under way";
    for (const int parent : t.parents) {
      EXPECT_LT(parent, (known[{t.generation, t.place}]));
      EXPECT_TRUE(trials[static_cast<std::size_t>(parent)].ok());
    }
  }
}

// While one place of each generation waits for a reply, others are judged. Interrupted with it awaited, a run goes on.
TEST_F(SharedEvolution, SteadyTrialsGoOnWhileModelsWrite) {
  record::RunOptions options = small_run(6);
  const std::string go = folder_.file("go");
  write_file_atomically(folder_.path() / "edit",
                        "cpu/rows.hpp\n<<<<<<< SEARCH\n#pragma once\n=======\n#pragma once\nusing Nothing = "
                        "int;\n>>>>>>> REPLACE\n",
                        ErrorCode::internal);
  options.models.command = fmt::format("cat > /dev/null; until test -e {}; do sleep 0.05; done; cat {}", go,
                                       (folder_.path() / "edit").string());
  options.models.share = 0.34;
  const auto search = [&](std::int64_t run) {
    RunContextOfTest context(store_, watcher_, options, run);
    evolve::SharedSearch(context.run, {device_on("first", processor_)}, 0, {.lanes = 3, .is_steady = true}).run();
  };
  run_ = RunContextOfTest(store_, watcher_, options, 0).run.run;
  watcher_.on_trial = [this](const store::TrialRecord&) {
    if (store_.trials(run_).size() == 3) throw Error(ErrorCode::interrupted, "stopped by the test");
  };
  EXPECT_THROW(search(run_), Error) << "nobody answers yet";
  EXPECT_GE(store_.trials(run_).size(), 3U);
  ASSERT_EQ(store::exchanges(store_, run_).size(), 1U) << "one at a time for each device";
  EXPECT_TRUE(store::exchanges(store_, run_).front().is_awaited());
  watcher_.on_trial = nullptr;
  write_file_atomically(go, "go", ErrorCode::internal);
  search(run_);
  const std::vector<store::TrialRecord> trials = store_.trials(run_);
  ASSERT_EQ(trials.size(), 6U);
  std::map<std::pair<int, int>, std::string> operations;
  for (const store::TrialRecord& t : trials)
    EXPECT_TRUE(operations.emplace(std::pair{t.generation, t.place}, t.operation).second) << "a place has one trial";
  for (int generation = 0; generation < 2; ++generation)
    for (int place = 0; place < 3; ++place)
      EXPECT_EQ((operations[{generation, place}] == "edit"), place == 2) << generation << " " << place;
  const std::vector<store::ExchangeRecord> exchanges = store::exchanges(store_, run_);
  ASSERT_EQ(exchanges.size(), 3U);
  EXPECT_EQ(exchanges[1].prompt, exchanges[0].prompt) << "what was awaited is asked again";
}

TEST_F(SharedEvolution, ADeviceThatCannotBeUsedIsLeftOut) {
  (void)evolve(small_run(4), {device_on("first", processor_), device_on("nowhere", 1023)});
  expect_whole(4);
  for (const store::TrialRecord& t : store_.trials(run_)) EXPECT_EQ(t.device, "first");
  EXPECT_THAT(watcher_.messages,
              ::testing::Contains(::testing::HasSubstr("nowhere is lost, the run goes on without it")));
  for (const nlohmann::json& device : store_.find_run(run_)->base["devices"])
    EXPECT_EQ(device["lost"].is_null(), device["name"] == "first");
  // All others of the run may come back.
  EXPECT_THROW(evolve(small_run(6), {device_on("nowhere", 1023)}, run_), Error);
  (void)evolve(small_run(6), {device_on("second", processor_)}, run_);
  expect_whole(6);
}

TEST_F(SharedEvolution, WhatCannotBeSharedIsRefused) {
  record::RunOptions drafts = small_run(3);
  drafts.strategy.drafts = evolve::kMostDraftsOnProcessors + 1;
  const std::vector<evolve::DeviceOfRun> two = {device_on("a", processor_), device_on("b", processor_)};
  try {
    (void)evolve(drafts, two);
    ADD_FAILURE() << "compilers would run beside what is timed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--drafts 9"));
  }
  EXPECT_TRUE(store_.runs().empty()) << "nothing was begun";
}

}  // namespace
}  // namespace heed::trial

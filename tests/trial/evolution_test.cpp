// Whole runs on the CPU: what they store, what they rest on, where they end and how they go on.
#include <map>
#include <set>

#include "evolve/run.hpp"
#include "quick_trials.hpp"
#include "record/diagnosis.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;
using testing_support::TemporaryFolder;

// Everything a run needs, on a space small enough to finish quickly.
class Quiet final : public evolve::Observer {
 public:
  void message(const std::string& text) override { messages.push_back(text); }
  void generation_started(int, int, int) override {}
  void trial_finished(const store::TrialRecord& trial, double, int) override {
    if (on_trial) on_trial(trial);
  }
  std::vector<std::string> messages;
  std::function<void(const store::TrialRecord&)> on_trial;
};

record::RunOptions tiny_run(int trials) {
  record::RunOptions options;
  options.workload = parse_workload("b1h2l64d32:fp32");
  options.trials = trials;
  options.strategy.population = 3;
  options.peers = false;
  return options;
}

TEST(Evolution, RunsStoresAndReports) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  evolve::Evolution evolution(store, builder(), cpu_facts(), tiny_run(7), quick(), nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  EXPECT_TRUE(result["outcome"] == "faster" || result["outcome"] == "not_faster" || result["outcome"] == "too_noisy")
      << result["summary"];
  const std::vector<store::TrialRecord> trials = store.trials(evolution.run_id());
  ASSERT_EQ(trials.size(), 7U) << ::testing::PrintToString(observer.messages);
  std::set<std::string> configs;
  for (const store::TrialRecord& t : trials) {
    EXPECT_TRUE(configs.insert(t.config).second);
    EXPECT_EQ(t.generation, t.number / 3);
    if (!t.ok()) continue;
    EXPECT_GT(t.trial_us, 0);
    EXPECT_LE(t.ratio_low, t.ratio);
    EXPECT_GE(t.samples["ratios"].size(), 3U);
    EXPECT_FALSE(t.machine_code.empty());
    ASSERT_GT(t.gate_checks.size(), 5U) << "every class of inputs";
    const auto normal = std::find_if(t.gate_checks.begin(), t.gate_checks.end(),
                                     [](const nlohmann::json& check) { return check["name"] == "normal"; });
    ASSERT_NE(normal, t.gate_checks.end());
    EXPECT_EQ((*normal)["error"]["max_abs"], t.max_abs);
    EXPECT_EQ(t.diagnosis["with_counters"], false);
    EXPECT_FALSE(t.diagnosis["text"].get<std::string>().empty());
  }
  EXPECT_EQ(trials[0].operation, "default");
  const store::RunRecord run = *store.find_run(evolution.run_id());
  EXPECT_EQ(run.state, store::RunState::finished);
  EXPECT_GT(run.base["us"].get<double>(), 0);
  // Verified once more in the first of a finalist's processes, measured in all.
  std::map<std::string, std::vector<nlohmann::json>> errors;
  for (const store::ComparisonRecord& one : store.comparisons(run.id))
    if (one.kind == "final") errors[one.subject].push_back(one.data["error"]["max_abs"]);
  ASSERT_FALSE(errors.empty());
  for (const auto& [variant, all] : errors) EXPECT_EQ(std::set(all.begin(), all.end()).size(), 1U) << variant;
  // Where the time went: parts, which follow one another, and builds.
  const nlohmann::json& time = result["time"];
  double seconds = 0;
  std::vector<std::string> parts;
  for (const nlohmann::json& part : time["parts"]) {
    parts.push_back(part["part"]);
    seconds += part["seconds"].get<double>();
  }
  EXPECT_THAT(parts, ::testing::IsSupersetOf({"base", "search", "finals"}));
  EXPECT_GT(seconds, 0);
  EXPECT_LE(seconds, time["seconds"].get<double>() + time["elsewhere_s"].get<double>() + 0.01);
  EXPECT_GE(time["builds"]["waited_s"].get<double>(), 0);
  EXPECT_TRUE(result["profile"]["champion"].contains("bound"));
  EXPECT_TRUE(result["profile"]["base"].contains("bound"));
  EXPECT_GT(result["base_times"]["large_us"].get<double>(), 0);
  EXPECT_GT(result["champion_times"]["large_us"].get<double>(), 0);
}

// Of its drafts, eight and one next to the best of these, a trial is the one that read fastest; it is verified and
// measured like any other, and no config is proposed twice.
TEST(Evolution, ATrialIsTheFastestOfItsDrafts) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  record::RunOptions options = tiny_run(4);
  options.strategy.drafts = evolve::kDraftsARound + 1;
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  const std::vector<store::TrialRecord> trials = store.trials(evolution.run_id());
  ASSERT_EQ(trials.size(), 4U);
  EXPECT_TRUE(trials[0].drafts.empty()) << "the default needs no other";
  std::set<std::string> configs;
  std::size_t drafts = 0;
  for (const store::TrialRecord& t : trials) {
    if (t.drafts.empty()) {
      EXPECT_TRUE(configs.insert(t.config).second) << t.config;
      continue;
    }
    EXPECT_EQ(t.drafts.size(), 9U);
    double best = 0;
    double of_trial = -1;
    for (const store::DraftRecord& draft : t.drafts) {
      ++drafts;
      EXPECT_TRUE(configs.insert(draft.config).second) << draft.config;
      EXPECT_EQ(draft.ratio > 0, draft.reason.empty()) << draft.reason;
      best = std::max(best, draft.certain);
      if (draft.config == t.config) of_trial = draft.certain;
    }
    EXPECT_EQ(of_trial, best);
  }
  EXPECT_GE(drafts, 18U);
  EXPECT_EQ(result["drafts"], drafts);
}

// Timed inputs are normal; a finalist that is slow on others is none. Here every one counts as slow.
TEST(Evolution, AFinalistThatIsSlowWhereScoresAreLargeIsRefused) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  Options options = quick();
  options.most_slowdown = 0;
  evolve::Evolution evolution(store, builder(), cpu_facts(), tiny_run(3), options, nullptr, observer, std::nullopt);
  const nlohmann::json result = record::to_json(evolution.run());
  EXPECT_EQ(result["outcome"], "no_variant");
  EXPECT_THAT(result["summary"].get<std::string>(), ::testing::HasSubstr("slow where scores are large"));
}

// Stopped after any trial, a run goes on where it was, makes the same proposals and repeats none.
TEST(Evolution, ResumesWhereItStopped) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  std::int64_t id = 0;
  record::RunOptions options = tiny_run(6);
  options.strategy.drafts = evolve::kDraftsARound + 2;
  {
    Quiet observer;
    observer.on_trial = [](const store::TrialRecord& t) {
      if (t.number == 4) throw Error(ErrorCode::interrupted, "as if by Ctrl-C");
    };
    evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
    id = evolution.run_id();
    EXPECT_THROW(evolution.run(), Error);
    EXPECT_EQ(store.find_run(id)->state, store::RunState::interrupted);
    EXPECT_EQ(store.trials(id).size(), 5U);  // the last generation lacks one
  }
  const std::vector<store::TrialRecord> before = store.trials(id);
  Quiet observer;
  int judged = 0;
  observer.on_trial = [&](const store::TrialRecord&) { ++judged; };
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, id);
  evolution.run();
  EXPECT_EQ(judged, 1);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(store.trials(id)[i].diagnosis, before[i].diagnosis);
  const std::vector<store::TrialRecord> after = store.trials(id);
  ASSERT_EQ(after.size(), 6U);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].id, before[i].id);
  EXPECT_EQ(after[5].generation, 1);
  std::set<std::string> configs;
  for (const store::TrialRecord& t : after) {
    if (t.drafts.empty()) configs.insert(t.config);
    for (const store::DraftRecord& draft : t.drafts)
      EXPECT_TRUE(configs.insert(draft.config).second) << "looked at before: " << draft.config;
  }
}

TEST(Evolution, RefusesImpossibleRuns) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  testing_support::expect_error(ErrorCode::usage, "--trials 0", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), tiny_run(0), quick(), nullptr, observer, std::nullopt);
  });
  record::RunOptions wide = tiny_run(5);
  wide.workload = parse_workload("b1h1l8d1024:fp32");
  testing_support::expect_error(ErrorCode::unsupported, "head dim 1024", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), wide, quick(), nullptr, observer, std::nullopt);
  });
  record::RunOptions gpu = tiny_run(5);
  gpu.families = {"fwd_sm80"};
  testing_support::expect_error(ErrorCode::unsupported, "NVIDIA", [&] {
    evolve::Evolution(store, builder(), cpu_facts(), gpu, quick(), nullptr, observer, std::nullopt);
  });
  EXPECT_TRUE(store.runs().empty()) << "a run that cannot be must leave nothing";
}

TEST(Evolution, StopsAtItsBudget) {
  const TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  Quiet observer;
  record::RunOptions options = tiny_run(1000);
  options.budget_s = 0.01;
  evolve::Evolution evolution(store, builder(), cpu_facts(), options, quick(), nullptr, observer, std::nullopt);
  evolution.run();
  EXPECT_LE(store.trials(evolution.run_id()).size(), 3U);
  EXPECT_THAT(observer.messages, ::testing::Contains(::testing::HasSubstr("budget")));
}

}  // namespace
}  // namespace heed::trial

// The final comparison of a run whose only trial edits sources.
#include "evolve/finals.hpp"

#include "compile/embedded.hpp"
#include "evolve/trials.hpp"
#include "quick_trials.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;

class Silent final : public evolve::Observer {
 public:
  void message(const std::string&) override {}
  void generation_started(int, int, int) override {}
  void trial_finished(const store::TrialRecord&, double, int) override {}
};

class EditedFinalist : public ::testing::Test {
 protected:
  EditedFinalist() {
    record::RunOptions options;
    options.workload = parse_workload("b1h2l64d32:fp32");
    run_.emplace(store_, builder(), cpu_facts(), options, quick(), nullptr, observer_);
    store::RunRecord record;
    record.workload = to_string(options.workload);
    run_->run = store_.add_run(record);
    Variant variant = parse_variant("fwd_cpu", options.workload, cpu_facts());
    run_->trial_runner.set_base(run_->trial_runner.build(variant));
    std::string rows(compile::device_file("cpu/rows.hpp"));
    const std::string line = "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");\n";
    rows.replace(rows.find(line), line.size(), "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n");
    const Overlay overlay{{{"cpu/rows.hpp", rows}}};
    evolve::Proposal edit;
    edit.config = values_of(variant);
    edit.operation = evolve::Operation::edit;
    edit.why = "tests the sum";
    edit.overlay = std::make_shared<const Overlay>(overlay);
    std::vector<evolve::Place> places = evolve::places_of({edit});
    evolve::start_build(*run_, places.front().drafts.front());
    run_->add_trial(evolve::run_best_of(*run_, 0, 0, places.front()), 1);
  }

  testing_support::TemporaryFolder folder_;
  store::Store store_{folder_.file("a.db")};
  Silent observer_;
  std::optional<evolve::RunContext> run_;
};

TEST_F(EditedFinalist, IsChampionWhereNoToolObjects) {
  ASSERT_TRUE(run_->trials.front().ok()) << run_->trials.front().reason;
  std::vector<std::int64_t> asked;
  run_->sanitize = [&](std::int64_t trial) {
    asked.push_back(trial);
    return std::string();
  };
  const evolve::FinalOutcome outcome = evolve::Finals(*run_).compare({});
  ASSERT_TRUE(outcome.champion.has_value()) << ::testing::PrintToString(outcome.refused);
  EXPECT_EQ(asked, std::vector<std::int64_t>{run_->trials.front().id});
}

TEST_F(EditedFinalist, IsRefusedForWhatAToolFinds) {
  ASSERT_TRUE(run_->trials.front().ok()) << run_->trials.front().reason;
  int asked = 0;
  run_->sanitize = [&](std::int64_t) {
    ++asked;
    return std::string("racecheck: Race reported between Write access and Read access");
  };
  evolve::Finals finals(*run_);
  for (int round = 0; round < 2; ++round) {  // an ablation begins a second one
    const evolve::FinalOutcome outcome = finals.compare({});
    EXPECT_FALSE(outcome.champion.has_value());
    ASSERT_FALSE(outcome.refused.empty());
    EXPECT_EQ(outcome.refused.back(), "trial 0: racecheck: Race reported between Write access and Read access");
  }
  EXPECT_EQ(asked, 1) << "the tools take minutes";
}

TEST_F(EditedFinalist, IsRefusedForWhatTheEmulatorSees) {
  ASSERT_TRUE(run_->trials.front().ok()) << run_->trials.front().reason;
  int asked = 0;
  run_->emulate = [&](const Variant& variant) {
    ++asked;
    EXPECT_EQ(variant.id(), run_->trials.front().variant);
    emulator::Report report;
    report.outcome = emulator::Outcome::failed;
    report.verdict = Verdict::crashed;
    report.reason = "the emulated kernel is stuck: 128 threads at __syncthreads;";
    return report;
  };
  run_->sanitize = [](std::int64_t) -> std::string { throw std::logic_error("the tools take minutes"); };
  evolve::Finals finals(*run_);
  for (int round = 0; round < 2; ++round) {
    const evolve::FinalOutcome outcome = finals.compare({});
    EXPECT_FALSE(outcome.champion.has_value());
    ASSERT_FALSE(outcome.refused.empty());
    EXPECT_EQ(outcome.refused.back(),
              "trial 0: on the emulated GPU: crashed: the emulated kernel is stuck: 128 threads at __syncthreads;");
  }
  EXPECT_EQ(asked, 1);
  int stored = 0;
  for (const store::ComparisonRecord& c : store_.comparisons(run_->run))
    if (c.kind == "emulated") {
      ++stored;
      EXPECT_EQ(c.data.at("trial_id").get<std::int64_t>(), run_->trials.front().id);
    }
  EXPECT_EQ(stored, 2) << "a round may remove those of the round before";
}

// No verdict: a search goes on.
TEST_F(EditedFinalist, IsChampionWhereTheEmulatorCannotTell) {
  run_->emulate = [](const Variant&) {
    emulator::Report report;
    report.outcome = emulator::Outcome::not_run;
    report.reason = "there is no compiler";
    return report;
  };
  EXPECT_TRUE(evolve::Finals(*run_).compare({}).champion.has_value());
}

}  // namespace
}  // namespace heed::trial

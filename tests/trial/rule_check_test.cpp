// heed rules --measure: which workloads rows are measured at, beside which others, and that a slow row is seen.
#include "trial/rule_check.hpp"

#include "trial/quick_trials.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;

TEST(RuleCheck, WorkloadsAreThoseOfTheProvenanceThatTheRowDecides) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Family& family = find_family("fwd_sm90_persistent");
  const std::vector<RuleWorkload> found = workloads_of_rules(family, hopper, "");
  EXPECT_GT(found.size(), 20U);
  for (const RuleWorkload& at : found) {
    RuleTrace trace;
    (void)family.default_by(at.workload, hopper, trace);
    for (const DecidedRow& row : at.rows)
      EXPECT_TRUE(std::any_of(trace.decided.begin(), trace.decided.end(), [&](const DecidedRow& decided) {
        return decided.rule == row.rule && decided.row == row.row;
      })) << to_string(at.workload);
  }
  for (const RuleWorkload& at : workloads_of_rules(family, hopper, "store"))
    for (const DecidedRow& row : at.rows) EXPECT_EQ(row.rule, "store");
  // A family of quantised inputs alone is measured with some.
  const std::vector<RuleWorkload> quantised = workloads_of_rules(find_family("fwd_sm90_fp8"), hopper, "");
  ASSERT_FALSE(quantised.empty());
  EXPECT_TRUE(quantised.front().workload.quantised.has_value());
}

TEST(RuleCheck, OtherRowsAreLegalVariantsThatDiffer) {
  const DeviceFacts hopper = gpu_limits("sm_90a");
  const Family& family = find_family("fwd_sm90_persistent");
  int others = 0;
  for (const RuleWorkload& at : workloads_of_rules(family, hopper, "")) {
    const Variant standard = make_variant(family, family.default_config(at.workload, hopper), at.workload);
    for (const OtherRow& other : other_rows(family, at, hopper)) {
      ++others;
      EXPECT_NE(other.variant.id(), standard.id());
      EXPECT_NE(other.other, other.decided.row);
      EXPECT_EQ(other.variant.is_illegal(at.workload, hopper), std::nullopt);
    }
  }
  EXPECT_GT(others, 50);
}

// Queries in the lanes of a launch with one query: most lanes hold nothing.
TEST(RuleCheck, ARowIsMeasuredBesideTheOneThatDecides) {
  const DeviceFacts device = cpu_facts();
  const Family& family = find_family("fwd_cpu");
  const RuleWorkload at{parse_workload("b1h4l1k256d64:fp32"), {{"lanes", 0}}};
  TrialRunner trial_runner(at.workload, device, builder(), nullptr, quick());
  std::vector<RuleReading> readings;
  check_rules(trial_runner, builder(), family, at, [&](RuleReading r) { readings.push_back(std::move(r)); });
  ASSERT_EQ(readings.size(), 1U);
  const RuleReading& reading = readings.front();
  EXPECT_TRUE(reading.outcome.ok()) << reading.outcome.reason;
  EXPECT_EQ(reading.rule, "lanes");
  EXPECT_EQ(reading.other, 1U);
  EXPECT_GT(reading.base_us, 0);
  EXPECT_THAT(reading.variant, ::testing::HasSubstr("lanes=queries"));
}

}  // namespace
}  // namespace heed::trial

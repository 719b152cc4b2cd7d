// What the runs of a model's workloads came to, as a table and as JSON.
#include "report/workloads.hpp"

#include "testing.hpp"

namespace heed::report {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of base 10 us; `low` decides whether the trial of 8 us is a champion.
store::RunRecord run(std::int64_t id, double low) {
  store::RunRecord record;
  record.id = id;
  record.base = {{"us", 11.0}, {"describe", "fwd_cpu"}};
  record.result = {{"self_spread", 0.001},
                   {"summary", "a sentence"},
                   {"final",
                    {{"base_us", 10.0},
                     {"trial_us", 8.0},
                     {"config", "fwd_cpu:block_m=32"},
                     {"ratio", {{"value", 1.25}, {"low", low}, {"high", 1.3}}}}}};
  return record;
}

WorkloadRow row(std::optional<store::RunRecord> record, std::string skipped = "") {
  return {.workload = "b1h8l512d64:fp32",
          .calls = 1000,
          .seconds = 0.25,
          .gain = 0.5,
          .trials = 4,
          .run = std::move(record),
          .trials_made = 5,
          .skipped = std::move(skipped)};
}

TEST(Workloads, ChampionsSaveTheTimeOfTheirCalls) {
  const std::vector<WorkloadRow> rows = {row(run(3, 1.2)), row(run(4, 0.99)), row(std::nullopt, "has dropout")};
  EXPECT_DOUBLE_EQ(saved_s(rows), 1000 * 2e-6);
  const json document = workloads_json(rows);
  EXPECT_DOUBLE_EQ(document["saved_s"].get<double>(), 0.002);
  const json& all = document["workloads"];
  EXPECT_EQ(all[0]["run"], 3);
  EXPECT_DOUBLE_EQ(all[0]["share"].get<double>(), 1 / 3.0);
  EXPECT_EQ(all[0]["result"]["outcome"], "faster");
  EXPECT_EQ(all[0]["result"]["champion"], "fwd_cpu:block_m=32");
  EXPECT_EQ(all[0]["result"]["trials"], 5);
  EXPECT_NE(all[1]["result"]["outcome"], "faster");
  EXPECT_FALSE(all[1]["result"].contains("champion_us"));
  EXPECT_EQ(all[2]["skipped"], "has dropout");
  EXPECT_FALSE(all[2].contains("run"));

  const std::string text = workloads_text(rows);
  EXPECT_THAT(text, AllOf(HasSubstr("33.3%"), HasSubstr("10.00"), HasSubstr("8.00"), HasSubstr("[1.2000, 1.3000]"),
                          HasSubstr("has dropout"),
                          HasSubstr("Expected saving for each recorded run of the model: 2 ms, by 1 champion against "
                                    "the base; the recorded calls took 750 ms.")));
}

TEST(Workloads, WithoutFinalComparisonsOrTimes) {
  store::RunRecord unfinished = run(5, 1);
  unfinished.result = {{"outcome", "no_variant"}, {"summary", "no variant passed"}};
  WorkloadRow without = row(unfinished);
  without.seconds = 0;
  WorkloadRow failed = row(std::nullopt);
  failed.failed = "the compiler refused";
  failed.seconds = 0;
  const std::vector<WorkloadRow> rows = {without, failed};
  EXPECT_EQ(saved_s(rows), 0);
  const json document = workloads_json(rows);
  EXPECT_EQ(document["workloads"][0]["share"], 0);
  EXPECT_EQ(document["workloads"][0]["result"]["outcome"], "no_variant");
  EXPECT_DOUBLE_EQ(document["workloads"][0]["result"]["base_us"].get<double>(), 11);
  EXPECT_EQ(document["workloads"][1]["failed"], "the compiler refused");
  EXPECT_THAT(workloads_text(rows), AllOf(HasSubstr("11.00"), HasSubstr("failed: the compiler refused"),
                                          HasSubstr("No champion: "), Not(HasSubstr("Expected saving"))));
}

}  // namespace
}  // namespace heed::report

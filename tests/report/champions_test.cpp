#include "report/champions.hpp"

#include "dispatch/tuned_table.hpp"
#include "testing.hpp"

namespace heed::report {
namespace {

store::RunRecord run_of(const std::string& workload, const std::string& arch, double us, double low = 1.9) {
  store::RunRecord run;
  run.workload = workload;
  run.families = "fwd_x";
  run.state = store::RunState::finished;
  run.device = {{"name", "A GPU"}, {"arch", arch}};
  run.options = {{"seed", 3}};
  run.base = {{"variant", "fwd_x_default"}, {"describe", "fwd_x:a=0"}};
  run.result = {{"outcome", "faster"},  // what an older rule said does not count
                {"self_spread", 0.0004},
                {"trials", 45},
                {"final",
                 {{"config", "fwd_x:a=1"},
                  {"variant", "fwd_x.a1"},
                  {"trial_us", us},
                  {"base_us", 2 * us},
                  {"error", {{"max_abs", 1e-4}}},
                  {"ratio", {{"value", low + 0.005}, {"low", low}, {"high", low + 0.01}}}}},
                {"peers",
                 {{"best", "cudnn"},
                  {"rows",
                   {{{"backend", "flash"}, {"us", 4 * us}, {"ratio", {{"value", 4.0}}}},
                    {{"backend", "cudnn"}, {"us", 3 * us}, {"ratio", {{"value", 3.0}}}},
                    {{"backend", "math"}, {"refused", "no"}}}}}}};
  return run;
}

dispatch::TunedTable table_of(const nlohmann::json& document) {
  return dispatch::TunedTable::parse(document.dump(), "x.json");
}

TEST(Champions, TheFastestOfEachWorkloadAndDevice) {
  store::RunRecord unfinished = run_of("a", "sm_90a", 1);
  unfinished.state = store::RunState::interrupted;
  store::RunRecord without_result = run_of("a", "sm_90a", 1);
  without_result.result = nullptr;
  const nlohmann::json found =
      champions_of({run_of("b", "sm_90a", 5), run_of("a", "sm_90a", 7), run_of("a", "sm_90a", 6),
                    run_of("a", "sm_80", 9), run_of("c", "sm_90a", 1, 1.001), unfinished, without_result});
  ASSERT_EQ(found["champions"].size(), 3U);
  EXPECT_EQ(found["champions"][0]["arch"], "sm_80");
  EXPECT_EQ(found["champions"][1]["us"], 6);
  EXPECT_EQ(found["champions"][1]["variant"], "fwd_x:a=1");
  EXPECT_EQ(found["champions"][1]["peer"]["backend"], "cudnn");
  EXPECT_EQ(found["champions"][1]["peer"]["us"], 18);
  EXPECT_EQ(found["champions"][1]["base"]["variant"], "fwd_x_default");
  EXPECT_EQ(found["champions"][1]["base"]["config"], "fwd_x:a=0");
  EXPECT_EQ(table_of(found).entries()[1].provenance.base_config, "fwd_x:a=0");
  EXPECT_EQ(found["champions"][2]["workload"], "b");
  EXPECT_THAT(champions_text(found), ::testing::HasSubstr("fwd_x.a1"));
  EXPECT_THAT(champions_text(champions_of({})), ::testing::HasSubstr("No finished run"));
}

TEST(Champions, OneOfAWorkloadIsFound) {
  const Workload workload = parse_workload("b1h8l512d64");
  const std::string shape = to_string(workload);
  const nlohmann::json all = champions_of({run_of(shape, "sm_90a", 5), run_of("b", "sm_90a", 7)});
  EXPECT_EQ(table_of(all).find(workload, "sm_90a", "A GPU"), "fwd_x:a=1");
  EXPECT_EQ(table_of(all).find(workload, "sm_80", "A GPU"), std::nullopt);
  EXPECT_EQ(table_of(all).find(parse_workload("b1h8l512d64:bf16"), "sm_90a", "A GPU"), std::nullopt);
  EXPECT_EQ(table_of(champions_of({run_of(shape, "sm_90a", 5, 1.0)})).find(workload, "sm_90a", "A GPU"), std::nullopt)
      << "a base that nothing beat is the default anyway";
  for (const nlohmann::json& other :
       {nlohmann::json::array(), nlohmann::json{{"what", "arena"}}, nlohmann::json{{"what", "champions"}}})
    testing_support::expect_error(ErrorCode::usage, "x.json holds no champions", [&] { table_of(other); });
  testing_support::expect_error(ErrorCode::usage, "x.json is no JSON",
                                [] { (void)dispatch::TunedTable::parse("{", "x.json"); });
}

// A table of another Heed may lack members, or hold them with another type.
TEST(Champions, EntriesThatSayTooLittleAreNobodys) {
  const nlohmann::json odd = {{"what", "champions"}, {"champions", {3, {{"workload", 7}}, nlohmann::json::array()}}};
  EXPECT_EQ(table_of(odd).find(parse_workload("b1h8l512d64"), "sm_90a", "A GPU"), std::nullopt);
}

// Devices of one architecture have champions of their own: what memory a kernel waits for differs.
TEST(Champions, EveryDeviceHasItsOwn) {
  const Workload workload = parse_workload("b1h8l512d64");
  const auto on = [&](const std::string& name, const std::string& variant, double low) {
    store::RunRecord run = run_of(to_string(workload), "sm_90a", 5, low);
    run.device["name"] = name;
    run.result["final"]["config"] = variant;
    return run;
  };
  const nlohmann::json all =
      champions_of({on("Slow", "fwd_x:a=1", 1.9), on("Fast", "fwd_x:a=2", 1.9), on("Best", "fwd_x:a=3", 1.0)});
  ASSERT_EQ(all["champions"].size(), 2U);
  const dispatch::TunedTable table = table_of(all);
  EXPECT_EQ(table.find(workload, "sm_90a", "Slow"), "fwd_x:a=1");
  EXPECT_EQ(table.find(workload, "sm_90a", "Fast"), "fwd_x:a=2");
  EXPECT_EQ(table.find(workload, "sm_90a", "Best"), std::nullopt) << "its base is unbeaten";
  EXPECT_EQ(table.find(workload, "sm_90a", "Other"), "fwd_x:a=2") << "the first of its architecture";
  EXPECT_EQ(table.find(workload, "sm_80", "Other"), std::nullopt);
}

TEST(Champions, TheSourcesThatRanLastDecide) {
  store::RunRecord before = run_of("a", "sm_90a", 5);
  before.source_digest = "old";
  before.created = "2026-01-01T00:00:00Z";
  store::RunRecord after = run_of("a", "sm_90a", 6, 1.001);
  after.source_digest = "new";
  after.created = "2026-01-02T00:00:00Z";
  for (const auto& runs : {std::vector{before, after}, std::vector{after, before}}) {
    const nlohmann::json found = champions_of(runs);
    EXPECT_EQ(found["champions"].size(), 0U);
    EXPECT_EQ(found["unbeaten"].size(), 1U);
    EXPECT_THAT(champions_text(found), ::testing::HasSubstr("nothing faster than fwd_x_default"));
  }
  // Of the same sources one champion is enough.
  after.source_digest = "old";
  EXPECT_EQ(champions_of({before, after})["champions"].size(), 1U);
  EXPECT_EQ(champions_of({after, before})["champions"].size(), 1U);
}

// Of the same sources, but what an earlier referee called faster does not stand against a later one's word.
TEST(Champions, TheRefereeThatRanLastDecides) {
  store::RunRecord before = run_of("a", "sm_90a", 5);
  before.created = "2026-01-01T00:00:00Z";
  store::RunRecord after = run_of("a", "sm_90a", 6, 1.001);
  after.created = "2026-01-02T00:00:00Z";
  EXPECT_EQ(champions_of({before, after})["champions"].size(), 1U);
  after.options["referee"] = 2;
  for (const auto& runs : {std::vector{before, after}, std::vector{after, before}}) {
    const nlohmann::json found = champions_of(runs);
    EXPECT_EQ(found["champions"].size(), 0U);
    ASSERT_EQ(found["unbeaten"].size(), 1U);
    EXPECT_EQ(found["unbeaten"][0]["referee"], 2);
  }
}

TEST(Champions, MergingKeepsWhatIsNotMeasuredAgain) {
  const nlohmann::json earlier = champions_of({run_of("a", "sm_90a", 6), run_of("b", "sm_90a", 5)});
  const nlohmann::json newer = champions_of({run_of("a", "sm_90a", 8)});
  const nlohmann::json all = merge_champions(earlier, newer);
  ASSERT_EQ(all["champions"].size(), 2U);
  EXPECT_EQ(all["champions"][0]["us"], 8);
  EXPECT_EQ(all["unbeaten"].size(), 0U);
  // A base that nothing beats any more takes the champion's place.
  const nlohmann::json last = merge_champions(all, champions_of({run_of("b", "sm_90a", 5, 1.001)}));
  ASSERT_EQ(last["champions"].size(), 1U);
  EXPECT_EQ(last["champions"][0]["workload"], "a");
  ASSERT_EQ(last["unbeaten"].size(), 1U);
  EXPECT_EQ(last["unbeaten"][0]["base"]["variant"], "fwd_x_default");
  // Not where its family was not searched.
  store::RunRecord elsewhere = run_of("b", "sm_90a", 5, 1.001);
  elsewhere.families = "fwd_y,fwd_xy";
  EXPECT_EQ(merge_champions(all, champions_of({elsewhere})), all);
  for (const nlohmann::json& wrong : {nlohmann::json(), nlohmann::json::array(), nlohmann::json{{"what", "arena"}}})
    testing_support::expect_error(ErrorCode::usage, "holds no champions", [&] { merge_champions(wrong, newer); });
}

}  // namespace
}  // namespace heed::report

// Diagnoses as they are stored with trials, and what a later generation reads of them.
#include "record/diagnosis.hpp"

#include "testing.hpp"

namespace heed::record {
namespace {

profile::Diagnosis latency() {
  profile::Diagnosis d;
  d.bound = Bound::latency;
  d.with_counters = true;
  d.shares = {{Bound::latency, 0.5}, {Bound::tensor, 0.25}};
  d.occupancy = {.blocks = 264, .blocks_per_processor = 2, .limit = "registers", .rounds = 1};
  d.knobs = {"stages", "block_n"};
  d.text = "Bound by latency.";
  return d;
}

TEST(StoredDiagnosis, HoldsWhatWasDiagnosedAndWhatWasCounted) {
  profile::Counters counters;
  counters.tensor_percent = 25;
  counters.duration_us = 3.5;
  counters.stalls = {{"long_scoreboard", 1.5}, {"wait", 0.5}};
  const nlohmann::json stored = nlohmann::json::parse(to_json(latency(), counters).dump());
  EXPECT_EQ(stored["bound"], "latency");
  EXPECT_EQ(stored["shares"], (nlohmann::json{{"latency", 0.5}, {"tensor", 0.25}}));
  EXPECT_EQ(stored["occupancy"]["limit"], "registers");
  EXPECT_EQ(stored["knobs"], (nlohmann::json{"stages", "block_n"}));
  EXPECT_EQ(stored["text"], "Bound by latency.");
  EXPECT_EQ(stored["counters"], nlohmann::json::parse(R"({"tensor_percent": 25.0, "duration_us": 3.5, "stalls": [
              {"reason": "long_scoreboard", "warps": 1.5}, {"reason": "wait", "warps": 0.5}]})"));
  EXPECT_EQ(bound_of(stored), Bound::latency);
  EXPECT_TRUE(has_counters(stored));
  EXPECT_EQ(to_json(latency(), std::nullopt)["counters"], nullptr);
}

TEST(StoredDiagnosis, NoneAndUnknownOnesSayNothing) {
  for (const nlohmann::json& none : {nlohmann::json(), nlohmann::json::object(), nlohmann::json::array()}) {
    EXPECT_EQ(bound_of(none), Bound::unknown);
    EXPECT_FALSE(has_counters(none));
  }
  EXPECT_EQ(bound_of({{"bound", "gremlins"}}), Bound::unknown);
}

}  // namespace
}  // namespace heed::record

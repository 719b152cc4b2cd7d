// The options of a run as they are stored with it: what is read is what was asked, and what cannot be is an error.
#include "record/run_options.hpp"

#include "testing.hpp"

namespace heed::record {
namespace {

RunOptions unusual() {
  RunOptions o;
  o.workload = parse_workload("b2h8hkv2l512k700d80:bf16:causal_bottom_right:window=100:scale=0.3");
  o.families = {"fwd_sm90_split", "fwd_sm80"};
  o.strategy = {.kind = StrategyKind::islands,
                .population = 7,
                .drafts = 9,
                .islands = 4,
                .migration_every = 2,
                .seed = 0xfedcba9876543210U};
  o.hold = "rowsum=mma";
  o.found = {"fwd_sm80:block_m=32"};
  o.trials = 12;
  o.budget_s = 34.5;
  o.peers = false;
  o.python = "/opt/python";
  o.profile = false;
  o.tensors = {"q.npy", "k.npy", "v.npy"};
  o.tensors_digest = "0123";
  return o;
}

TEST(RunOptions, AreReadAsTheyWereStored) {
  const nlohmann::json stored = nlohmann::json::parse(to_json(unusual()).dump());
  const RunOptions read = options_from_json(stored);
  EXPECT_EQ(to_json(read), stored);
  EXPECT_EQ(to_string(read.workload), to_string(unusual().workload));
  EXPECT_EQ(read.strategy.kind, StrategyKind::islands);
  EXPECT_EQ(read.strategy.seed, 0xfedcba9876543210U);
  EXPECT_EQ(read.tensors, unusual().tensors);
}

// Runs of before searches took up what earlier ones found, or held knobs, are read, too.
TEST(RunOptions, OnlyWhatEarlierRunsFoundAndHeldKnobsMayBeMissing) {
  const nlohmann::json stored = to_json(unusual());
  for (const auto& [key, value] : stored.items()) {
    nlohmann::json without = stored;
    without.erase(key);
    if (key == "found")
      EXPECT_TRUE(options_from_json(without).found.empty());
    else if (key == "hold")
      EXPECT_TRUE(options_from_json(without).hold.empty());
    else
      EXPECT_THROW((void)options_from_json(without), nlohmann::json::exception) << key;
  }
}

TEST(RunOptions, WorkloadsAndStrategiesThatThereAreNotAreSentences) {
  nlohmann::json stored = to_json(unusual());
  stored["strategy"] = "elites";
  testing_support::expect_error(ErrorCode::usage, "did you mean \"elite\"?", [&] { (void)options_from_json(stored); });
  stored = to_json(unusual());
  stored["workload"] = "b0h8l512d64";
  testing_support::expect_error(ErrorCode::invalid_workload, "not positive", [&] { (void)options_from_json(stored); });
}

}  // namespace
}  // namespace heed::record

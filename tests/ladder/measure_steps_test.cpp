// The ladder's way through gate, clock, table and evidence, on the CPU with steps of fwd_cpu.
#include "folders.hpp"
#include "ladder/ladder.hpp"

#include <fmt/format.h>

#include <set>

#include "ladder/report.hpp"
#include "process/process.hpp"
#include "testing.hpp"

namespace heed::ladder {
namespace {

using testing_support::expect_error;
using testing_support::shared_cache;

Options quick() {
  Options options;
  options.trial.launch_limit_s = 10;
  options.trial.pair = {
      .least_quads = 3, .most_quads = 4, .target_uncertainty = 0.05, .hopeless_below = 0, .limit_s = 0.2};
  options.trial.final_pair = options.trial.pair;
  options.peers = false;
  return options;
}

Step step(const std::string& name, const std::string& variant, double predicted, const std::string& before) {
  return {.name = name, .title = name, .variant = variant, .backend = {}, .predicted = predicted, .before = before};
}

Result measure_on_cpu(const std::vector<Step>& steps, const std::string& workload, const Options& options,
                      const DeviceFacts& device = cpu_facts()) {
  jit::BuilderOptions builder_options;
  builder_options.cache_folder = shared_cache();
  jit::Builder builder(builder_options);
  return measure_steps(steps, parse_workload(workload), device, builder, options,
                       [](const std::string& message) { fmt::print("{}\n", message); });
}

TEST(Road, EveryStepHasOnePlaceAndAPrediction) {
  const std::vector<Step> steps = ladder::steps();
  EXPECT_GE(steps.size(), 16U);
  const DeviceFacts device = gpu_limits("sm_90a");
  const Workload workload = parse_workload("b1h8l512d64");
  std::set<std::string> names;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(steps[i].name);
    EXPECT_TRUE(names.insert(steps[i].name).second);
    EXPECT_NE(steps[i].variant.empty(), steps[i].backend.empty());
    EXPECT_EQ(steps[i].before, i == 0 ? "" : steps[i - 1].name);
    EXPECT_EQ(steps[i].predicted > 0, i > 0);
    if (steps[i].variant.empty()) continue;
    const Variant variant = parse_variant(steps[i].variant, workload, device);
    EXPECT_EQ(variant.is_illegal(workload, device), std::nullopt);
  }
}

TEST(Road, ChoosesByNameInItsOwnOrder) {
  const std::vector<Step> all = steps();
  EXPECT_EQ(choose(all, "").size(), all.size());
  const std::vector<Step> two = choose(all, "swizzle,scalar");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].name, "scalar");
  EXPECT_EQ(two[1].name, "swizzle");
  expect_error(ErrorCode::usage, "did you mean \"swizzle\"?", [&] { choose(all, "scalar,swizle"); });
}

TEST(MeasureSteps, MeasuresEveryStepAgainstTheOneBefore) {
  const Result result =
      measure_on_cpu({step("one", "fwd_cpu:threads=1,block_m=192", 0, ""), step("two", "fwd_cpu:threads=1", 1.5, "one"),
                      step("three", "fwd_cpu:threads=2", 1.1, "elsewhere")},
                     "b1h2l128d64:fp32", quick());
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_TRUE(result.passed());
  for (const Row& row : result.rows) {
    SCOPED_TRACE(row.step.name + ": " + row.reason);
    EXPECT_EQ(row.verdict, Verdict::ok);
    EXPECT_GT(row.us, 0);
    EXPECT_GT(row.tflops, 0);
    EXPECT_GE(row.max_abs, 0);
  }
  EXPECT_FALSE(result.rows[0].to_before.has_value());
  EXPECT_EQ(result.rows[1].before, "one");
  EXPECT_TRUE(result.rows[1].comparable());
  EXPECT_FALSE(result.rows[2].comparable()) << "its prediction speaks of another step";
  EXPECT_DOUBLE_EQ(result.rows[0].to_first, 1);
  EXPECT_GT(result.floor.us(), 0);

  const nlohmann::json json = evidence(result);
  for (const char* key : {"schema", "what", "device", "arch", "driver", "heed", "source_digest", "rows", "table"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["rows"][1]["before"], "one");
  EXPECT_EQ(json["rows"][1]["predicted"], 1.5);
  EXPECT_EQ(json["rows"][1]["before_ratio_ci"].size(), 2U);
  EXPECT_TRUE(json["rows"][1]["tensor_pipe_share"].is_null());
  for (const Row& row : result.rows) EXPECT_EQ(json["programs"][row.variant_id], row.machine_code);
  EXPECT_EQ(json["table"], table_text(result));
  EXPECT_THAT(table_text(result), ::testing::HasSubstr("No comparison with PyTorch: not asked for"));
  EXPECT_THAT(table_text(result), ::testing::HasSubstr("three was measured against two"));
}

// A step that gives wrong results is a row and a failure; the next one is measured against the last good one.
TEST(MeasureSteps, AStepThatDoesNotPassTheGateIsARow) {
  const std::vector<Step> steps = {step("good", "fwd_cpu:threads=1", 0, ""),
                                   step("coarse", "fwd_cpu:exp2=degree3", 2, "good"),
                                   step("again", "fwd_cpu:threads=1,block_m=192", 1, "coarse")};
  const Result result = measure_on_cpu(steps, "b1h2l128d64:fp32", quick());
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_FALSE(result.passed());
  EXPECT_EQ(result.rows[1].verdict, Verdict::wrong);
  EXPECT_FALSE(result.rows[1].measured());
  EXPECT_EQ(result.rows[2].before, "good");
  EXPECT_FALSE(result.rows[2].comparable());
  EXPECT_THAT(table_text(result), ::testing::HasSubstr("coarse: wrong: "));
  EXPECT_EQ(evidence(result)["rows"][1]["verdict"], "wrong");
  EXPECT_FALSE(evidence(result)["passed"].get<bool>());

  const Result from_the_start = measure_on_cpu({steps[1], steps[0]}, "b1h2l128d64:fp32", quick());
  EXPECT_FALSE(from_the_start.passed());
  EXPECT_EQ(from_the_start.rows[0].verdict, Verdict::wrong);
  EXPECT_TRUE(from_the_start.rows[1].measured());
}

TEST(MeasureSteps, WhatCannotBeTriedIsADashWithItsReason) {
  Options options = quick();
  options.peers = true;
  options.python = "no-such-python";
  Step hybrid = step("hybrid", "", 2, "");
  hybrid.backend = measure::kHybridBackend;
  const Result result = measure_on_cpu({step("gpu", "fwd_sm80", 0, ""), hybrid, step("cpu", "fwd_cpu", 1, "hybrid")},
                                       "b1h1l64d64:fp16", options);
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_TRUE(result.passed()) << "what was not tried did not fail";
  EXPECT_FALSE(result.rows[0].verdict.has_value());
  EXPECT_THAT(result.rows[0].reason, ::testing::HasSubstr("NVIDIA"));
  EXPECT_THAT(result.rows[1].reason, ::testing::HasSubstr("no-such-python is not on the PATH"));
  EXPECT_TRUE(result.rows[2].measured());
  EXPECT_FALSE(result.rows[2].to_before.has_value());
  EXPECT_THAT(table_text(result), ::testing::HasSubstr("hybrid: PyTorch: no-such-python"));
}

TEST(MeasureSteps, AsksTheProfilerForSharesOfGoodSteps) {
  Options options = quick();
  int asked = 0;
  options.profiler = [&](const trial::Built&, const Workload&, const DeviceFacts&) {
    ++asked;
    return Shares{.tensor_pipe = 0.25, .dram = {}};
  };
  const Result result = measure_on_cpu(
      {step("good", "fwd_cpu", 0, ""), step("coarse", "fwd_cpu:exp2=degree3", 1, "good")}, "b1h1l64d64:fp32", options);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(result.rows[0].shares.tensor_pipe, 0.25);
  EXPECT_THAT(table_text(result), ::testing::HasSubstr("25%"));
  EXPECT_TRUE(evidence(result)["rows"][0]["dram_share"].is_null());
}

// The hybrid is right and has a time where there is a PyTorch.
TEST(MeasureSteps, MeasuresTheHybridAndWhatComesAfterAgainstIt) {
  const std::filesystem::path python = std::filesystem::path(testing_support::kSourceFolder) / ".venv/bin/python";
  if (!run_process({python.string(), "-c", "import torch"}, {}, 60).ok()) GTEST_SKIP() << "no PyTorch in .venv";
  Options options = quick();
  options.peers = true;
  options.python = python.string();
  DeviceFacts device = cpu_facts();
  device.processors = 1;  // PyTorch's threads wait for each other by spinning, which a busy machine pays for
  Step hybrid = step("hybrid", "", 2, "one");
  hybrid.backend = measure::kHybridBackend;
  const Result result = measure_on_cpu(
      {step("one", "fwd_cpu:threads=1", 0, ""), hybrid, step("two", "fwd_cpu:threads=1,block_m=192", 1, "hybrid")},
      "b2h4hkv2l256d64:fp32:causal_top_left", options, device);
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_GT(result.rows[1].us, 0) << result.rows[1].reason;
  EXPECT_EQ(result.rows[1].before, "one");
  EXPECT_GE(result.rows[1].max_abs, 0);
  EXPECT_LT(result.rows[1].max_abs, 1e-4);
  EXPECT_EQ(result.rows[2].before, "hybrid");
  EXPECT_TRUE(result.rows[2].comparable()) << result.rows[2].reason;
  EXPECT_FALSE(result.best_peer.empty());
  EXPECT_NE(result.best_peer, measure::kHybridBackend);
  for (const Row& row : result.rows) EXPECT_TRUE(row.to_peer.has_value()) << row.step.name;
  EXPECT_EQ(evidence(result)["rows"][1].count("heed_us"), 0U);
}

}  // namespace
}  // namespace heed::ladder

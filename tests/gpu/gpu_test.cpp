// Needs an NVIDIA GPU; without one every test says that it was skipped, or fails where HEED_REQUIRE names it.
#include <cstring>
#include <iostream>
#include <set>

#include "base/random.hpp"
#include "exploits/exploits.hpp"
#include "gpu/gpu_test.hpp"
#include "launch/tensor_map.hpp"
#include "profile/collect.hpp"
#include "profile/diagnosis.hpp"
#include "testing.hpp"
#include "trial/trial_runner.hpp"
#include "worker/executor.hpp"

namespace heed {
namespace {

using testing_support::case_table;

using Gpu = testing_support::GpuTest;

TEST_F(Gpu, CaseTablePassesOnEveryFamily) {
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cuda) continue;
    std::unique_ptr<trial::TrialRunner> trial_runner;
    for (const Workload& workload : case_table()) {
      if (family->refuses(workload, device_)) continue;
      trial_runner = std::make_unique<trial::TrialRunner>(workload, device_, *builder_, nullptr, trial::Options{},
                                                          trial_runner.get());
      const Variant variant = make_variant(*family, family->default_config(workload, device_), workload);
      const verify::GateReport report = trial_runner->verify(trial_runner->build(variant), fresh_seed());
      EXPECT_TRUE(report.passed()) << variant.id() << " at " << to_string(workload) << ": " << report.check << ": "
                                   << report.reason;
    }
  }
}

// One GPU context for many workloads: the same binary with other plans, memory that grows.
TEST_F(Gpu, OneWorkerServesManyWorkloads) {
  std::unique_ptr<trial::TrialRunner> trial_runner;
  for (const char* shape : {"b1h2l64d64", "b1h4l300d64", "b1h2l64d64", "b2h4l700d128", "b1h1l30d64"}) {
    const Workload workload = parse_workload(shape);
    trial_runner = std::make_unique<trial::TrialRunner>(workload, device_, *builder_, nullptr, trial::Options{},
                                                        trial_runner.get());
    const trial::Built built = trial_runner->build(parse_variant("fwd_sm80", workload, device_));
    const verify::GateReport report = trial_runner->verify(built, 1);
    EXPECT_TRUE(report.passed()) << shape << ": " << report.check << ": " << report.reason;
  }
}

TEST_F(Gpu, EveryStepOfTheLadderPasses) {
  const Family& family = find_family("ladder");
  for (const char* text : {"b1h8l512d64:fp16", "b1h4l200d64:bf16:causal_top_left", "b2h4hkv2l100k150d128:fp16:blhd",
                           "b1h2l300k200d128:bf16:causal_bottom_right"}) {
    const Workload workload = parse_workload(text);
    trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
    for (const int step : family.knobs()[0].values) {
      const Variant variant = make_variant(family, {step}, workload);
      if (family.is_illegal(variant.config, workload, device_)) continue;
      const verify::GateReport report = trial_runner.verify(trial_runner.build(variant), fresh_seed());
      EXPECT_TRUE(report.passed()) << describe(variant) << " at " << text << ": " << report.check << ": "
                                   << report.reason;
    }
  }
}

TEST_F(Gpu, EveryExploitIsCaughtForWhatItIs) {
  for (const exploits::SelftestRow& row :
       exploits::run_selftest(device_, *builder_, [](const exploits::SelftestRow&) {}))
    EXPECT_TRUE(row.caught) << row.name << ": expected " << row.expected << ", found " << row.found << "; "
                            << row.reason;
}

// The honest kernel behind a wait: its chains are right, and as a dependent it is timed beside its plain launch.
TEST_F(Gpu, AnHonestDependentPasses) {
  if (device_.compute_capability < 90) GTEST_SKIP() << "griddepcontrol needs compute capability 9.0";
  const Workload workload = parse_workload("b1h8l512d64");
  trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
  Variant variant = parse_variant("fwd_sm80", workload, device_);
  variant.label = "test.dependent";
  variant.extras.supports_pdl = true;
  variant.source =
      "extern \"C\" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)\n"
      "    heed_forward(const __grid_constant__ heed::ForwardParams params) {\n"
      "  extern __shared__ __align__(128) char shared[];\n"
      "  asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\");\n"
      "  asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
      "  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();\n"
      "}\n";
  const trial::Built built = trial_runner.build(variant);
  const verify::GateReport report = trial_runner.verify(built, fresh_seed());
  ASSERT_TRUE(report.passed()) << report.check << ": " << report.reason;
  bool chained = false;
  for (const verify::CheckResult& check : report.checks) chained = chained || check.name == "chained launches";
  EXPECT_TRUE(chained);
  const trial::Absolute times = trial_runner.measure_absolute(built);
  EXPECT_GT(times.dependent_us, 0);
  std::cout << "plain " << times.warm_us << " us, as a dependent " << times.dependent_us << " us\n";
  const trial::Built plain = trial_runner.build(parse_variant("fwd_sm80", workload, device_));
  EXPECT_EQ(trial_runner.measure_absolute(plain).dependent_us, 0);
}

// The driver takes the maps of dense tensors, of interleaved heads and of single rows.
TEST_F(Gpu, TheDriverEncodesTensorMaps) {
  if (device_.compute_capability < 90) GTEST_SKIP() << "tensor maps need compute capability 9.0";
  const auto context = worker::make_cuda_executor();  // encoding wants one
  for (const char* text : {"b2h4l100k300d64", "b2h4hkv2l100d128:bf16:blhd", "b1h1l1d64", "b1h2l1k300d128:blhd",
                           "b1h2l100k300d64:causal_top_left", "b1h2l100d96", "b1h2l100d32:blhd"}) {
    const Workload w = parse_workload(text);
    const verify::Scene scene(w, verify::make_inputs(w, verify::InputClass::normal, 1), LaunchPlan{}, 1);
    const TensorMapSpec boxes{
        .problem = problem_of(w), .columns = 64, .q_rows = 64, .k_rows = 128, .v_rows = 128, .o_rows = 64};
    const FeatureParams params = worker::resolve(scene.launch(), 0x7f0000000000);
    try {
      const TensorMaps maps = encode_tensor_maps(params, boxes);
      const TensorMap none{};
      EXPECT_NE(std::memcmp(&maps.q, &none, sizeof none), 0);
      EXPECT_NE(std::memcmp(&maps.o, &none, sizeof none), 0);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": " << error.what();
    }
  }
}

TEST_F(Gpu, MeasuresAVariantAgainstTheBase) {
  const Workload workload = parse_workload("b1h8l512d64");
  trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
  trial_runner.set_base(trial_runner.build(parse_variant("fwd_sm80", workload, device_)));
  const measure::Ratio self = trial_runner.base_against_itself().pair.ratio;
  EXPECT_NEAR(self.value, 1, 0.1);
  const trial::Built slow =
      trial_runner.build(parse_variant("fwd_sm80:smem_layout=linear,block_n=16", workload, device_));
  const trial::Outcome outcome =
      trial_runner.judge(slow.variant, {.artifact = slow.artifact, .timed_out = false, .log = {}}, fresh_seed());
  ASSERT_TRUE(outcome.ok()) << outcome.reason;
  EXPECT_LT(outcome.pair.ratio.high, 1) << "bank conflicts and small tiles must not look faster";
  EXPECT_GT(outcome.pair.trial_median_us, trial_runner.floor(0).us());
}

// Keys and values that every launch marks to be evicted first are found again by the next one only in a cache that
// nothing else has filled: without Executor::time's filling this looked 1% faster, next to another process 15% slower.
TEST_F(Gpu, InputsThatLastInAnEmptyCacheAloneAreNotFaster) {
  if (device_.arch != "sm_90a") GTEST_SKIP() << "fwd_sm90_persistent needs sm_90a";
  const Workload workload = parse_workload("b1h8l1024d64");
  trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
  const std::string config =
      "fwd_sm90_persistent:m_warpgroups=1,kv_groups=2,block_n=64,stages=2,scheduler=single_tile,";
  trial_runner.set_base(trial_runner.build(parse_variant(config + "evict_first=none", workload, device_)));
  const trial::Built marked = trial_runner.build(parse_variant(config + "evict_first=q_kv", workload, device_));
  const trial::Outcome outcome =
      trial_runner.judge(marked.variant, {.artifact = marked.artifact, .timed_out = false, .log = {}}, fresh_seed());
  ASSERT_TRUE(outcome.ok()) << outcome.reason;
  EXPECT_LT(outcome.pair.ratio.high, 1) << "the L2 was not filled before a reading";
}

TEST_F(Gpu, CountersOfTheDefaultAtTheMissionShape) {
  const Workload workload = parse_workload("b1h8l512d64");
  trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
  const trial::Built built = trial_runner.build(parse_variant("fwd_sm80", workload, device_));
  const LaunchPlan plan = built.variant.plan(workload, device_);
  const profile::Reading reading = profile::collect(plan, built.artifact, workload, device_, {});
  if (!reading.counters) GTEST_SKIP() << "no counters: " << reading.reason;
  const profile::Counters& c = *reading.counters;
  ASSERT_TRUE(c.tensor_percent.has_value());
  EXPECT_GT(*c.tensor_percent, 0);
  EXPECT_LE(*c.tensor_percent, 100);
  EXPECT_EQ(c.registers, static_cast<double>(built.artifact.resources.registers));
  ASSERT_TRUE(c.instructions.has_value());
  // Each mma.sync.m16n8k16 is 4096 operations for a warp.
  EXPECT_GT(*c.instructions, workload.flops() / 4096);
  EXPECT_GT(c.l2_bytes.value_or(0), 0);
  EXPECT_LT(c.conflict_share().value_or(0), 0.5) << "tiles are swizzled";
  EXPECT_FALSE(c.stalls.empty());
  profile::Evidence evidence;
  evidence.us = 9;
  evidence.plan = plan;
  evidence.floor = trial_runner.floor(0);
  evidence.resources = built.artifact.resources;
  evidence.device = device_;
  evidence.bytes = workload.bytes();
  evidence.counters = c;
  const profile::Diagnosis diagnosis = profile::diagnose(evidence, variant_knobs(*built.variant.family));
  EXPECT_TRUE(diagnosis.with_counters);
  EXPECT_NE(diagnosis.bound, Bound::unknown);
  EXPECT_EQ(diagnosis.occupancy.blocks, plan.grid[0] * plan.grid[1] * plan.grid[2]);
  std::cout << diagnosis.text << "\n";
}

// A kernel with bank conflicts by design shows them.
TEST_F(Gpu, CountersSeeBankConflicts) {
  const Workload workload = parse_workload("b1h8l512d64");
  trial::TrialRunner trial_runner(workload, device_, *builder_, nullptr, {});
  const auto conflicts = [&](const char* text) {
    const trial::Built built = trial_runner.build(parse_variant(text, workload, device_));
    return profile::collect(built.variant.plan(workload, device_), built.artifact, workload, device_, {});
  };
  const profile::Reading linear = conflicts("fwd_sm80:smem_layout=linear");
  if (!linear.counters) GTEST_SKIP() << "no counters: " << linear.reason;
  const profile::Reading swizzled = conflicts("fwd_sm80:smem_layout=swizzled");
  ASSERT_TRUE(swizzled.counters.has_value()) << swizzled.reason;
  EXPECT_GT(linear.counters->conflict_share().value_or(0), swizzled.counters->conflict_share().value_or(0));
}

TEST_F(Gpu, ALaunchTheDeviceRefusesIsAVerdict) {
  const Workload workload = parse_workload("b1h8l512d64");
  DeviceFacts generous = device_;
  generous.shared_bytes_per_block = generous.shared_bytes_per_processor = 1 << 20;  // more than there is
  trial::TrialRunner trial_runner(workload, generous, *builder_, nullptr, {});
  const trial::Built built =
      trial_runner.build(parse_variant("fwd_sm80:block_n=128,stages=4,kv_groups=2", workload, generous));
  const verify::GateReport report = trial_runner.verify(built, fresh_seed());
  EXPECT_EQ(report.verdict, Verdict::launch_failed) << report.reason;
}

}  // namespace
}  // namespace heed

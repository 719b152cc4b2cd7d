// The gate on the CPU: honest kernels pass everywhere, exploits nowhere.
#include "base/random.hpp"
#include "exploits/exploits.hpp"
#include "jit/builders.hpp"
#include "quick_trials.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::case_table;
using testing_support::quick;

// Four parts, so that no test takes long on a small machine. A third of the cases, another one for every state of the
// kernels' sources (ShareOfBuilds): building and verifying a program takes two seconds, all of them 250.
class CaseTable : public ::testing::TestWithParam<int> {};

TEST_P(CaseTable, NoHonestKernelIsRefused) {
  const DeviceFacts device = cpu_facts();
  const std::vector<Workload> cases = case_table();
  jit::ShareOfBuilds share;
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cpu) continue;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (static_cast<int>(i % 4) != GetParam() || family->refuses(cases[i], device) || !share.takes_next()) continue;
      TrialRunner trial_runner(cases[i], device, builder(), nullptr, quick());
      const Variant variant = make_variant(*family, family->default_config(cases[i], device), cases[i]);
      const verify::GateReport report = trial_runner.verify(trial_runner.build(variant), fresh_seed());
      EXPECT_TRUE(report.passed()) << variant.id() << " at " << to_string(cases[i]) << ": " << report.check << ": "
                                   << report.reason;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quarters, CaseTable, ::testing::Values(0, 1, 2, 3));

TEST(Gate, RandomConfigsOfEveryFamilyPass) {
  const DeviceFacts device = cpu_facts();
  Random random(fresh_seed());
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cpu) continue;
    for (const char* text : {"b1h2l130k200d64:fp16:causal_bottom_right", "b2h4hkv2l100d72:fp16", "b1h2l90d64:bf16",
                             "b1h4hkv2l130k200d64:bf16:causal_bottom_right:window=50"}) {
      const Workload workload = parse_workload(text);
      TrialRunner trial_runner(workload, device, builder(), nullptr, quick());
      for (int tried = 0; tried < 4;) {
        Config config;
        for (const Knob& knob : family->knobs()) config.push_back(knob.values[random.below(knob.values.size())]);
        if (family->is_illegal(config, workload, device)) continue;
        ++tried;
        const Variant variant = make_variant(*family, config, workload);
        const verify::GateReport report = trial_runner.verify(trial_runner.build(variant), fresh_seed());
        EXPECT_TRUE(report.passed()) << describe(variant) << " at " << text << ": " << report.check << ": "
                                     << report.reason;
      }
    }
  }
}

// What the zoo's windows are refused for is seen wherever a window's edge lies.
TEST(Gate, RefusesWindowsThatAreOffByOneKey) {
  for (const char* text : {"b1h2l100k300d32:fp32:causal_bottom_right:window=63", "b1h1l128d64:fp16:window=16/9"}) {
    const Workload workload = parse_workload(text);
    TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, quick());
    for (const char* change : {"", "--p.left_offset", "++p.left_offset", "--p.right_offset", "++p.right_offset"}) {
      Variant variant = parse_variant("fwd_cpu", workload, cpu_facts());
      variant.label = "changed";
      variant.source = fmt::format(
          "extern \"C\" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {{\n"
          "  heed::ForwardParams p = *params;\n  {};\n"
          "  heed::cpu::Forward<kConfig, kProblem>(p, block, static_cast<float*>(scratch)).run();\n}}\n",
          change);
      const verify::GateReport report = trial_runner.verify(trial_runner.build(variant), fresh_seed());
      EXPECT_EQ(report.passed(), *change == '\0') << text << " " << change << ": " << report.check << report.reason;
    }
  }
}

// A polynomial that is good enough for 16 bits is not for fp32: the gate must know the difference.
TEST(Gate, RefusesAKnobSettingThatIsTooCoarseForItsDtype) {
  const Workload workload = parse_workload("b1h2l128d64:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, quick());
  const verify::GateReport report = trial_runner.verify(
      trial_runner.build(parse_variant("fwd_cpu:exp2=degree3", workload, cpu_facts())), fresh_seed());
  EXPECT_EQ(report.verdict, Verdict::wrong);
  EXPECT_EQ(report.finding, Finding::inexact);
}

TEST(Gate, UsesTheUsersTensors) {
  const Workload workload = parse_workload("b1h2l20k30d16:fp32");
  QkvTensors tensors;
  tensors.workload = workload;
  const auto fill = [](HostTensor& tensor, std::vector<std::int64_t> shape) {
    tensor.dtype = Dtype::fp32;
    tensor.shape = std::move(shape);
    Random random(1);
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(random.normal());
      tensor.bytes.append(reinterpret_cast<const char*>(&x), 4);
    }
  };
  fill(tensors.q, {1, 2, 20, 16});
  fill(tensors.k, {1, 2, 30, 16});
  fill(tensors.v, {1, 2, 30, 16});
  TrialRunner trial_runner(workload, cpu_facts(), builder(), &tensors, quick());
  std::vector<std::string> checks;
  const verify::GateReport report =
      trial_runner.verify(trial_runner.build(parse_variant("fwd_cpu", workload, cpu_facts())), 1,
                          [&](const std::string& check) { checks.push_back(check); });
  EXPECT_TRUE(report.passed()) << report.reason;
  EXPECT_THAT(checks, ::testing::Contains("the given tensors"));
}

TEST(Zoo, HasAtLeastTwentyExploitsADevice) {
  const auto count = [](const DeviceFacts& device) {
    return std::count_if(exploits::all().begin(), exploits::all().end(),
                         [&](const exploits::Exploit& e) { return e.lives_on(device); });
  };
  EXPECT_GE(count(cpu_facts()), 20);
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) EXPECT_GE(count(gpu_limits(arch)), 20) << arch;
}

TEST(Zoo, RunsTheNamedExploitsAlone) {
  const auto rows =
      exploits::run_selftest(cpu_facts(), builder(), [](const exploits::SelftestRow&) {}, {"lse_base_two"});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].name, "honest");
  EXPECT_EQ(rows[1].name, "lse_base_two");
  EXPECT_TRUE(rows[0].caught && rows[1].caught);
  testing_support::expect_error(ErrorCode::usage, "there is no exploit lse_base_tow", [] {
    (void)exploits::run_selftest(cpu_facts(), builder(), [](const exploits::SelftestRow&) {}, {"lse_base_tow"});
  });
}

TEST(Zoo, EveryExploitIsCaughtForWhatItIs) {
  for (const exploits::SelftestRow& row :
       exploits::run_selftest(cpu_facts(), builder(), [](const exploits::SelftestRow&) {}))
    EXPECT_TRUE(row.caught) << row.name << ": expected " << row.expected << ", found " << row.found << "; "
                            << row.reason;
}

}  // namespace
}  // namespace heed::trial

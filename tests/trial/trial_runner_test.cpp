// Trials on the CPU: what does not build, dies or is impossibly fast is a verdict, and the base is compared with
// itself.
#include "quick_trials.hpp"
#include "trial/false_alarms.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;

TEST(TrialRunner, TakesAWorkerOverAndLeavesTheOtherToGoOn) {
  const auto passes = [](TrialRunner& trial_runner) {
    const Variant variant = parse_variant("fwd_cpu", trial_runner.workload(), cpu_facts());
    return trial_runner.verify(trial_runner.build(variant), fresh_seed()).passed();
  };
  TrialRunner first(parse_workload("b1h2l64d32:fp32"), cpu_facts(), builder(), nullptr, quick());
  ASSERT_TRUE(passes(first));
  for (const char* shape : {"b1h1l8d16:fp32", "b2h3l100d48:fp16"}) {  // its memory is more than enough; too little
    TrialRunner next(parse_workload(shape), cpu_facts(), builder(), nullptr, quick(), &first);
    EXPECT_TRUE(passes(next)) << shape;
    EXPECT_TRUE(passes(first)) << shape;
  }
}

TEST(TrialRunner, ABuildThatFailsIsAVerdict) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, quick());
  trial_runner.set_base(trial_runner.build(parse_variant("fwd_cpu", workload, cpu_facts())));
  Variant broken = parse_variant("fwd_cpu", workload, cpu_facts());
  broken.source = "this is no C++";
  const Outcome outcome = trial_runner.judge(broken, builder().build(trial_runner.request_for(broken)), 1);
  EXPECT_EQ(outcome.verdict, Verdict::build_failed);
  EXPECT_THAT(outcome.reason, ::testing::HasSubstr("error"));
  const Outcome endless = trial_runner.judge(broken, {.artifact = std::nullopt, .timed_out = true, .log = {}}, 1);
  EXPECT_EQ(endless.verdict, Verdict::build_failed);
  EXPECT_EQ(endless.reason, "the compiler did not end in time");
  testing_support::expect_error(ErrorCode::build_failed, "did not build", [&] { trial_runner.build(broken); });
}

// Of a program that passed here nothing new is learnt by the same gate; another one passes it first.
TEST(TrialRunner, ABaseThatPassedIsNotVerifiedAgain) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, quick());
  const auto gated_s = [&](const char* variant) {
    const double before = trial_runner.phases().gate.wall_s;
    trial_runner.set_base(trial_runner.build(parse_variant(variant, workload, cpu_facts())));
    return trial_runner.phases().gate.wall_s - before;
  };
  EXPECT_GT(gated_s("fwd_cpu"), 0);
  EXPECT_EQ(gated_s("fwd_cpu"), 0);
  EXPECT_GT(gated_s("fwd_cpu:block_n=16"), 0);
  EXPECT_EQ(gated_s("fwd_cpu"), 0);
  EXPECT_EQ(describe(trial_runner.base().variant), describe(parse_variant("fwd_cpu", workload, cpu_facts())));
}

// A screening times, and judges nothing: what does not build or dies has a reason instead of a time, and the next one
// works.
TEST(TrialRunner, ALookIsATimeOrAReason) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, quick());
  const Variant base = parse_variant("fwd_cpu", workload, cpu_facts());
  trial_runner.set_base(trial_runner.build(base));
  const auto look_at = [&](const std::string& source) {
    Variant changed = base;
    changed.source = source;
    return trial_runner.screen(changed, builder().build(trial_runner.request_for(changed)));
  };
  const std::string head =
      "#include \"kernels/contract.hpp\"\nextern \"C\" void heed_forward(const heed::ForwardParams* p, long long, "
      "void*) ";
  EXPECT_EQ(look_at("this is no C++").reason, "it did not build");
  const Screening dead = look_at(head + "{ *(volatile int*)(p->len_q - p->len_q) = 1; }");
  EXPECT_TRUE(dead.pair.ratios.empty());
  EXPECT_THAT(dead.reason, ::testing::HasSubstr("signal"));
  const Screening good = trial_runner.screen(base, builder().build(trial_runner.request_for(base)));
  EXPECT_EQ(good.reason, "");
  EXPECT_GT(good.pair.ratio.low, 0);
  EXPECT_GT(good.pair.trial_median_us, 0);
  // Of what is hopeless after its first quad there is no second; fewer replays do.
  EXPECT_EQ(good.pair.ratios.size(), 2U);
  const auto briefly = [&](double hopeless_below) {
    return trial_runner.screen(base, builder().build(trial_runner.request_for(base)),
                               {.most_replays = 1, .hopeless_below = hopeless_below});
  };
  EXPECT_EQ(briefly(1e9).pair.ratios.size(), 1U);
  EXPECT_GT(briefly(1e9).pair.ratio.value, 0);
  EXPECT_EQ(briefly(1e-9).pair.ratios.size(), 2U);
  // One that does nothing is fast: that is why a screening is no verdict.
  const Screening idle = look_at(head + "{}");
  EXPECT_EQ(idle.reason, "");
  EXPECT_GT(idle.pair.trial_median_us, 0);
}

TEST(TrialRunner, TheBaseAgainstItselfIsOne) {
  const Workload workload = parse_workload("b1h2l128d64:fp32");
  TrialRunner trial_runner(workload, cpu_facts(), builder(), nullptr, {});
  trial_runner.set_base(trial_runner.build(parse_variant("fwd_cpu:threads=1", workload, cpu_facts())));
  const measure::Ratio ratio = trial_runner.base_against_itself().pair.ratio;
  EXPECT_GT(ratio.value, 0.8);
  EXPECT_LT(ratio.value, 1.25);
}

TEST(TrialRunner, ATimeBelowTheFloorIsNoVictory) {
  // Right, but the floor is told a faster machine than there is: the same door through which an impossible time would
  // come.
  const Workload workload = parse_workload("b1h4l256d64:fp32");
  DeviceFacts device = cpu_facts();
  TrialRunner trial_runner(workload, device, builder(), nullptr, quick());
  trial_runner.set_base(trial_runner.build(parse_variant("fwd_cpu", workload, device)));
  const measure::Floor floor = trial_runner.floor(1);
  EXPECT_GT(floor.us(), 0);
  const Outcome outcome = trial_runner.judge(
      trial_runner.base().variant, {.artifact = trial_runner.base().artifact, .timed_out = false, .log = {}}, 1);
  ASSERT_TRUE(outcome.ok()) << outcome.reason;
  EXPECT_GT(outcome.pair.trial_median_us, 0.5 * trial_runner.floor(device.processors).us());
}

TEST(FalseAlarms, AnHonestKernelIsComparedWithItself) {
  Options options = quick();
  options.final_pair.limit_s = 0.2;
  int told = 0;
  const FalseAlarms found =
      count_false_alarms(cpu_facts(), builder(), options, 3, [&](const measure::Ratio&) { ++told; });
  EXPECT_EQ(found.ratios.size(), 3U);
  EXPECT_EQ(told, 3);
  EXPECT_EQ(found.allowed(), 0);
  int faster = 0;
  for (const measure::Ratio& ratio : found.ratios) {
    EXPECT_GT(ratio.value, 0);
    faster += measure::is_faster(ratio, found.spread) ? 1 : 0;
  }
  EXPECT_EQ(found.faster, faster);
  EXPECT_EQ(found.passed(), faster == 0);
  testing_support::expect_error(ErrorCode::usage, "--aa 0", [&] {
    count_false_alarms(cpu_facts(), builder(), options, 0, [](const measure::Ratio&) {});
  });
}

TEST(FalseAlarms, OneInAHundredIsAllowed) {
  FalseAlarms found;
  found.ratios.resize(200);
  found.faster = 2;
  EXPECT_TRUE(found.passed());
  found.faster = 3;
  EXPECT_FALSE(found.passed());
}

}  // namespace
}  // namespace heed::trial

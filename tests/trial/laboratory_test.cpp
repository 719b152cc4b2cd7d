// Trials on the CPU: what does not build, dies or is impossibly fast is a verdict, and the base is compared with
// itself.
#include "quick_trials.hpp"
#include "trial/false_alarms.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;
using testing_support::quick;

TEST(Laboratory, TakesAWorkerOverAndLeavesTheOtherToGoOn) {
  const auto passes = [](Laboratory& laboratory) {
    const Variant variant = parse_variant("fwd_cpu", laboratory.workload(), cpu_facts());
    return laboratory.verify(laboratory.build(variant), fresh_seed()).passed();
  };
  Laboratory first(parse_workload("b1h2l64d32:fp32"), cpu_facts(), builder(), nullptr, quick());
  ASSERT_TRUE(passes(first));
  for (const char* shape : {"b1h1l8d16:fp32", "b2h3l100d48:fp16"}) {  // its memory is more than enough; too little
    Laboratory next(parse_workload(shape), cpu_facts(), builder(), nullptr, quick(), &first);
    EXPECT_TRUE(passes(next)) << shape;
    EXPECT_TRUE(passes(first)) << shape;
  }
}

TEST(Laboratory, ABuildThatFailsIsAVerdict) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu", workload, cpu_facts())));
  Variant broken = parse_variant("fwd_cpu", workload, cpu_facts());
  broken.source = "this is no C++";
  const Outcome outcome = laboratory.judge(broken, builder().build(laboratory.request_for(broken)), 1);
  EXPECT_EQ(outcome.verdict, Verdict::build_failed);
  EXPECT_THAT(outcome.reason, ::testing::HasSubstr("error"));
  const Outcome endless = laboratory.judge(broken, {.artifact = std::nullopt, .timed_out = true, .log = {}}, 1);
  EXPECT_EQ(endless.verdict, Verdict::build_failed);
  EXPECT_EQ(endless.reason, "the compiler did not end in time");
  testing_support::expect_error(ErrorCode::build_failed, "did not build", [&] { laboratory.build(broken); });
}

// Of a program that passed here nothing new is learnt by the same gate; another one passes it first.
TEST(Laboratory, ABaseThatPassedIsNotVerifiedAgain) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  const auto gated_s = [&](const char* variant) {
    const double before = laboratory.phases().gate.wall_s;
    laboratory.set_base(laboratory.build(parse_variant(variant, workload, cpu_facts())));
    return laboratory.phases().gate.wall_s - before;
  };
  EXPECT_GT(gated_s("fwd_cpu"), 0);
  EXPECT_EQ(gated_s("fwd_cpu"), 0);
  EXPECT_GT(gated_s("fwd_cpu:block_n=16"), 0);
  EXPECT_EQ(gated_s("fwd_cpu"), 0);
  EXPECT_EQ(describe(laboratory.base().variant), describe(parse_variant("fwd_cpu", workload, cpu_facts())));
}

// A look times, and judges nothing: what does not build or dies has a reason instead of a time, and the next look
// works.
TEST(Laboratory, ALookIsATimeOrAReason) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, quick());
  const Variant base = parse_variant("fwd_cpu", workload, cpu_facts());
  laboratory.set_base(laboratory.build(base));
  const auto look_at = [&](const std::string& source) {
    Variant changed = base;
    changed.source = source;
    return laboratory.look(changed, builder().build(laboratory.request_for(changed)));
  };
  const std::string head =
      "#include \"kernels/contract.hpp\"\nextern \"C\" void heed_forward(const heed::ForwardParams* p, long long, "
      "void*) ";
  EXPECT_EQ(look_at("this is no C++").reason, "it did not build");
  const Look dead = look_at(head + "{ *(volatile int*)(p->len_q - p->len_q) = 1; }");
  EXPECT_TRUE(dead.pair.ratios.empty());
  EXPECT_THAT(dead.reason, ::testing::HasSubstr("signal"));
  const Look good = laboratory.look(base, builder().build(laboratory.request_for(base)));
  EXPECT_EQ(good.reason, "");
  EXPECT_GT(good.pair.ratio.low, 0);
  EXPECT_GT(good.pair.trial_median_us, 0);
  // Of what is hopeless after its first quad there is no second; fewer replays do.
  EXPECT_EQ(good.pair.ratios.size(), 2U);
  const auto briefly = [&](double hopeless_below) {
    return laboratory.look(base, builder().build(laboratory.request_for(base)),
                           {.most_replays = 1, .hopeless_below = hopeless_below});
  };
  EXPECT_EQ(briefly(1e9).pair.ratios.size(), 1U);
  EXPECT_GT(briefly(1e9).pair.ratio.value, 0);
  EXPECT_EQ(briefly(1e-9).pair.ratios.size(), 2U);
  // One that does nothing is fast: that is why a look is no verdict.
  const Look idle = look_at(head + "{}");
  EXPECT_EQ(idle.reason, "");
  EXPECT_GT(idle.pair.trial_median_us, 0);
}

TEST(Laboratory, TheBaseAgainstItselfIsOne) {
  const Workload workload = parse_workload("b1h2l128d64:fp32");
  Laboratory laboratory(workload, cpu_facts(), builder(), nullptr, {});
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu:threads=1", workload, cpu_facts())));
  const measure::Ratio ratio = laboratory.base_against_itself().pair.ratio;
  EXPECT_GT(ratio.value, 0.8);
  EXPECT_LT(ratio.value, 1.25);
}

TEST(Laboratory, ATimeBelowTheFloorIsNoVictory) {
  // Right, but the floor is told a faster machine than there is: the same door through which an impossible time would
  // come.
  const Workload workload = parse_workload("b1h4l256d64:fp32");
  DeviceFacts device = cpu_facts();
  Laboratory laboratory(workload, device, builder(), nullptr, quick());
  laboratory.set_base(laboratory.build(parse_variant("fwd_cpu", workload, device)));
  const measure::Floor floor = laboratory.floor(1);
  EXPECT_GT(floor.us(), 0);
  const Outcome outcome = laboratory.judge(laboratory.base().variant,
                                           {.artifact = laboratory.base().artifact, .timed_out = false, .log = {}}, 1);
  ASSERT_TRUE(outcome.ok()) << outcome.reason;
  EXPECT_GT(outcome.pair.trial_median_us, 0.5 * laboratory.floor(device.processors).us());
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

// What checks libheed's C interface, on a CPU: it passes what is right, and sees what is not.
#include "base/files.hpp"
#include "conformance/case_table.hpp"
#include "conformance/plan_block.hpp"
#include "conformance/stress.hpp"
#include "device/device.hpp"
#include "jit/build.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kShape = "b2h4hkv2l37k51d16:fp32:causal_bottom_right";

class Conformance : public ::testing::Test {
 protected:
  // A variant for a workload, fwd_cpu's default or another, and its binary, which `images_` keeps.
  Program built_for(const std::string& shape, const std::string& name = "fwd_cpu:unit=vector") {
    const Workload w = parse_workload(shape);
    const Variant variant = parse_variant(name, w, device_);
    const jit::BuildOutcome outcome = builder_.build(jit::request_for(variant, w, device_));
    if (!outcome.artifact) throw Error(ErrorCode::build_failed, outcome.log);
    images_.push_back(std::make_unique<std::string>(read_file(outcome.artifact->path, ErrorCode::cache)));
    return {describe(variant), *images_.back(), {}, 2};
  }
  // The causal problem's variant with the binary of the same without a mask: it runs in the same scratch, and shows
  // keys that nobody sees.
  Program wrong() {
    Program program = built_for(kShape);
    program.image = built_for("b2h4hkv2l37k51d16:fp32", program.variant).image;
    return program;
  }
  std::unique_ptr<CheckedPlan> plan_of(const Program& program) {
    return std::make_unique<CheckedPlan>(parse_workload(kShape), DeviceKind::cpu, program, 3);
  }

  DeviceFacts device_ = cpu_facts();
  jit::Builder builder_{{.cache_folder = testing_support::shared_cache(), .host_compiler = {}, .jobs = 2}};
  std::vector<std::unique_ptr<std::string>> images_;
};

TEST_F(Conformance, CasesWithEveryKindOfFeaturePass) {
  for (const char* shape :
       {kShape, "b2h2l40k50d16:fp32:bias=fp16/lk:sinks", "b3h4hkv2l30d16:fp32:causal_bottom_right:blhd:ragged:alibi",
        "b3h2l20k70d16:fp32:key_lengths:page=16:softcap=20", "b2h2l70k90d16:fp32:blocks=64/density0.5@3:dropout=0.2",
        "b2h2l30k40d16:fp32:causal_top_left:prefix=9"}) {
    const CaseResult result = run_case(parse_workload(shape), DeviceKind::cpu, built_for(shape), 5);
    EXPECT_EQ(result.failure, "") << shape;
    EXPECT_GT(result.max_abs, 0) << shape;
    EXPECT_THAT(result.variant, StartsWith("fwd_cpu:"));
  }
}

TEST_F(Conformance, WrongOutputAndRefusalsAreFailures) {
  const CaseResult result = run_case(parse_workload(kShape), DeviceKind::cpu, wrong(), 5);
  EXPECT_THAT(result.failure, HasSubstr("expected"));
  Program unknown = built_for(kShape);
  unknown.variant = "fwd_none";
  EXPECT_THAT(run_case(parse_workload(kShape), DeviceKind::cpu, unknown, 5).failure, HasSubstr("unknown family"));
}

TEST_F(Conformance, ThreadsOfSeveralPlansGetTheBytesOfARunByItself) {
  std::vector<std::unique_ptr<CheckedPlan>> plans;
  plans.push_back(plan_of(built_for(kShape)));
  plans.push_back(plan_of(built_for(kShape)));
  StressOptions options;
  options.threads = 5;
  options.seconds = 0.2;
  options.runs_of_a_round = 3;
  const std::vector<StressResult> results = stress(plans, options, [] { return false; });
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].threads + results[1].threads, 5);
  for (const StressResult& result : results) {
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.differed, 0);
    EXPECT_GE(result.looks, 2 * result.threads);
    EXPECT_EQ(result.runs, 3 * result.looks);
  }
}

TEST_F(Conformance, APlanThatIsWrongByItselfIsRunByNoThread) {
  std::vector<std::unique_ptr<CheckedPlan>> plans;
  plans.push_back(plan_of(wrong()));
  plans.push_back(plan_of(built_for(kShape)));
  StressOptions options;
  options.threads = 2;
  options.seconds = 1e-3;
  options.runs_of_a_round = 1;
  const std::vector<StressResult> results = stress(plans, options, [] { return false; });
  EXPECT_THAT(results[0].failure, StartsWith("by itself: "));
  EXPECT_EQ(results[0].threads, 0);
  EXPECT_EQ(results[1].failure, "");
  EXPECT_EQ(results[1].threads, 2);
}

TEST_F(Conformance, ThreadsEndWhenTheyAreStopped) {
  std::vector<std::unique_ptr<CheckedPlan>> plans;
  plans.push_back(plan_of(built_for(kShape)));
  StressOptions options;
  options.threads = 2;
  options.seconds = 1e6;
  options.runs_of_a_round = 1;
  int asked = 0;
  const auto results = stress(plans, options, [&] { return ++asked > 3; });
  EXPECT_EQ(results[0].failure, "");
  EXPECT_GE(results[0].looks, 4);
}

TEST_F(Conformance, APlansRunsAreTimedOnTheSetsOfAWorker) {
  const Workload w = parse_workload(kShape);
  const measure::TimingPlan timing{.sets = 3, .launches = 9, .replays = 2};
  const measure::TimedSets sets(w, timing, LaunchMemory{}, 7);
  const measure::Block block = plan_block(sets, device_, built_for(kShape));
  EXPECT_GT(block().us, 0);
  EXPECT_GT(block().us, 0);
}

}  // namespace
}  // namespace heed::conformance

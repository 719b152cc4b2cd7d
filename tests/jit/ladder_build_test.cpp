// Every step of the ladder, without a GPU: it builds for every problem and architecture, within its registers, and
// keeps the contract.
#include "device/device.hpp"
#include "examples/ladder/kernels/config.hpp"
#include "jit/builders.hpp"
#include "requirements.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

class LadderBuilds : public ::testing::TestWithParam<int> {};

TEST_P(LadderBuilds, EveryProblemKeepsTheContractAndHeadDim64HasNoSpills) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  BuilderOptions options;
  options.cache_folder = testing_support::shared_cache();
  Builder builder(options);
  const Family& family = find_family("ladder");
  const Config config = {GetParam()};
  struct Job {
    std::string name;
    std::int64_t dim;
    std::future<BuildOutcome> build;
  };
  std::vector<Job> jobs;
  ShareOfBuilds share;
  std::size_t programs = 0;
  const auto start = [&](const char* arch, const std::string& text) {
    const DeviceFacts device = gpu_limits(arch);
    const Workload workload = parse_workload(text);
    if (family.is_illegal(config, workload, device)) return;
    ++programs;
    if (!share.takes_next()) return;
    const Variant variant = make_variant(family, config, workload);
    jobs.push_back(
        {std::string(arch) + " " + variant.id(), workload.dim,
         builder.start({.device = DeviceKind::cuda, .arch = arch, .source = variant.unit(), .entry = "heed_forward"})});
  };
  for (const char* problem : {"d64:fp16", "d64:bf16", "d128:fp16", "d128:bf16"})
    for (const char* mask : {"", ":causal_top_left"}) start("sm_80", std::string("b1h8l512") + problem + mask);
  for (const char* arch : {"sm_89", "sm_90a"}) {
    start(arch, "b1h8l512d64:fp16");
    start(arch, "b1h8l512d128:bf16:causal_top_left");
  }
  EXPECT_GE(programs, 11U);
  for (Job& job : jobs) {
    SCOPED_TRACE(job.name);
    const BuildOutcome outcome = job.build.get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    const Resources& r = outcome.artifact->resources;
    EXPECT_EQ(outcome.artifact->violation, "");
    EXPECT_GT(r.registers, 16);
    EXPECT_LE(r.registers, family.register_limit(config));
    EXPECT_EQ(r.static_shared_bytes, 0);
    if (job.dim != 64) continue;
    EXPECT_EQ(r.spill_store_bytes, 0);
    EXPECT_EQ(r.spill_load_bytes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, LadderBuilds, ::testing::Range(0, ladder::kNumSteps),
                         [](const auto& step) { return std::string(ladder::kSteps[step.param].name); });

}  // namespace
}  // namespace heed::jit

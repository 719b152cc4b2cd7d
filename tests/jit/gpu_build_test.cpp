// Programs of the GPU families as NVRTC builds them; no GPU is needed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/random.hpp"
#include "device/device.hpp"
#include "exploits/exploits.hpp"
#include "jit/builders.hpp"
#include "requirements.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

using testing_support::TemporaryFolder;

// ---- CUDA, without a GPU: every problem of a GPU family builds for every architecture, within its registers, without
// spills.
class GpuBuilds : public ::testing::TestWithParam<std::tuple<const char*, const Family*>> {};

std::vector<const Family*> gpu_families() {
  std::vector<const Family*> of_gpus;
  for (const Family* family : families())
    if (family->device() == DeviceKind::cuda) of_gpus.push_back(family);
  return of_gpus;
}

TEST_P(GpuBuilds, DefaultsHaveNoSpillsAndKeepTheContract) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const DeviceFacts device = gpu_limits(std::get<0>(GetParam()));
  const Family* family = std::get<1>(GetParam());
  Builder builder(options_in(testing_support::shared_cache()));
  struct Job {
    std::string name;
    int limit;
    bool may_spill;
    std::future<BuildOutcome> build;
  };
  // Families have other defaults for other shapes; lengths alone make no other binary.
  const auto all_shapes_of = [](std::string_view name, int dim) -> std::vector<const char*> {
    if (name.starts_with("fwd_sm80_decode")) return {"b1h8l512d64", "b8h32hkv4l1k8192d64", "b8h32hkv4l4k8192d64"};
    if (name == "fwd_sm90_fp8") return {"b1h8l512d64:quantised=qkv/e4m3/head"};
    if (name == "fwd_sm80")
      return {"b1h8l512d64", "b1h8l1024d64", "b1h8l2048d64", "b8h32l1024d64", "b8h8l2048d64", "b64h12l128d64"};
    if (name == "fwd_sm90_persistent") {
      if (dim % 64 != 0) return {};  // the same program as the next multiple, but for the columns it stores
      if (dim == 64) return {"b1h8l1024d64", "b4h8l400d64", "b1h8l2048d64", "b8h32l1024d64", "b64h12l128d64"};
      return {"b1h8l1024d64", "b8h32l1024d64"};
    }
    return {"b1h8l512d64"};
  };
  // On newer architectures families for Ampere are the same code, with little that is other than on sm_80.
  const auto shapes_of = [&](std::string_view name, int dim) {
    std::vector<const char*> shapes = all_shapes_of(name, dim);
    if (name.starts_with("fwd_sm80") && device.arch != "sm_80") shapes.resize(1);
    return shapes;
  };
  std::vector<Job> jobs;
  ShareOfBuilds share;
  std::size_t programs = 0;
  for (const Dtype dtype : family->dtypes())
    for (const int dim : family->head_dims().listed)
      for (const Mask mask : {Mask::none, Mask::causal_top_left})
        for (const char* shape : shapes_of(family->name(), dim)) {
          if (family->name() == "fwd_sm90_persistent" && dtype == Dtype::bf16 && mask == Mask::none)
            continue;  // fp16 has more
          Workload workload = parse_workload(shape);
          if (workload.len_q == 4 && dtype != Dtype::fp16) continue;  // the same code but for the type of a product
          workload.dtype = dtype;
          workload.dim = workload.dim_v = dim;
          workload.mask = mask;
          if (family->refuses(workload, device)) continue;
          ++programs;
          if (!share.takes_next()) continue;
          const Variant variant = make_variant(*family, family->default_config(workload, device), workload);
          // fwd_sm90_fp8 stores some registers outside its loops over keys there (docs/limits.md).
          const bool may_spill = family->name() == "fwd_sm90_fp8" && mask != Mask::none;
          jobs.push_back({variant.id(), family->register_limit(variant.config), may_spill,
                          builder.start(request_for(variant, workload, device))});
        }
  // Families for Hopper alone have none elsewhere.
  EXPECT_TRUE(programs >= 8 || device.compute_capability < 90 || family->name() == "ladder") << programs;
  for (Job& job : jobs) {
    SCOPED_TRACE(job.name);
    const BuildOutcome outcome = job.build.get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    const Resources& r = outcome.artifact->resources;
    EXPECT_EQ(outcome.artifact->violation, "");
    const int spilled = job.may_spill ? 48 : 0;
    EXPECT_LE(r.spill_store_bytes, spilled);
    EXPECT_LE(r.spill_load_bytes, spilled);
    EXPECT_GT(r.registers, 30);
    EXPECT_LE(r.registers, job.limit);
    EXPECT_EQ(r.static_shared_bytes, 0);
  }
}

// A test for every family: each has the time limit of one.
INSTANTIATE_TEST_SUITE_P(Architectures, GpuBuilds,
                         ::testing::Combine(::testing::Values("sm_80", "sm_89", "sm_90a"),
                                            ::testing::ValuesIn(gpu_families())),
                         [](const auto& named) {
                           return fmt::format("{}_{}", std::get<0>(named.param), std::get<1>(named.param)->name());
                         });

// Programs of families for few queries with what serving engines send.
TEST_P(GpuBuilds, DecodeDefaultsWithFeaturesHaveNoSpills) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const DeviceFacts device = gpu_limits(std::get<0>(GetParam()));
  const Family* family = std::get<1>(GetParam());
  if (!family->is_special()) GTEST_SKIP() << "not for few queries";
  Builder builder(options_in(testing_support::shared_cache()));
  std::vector<std::pair<std::string, std::future<BuildOutcome>>> builds;
  ShareOfBuilds share;
  for (const char* shape : {"b8h32hkv4l1k8192d", "b8h32hkv4l4k8192d"})
    for (const int dim : {64, 128, 256}) {
      if (family->name().starts_with("fwd_sm80") && device.arch != "sm_80" && dim != 128) continue;
      for (const char* mask : {"", ":causal_bottom_right"})
        for (const char* features : {":key_lengths:page=16", ":softcap=30:bias=fp16:alibi:sinks:key_lengths:page=16"}) {
          const Workload workload = parse_workload(fmt::format("{}{}{}{}", shape, dim, mask, features));
          if (family->refuses(workload, device) || !share.takes_next()) continue;
          const Variant variant = make_variant(*family, family->default_config(workload, device), workload);
          builds.emplace_back(describe(variant) + " of " + to_string(workload),
                              builder.start(request_for(variant, workload, device)));
        }
    }
  for (auto& [name, build] : builds) {
    SCOPED_TRACE(name);
    expect_no_spills(build.get());
  }
}

// 6 of each family, or as many as HEED_RANDOM_BUILDS says: one takes 2 s of processor time.
TEST(GpuBuilds, RandomLegalConfigsBuild) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const DeviceFacts device = gpu_limits("sm_90a");
  Builder builder(options_in(testing_support::shared_cache()));
  const char* const asked = std::getenv("HEED_RANDOM_BUILDS");
  const std::size_t count = asked == nullptr ? 6 : std::strtoul(asked, nullptr, 10);
  for (const Family* family : families()) {
    if (family->device() != DeviceKind::cuda) continue;
    Random random(2024);  // the same configs whichever families there are
    std::vector<std::pair<std::string, std::future<BuildOutcome>>> builds;
    while (builds.size() < count) {
      // At most 512 rows a key head: every family takes it.
      Workload workload =
          parse_workload(family->name() == "fwd_sm90_fp8" ? "b1h8l512d64:quantised=qkv/e4m3/head" : "b1h8l512d64");
      workload.dtype = random.chance(0.5) ? Dtype::fp16 : Dtype::bf16;
      workload.dim = workload.dim_v = random.chance(0.5) ? 64 : 128;
      workload.mask = random.chance(0.5) ? Mask::none : Mask::causal_bottom_right;
      Config values;
      for (const Knob& knob : variant_knobs(*family)) values.push_back(knob.values[random.below(knob.values.size())]);
      const Variant variant = canonical(variant_of(*family, values, workload), workload);
      if (variant.is_illegal(workload, device)) continue;
      builds.emplace_back(describe(variant), builder.start(request_for(variant, workload, device)));
    }
    for (auto& [name, build] : builds) {
      SCOPED_TRACE(name);
      const BuildOutcome outcome = build.get();
      ASSERT_TRUE(outcome.artifact) << outcome.log;
      EXPECT_EQ(outcome.artifact->violation, "");
      // Families whose legality counts registers promise more than that it builds.
      if (family->name().starts_with("fwd_sm80_decode") || family->name() == "fwd_sm90_persistent" ||
          family->name() == "fwd_sm90_fp8") {
        EXPECT_EQ(outcome.artifact->resources.spill_store_bytes, 0);
        EXPECT_EQ(outcome.artifact->resources.spill_load_bytes, 0);
        EXPECT_EQ(outcome.artifact->resources.stack_bytes, 0);
      }
    }
  }
}

// Every CUDA exploit compiles, and what the audit of PTX must refuse it refuses, and nothing else.
class GpuZoo : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuZoo, BuildsAndBreaksTheContractWhereItSaysSo) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const DeviceFacts device = gpu_limits(GetParam());
  Builder builder(options_in(testing_support::shared_cache()));
  std::vector<std::pair<const exploits::Exploit*, std::future<BuildOutcome>>> builds;
  for (const exploits::Exploit& exploit : exploits::all()) {
    if (!exploit.lives_on(device)) continue;
    const Workload workload = exploits::selftest_workload(exploit.problem);
    const exploits::Submission submission = exploits::submission_of(exploit, workload, device);
    EXPECT_TRUE(submission.refused.ok() || submission.refused.verdict == exploit.verdict)
        << exploit.name << ": " << submission.refused.reason;
    if (submission.refused.ok())
      builds.emplace_back(&exploit, builder.start(request_for(submission.variant, workload, device)));
  }
  EXPECT_GE(builds.size(), 20U);
  for (auto& [exploit, build] : builds) {
    SCOPED_TRACE(exploit->name);
    const BuildOutcome outcome = build.get();
    ASSERT_TRUE(outcome.artifact) << outcome.log;
    const bool breaks = std::find(exploit->findings.begin(), exploit->findings.end(), Finding::breaks_contract) !=
                        exploit->findings.end();
    EXPECT_EQ(!outcome.artifact->violation.empty(), breaks) << outcome.artifact->violation;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GpuZoo, ::testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace heed::jit

// Programs for inputs of 8 bits as NVRTC builds them: of fwd_sm80 e4m3 for sm_89, and for sm_80 int8 beside V in e4m3,
// which becomes fp16 there without the conversion of sm_89; of fwd_sm90_fp8 those with features.
#include <fmt/format.h>

#include "device/device.hpp"
#include "jit/builders.hpp"
#include "requirements.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

TEST(GpuBuilds, Sm80DefaultsOf8BitsHaveNoSpills) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const Family& family = find_family("fwd_sm80");
  Builder builder(options_in(testing_support::shared_cache()));
  std::vector<std::tuple<std::string, int, std::future<BuildOutcome>>> builds;
  for (const auto& [arch, shape] : {std::pair{"sm_89", "b8h32l1024d64:quantised=qkv/e4m3/head"},
                                    {"sm_89", "b8h32l1024d128:bf16:causal_bottom_right:quantised=qkv/e4m3/head"},
                                    {"sm_89", "b8h32l1024d256:window=99:quantised=qkv/e4m3/head"},
                                    {"sm_80", "b8h32l1024d64:bf16:quantised=qk/int8/token+v/e4m3/channel"}}) {
    const DeviceFacts device = gpu_limits(arch);
    const Workload workload = parse_workload(shape);
    ASSERT_EQ(family.refuses(workload, device), std::nullopt) << shape;
    const Variant variant = make_variant(family, family.default_config(workload, device), workload);
    builds.emplace_back(fmt::format("{} of {} for {}", describe(variant), shape, arch),
                        family.register_limit(variant.config), builder.start(request_for(variant, workload, device)));
  }
  for (auto& [name, limit, build] : builds) {
    SCOPED_TRACE(name);
    expect_no_spills(build.get(), limit);
  }
}

// Tiles are smaller where features take registers (sm90_fp8::registers_needed).
TEST(GpuBuilds, Sm90Fp8DefaultsWithFeaturesHaveNoSpills) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const Family& family = find_family("fwd_sm90_fp8");
  const DeviceFacts device = gpu_limits("sm_90a");
  Builder builder(options_in(testing_support::shared_cache()));
  ShareOfBuilds share;
  std::vector<std::pair<std::string, std::future<BuildOutcome>>> builds;
  for (const char* shape :
       {"b8h32l512d64:softcap=30:sinks:key_lengths:page=16:causal_bottom_right",
        "b8h32hkv8l2048d128:bf16:softcap=30:sinks:ragged:page=16:window=99",
        "b8h8l2048d256:softcap=30:sinks:ragged:causal_bottom_right", "b8h8l2048d256:ragged:window=99"}) {
    const Workload workload = parse_workload(std::string(shape) + ":quantised=qkv/e4m3/head");
    ASSERT_EQ(family.refuses(workload, device), std::nullopt) << shape;
    if (!share.takes_next()) continue;
    const Variant variant = make_variant(family, family.default_config(workload, device), workload);
    builds.emplace_back(fmt::format("{} of {}", describe(variant), shape),
                        builder.start(request_for(variant, workload, device)));
  }
  for (auto& [name, build] : builds) {
    SCOPED_TRACE(name);
    expect_no_spills(build.get());
  }
}

}  // namespace
}  // namespace heed::jit

// Programs of fwd_sm90_split with features as NVRTC builds them: those whose registers are all but used up.
#include <fmt/format.h>

#include "device/device.hpp"
#include "jit/builders.hpp"
#include "requirements.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

TEST(GpuBuilds, Sm90SplitDefaultsWithFeaturesHaveNoSpills) {
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "libnvrtc cannot be loaded");
  const Family& family = find_family("fwd_sm90_split");
  const DeviceFacts device = gpu_limits("sm_90a");
  Builder builder(options_in(testing_support::shared_cache()));
  std::vector<std::tuple<std::string, int, std::future<BuildOutcome>>> builds;
  ShareOfBuilds share;
  for (const char* shape :
       {"b1h8l512d64:softcap=30:sinks:key_lengths", "b1h8l512d64:bf16:causal_bottom_right:softcap=30",
        "b1h8l512d64:window=100:softcap=30:sinks:key_lengths", "b1h8l1024d64:causal_bottom_right:softcap=30",
        "b1h8l1024d64:bf16:causal_bottom_right:softcap=30:sinks:key_lengths",
        "b1h16l256d128:bf16:softcap=30:sinks:key_lengths",
        "b1h16l256d128:causal_bottom_right:softcap=30:sinks:key_lengths",
        "b1h16l256d128:window=100:softcap=30:sinks:key_lengths",
        "b64h12l128d64:causal_top_left:softcap=30:sinks:key_lengths"}) {
    const Workload workload = parse_workload(shape);
    ASSERT_EQ(family.refuses(workload, device), std::nullopt) << shape;
    if (!share.takes_next()) continue;
    const Variant variant = make_variant(family, family.default_config(workload, device), workload);
    builds.emplace_back(describe(variant) + " of " + shape, family.register_limit(variant.config),
                        builder.start(request_for(variant, workload, device)));
  }
  for (auto& [name, limit, build] : builds) {
    SCOPED_TRACE(name);
    expect_no_spills(build.get(), limit);
  }
}

}  // namespace
}  // namespace heed::jit

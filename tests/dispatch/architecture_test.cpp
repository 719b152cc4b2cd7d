// Which binaries run on which GPU.
#include "dispatch/architecture.hpp"

#include "device/device.hpp"
#include "testing.hpp"

namespace heed::dispatch {
namespace {

DeviceFacts gpu(int compute_capability, const char* arch) {
  DeviceFacts device = gpu_limits("sm_80");
  device.compute_capability = compute_capability;
  device.arch = arch;
  return device;
}

TEST(ArchFit, FollowsTheRulesOfBinaryCompatibility) {
  struct Case {
    const char* program;
    int compute_capability;
    const char* arch;
    ArchFit fit;
  };
  for (const Case& c :
       {Case{"sm_80", 80, "sm_80", ArchFit::exact}, Case{"sm_80", 86, "sm_86", ArchFit::compatible},
        Case{"sm_80", 87, "sm_87", ArchFit::compatible}, Case{"sm_89", 86, "sm_86", ArchFit::none},
        Case{"sm_80", 90, "sm_90a", ArchFit::none}, Case{"sm_90a", 90, "sm_90a", ArchFit::exact},
        Case{"sm_90a", 100, "sm_100", ArchFit::none}, Case{"sm_90", 90, "sm_90a", ArchFit::compatible},
        Case{"compute_80", 100, "sm_100", ArchFit::ptx}, Case{"compute_80", 120, "sm_120", ArchFit::ptx},
        Case{"compute_90", 86, "sm_86", ArchFit::none}, Case{"compute_80", 75, "sm_75", ArchFit::none},
        Case{"x86-64-v4", 90, "sm_90a", ArchFit::none}, Case{"", 90, "sm_90a", ArchFit::none}})
    EXPECT_EQ(static_cast<int>(arch_fit(c.program, gpu(c.compute_capability, c.arch))), static_cast<int>(c.fit))
        << c.program << " on " << c.arch;
  EXPECT_EQ(fit_remark("sm_80", gpu(80, "sm_80")), "");
  EXPECT_THAT(fit_remark("compute_80", gpu(120, "sm_120")), ::testing::HasSubstr("PTX of compute_80"));
}

TEST(ArchFit, ACpuRunsNoGpuPrograms) {
  DeviceFacts cpu;
  cpu.arch = "x86-64-v4";
  EXPECT_EQ(arch_fit("sm_80", cpu), ArchFit::none);
  EXPECT_EQ(arch_fit("x86-64-v4", cpu), ArchFit::exact);
}

}  // namespace
}  // namespace heed::dispatch

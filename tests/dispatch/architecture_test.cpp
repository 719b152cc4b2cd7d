// Which binaries run on which device.
#include "dispatch/architecture.hpp"

#include "device/cpu_level.hpp"
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

DeviceFacts cpu_of(const char* level) {
  DeviceFacts cpu = representative_cpu(*find_cpu_level(level));
  cpu.arch = "x86_64-avx512-01234567";
  return cpu;
}

TEST(ArchFit, OfCpuLevelsTheHighestThatRunsIsBest) {
  const DeviceFacts cpu = cpu_of("x86-64-v4");
  EXPECT_GE(arch_fit("x86-64-v3", cpu), ArchFit::level);
  EXPECT_GT(arch_fit("x86-64-v4", cpu), arch_fit("x86-64-v3", cpu));
  EXPECT_GT(arch_fit(cpu.arch, cpu), arch_fit("x86-64-v4", cpu));
  for (const char* other : {"x86-64-v4-amx", "aarch64-neon", "x86_64-avx512-76543210", ""})
    EXPECT_EQ(arch_fit(other, cpu), ArchFit::none) << other;
  EXPECT_EQ(arch_fit("x86-64-v3", cpu_of("aarch64-neon")), ArchFit::none);
  EXPECT_THAT(fit_remark("x86-64-v3", cpu), ::testing::HasSubstr("of the CPU level x86-64-v3"));
  EXPECT_EQ(fit_remark(cpu.arch, cpu), "");
  // One that HEED_CPU_LEVEL holds at a level has no architecture of its own.
  const DeviceFacts held = representative_cpu(*find_cpu_level("x86-64-v3"));
  EXPECT_THAT(fit_remark("x86-64-v3", held), ::testing::HasSubstr("of the CPU level x86-64-v3"));
}

TEST(ArchFit, ProgramsAreJudgedByTheVectorsAndNotTheThreadsTheyWereBuiltFor) {
  DeviceFacts cpu = cpu_of("x86-64-v4");
  cpu.processors = 1;
  EXPECT_EQ(facts_for("x86-64-v3", cpu).lanes, 8);
  EXPECT_EQ(facts_for("x86-64-v3", cpu).processors, 1);
  EXPECT_EQ(facts_for(cpu.arch, cpu), cpu);
  const Workload w = parse_workload("b1h2l64d16:fp32");
  const DeviceFacts v3 = facts_for("x86-64-v3", cpu);
  // 4 vectors of 8 queries are 32; of 16 they would be 64, which 32 rows do not fill.
  const Variant narrow = parse_variant("fwd_cpu:unit=vector,tile_vectors=4,tile_rows=2,block_m=32,threads=128", w, v3);
  EXPECT_TRUE(narrow.is_illegal(w, v3));  // for its threads
  EXPECT_FALSE(program_is_illegal(narrow, w, v3));
  EXPECT_TRUE(program_is_illegal(narrow, w, cpu));
  EXPECT_FALSE(every_program_is_illegal(narrow, w, cpu));
  const Variant matrix = parse_variant("fwd_cpu:unit=matrix,block_m=64,block_n=64", w, cpu_of("x86-64-v4-amx"));
  EXPECT_TRUE(every_program_is_illegal(matrix, w, cpu));
}

}  // namespace
}  // namespace heed::dispatch

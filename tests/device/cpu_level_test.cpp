// Named levels of CPUs against what the kernel says of this one.
#include "device/cpu_level.hpp"

#include <sys/utsname.h>

#include <map>
#include <set>

#include "base/matrix_unit.hpp"
#include "device/device.hpp"
#include "testing.hpp"

namespace heed {
namespace {

using testing_support::expect_error;

std::set<std::string> flags_of_this_cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind("flags", 0) == 0) {
      std::set<std::string> flags;
      for (const std::string& flag : split(trim(line.substr(line.find(':') + 1)), ' ')) flags.insert(flag);
      return flags;
    }
  return {};
}

TEST(CpuLevel, ThisProcessorRunsWhatItsFlagsSay) {
#if defined(__x86_64__)
  const std::set<std::string> flags = flags_of_this_cpu();
  ASSERT_FALSE(flags.empty());
  const std::vector<std::string> v3 = {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"};
  const std::vector<std::string> v4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"};
  const std::vector<std::string> amx = {"avx512_bf16", "amx_tile", "amx_bf16"};
  const auto has = [&](const std::vector<std::string>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& flag) { return flags.count(flag) != 0; });
  };
  EXPECT_EQ(find_cpu_level("x86-64-v3")->runs(), has(v3));
  EXPECT_EQ(find_cpu_level("x86-64-v4")->runs(), has(v3) && has(v4));
  EXPECT_EQ(find_cpu_level("x86-64-v4-amx")->runs(), has(v3) && has(v4) && has(amx) && allow_matrix_unit());
  EXPECT_FALSE(find_cpu_level("aarch64-neon")->runs());
#else
  for (const CpuLevel& level : cpu_levels()) EXPECT_EQ(level.runs(), level.machine == own_machine()) << level.name;
#endif
}

TEST(CpuLevel, EachHasWhatTheOneBeforeItHas) {
  const CpuLevel* before = nullptr;
  for (const CpuLevel& level : cpu_levels()) {
    if (before != nullptr && before->machine == level.machine) {
      EXPECT_GE(level.lanes, before->lanes);
      EXPECT_GE(level.registers, before->registers);
      EXPECT_TRUE(before->runs() || !level.runs()) << level.name;
    }
    EXPECT_EQ(find_cpu_level(level.name), &level);
    EXPECT_FALSE(level.flags.empty());
    before = &level;
  }
  EXPECT_EQ(find_cpu_level("x86-64-v2"), nullptr);
  EXPECT_TRUE(cpu_levels_of("riscv64").empty());
}

TEST(CpuLevel, FactsNameTheHighest) {
  const DeviceFacts facts = cpu_facts();
  const CpuLevel* const highest = highest_cpu_level();
  EXPECT_EQ(facts.level, highest == nullptr ? "" : std::string(highest->name));
  utsname system{};
  ASSERT_EQ(::uname(&system), 0);
  EXPECT_EQ(own_machine(), system.machine);
  if (highest == nullptr) return;
  EXPECT_LE(highest->lanes, facts.lanes);
  EXPECT_LE(highest->registers, facts.registers);
}

TEST(CpuLevel, AProcessorMayBeHeldBelowItsOwn) {
  const auto levels = cpu_levels_of(own_machine());
  if (levels.size() < 3) GTEST_SKIP() << "levels of x86-64";
  DeviceFacts facts = representative_cpu(*levels[2]);
  facts.arch = "this one";
  EXPECT_EQ(at_most_level(facts, ""), facts);
  EXPECT_EQ(at_most_level(facts, levels[2]->name), facts);
  const DeviceFacts lower = at_most_level(facts, levels[0]->name);
  EXPECT_EQ(lower.arch, levels[0]->name);
  EXPECT_EQ(lower.level, levels[0]->name);
  EXPECT_EQ(lower.lanes, 8);
  EXPECT_FALSE(lower.matrix_unit);
  EXPECT_EQ(at_most_level(lower, levels[1]->name), lower);
  expect_error(ErrorCode::usage, "it is one of x86-64-v3, x86-64-v4, x86-64-v4-amx",
               [&] { (void)at_most_level(facts, "x86-64-v9"); });
  expect_error(ErrorCode::usage, "unknown CPU level", [&] { (void)at_most_level(facts, "aarch64-neon"); });
}

}  // namespace
}  // namespace heed

#include "device/cpu_level.hpp"

#include <fmt/format.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/check.hpp"
#include "base/matrix_unit.hpp"
#include "base/text.hpp"

namespace heed {
namespace {

constexpr int kProcessors = 8;
constexpr std::int64_t kCacheBytes = 32LL << 20;

#if defined(__x86_64__)

// __builtin_cpu_supports also asks whether the operating system keeps the registers. Clang 14 knows no f16c, lzcnt and
// movbe there; they have no registers of their own.
bool runs_v3() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_F16C) == 0 || (ecx & bit_MOVBE) == 0) return false;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_LZCNT) == 0) return false;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool runs_v4() {
  return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool runs_v4_amx() {
  return runs_v4() && __builtin_cpu_supports("avx512bf16") && allow_matrix_unit();
}
bool runs_neon() {
  return false;
}

#else

bool runs_v3() {
  return false;
}
bool runs_v4() {
  return false;
}
bool runs_v4_amx() {
  return false;
}
bool runs_neon() {
#if defined(__aarch64__)
  return true;  // part of the architecture
#else
  return false;
#endif
}

#endif

}  // namespace

std::span<const CpuLevel> cpu_levels() {
  static const std::vector<CpuLevel> levels = {
      {"x86-64-v3", "x86_64", {"-march=x86-64-v3"}, 8, 16, false, runs_v3},
      {"x86-64-v4", "x86_64", {"-march=x86-64-v4"}, 16, 32, false, runs_v4},
      {"x86-64-v4-amx",
       "x86_64",
       {"-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"},
       16,
       32,
       true,
       runs_v4_amx},
      {"aarch64-neon", "aarch64", {"-march=armv8-a"}, 4, 32, false, runs_neon}};
  return levels;
}

const CpuLevel* find_cpu_level(std::string_view name) {
  for (const CpuLevel& level : cpu_levels())
    if (level.name == name) return &level;
  return nullptr;
}

std::vector<const CpuLevel*> cpu_levels_of(std::string_view machine) {
  std::vector<const CpuLevel*> levels;
  for (const CpuLevel& level : cpu_levels())
    if (level.machine == machine) levels.push_back(&level);
  return levels;
}

std::string_view own_machine() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "";
#endif
}

const CpuLevel* highest_cpu_level() {
  // Once a process: what a processor has does not change, nor does the kernel's answer about the matrix unit.
  static const CpuLevel* const highest = [] {
    const CpuLevel* found = nullptr;
    for (const CpuLevel* level : cpu_levels_of(own_machine()))
      if (level->runs()) found = level;
    return found;
  }();
  return highest;
}

DeviceFacts at_level(DeviceFacts device, const CpuLevel& level) {
  device.arch = level.name;
  device.level = level.name;
  device.lanes = level.lanes;
  device.registers = level.registers;
  device.matrix_unit = level.matrix_unit;
  return device;
}

DeviceFacts representative_cpu(const CpuLevel& level) {
  DeviceFacts facts;
  facts.kind = DeviceKind::cpu;
  facts.name = level.name;
  facts.processors = kProcessors;
  facts.cache_bytes = kCacheBytes;
  return at_level(std::move(facts), level);
}

DeviceFacts at_most_level(DeviceFacts device, std::string_view name) {
  if (name.empty()) return device;
  std::vector<std::string_view> choices;
  const CpuLevel* most = nullptr;
  for (const CpuLevel* level : cpu_levels_of(own_machine())) {
    choices.push_back(level->name);
    if (level->name == name) most = level;
  }
  if (most == nullptr)
    throw Error(ErrorCode::usage, fmt::format("unknown CPU level \"{}\"; {}", name, one_of(name, choices)),
                std::string(name));
  const CpuLevel* const own = find_cpu_level(device.level);
  if (own == nullptr || own <= most) return device;
  return at_level(std::move(device), *most);
}

}  // namespace heed

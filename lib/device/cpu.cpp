#include <sys/utsname.h>

#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "base/limits.hpp"
#include "base/matrix_unit.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "device/cpu_identity.hpp"
#include "device/cpu_level.hpp"
#include "device/device.hpp"

namespace heed {
namespace {

// Size of the largest cache of processor 0, in bytes; 0 when sysfs does not say.
std::int64_t last_level_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::string text;
    if (!(file >> text)) continue;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) continue;
    if (end != text.data() + text.size() && *end == 'K') value *= 1024;
    if (end != text.data() + text.size() && *end == 'M') value *= 1024 * 1024;
    largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

DeviceFacts cpu_facts() {
  DeviceFacts facts;
  facts.kind = DeviceKind::cpu;
  utsname system{};
  ::uname(&system);
  std::ifstream file("/proc/cpuinfo");
  const CpuIdentity identity = identity_of(file, system.machine);
  facts.name = identity.name;
  facts.driver = fmt::format("{} {}", system.sysname, system.release);
  facts.processors = available_processors();
  facts.memory_bytes = memory_room().total_bytes;
  facts.cache_bytes = last_level_cache_bytes();
  // The widest registers the host compiler will use with -march=native (cpu/simd.hpp makes the same choice from the
  // compiler's own macros).
  const char* level = "baseline";
  facts.lanes = 4;
  facts.registers = 16;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    level = "avx512";
    facts.lanes = 16;
    facts.registers = 32;
  } else if (__builtin_cpu_supports("avx2")) {
    level = "avx2";
    facts.lanes = 8;
  }
#elif defined(__aarch64__)
  level = "neon";
  facts.registers = 32;
#endif
  facts.matrix_unit = allow_matrix_unit();
  if (const CpuLevel* highest = highest_cpu_level()) facts.level = highest->name;
  // -march=native means this very processor, so its instructions are part of what a binary is built for.
  facts.arch = fmt::format("{}-{}-{}", system.machine, level, digest(identity.instructions).substr(0, 8));
  return facts;
}

DeviceChoice parse_device_choice(std::string_view text) {
  if (text == "auto") return DeviceChoice::automatic;
  if (text == "cpu") return DeviceChoice::cpu;
  if (text == "cuda") return DeviceChoice::cuda;
  throw Error(ErrorCode::usage, fmt::format("unknown device \"{}\"; {}", text, one_of(text, {"auto", "cpu", "cuda"})),
              std::string(text));
}

DeviceFacts choose_device(DeviceChoice choice, std::string_view otherwise) {
  if (choice == DeviceChoice::cpu) return cpu_facts();
  CudaProbe probe = probe_cuda();
  if (probe.facts) return *probe.facts;
  if (choice == DeviceChoice::cuda)
    throw Error(ErrorCode::no_device, fmt::format("no GPU can be used: {}; {}", probe.reason, otherwise), "cuda");
  return cpu_facts();
}

}  // namespace heed

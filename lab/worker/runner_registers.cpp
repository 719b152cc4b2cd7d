// Which registers of this processor a runner clears behind each launch.
#include <sys/auxv.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

#include "worker/runner_process.hpp"

namespace heed::worker::inside {
#if defined(__x86_64__)
namespace {

// Those of `components` whose places end within InitialRegisters (Intel SDM, vol. 1, 13.2: CPUID 0DH).
std::uint64_t that_fit(std::uint64_t components) {
  constexpr unsigned kStateLeaf = 0xd;
  for (unsigned i = 2; i < 64; ++i) {
    unsigned size = 0;
    unsigned offset = 0;
    unsigned c = 0;
    unsigned d = 0;
    if ((components >> i & 1) == 0) continue;
    const bool is_known = __get_cpuid_count(kStateLeaf, i, &size, &offset, &c, &d) != 0;
    if (!is_known || offset + size > sizeof(InitialRegisters)) components &= ~(std::uint64_t{1} << i);
  }
  return components;
}

}  // namespace
#endif

void describe_registers([[maybe_unused]] Plan& plan) {
#if defined(__x86_64__)
  constexpr unsigned kOsxsave = 1U << 27;            // of CPUID 1, ECX
  constexpr std::uint64_t kProtectionKeys = 1 << 9;  // of XCR0: which XRSTOR would set to zero
  constexpr unsigned long kFsgsbase = 1UL << 1;      // of AT_HWCAP2
  constexpr unsigned kOspke = 1U << 4;               // of CPUID 7, ECX
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kOsxsave) != 0) {
    asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    plan.register_components = that_fit(((static_cast<std::uint64_t>(d) << 32) | a) & ~kProtectionKeys);
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kOspke) != 0) {
    plan.has_protection_keys = 1;
    asm volatile("rdpkru" : "=a"(plan.protection_rights) : "c"(0) : "edx");
  }
  const std::uint32_t control = __builtin_ia32_stmxcsr();
  std::memcpy(plan.initial_registers.bytes + kMxcsrAt, &control, sizeof control);
  plan.has_segment_bases = (::getauxval(AT_HWCAP2) & kFsgsbase) != 0 ? 1 : 0;
#endif
}

}  // namespace heed::worker::inside

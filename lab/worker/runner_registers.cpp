// Which registers of this processor a runner clears behind each launch.
#include <sys/auxv.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

#include "worker/runner_process.hpp"

namespace heed::worker::inside {

void describe_registers([[maybe_unused]] Plan& plan) {
#if defined(__x86_64__)
  constexpr unsigned kOsxsave = 1U << 27;            // of CPUID 1, ECX
  constexpr std::uint64_t kProtectionKeys = 1 << 9;  // of XCR0: rights to memory, not a candidate's to keep
  constexpr unsigned long kFsgsbase = 1UL << 1;      // of AT_HWCAP2
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kOsxsave) != 0) {
    asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    plan.register_components = ((static_cast<std::uint64_t>(d) << 32) | a) & ~kProtectionKeys;
  }
  const std::uint32_t control = __builtin_ia32_stmxcsr();
  std::memcpy(plan.initial_registers.bytes + kMxcsrAt, &control, sizeof control);
  plan.has_segment_bases = (::getauxval(AT_HWCAP2) & kFsgsbase) != 0 ? 1 : 0;
#endif
}

}  // namespace heed::worker::inside

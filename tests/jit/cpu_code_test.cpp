// Instructions that no CPU candidate may have, wherever in its code they stand.
#include "jit/cpu_code.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "testing.hpp"

namespace heed::jit {
namespace {

std::string found_in(const std::vector<unsigned char>& code) {
  return violation_in_cpu_code({reinterpret_cast<const char*>(code.data()), code.size()}, CpuMachine::x86_64);
}

TEST(CpuCode, FlushesAreSeenAtEveryByte) {
  const auto flush = ::testing::HasSubstr("clflush, clflushopt or clwb");
  EXPECT_THAT(found_in({0x0f, 0xae, 0x3f}), flush) << "clflush (%rdi)";
  EXPECT_THAT(found_in({0x66, 0x0f, 0xae, 0x38}), flush) << "clflushopt (%rax)";
  EXPECT_THAT(found_in({0x66, 0x41, 0x0f, 0xae, 0x70, 0x08}), flush) << "clwb 8(%r8)";
  EXPECT_THAT(found_in({0x90, 0x48, 0xb8, 0x0f, 0xae, 0x3f, 0xc3, 0x90, 0x90, 0x90, 0x90, 0xc3}),
              ::testing::AllOf(flush, ::testing::HasSubstr("byte 0x3")))
      << "movabs of a constant that is clflush (%rdi); ret";
}

TEST(CpuCode, FencesAndOtherNeighboursAreAllowed) {
  EXPECT_EQ(found_in({0x0f, 0xae, 0xe8, 0x0f, 0xae, 0xf0, 0x0f, 0xae, 0xf8}), "") << "lfence, mfence, sfence";
  EXPECT_EQ(found_in({0x0f, 0xae, 0x10, 0x0f, 0xae, 0x18}), "") << "ldmxcsr, stmxcsr";
  EXPECT_EQ(found_in({0xc5, 0xf8, 0xae, 0x3f}), "") << "no flush has VEX";
  EXPECT_EQ(found_in({0x0f, 0xae}), "") << "cut off";
  EXPECT_EQ(found_in({}), "");
}

TEST(CpuCode, FlushesAndClocksOfAarch64) {
  const auto of = [](const std::vector<std::uint32_t>& words) {
    std::string code(words.size() * sizeof(std::uint32_t), '\0');
    std::memcpy(code.data(), words.data(), code.size());
    return violation_in_cpu_code(code, CpuMachine::aarch64);
  };
  EXPECT_EQ(of({0xd65f03c0, 0xd50b7420, 0xd5033bbf}), "") << "ret; dc zva, x0; dmb ish";
  EXPECT_THAT(of({0xd65f03c0, 0xd50b7e23}), ::testing::HasSubstr("d50b7e23 at byte 0x4")) << "dc civac, x3";
  EXPECT_THAT(of({0xd50b7a20}), ::testing::HasSubstr("caches")) << "dc cvac, x0";
  EXPECT_THAT(of({0xd53be045}), ::testing::HasSubstr("looks at the time")) << "mrs x5, cntvct_el0";
}

}  // namespace
}  // namespace heed::jit

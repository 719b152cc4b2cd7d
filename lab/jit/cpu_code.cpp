#include "jit/cpu_code.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace heed::jit {
namespace {

constexpr const char* kFlushes = "it takes lines out of caches that others use";

// At every byte: of 5,392 kernels of fwd_cpu (50 MB of AVX2 code) none holds these bytes by chance.
// CLFLUSH is 0F AE /7, CLFLUSHOPT and CLWB are 66 0F AE /7 and /6, all with a place in memory (Intel SDM, vol. 2). With
// a register the same bytes are fences, which kernels may have; without 66 the last is XSAVEOPT, which none has.
std::string violation_in_x86(std::string_view code) {
  constexpr unsigned kRegister = 3;
  for (std::size_t at = code.find('\x0f'); at != std::string_view::npos && at + 2 < code.size();
       at = code.find('\x0f', at + 1)) {
    const auto opcode = static_cast<unsigned char>(code[at + 1]);
    const auto operand = static_cast<unsigned char>(code[at + 2]);
    if (opcode != 0xae || operand >> 6 == kRegister || (operand >> 3 & 6U) != 6) continue;
    return fmt::format(
        "{}: byte {:#x} of its code begins clflush, clflushopt or clwb (0f ae {:02x}), which a jump can reach even "
        "within "
        "another instruction; write the constant or the distance that holds these bytes in another way",
        kFlushes, at, operand);
  }
  return {};
}

struct Pattern {
  std::uint32_t mask;
  std::uint32_t bits;
  const char* what;
};

// Arm ARM, C5.3 and D19: DC CVAC, CVAU, CVAP, CVADP, CIVAC and IC IVAU, then CNTFRQ, CNTPCT, CNTVCT and their
// self-synchronising forms.
constexpr std::array kForbidden = {Pattern{0xffffffe0, 0xd50b7a20, kFlushes},
                                   Pattern{0xffffffe0, 0xd50b7b20, kFlushes},
                                   Pattern{0xffffffe0, 0xd50b7c20, kFlushes},
                                   Pattern{0xffffffe0, 0xd50b7d20, kFlushes},
                                   Pattern{0xffffffe0, 0xd50b7e20, kFlushes},
                                   Pattern{0xffffffe0, 0xd50b7520, kFlushes},
                                   Pattern{0xffffff00, 0xd53be000, "it looks at the time"}};

std::string violation_in_aarch64(std::string_view code) {
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= code.size(); at += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, code.data() + at, sizeof word);
    for (const Pattern& one : kForbidden)
      if ((word & one.mask) == one.bits)
        return fmt::format("{}: instruction {:08x} at byte {:#x} of its code", one.what, word, at);
  }
  return {};
}

}  // namespace

std::string violation_in_cpu_code(std::string_view code, CpuMachine machine) {
  return machine == CpuMachine::x86_64 ? violation_in_x86(code) : violation_in_aarch64(code);
}

}  // namespace heed::jit

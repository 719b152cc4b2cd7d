// NVIDIA does not publish the encoding. What is used of it here was read off nvdisasm -hex of kernels with one
// instruction of interest each, built by ptxas 13.0 for sm_80, sm_89 and sm_90a. An instruction has 128 bits:
//   bits 0-11    operation; its bits 9-11 say where operands come from (3 and 5: one of the constant banks)
//   bits 24-31   register of an address; 255: none
//   bits 38-53   offset in a constant bank, in bytes
//   bits 54-58   number of a constant bank
//   bits 72-79   special register
//   bits 87-90   what CCTL does to the caches
// Bank 0 holds what the driver says of a launch, and from EIATTR_PARAM_CBANK on the parameters; bank 2 the compiler's
// literals; bank 3 __constant__; bank 4 addresses of module-scope variables and functions.
#include "jit/machine_code.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace heed::jit {
namespace {

struct Instruction {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  [[nodiscard]] unsigned operation() const { return low & 0x1ff; }
  [[nodiscard]] unsigned form() const { return low >> 9 & 7; }
  [[nodiscard]] unsigned address_register() const { return low >> 24 & 0xff; }
  [[nodiscard]] unsigned bank() const { return low >> 54 & 0x1f; }
  [[nodiscard]] unsigned bank_offset() const { return low >> 38 & 0xffff; }
  [[nodiscard]] unsigned special_register() const { return high >> 8 & 0xff; }
  [[nodiscard]] unsigned cache_control() const { return high >> 23 & 0xf; }
};

enum Operation : unsigned {
  kPmTrig = 0x001,
  kCs2r = 0x005,
  kUldcIndexed = 0x0bb,  // ULDC with a uniform register in the address; without one it is 0x0b9
  kS2r = 0x119,
  kBar = 0x11d,  // has form 5 and no constant
  kCall = 0x144,
  kBpt = 0x15c,
  kNanosleep = 0x15d,
  kTex = 0x160,
  kLdc = 0x182,
  kCctl = 0x18f,
  kSuld = 0x199,
  kS2ur = 0x1c3,
};

bool reads_special_register(unsigned operation) {
  return operation == kCs2r || operation == kS2r || operation == kS2ur;
}

// ATOM, ATOMG, RED and REDG with integers and floats, compare-and-swap, bulk and tensor reductions.
bool is_global_atomic(unsigned operation) {
  constexpr std::array kAtomics = {0x18aU, 0x18bU, 0x18eU, 0x1a2U, 0x1a3U, 0x1a6U, 0x1a8U, 0x1a9U, 0x1b6U, 0x1bbU};
  return std::find(kAtomics.begin(), kAtomics.end(), operation) != kAtomics.end();
}

// What nvdisasm names LANEID, VIRTID (%warpid), TID, CTAID, windows of shared and local memory and their sizes,
// lane masks, the block's place in its cluster, and zero.
bool is_allowed_register(unsigned number) {
  return number == 0 || number == 3 || (number >= 32 && number <= 35) || (number >= 37 && number <= 40) ||
         (number >= 46 && number <= 60) || number == 136 || number == 255;
}

std::string name_of_register(unsigned number) {
  if (number == 1 || number == 80 || number == 81) return "the clock";
  if (number == 82 || number == 83) return "the global timer";
  if (number == 67) return "the number of its multiprocessor";
  return fmt::format("special register {}", number);
}

struct Layout {
  unsigned parameters;  ///< in bank 0
  unsigned graph;       ///< %current_graph_exec
  unsigned constants;   ///< generic address of bank 3
};

// Bank 0 from ptxas 13.0: mov of %gridid, %current_graph_exec, cvta.const.
constexpr unsigned kGridId = 0x30;
constexpr Layout kAmpere = {0x160, 0x130, 0x50};
constexpr Layout kHopper = {0x210, 0x190, 0xd0};

std::optional<Layout> layout_of(std::string_view arch) {
  for (const std::string_view known : {"sm_80", "sm_86", "sm_87", "sm_89"})
    if (arch == known) return kAmpere;
  if (arch == "sm_90" || arch == "sm_90a") return kHopper;
  return std::nullopt;
}

// Where the parameters begin in bank 0: attribute 0x0a of .nv.info.NAME, whose value is a symbol, an offset, a size.
std::optional<unsigned> start_of_parameters(std::string_view info) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(info[at])); };
  for (std::size_t at = 0; at + 4 <= info.size();) {
    const unsigned format = byte(at);
    const unsigned size = byte(at + 2) | byte(at + 3) << 8;
    if (format == 4 && byte(at + 1) == 0x0a && size >= 8 && at + 12 <= info.size())
      return byte(at + 8) | byte(at + 9) << 8;
    at += 4 + (format == 4 ? size : 0);
  }
  return std::nullopt;
}

bool reads_constants(const Instruction& i) {
  return (i.form() == 3 || i.form() == 5) && i.operation() != kBar;
}

std::string violation_of_constant(const Instruction& i, const Layout& layout, unsigned parameters) {
  const bool indexed = i.operation() == kUldcIndexed || (i.operation() == kLdc && i.address_register() != 0xff);
  if (i.bank() == 4) return "it keeps state between launches in device memory of its own";
  if (i.bank() != 0 && i.bank() != 2) return "it reads constant memory of its own";
  if (i.bank() == 2) return {};
  const auto touches = [&](unsigned word) { return i.bank_offset() < word + 8 && i.bank_offset() + 8 > word; };
  if (indexed && i.bank_offset() < parameters) return "it reads below its parameters";
  if (i.bank_offset() >= parameters || indexed) return {};
  if (i.bank_offset() == kGridId || i.bank_offset() == kGridId + 4) return "it reads the number of its launch";
  if (i.bank_offset() == layout.graph || i.bank_offset() == layout.graph + 4) return "it reads which graph launched it";
  if (touches(layout.constants) && i.bank_offset() >= layout.constants)
    return "it asks where constant memory lies, which outlives the launch";
  return {};
}

std::string violation_of(const Instruction& i, const Layout& layout, unsigned parameters, const PtxRules& rules) {
  const unsigned operation = i.operation();
  if (reads_special_register(operation) && !is_allowed_register(i.special_register()))
    return fmt::format("it looks at {}", name_of_register(i.special_register()));
  if (is_global_atomic(operation) && !rules.semaphores)
    return "it counts in global memory, and its launch plan has no semaphores";
  // Prefetches (0, 1) and dropping the L1 (4) leave no trace in the L2's choice of lines; persisting, demoting and
  // discarding (9, 10, 11) do.
  if (operation == kCctl && i.cache_control() != 0 && i.cache_control() != 1 && i.cache_control() != 4)
    return "it changes what the L2 cache keeps for whoever runs next";
  if (operation == kNanosleep && (i.form() == 1 || i.form() == 4)) return "it lets time pass";
  if (operation == kPmTrig && i.form() == 4) return "it signals a profiler";
  if (operation == kCall && i.form() == 1) return "it calls a function by its address";
  if ((operation == kTex && i.form() == 7) || (operation == kSuld && i.form() == 7))
    return "it reads a texture or a surface";
  if (reads_constants(i)) return violation_of_constant(i, layout, parameters);
  return {};
}

}  // namespace

MachineCodeAudit audit_machine_code(const ElfFile& cubin, std::string_view arch, const PtxRules& rules) {
  const std::optional<Layout> layout = layout_of(arch);
  if (!layout) return {};
  unsigned parameters = layout->parameters;
  const std::string info = fmt::format(".nv.info.{}", rules.entry);
  for (const ElfSection& section : cubin.sections)
    if (section.name == info) parameters = start_of_parameters(section.data).value_or(parameters);
  for (const ElfSection& section : cubin.sections) {
    if (!section.name.starts_with(".text")) continue;
    if (section.data.size() % sizeof(Instruction) != 0)
      return {true, "its machine code is no whole number of instructions"};
    for (std::size_t at = 0; at < section.data.size(); at += sizeof(Instruction)) {
      Instruction instruction;
      std::memcpy(&instruction, section.data.data() + at, sizeof instruction);
      if (const std::string violation = violation_of(instruction, *layout, parameters, rules); !violation.empty())
        return {true, fmt::format("{} (machine code at 0x{:x})", violation, at)};
    }
  }
  return {true, {}};
}

}  // namespace heed::jit

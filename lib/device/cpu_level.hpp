/// Named levels of CPUs: programs of a level run on every processor that has its instructions, whichever built them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_facts.hpp"

namespace heed {

/// What programs of a level are compiled with and judged by. The psABI defines x86-64-v3 and x86-64-v4:
/// https://gitlab.com/x86-psABIs/x86-64-ABI
struct CpuLevel {
  std::string_view name;           ///< what files of programs call it: "x86-64-v3"
  std::string_view machine;        ///< the instruction set, as uname(2) and compilers name it: "x86_64"
  std::vector<std::string> flags;  ///< of g++ and clang++, in place of -march=native
  int lanes;                       ///< fp32 values a vector register (kLanes of cpu/simd.hpp under these flags)
  int registers;                   ///< vector registers
  bool matrix_unit;                ///< programs may use tiles of bf16 (AMX)
  bool (*runs)();                  ///< whether this processor and its operating system have all that flags allow
};

/// Every level; those of one instruction set side by side, each with all instructions of the one before it.
std::span<const CpuLevel> cpu_levels();
/// The level of that name; null where there is none.
const CpuLevel* find_cpu_level(std::string_view name);
/// Levels of an instruction set, the lowest first. @param machine as uname(2) names it
std::vector<const CpuLevel*> cpu_levels_of(std::string_view machine);
/// The instruction set this program was compiled for: "x86_64", "aarch64"; empty for another.
std::string_view own_machine();
/// Its highest level that this processor runs; null where it runs none. On x86-64 this asks for the matrix unit
/// (base/matrix_unit.hpp).
const CpuLevel* highest_cpu_level();

/// A processor that programs of a level are built for ahead of time: rules for defaults count with 8 processors and a
/// last-level cache of 32 MiB.
DeviceFacts representative_cpu(const CpuLevel& level);
/// A processor as programs of a level see it: with the level's vectors and matrix unit.
DeviceFacts at_level(DeviceFacts device, const CpuLevel& level);
/// A processor that runs nothing beyond the level of this name, nor programs of its own architecture alone; unchanged
/// where the name is empty or the processor has no higher level.
/// @throws Error(usage) naming the levels of this instruction set, where the name is none of them
DeviceFacts at_most_level(DeviceFacts device, std::string_view name);

}  // namespace heed

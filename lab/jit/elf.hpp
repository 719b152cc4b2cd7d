/// Reading cubins, which are ELF files. For shared objects of CPU candidates see shared_object.hpp.
/// ELF-64: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heed::jit {

struct ElfSection {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint64_t flags = 0;
  std::uint64_t size = 0;
  std::string_view data;  ///< empty for sections without file content (.bss)
};

struct ElfFile {
  std::vector<ElfSection> sections;
  std::vector<std::string> undefined;  ///< symbols it leaves to others
  std::vector<std::string> defined;    ///< global functions it offers
};

/// `bytes` must outlive the result. @throws Error(cache) when they are no well-formed 64-bit little-endian ELF file
ElfFile parse_elf(std::string_view bytes);

/// Digest over the executable sections and the constants they use: two variants that keep to the contract and have
/// equal digests are the same program.
std::string machine_code_digest(const ElfFile& file);

/// Bytes of executable sections.
std::int64_t code_bytes(const ElfFile& file);

/// Why a cubin breaks the kernel contract; empty when it keeps to it: nothing left to link. What else it must not do is
/// read off its PTX.
std::string contract_violation_in_cubin(const ElfFile& file, std::string_view entry);

}  // namespace heed::jit

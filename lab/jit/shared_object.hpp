/// Shared objects of CPU candidates, read as a loader reads them: program headers and the dynamic section decide what
/// is in memory when a candidate runs; names of sections decide nothing.
/// ELF-64: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed::jit {

/// One stretch of the file that is mapped (PT_LOAD).
struct LoadSegment {
  std::uint64_t address = 0;  ///< relative to where the object is loaded
  std::uint64_t bytes = 0;    ///< in memory; zeros follow where the file has fewer
  std::string_view content;   ///< of the file
  bool executable = false;
};

struct SharedObject {
  std::vector<LoadSegment> segments;  ///< by address, no two on one page
  std::uint64_t span = 0;             ///< bytes from address 0 to the end of the last segment
  std::string violation;              ///< why the object breaks the kernel contract; empty when it keeps to it
  std::vector<std::pair<std::string, std::uint64_t>> functions;  ///< global functions it offers and their addresses

  [[nodiscard]] std::optional<std::uint64_t> find(std::string_view function) const;
};

/// Reads and audits. An object that keeps to the contract brings code and constants, nothing else: no relocation, no
/// symbol of others, no library, no code that runs when it is loaded, no thread-local and no writable memory.
/// Everything not known to be harmless is a violation.
/// @param bytes must outlive the result. @throws Error(cache) when they are no well-formed 64-bit little-endian ELF
/// shared object
SharedObject parse_shared_object(std::string_view bytes);

/// Why a CPU candidate's shared object breaks the kernel contract; empty when it keeps to it.
std::string contract_violation_in_shared_object(const SharedObject& object, std::string_view entry);

/// Digest over everything that is mapped, and how: two variants with equal digests are the same program.
std::string machine_code_digest(const SharedObject& object);

/// Bytes of executable segments.
std::int64_t code_bytes(const SharedObject& object);

}  // namespace heed::jit

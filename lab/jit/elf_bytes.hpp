/// Structures of an ELF file, read with their bounds checked.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/check.hpp"

namespace heed::jit {

/// @throws Error(cache), always
[[noreturn]] inline void malformed_elf(const char* what) {
  throw Error(ErrorCode::cache, fmt::format("malformed ELF file: {}", what));
}

/// @throws Error(cache) where the structure reaches past the end
template <typename T>
T read_at(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) malformed_elf("a structure reaches past the end");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace heed::jit

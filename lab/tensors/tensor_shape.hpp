/// What readers of tensor files share: refusals that name the file, and shapes that a tensor can have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::tensor_files {

/// Dimensions of a tensor, at most.
constexpr std::size_t kMostExtents = 16;

/// Throws Error(invalid_input) "PATH: why".
[[noreturn]] void fail(const std::filesystem::path& path, const std::string& why);

/// Text of a file as it may stand in a message: control characters replaced, the middle of a long one left out.
std::string printable(std::string_view text);

/// Bytes of a dense tensor. Refuses an extent below 1 and more than 4 TiB.
std::uint64_t bytes_of(const std::filesystem::path& path, std::string_view name, const std::vector<std::int64_t>& shape,
                       Dtype dtype);

/// The number in little-endian bytes, at most eight.
std::uint64_t little_endian(std::string_view bytes);

}  // namespace heed::tensor_files

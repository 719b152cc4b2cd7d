#include "tensors/tensor_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace heed::tensor_files {
namespace {

constexpr std::size_t kMostPrinted = 80;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 42;

}  // namespace

void fail(const std::filesystem::path& path, const std::string& why) {
  throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", path.string(), why), path.string());
}

std::string printable(std::string_view text) {
  std::string plain(text.size() > kMostPrinted ? text.substr(0, kMostPrinted) : text);
  for (char& c : plain)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text.size() > kMostPrinted ? plain + "..." : plain;
}

std::uint64_t bytes_of(const std::filesystem::path& path, std::string_view name, const std::vector<std::int64_t>& shape,
                       Dtype dtype) {
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) {
    if (extent < 1) fail(path, fmt::format("tensor \"{}\" has shape {}; every extent must be at least 1", name, shape));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) || bytes > kMostBytes)
      fail(path, fmt::format("tensor \"{}\" has shape {}, which is too large", name, shape));
  }
  return bytes;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace heed::tensor_files

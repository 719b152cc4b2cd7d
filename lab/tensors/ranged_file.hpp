/// A file read by ranges: of a file larger than the memory, what is asked for and nothing else is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "heed/heed.hpp"

namespace heed {

class RangedFile {
 public:
  /// @throws Error(code) when the file cannot be opened, or is a folder, a pipe or a device, which have no ranges
  RangedFile(const std::filesystem::path& path, ErrorCode code);
  ~RangedFile();
  RangedFile(const RangedFile&) = delete;
  RangedFile& operator=(const RangedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Bytes in the file when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// The bytes [offset, offset + bytes), which must lie within size().
  /// @throws Error(code) when they cannot be read, or the file has become shorter meanwhile
  [[nodiscard]] std::string read(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  ErrorCode code_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace heed

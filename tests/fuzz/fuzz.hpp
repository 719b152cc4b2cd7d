/// What the fuzz targets share. A target hands its bytes to one parser: the parser may refuse them with an Error that
/// says why, and nothing else may happen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::fuzz {

/// Ends the process, which is how libFuzzer learns of a property that does not hold.
inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << '\n';
  std::abort();
}

/// Runs `parse`. An Error is a refusal and must say something.
template <typename Parse>
void refuses_or_reads(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() > 5, "a refusal says why");
  }
}

/// The bytes as a file, in memory, for parsers that take a path.
class File {
 public:
  File(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("input", 0)) {
    require(descriptor_ >= 0 && ::write(descriptor_, data, size) == static_cast<ssize_t>(size), "memory for the input");
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_ = -1;
};

}  // namespace heed::fuzz

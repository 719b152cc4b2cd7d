/// Source files carried inside the binary: what candidates include, the exploit zoo, and the PyTorch helper.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace heed {
class Family;
}

namespace heed::jit {

struct EmbeddedFile {
  std::string_view path;  ///< as an #include names it, e.g. "kernels/sm80/forward/forward.cuh"
  std::string_view content;
};

std::span<const EmbeddedFile> embedded_files();

/// The file's text. @throws Error(internal) when there is none
std::string_view embedded_file(std::string_view path);

/// Whether candidates may include a file: everything but the exploit zoo and the Python helper.
bool is_device_source(std::string_view path);

/// 16 hexadecimal digits over all device sources: part of every cache key, and stored with every result.
const std::string& source_digest();

/// Paths of the device sources of a family: the files of its folder and what they include, directly or not.
std::set<std::string> sources_of(const Family& family);

/// The same digest of every family by itself, over its sources. What tells whether a result is still of today's kernel
/// when another family has changed.
const std::map<std::string, std::string>& family_digests();

}  // namespace heed::jit

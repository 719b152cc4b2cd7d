/// Device sources carried inside the binary, so that kernels are compiled on machines without the source tree.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heed {
class Family;
struct Overlay;
}  // namespace heed

namespace heed::compile {

struct EmbeddedFile {
  std::string_view path;  ///< as an #include names it, e.g. "kernels/sm80/forward/forward.cuh"
  std::string_view content;
};

/// The library's device sources, kernels/ and cpu/: what every search may include.
std::span<const EmbeddedFile> library_files();

/// Makes the sources of a family outside the library known to compilers. To be called before the first build, with
/// storage that outlives the last one. @throws Error(internal) for a path that is known with another content
void add_device_files(std::span<const EmbeddedFile> files);

/// The library's device sources and those added, by path.
const std::map<std::string, std::string_view, std::less<>>& device_files();

/// The file's text. @throws Error(internal) when there is none
std::string_view device_file(std::string_view path);

/// 16 hexadecimal digits over the code of the library's device sources (compile/code_text.hpp): stored with every
/// result. Sources that were added do not count, for no search builds from them.
const std::string& source_digest();

/// The file's text where an overlay may hold another. @param overlay null: none
/// @throws Error(internal) when there is none
std::string_view device_file(std::string_view path, const Overlay* overlay);

/// What a text includes in quotes, in its order: paths of device sources, unless an edit names others.
std::vector<std::string> includes_of(std::string_view text);

/// Paths of the device sources that a translation unit includes, directly or not.
/// @param overlay edited ones, which may include others than they did; null: none
std::set<std::string> included_by(std::string_view source, const Overlay* overlay = nullptr);

/// Paths of the device sources of a family: the files of its folder and what they include, directly or not.
std::set<std::string> sources_of(const Family& family);

/// The digest of every registered family by itself, over its sources. What tells whether a result is still of today's
/// kernel when another family has changed.
const std::map<std::string, std::string>& family_digests();

}  // namespace heed::compile

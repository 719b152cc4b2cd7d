#include "jit/embedded.hpp"

#include "base/check.hpp"
#include "base/digest.hpp"
#include "base/text.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

// What a file includes of the embedded ones.
std::vector<std::string> includes_of(std::string_view content) {
  constexpr std::string_view kInclude = "#include \"";
  std::vector<std::string> files;
  for (const std::string& line : split(content, '\n')) {
    if (line.rfind(kInclude, 0) != 0) continue;
    const std::size_t end = line.find('"', kInclude.size());
    if (end != std::string::npos) files.push_back(line.substr(kInclude.size(), end - kInclude.size()));
  }
  return files;
}

}  // namespace

bool is_device_source(std::string_view path) {
  const bool device = path.substr(0, 8) == "kernels/" || path.substr(0, 4) == "cpu/";
  return device && path.find("/zoo/") == std::string_view::npos;
}

std::string_view embedded_file(std::string_view path) {
  for (const EmbeddedFile& file : embedded_files())
    if (file.path == path) return file.content;
  throw Error(ErrorCode::internal, fmt::format("no embedded file {}", path), std::string(path));
}

const std::string& source_digest() {
  static const std::string value = [] {
    Digester digester;
    for (const EmbeddedFile& file : embedded_files())
      if (is_device_source(file.path)) digester.add(file.path).add(file.content);
    return digester.hex().substr(0, 16);
  }();
  return value;
}

std::set<std::string> sources_of(const Family& family) {
  const std::string folder = std::string(family.folder()) + "/";
  std::vector<std::string> open;
  for (const EmbeddedFile& file : embedded_files())
    if (is_device_source(file.path) && file.path.rfind(folder, 0) == 0) open.emplace_back(file.path);
  std::set<std::string> sources;
  while (!open.empty()) {
    const std::string path = std::move(open.back());
    open.pop_back();
    if (!sources.insert(path).second) continue;
    for (std::string& file : includes_of(embedded_file(path))) open.push_back(std::move(file));
  }
  return sources;
}

const std::map<std::string, std::string>& family_digests() {
  static const std::map<std::string, std::string> digests = [] {
    std::map<std::string, std::string> all;
    for (const Family* family : families()) {
      Digester digester;
      for (const std::string& path : sources_of(*family)) digester.add(path).add(embedded_file(path));
      all.emplace(family->name(), digester.hex().substr(0, 16));
    }
    return all;
  }();
  return digests;
}

}  // namespace heed::jit

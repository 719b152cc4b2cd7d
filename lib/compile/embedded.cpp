#include "compile/embedded.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "base/text.hpp"
#include "compile/code_text.hpp"
#include "variant/family.hpp"
#include "variant/overlay.hpp"

namespace heed::compile {
namespace {

using Files = std::map<std::string, std::string_view, std::less<>>;

Files& known_files() {
  static Files files = [] {
    Files all;
    for (const EmbeddedFile& file : library_files()) all.emplace(file.path, file.content);
    return all;
  }();
  return files;
}

// Those files and what they include. A name that no device source has is left to the compiler, which says so in its
// own words.
std::set<std::string> closure_of(std::vector<std::string> open, const Overlay* overlay = nullptr) {
  std::set<std::string> closure;
  while (!open.empty()) {
    const std::string path = std::move(open.back());
    open.pop_back();
    const auto file = known_files().find(path);
    if (file == known_files().end() || !closure.insert(path).second) continue;
    const std::string* edited = overlay == nullptr ? nullptr : overlay->find(path);
    for (std::string& included : includes_of(edited == nullptr ? file->second : std::string_view(*edited)))
      open.push_back(std::move(included));
  }
  return closure;
}

}  // namespace

std::vector<std::string> includes_of(std::string_view text) {
  constexpr std::string_view kInclude = "#include \"";
  std::vector<std::string> files;
  for (const std::string& line : split(text, '\n')) {
    if (line.rfind(kInclude, 0) != 0) continue;
    const std::size_t end = line.find('"', kInclude.size());
    if (end != std::string::npos) files.push_back(line.substr(kInclude.size(), end - kInclude.size()));
  }
  return files;
}

void add_device_files(std::span<const EmbeddedFile> files) {
  for (const EmbeddedFile& file : files) {
    const auto [at, is_new] = known_files().emplace(file.path, file.content);
    HEED_CHECK(is_new || at->second == file.content);
  }
}

const Files& device_files() {
  return known_files();
}

std::string_view device_file(std::string_view path) {
  const auto file = known_files().find(path);
  if (file == known_files().end())
    throw Error(ErrorCode::internal, fmt::format("no device source {}", path), std::string(path));
  return file->second;
}

std::string_view device_file(std::string_view path, const Overlay* overlay) {
  const std::string* edited = overlay == nullptr ? nullptr : overlay->find(path);
  return edited == nullptr ? device_file(path) : std::string_view(*edited);
}

const std::string& source_digest() {
  static const std::string value = [] {
    Digester digester;
    for (const EmbeddedFile& file : library_files()) digester.add(file.path).add(code_text(file.content));
    return digester.hex().substr(0, 16);
  }();
  return value;
}

std::set<std::string> included_by(std::string_view source, const Overlay* overlay) {
  return closure_of(includes_of(source), overlay);
}

std::set<std::string> sources_of(const Family& family) {
  const std::string folder = std::string(family.folder()) + "/";
  std::vector<std::string> own;
  for (const auto& [path, content] : known_files())
    if (path.rfind(folder, 0) == 0) own.push_back(path);
  return closure_of(std::move(own));
}

const std::map<std::string, std::string>& family_digests() {
  static const std::map<std::string, std::string> digests = [] {
    std::map<std::string, std::string> all;
    for (const Family* family : families()) {
      Digester digester;
      for (const std::string& path : sources_of(*family)) digester.add(path).add(code_text(device_file(path)));
      all.emplace(family->name(), digester.hex().substr(0, 16));
    }
    return all;
  }();
  return digests;
}

}  // namespace heed::compile

#include "prompts/template.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.hpp"
#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "heed/heed.hpp"

namespace heed::prompts {

std::span<const compile::EmbeddedFile> template_files();  // CMakeLists.txt of lab/

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "lab/prompts/templates/";

// The line with its places filled. Says whether it is to be left out: places alone, all of them empty.
std::string filled_line(std::string_view line, const Values& values, std::string_view where, bool& is_gone) {
  std::string result;
  bool has_places = false;
  for (;;) {
    const std::size_t open = line.find("{{");
    if (open == std::string_view::npos) break;
    const std::size_t close = line.find("}}", open);
    if (close == std::string_view::npos)
      throw Error(ErrorCode::usage, fmt::format("{}: a place that begins with {{{{ ends with }}}}", where));
    const std::string name = trim(line.substr(open + 2, close - open - 2));
    const auto value = values.find(name);
    if (value == values.end()) {
      std::vector<std::string_view> known;
      for (const auto& [one, text] : values) known.push_back(one);
      throw Error(ErrorCode::usage,
                  fmt::format("{}: nothing is known as {{{{{}}}}}; {}", where, name, one_of(name, known)), name);
    }
    result += line.substr(0, open);
    result += value->second;
    line.remove_prefix(close + 2);
    has_places = true;
  }
  result += line;
  is_gone = has_places && trim(result).empty();
  return result;
}

}  // namespace

std::string filled(std::string_view text, const Values& values, std::string_view name) {
  std::string result;
  int number = 0;
  bool was_gone = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    bool is_gone = false;
    std::string full = filled_line(line, values, fmt::format("{}.md, line {}", name, ++number), is_gone);
    const bool is_gap = was_gone && trim(line).empty();
    was_gone = is_gone;
    if (is_gone || is_gap) continue;
    while (full.ends_with('\n')) full.pop_back();  // values may end with a line end of their own
    result += full + "\n";
  }
  return result;
}

Templates::Templates(fs::path folder) : folder_(std::move(folder)) {
  if (!folder_.empty() && !fs::is_directory(folder_))
    throw Error(ErrorCode::usage, fmt::format("there is no folder of prompts {}", folder_.string()), folder_.string());
}

std::string Templates::text(std::string_view name) const {
  const std::string file = fmt::format("{}.md", name);
  if (!folder_.empty() && fs::exists(folder_ / file)) return read_file(folder_ / file, ErrorCode::usage);
  for (const compile::EmbeddedFile& one : template_files())
    if (one.path == std::string(kFolder) + file) return std::string(one.content);
  throw Error(ErrorCode::internal, fmt::format("there is no template of prompts {}", file), file);
}

}  // namespace heed::prompts

// Reading PTX: https://docs.nvidia.com/cuda/parallel-thread-execution/
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "jit/toolchain.hpp"

namespace heed::jit {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

// Names and directives of a line, comments left out.
std::vector<std::string> words_of(std::string_view line) {
  line = line.substr(0, line.find("//"));
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && !is_name_character(line[at])) ++at;
    const std::size_t start = at;
    while (at < line.size() && is_name_character(line[at])) ++at;
    if (at > start) words.emplace_back(line.substr(start, at - start));
  }
  return words;
}

}  // namespace

std::string contract_breach_of_ptx(std::string_view ptx) {
  std::set<std::string> globals;
  bool in_body = false;
  for (const std::string& line : split(ptx, '\n')) {
    const std::vector<std::string> words = words_of(line);
    if (line.find('{') == 0) in_body = true;
    if (line.find('}') == 0) in_body = false;
    if (words.empty()) continue;
    if (!in_body) {
      // A module-scope variable: ".visible .global .align 4 .u32 name = ...;", the name before '[', '=' or ';'.
      if (std::find(words.begin(), words.end(), ".global") == words.end()) continue;
      const std::vector<std::string> declaration =
          words_of(std::string_view(line).substr(0, line.find_first_of("[=;")));
      if (!declaration.empty()) globals.insert(declaration.back());
      continue;
    }
    for (const std::string& word : words) {
      if (word == "%clock" || word == "%clock64" || word == "%clock_hi" || word.substr(0, 12) == "%globaltimer")
        return fmt::format("it looks at the time ({})", word);
      if (word == "call" || word.substr(0, 5) == "call.")
        return fmt::format("it calls a function outside the kernel contract: {}", trim(line));
      if (globals.count(word) != 0)
        return fmt::format("it keeps state between launches in device memory of its own ({})", word);
    }
  }
  return {};
}

}  // namespace heed::jit

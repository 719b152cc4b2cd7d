#include "compile/code_text.hpp"

#include <cstddef>

namespace heed::compile {

std::string code_text(std::string_view source) {
  std::string code;
  code.reserve(source.size());
  bool directive = false;  // a line that began with '#'
  const auto space = [&] {
    if (!code.empty() && code.back() != ' ' && code.back() != '\n') code += ' ';
  };
  const auto end_line = [&] {
    if (!directive) return space();
    if (!code.empty() && code.back() == ' ') code.pop_back();
    code += '\n';
    directive = false;
  };
  for (std::size_t i = 0; i < source.size();) {
    const char c = source[i];
    const std::string_view rest = source.substr(i);
    if (rest.starts_with("//")) {
      const std::size_t end = source.find('\n', i);
      i = end == std::string_view::npos ? source.size() : end;
    } else if (rest.starts_with("/*")) {
      const std::size_t end = source.find("*/", i + 2);
      i = end == std::string_view::npos ? source.size() : end + 2;
      space();
    } else if (rest.starts_with("\\\n")) {  // a spliced line goes on
      i += 2;
      space();
    } else if (c == '\n') {
      end_line();
      ++i;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      space();
      ++i;
    } else if (c == '"' || (c == '\'' && (i == 0 || source[i - 1] < '0' || source[i - 1] > '9'))) {  // no 1'000
      std::size_t end = i + 1;
      while (end < source.size() && source[end] != c && source[end] != '\n') end += source[end] == '\\' ? 2 : 1;
      end = end < source.size() ? end + 1 : source.size();
      code += source.substr(i, end - i);
      i = end;
    } else {
      const std::size_t begin = source.find_last_not_of(" \t", i == 0 ? std::string_view::npos : i - 1);
      if (c == '#' && (i == 0 || begin == std::string_view::npos || source[begin] == '\n')) {
        if (!code.empty() && code.back() == ' ') code.back() = '\n';
        directive = true;
      }
      code += c;
      ++i;
    }
  }
  while (!code.empty() && (code.back() == ' ' || code.back() == '\n')) code.pop_back();
  return code;
}

}  // namespace heed::compile

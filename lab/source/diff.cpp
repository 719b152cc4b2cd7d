#include "source/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "source/apply.hpp"
#include "source/editable.hpp"

namespace heed::source {
namespace {

constexpr std::size_t kContext = 3;
constexpr std::size_t kMostCells = std::size_t{16} << 20;  // 32 MiB of a table; larger changes are shown as a whole

using Lines = std::vector<std::string>;

struct Line {
  char sign;  // ' ', '-', '+'
  const std::string* text;
};

// What is between the lines that both begin and end with.
void add_middle(const Lines& old, std::size_t old_begin, std::size_t old_end, const Lines& text, std::size_t begin,
                std::size_t end, std::vector<Line>& script) {
  const std::size_t rows = old_end - old_begin;
  const std::size_t columns = end - begin;
  std::size_t i = 0, j = 0;
  if (rows > 0 && columns > 0 && (rows + 1) * (columns + 1) <= kMostCells) {
    const std::size_t width = columns + 1;
    std::vector<std::uint16_t> longest((rows + 1) * width, 0);  // of what is left from a cell on
    for (std::size_t r = rows; r-- > 0;)
      for (std::size_t c = columns; c-- > 0;)
        longest[r * width + c] = old[old_begin + r] == text[begin + c]
                                     ? static_cast<std::uint16_t>(longest[(r + 1) * width + c + 1] + 1)
                                     : std::max(longest[(r + 1) * width + c], longest[r * width + c + 1]);
    while (i < rows && j < columns) {
      if (old[old_begin + i] == text[begin + j]) {
        script.push_back({' ', &old[old_begin + i]});
        ++i, ++j;
      } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) {
        script.push_back({'-', &old[old_begin + i++]});
      } else {
        script.push_back({'+', &text[begin + j++]});
      }
    }
  }
  for (; i < rows; ++i) script.push_back({'-', &old[old_begin + i]});
  for (; j < columns; ++j) script.push_back({'+', &text[begin + j]});
}

std::vector<Line> script_of(const Lines& old, const Lines& text) {
  std::size_t front = 0;
  while (front < old.size() && front < text.size() && old[front] == text[front]) ++front;
  std::size_t back = 0;
  while (back < old.size() - front && back < text.size() - front &&
         old[old.size() - 1 - back] == text[text.size() - 1 - back])
    ++back;
  std::vector<Line> script;
  for (std::size_t i = 0; i < front; ++i) script.push_back({' ', &old[i]});
  add_middle(old, front, old.size() - back, text, front, text.size() - back, script);
  for (std::size_t i = old.size() - back; i < old.size(); ++i) script.push_back({' ', &old[i]});
  return script;
}

// "12,7"; a range without lines begins at the line before it.
std::string range(std::size_t before, std::size_t count) {
  return fmt::format("{},{}", count == 0 ? before : before + 1, count);
}

}  // namespace

std::string unified_diff(std::string_view path, std::string_view old_text, std::string_view new_text) {
  const Lines old = lines_of(old_text);
  const Lines text = lines_of(new_text);
  if (old == text) return {};
  const std::vector<Line> script = script_of(old, text);
  std::string diff = fmt::format("diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n", path);
  std::size_t old_before = 0, new_before = 0;
  for (std::size_t at = 0; at < script.size();) {
    if (script[at].sign == ' ') {
      ++at, ++old_before, ++new_before;
      continue;
    }
    // Up to the first change that is more than two contexts behind the last.
    std::size_t last = at;
    for (std::size_t i = at; i < script.size() && i <= last + 2 * kContext; ++i)
      if (script[i].sign != ' ') last = i;
    const std::size_t lead = std::min(kContext, std::min(old_before, new_before));
    const std::size_t end = std::min(script.size(), last + 1 + kContext);
    std::string body;
    std::size_t old_count = 0, new_count = 0;
    for (std::size_t i = at - lead; i < end; ++i) {
      body += fmt::format("{}{}\n", script[i].sign, *script[i].text);
      if (script[i].sign != '+') ++old_count;
      if (script[i].sign != '-') ++new_count;
    }
    diff += fmt::format("@@ -{} +{} @@\n{}", range(old_before - lead, old_count), range(new_before - lead, new_count),
                        body);
    for (; at < end; ++at) {
      if (script[at].sign != '+') ++old_before;
      if (script[at].sign != '-') ++new_before;
    }
  }
  return diff;
}

std::string diff_of(const Overlay& overlay, const Family& family) {
  const auto originals = editable(family);
  std::string diff;
  for (const auto& [path, text] : overlay.files) {
    const auto original = originals.find(path);
    diff +=
        unified_diff(path, original == originals.end() ? std::string_view() : std::string_view(original->second), text);
  }
  return diff;
}

}  // namespace heed::source

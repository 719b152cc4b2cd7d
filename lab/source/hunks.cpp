#include "source/hunks.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/text.hpp"

namespace heed::source {
namespace {

struct Counts {
  int first = 0;
  int old_lines = -1;  // -1: none that could be read
  int new_lines = -1;
};

Counts counts_of(const std::string& header) {
  Counts counts;
  int old_lines = 1, new_lines = 1, first_new = 0;
  if (std::sscanf(header.c_str(), "@@ -%d,%d +%d,%d @@", &counts.first, &old_lines, &first_new, &new_lines) == 4 ||
      (old_lines = 1, std::sscanf(header.c_str(), "@@ -%d +%d,%d @@", &counts.first, &first_new, &new_lines) == 3) ||
      (new_lines = 1, std::sscanf(header.c_str(), "@@ -%d,%d +%d @@", &counts.first, &old_lines, &first_new) == 3) ||
      (old_lines = 1, std::sscanf(header.c_str(), "@@ -%d +%d @@", &counts.first, &first_new) == 2)) {
    counts.old_lines = old_lines;
    counts.new_lines = new_lines;
  }
  return counts;
}

bool is_hunk_line(const std::string& line) {
  return line.empty() || line[0] == ' ' || line[0] == '+' || line[0] == '-' || line[0] == '\\';
}

void add(const std::string& line, Replacement& hunk) {
  if (line.empty()) {
    hunk.search.emplace_back();
    hunk.replace.emplace_back();
    return;
  }
  if (line[0] == ' ' || line[0] == '-') hunk.search.push_back(line.substr(1));
  if (line[0] == ' ' || line[0] == '+') hunk.replace.push_back(line.substr(1));
}

// By the counts of its header; `at` where they do not fit.
std::size_t read_counted(const std::vector<std::string>& lines, std::size_t at, std::size_t end, const Counts& counts,
                         Replacement& hunk) {
  const std::size_t begin = at;
  auto left = static_cast<std::size_t>(counts.old_lines);
  auto right = static_cast<std::size_t>(counts.new_lines);
  while (at < end && (hunk.search.size() < left || hunk.replace.size() < right) && is_hunk_line(lines[at]))
    add(lines[at++], hunk);
  const bool fits = hunk.search.size() == left && hunk.replace.size() == right;
  const bool ends = at >= end || !is_hunk_line(lines[at]) || lines[at].empty() || lines[at][0] == '\\' ||
                    lines[at].starts_with("--- ");
  if (fits && ends) return at;
  hunk.search.clear();
  hunk.replace.clear();
  return begin;
}

}  // namespace

bool begins_diff(const std::vector<std::string>& lines, std::size_t at) {
  const std::string& line = lines[at];
  if (line.starts_with("diff --git ") || line.starts_with("@@ ") || line == "@@") return true;
  return line.starts_with("--- ") && at + 1 < lines.size() && lines[at + 1].starts_with("+++ ");
}

std::string path_of_header(std::string_view header) {
  std::string path = trim(header.substr(0, header.find('\t')));
  if (path == "/dev/null") return {};
  for (const char* prefix : {"a/", "b/"})
    if (path.starts_with(prefix)) return path.substr(2);
  return path;
}

std::size_t read_diff(const std::vector<std::string>& lines, std::size_t at, std::size_t end, std::string path,
                      Edits& edits) {
  while (at < end) {
    const std::string& line = lines[at];
    if (line.starts_with("diff --git ") || line.starts_with("index ") || line.starts_with("new file mode ") ||
        line.starts_with("old mode ") || line.starts_with("new mode ")) {
      ++at;
    } else if (line.starts_with("--- ") && at + 1 < end && lines[at + 1].starts_with("+++ ")) {
      const std::string from = path_of_header(line.substr(4));
      path = path_of_header(lines[at + 1].substr(4));
      if (path.empty())
        throw EditError(
            fmt::format("line {} of the reply takes {} away; edits change sources, and neither add nor remove one",
                        at + 2, from),
            from);
      at += 2;
    } else if (line.starts_with("@@")) {
      const Counts counts = counts_of(line);
      Replacement hunk{
          .path = path, .search = {}, .replace = {}, .line = static_cast<int>(at) + 1, .hint = counts.first};
      std::size_t behind = at + 1;
      if (counts.old_lines >= 0) behind = read_counted(lines, at + 1, end, counts, hunk);
      if (behind == at + 1) {
        while (behind < end && is_hunk_line(lines[behind]) && !begins_diff(lines, behind)) add(lines[behind++], hunk);
        // Blank lines behind a diff are no lines of the file.
        for (std::size_t last = behind; last > at + 1 && lines[last - 1].empty(); --last) {
          hunk.search.pop_back();
          hunk.replace.pop_back();
        }
      }
      if (hunk.search.empty() && hunk.replace.empty())
        throw EditError(fmt::format("the hunk of line {} of the reply is empty; the reply seems cut off", at + 1));
      while (behind < end && lines[behind].starts_with("\\")) ++behind;
      edits.replacements.push_back(std::move(hunk));
      at = behind;
    } else if (line.empty() && at + 1 < end && begins_diff(lines, at + 1)) {
      ++at;
    } else {
      break;
    }
  }
  return at;
}

}  // namespace heed::source

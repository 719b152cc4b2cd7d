#include "source/edits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "base/text.hpp"
#include "source/hunks.hpp"
#include "variant/overlay.hpp"

namespace heed::source {
namespace {

constexpr std::size_t kMostInsight = 500;  // a sentence or two

// At least five of a mark, then `word` or nothing: "<<<<<<< SEARCH", "=======".
bool is_marker(const std::string& line, char mark, std::string_view word) {
  const std::size_t marks = std::min(line.find_first_not_of(mark), line.size());
  if (marks < 5) return false;
  const std::string rest = trim(line.substr(marks));
  return word.empty() ? rest.empty() : rest.starts_with(word);
}

bool is_path_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '/' ||
         c == '.' || c == '-';
}

// The path that a line names in whatever decoration: "### `kernels/tile/quad.cuh`:", "// File: cpu/simd.hpp", "entry".
// Empty where it names none, or is a sentence.
std::string path_in(const std::string& line) {
  if (line.size() > 200 || line.find("#include") != std::string::npos) return {};
  std::string path;
  int words = 0;
  for (std::size_t at = 0; at < line.size();) {
    if (!is_path_character(line[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && is_path_character(line[end])) ++end;
    std::string word = line.substr(at, end - at);
    at = end;
    while (!word.empty() && (word.back() == '.' || word.back() == '/')) word.pop_back();
    const bool source = word.ends_with(".cuh") || word.ends_with(".hpp") || word == Overlay::kEntry;
    if (source && path.empty())
      path = word;
    else if (word.find_first_not_of("/.-") != std::string::npos)
      ++words;
  }
  while (path.starts_with("./")) path = path.substr(2);
  if (path.starts_with("a/") || path.starts_with("b/")) path = path.substr(2);
  // "the entry" is more often a word than a path.
  const bool says_file = line.find("ile") != std::string::npos || line.find("ath") != std::string::npos;
  if (path == Overlay::kEntry && words > 0 && !says_file) return {};
  return words <= 2 ? path : "";
}

std::string attribute_path(const std::string& tag) {
  for (const char* name : {"path", "name"}) {
    const std::size_t at = tag.find(name);
    if (at == std::string::npos) continue;
    const std::size_t open = tag.find_first_of("\"'", at);
    if (open == std::string::npos) continue;
    const std::size_t close = tag.find(tag[open], open + 1);
    if (close != std::string::npos) return tag.substr(open + 1, close - open - 1);
  }
  return {};
}

// Models put signs of other alphabets into comments. Sources are ASCII: a run of other bytes becomes one "?".
std::string plain(const std::string& line) {
  std::string text;
  bool in_run = false;
  for (const char c : line) {
    const bool other = (c < ' ' && c != '\t' && c != '\n') || c > '~';
    if (!other)
      text += c;
    else if (!in_run)
      text += '?';
    in_run = other;
  }
  return text;
}

void make_plain(Edits& edits) {
  for (Replacement& one : edits.replacements)
    for (std::vector<std::string>* lines : {&one.search, &one.replace})
      for (std::string& line : *lines) line = plain(line);
  for (WholeFile& file : edits.files) file.text = plain(file.text);
}

// Models show an edit and give it once more at the end. Where it has been made its lines are no longer there.
void leave_out_repeats(std::vector<Replacement>& all) {
  std::set<std::tuple<std::string, int, std::vector<std::string>, std::vector<std::string>>> known;
  std::erase_if(
      all, [&](const Replacement& one) { return !known.emplace(one.path, one.hint, one.search, one.replace).second; });
}

// What a model thinks before it answers holds drafts of edits, which are none: up to </think>, with or without <think>
// before it, as some chat templates put that into the prompt. Lines stay, empty, so that their numbers are the reply's.
void leave_out_thoughts(std::vector<std::string>& lines) {
  for (const char* name : {"think", "thinking", "reasoning"}) {
    const std::string open = fmt::format("<{}>", name);
    const std::string close = fmt::format("</{}>", name);
    std::size_t from = 0;  // of the thoughts, where there are any: the reply's begin or the line of the tag
    bool is_open = false;
    bool may_lack_open = true;
    for (std::size_t at = 0; at < lines.size(); ++at) {
      if (!is_open && trim(lines[at]).starts_with(open)) {
        is_open = true;
        may_lack_open = false;
        from = at;
      }
      const std::size_t end = lines[at].find(close);
      if (end == std::string::npos || !(is_open || may_lack_open)) continue;
      for (std::size_t i = from; i < at; ++i) lines[i].clear();
      lines[at] = lines[at].substr(end + close.size());
      is_open = may_lack_open = false;
    }
    if (is_open)
      throw EditError(
          fmt::format("the {} of line {} of the reply has no {}; the reply seems cut off", open, from + 1, close));
  }
}

class Parser {
 public:
  explicit Parser(const std::vector<std::string>& lines) : lines_(lines) {}

  Edits read() {
    read_part(0, lines_.size());
    return std::move(edits_);
  }

 private:
  void read_part(std::size_t at, std::size_t end) {
    while (at < end) {
      const std::string& line = lines_[at];
      const std::string bare = trim(line);
      if (is_marker(bare, '<', "SEARCH"))
        at = read_block(at, end);
      else if (begins_diff(lines_, at))
        at = read_diff(lines_, at, end, path_, edits_);
      else if (bare.starts_with("<file") && bare.find('>') != std::string::npos)
        at = read_file(at, end);
      else if (bare.starts_with("```"))
        at = read_fence(at, end);
      else if (bare.find("<insight>") != std::string::npos)
        at = read_insight(at, end);
      else {
        note(bare);
        ++at;
      }
    }
  }

  // Prose: a path for what follows, or what may serve as the insight.
  void note(const std::string& bare) {
    if (bare.empty()) return;
    if (const std::string path = path_in(bare); !path.empty())
      path_ = path;
    else if (prose_.empty() && bare.front() != '<')
      prose_ = bare;
    if (edits_.insight.empty() && !tagged_) edits_.insight = prose_.substr(0, kMostInsight);
  }

  std::size_t read_insight(std::size_t at, std::size_t end) {
    std::string text;
    for (; at < end; ++at) {
      text += lines_[at] + " ";
      if (lines_[at].find("</insight>") != std::string::npos) {
        ++at;
        break;
      }
    }
    const std::size_t begin = text.find("<insight>") + std::string_view("<insight>").size();
    const std::size_t close = text.find("</insight>");
    edits_.insight =
        trim(text.substr(begin, close == std::string::npos ? close : close - begin)).substr(0, kMostInsight);
    tagged_ = true;
    return at;
  }

  std::size_t read_block(std::size_t at, std::size_t end) {
    const int first = static_cast<int>(at) + 1;
    const std::string head = trim(lines_[at]);
    const std::string behind = head.substr(head.find("SEARCH") + std::string_view("SEARCH").size());
    if (const std::string named = path_in(behind); !named.empty()) path_ = named;
    Replacement block{.path = path_, .search = {}, .replace = {}, .line = first, .hint = 0};
    bool replacing = false;
    for (++at; at < end; ++at) {
      const std::string bare = trim(lines_[at]);
      if (!replacing && is_marker(bare, '=', "")) {
        replacing = true;
      } else if (is_marker(bare, '>', "REPLACE")) {
        if (!replacing)
          throw EditError(
              fmt::format("the block of line {} of the reply has no ======= between what is searched and what "
                          "stands in its place",
                          first));
        if (block.search.empty())
          throw EditError(
              fmt::format("the block of line {} of the reply searches nothing; begin with the lines to change", first));
        edits_.replacements.push_back(std::move(block));
        return at + 1;
      } else if (is_marker(bare, '<', "SEARCH")) {
        break;
      } else {
        (replacing ? block.replace : block.search).push_back(lines_[at]);
      }
    }
    throw EditError(fmt::format(
        "the block of line {} of the reply has no >>>>>>> REPLACE at its end; the reply seems cut off", first));
  }

  std::size_t read_file(std::size_t at, std::size_t end) {
    const int first = static_cast<int>(at) + 1;
    const std::string tag = trim(lines_[at]);
    if (const std::string path = attribute_path(tag); !path.empty()) path_ = path;
    std::size_t close = at + 1;
    while (close < end && trim(lines_[close]) != "</file>") ++close;
    if (close == end)
      throw EditError(fmt::format("the file of line {} of the reply has no </file>; the reply seems cut off", first));
    std::size_t from = at + 1;
    std::size_t to = close;
    if (has_block(from, to)) {
      read_part(from, to);
      return close + 1;
    }
    while (from < to && trim(lines_[from]).empty()) ++from;
    while (to > from && trim(lines_[to - 1]).empty()) --to;
    if (to - from >= 2 && lines_[from].starts_with("```") && lines_[to - 1].starts_with("```")) ++from, --to;
    add_file(from, to, first);
    return close + 1;
  }

  std::size_t read_fence(std::size_t at, std::size_t end) {
    const int first = static_cast<int>(at) + 1;
    const std::string open = trim(lines_[at]);
    const std::string info =
        open.substr(open.find_first_not_of('`') == std::string::npos ? open.size() : open.find_first_not_of('`'));
    const std::string marks = open.substr(0, open.size() - info.size());
    if (const std::string named = path_in(info); !named.empty()) path_ = named;
    std::size_t close = at + 1;
    while (close < end && trim(lines_[close]) != marks) ++close;
    const std::size_t from = at + 1;
    if (has_block(from, close) || has_diff(from, close)) {
      read_part(from, close);
      return close + 1;
    }
    // "// kernels/tile/quad.cuh" as the first line of a file.
    std::string path = path_;
    if (from < close && lines_[from].starts_with("//"))
      if (const std::string named = path_in(lines_[from]); !named.empty()) path = named;
    if (path.empty()) return close + 1;  // a snippet that explains something
    path_ = path;
    if (close == end)
      throw EditError(fmt::format("the fence of line {} of the reply has no end; the reply seems cut off", first));
    add_file(from, close, first);
    return close + 1;
  }

  void add_file(std::size_t from, std::size_t to, int first) {
    if (path_.empty())
      throw EditError(fmt::format("the file of line {} of the reply has no path; name it on the line before", first));
    std::string text;
    for (std::size_t i = from; i < to; ++i) text += lines_[i] + "\n";
    if (trim(text).empty())
      throw EditError(fmt::format("the file {} of line {} of the reply is empty", path_, first), path_);
    edits_.files.push_back({path_, std::move(text), first});
    path_.clear();  // a second fence without a path is a snippet
  }

  [[nodiscard]] bool has_block(std::size_t from, std::size_t to) const {
    return std::any_of(lines_.begin() + static_cast<std::ptrdiff_t>(from),
                       lines_.begin() + static_cast<std::ptrdiff_t>(to),
                       [](const std::string& line) { return is_marker(trim(line), '<', "SEARCH"); });
  }
  [[nodiscard]] bool has_diff(std::size_t from, std::size_t to) const {
    for (std::size_t i = from; i < to; ++i)
      if (begins_diff(lines_, i)) return true;
    return false;
  }

  const std::vector<std::string>& lines_;
  Edits edits_;
  std::string path_;
  std::string prose_;
  bool tagged_ = false;
};

}  // namespace

Edits parse_edits(std::string_view reply) {
  if (reply.size() > kMostReply)
    throw EditError(fmt::format("the reply has {}; at most {} are read", human_bytes(static_cast<double>(reply.size())),
                                human_bytes(static_cast<double>(kMostReply))));
  if (reply.find('\0') != std::string_view::npos) throw EditError("the reply holds bytes of zero, so it is no text");
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of some editors
  if (reply.starts_with(kByteOrderMark)) reply.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> lines = split(reply, '\n');
  for (std::string& line : lines)
    while (line.ends_with('\r')) line.pop_back();
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  leave_out_thoughts(lines);
  Edits edits = Parser(lines).read();
  if (edits.empty())
    throw EditError(
        "the reply holds no edit: neither a block of <<<<<<< SEARCH, =======, >>>>>>> REPLACE, nor a unified diff, nor "
        "a "
        "whole <file path=\"...\">");
  leave_out_repeats(edits.replacements);
  make_plain(edits);
  return edits;
}

}  // namespace heed::source

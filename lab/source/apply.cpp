#include "source/apply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/text.hpp"
#include "compile/embedded.hpp"
#include "source/editable.hpp"
#include "source/tokens.hpp"

namespace heed::source {
namespace {

constexpr std::size_t kMostFile = std::size_t{256} << 10;  // the largest device source has 20 KB
constexpr std::size_t kShownLine = 160;

using Lines = std::vector<std::string>;

std::string shown(const std::string& line) {
  const std::string bare = trim(line);
  return bare.size() <= kShownLine ? bare : bare.substr(0, kShownLine) + "...";
}

std::string without_end_space(const std::string& line) {
  return line.substr(0, line.find_last_not_of(" \t") + 1);
}

std::string indentation_of(const std::string& line) {
  return line.substr(0, std::min(line.find_first_not_of(" \t"), line.size()));
}

enum class Match { exact, without_ends, without_indentation };

bool equal(const std::string& a, const std::string& b, Match match) {
  if (match == Match::exact) return a == b;
  return match == Match::without_ends ? without_end_space(a) == without_end_space(b) : trim(a) == trim(b);
}

std::vector<std::size_t> places_of(const Lines& file, const Lines& search, Match match) {
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at + search.size() <= file.size(); ++at) {
    std::size_t same = 0;
    while (same < search.size() && equal(file[at + same], search[same], match)) ++same;
    if (same == search.size()) places.push_back(at);
  }
  return places;
}

// Share of the pairs of characters that two lines have in common (Dice's coefficient).
double likeness(const std::string& a, const std::string& b) {
  if (a == b) return 1;
  if (a.size() < 2 || b.size() < 2) return 0;
  std::map<std::pair<char, char>, int> pairs;
  for (std::size_t i = 0; i + 1 < a.size(); ++i) ++pairs[{a[i], a[i + 1]}];
  int common = 0;
  for (std::size_t i = 0; i + 1 < b.size(); ++i)
    if (const auto pair = pairs.find({b[i], b[i + 1]}); pair != pairs.end() && pair->second > 0) {
      --pair->second;
      ++common;
    }
  return 2.0 * common / static_cast<double>(a.size() + b.size() - 2);
}

// Where most of the lines stand, and the first of them that does not stand there.
std::string nearest_place(const std::string& path, const Lines& file, const Lines& search) {
  std::size_t best = 0;
  std::size_t most = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    std::size_t same = 0;
    for (std::size_t i = 0; i < search.size() && at + i < file.size(); ++i)
      if (const std::string bare = trim(search[i]); !bare.empty() && bare == trim(file[at + i])) ++same;
    if (same > most) most = same, best = at;
  }
  std::size_t wrong = 0;
  if (most > 0)
    while (wrong < search.size() && best + wrong < file.size() && trim(search[wrong]) == trim(file[best + wrong]))
      ++wrong;
  else
    while (wrong < search.size() && trim(search[wrong]).empty()) ++wrong;
  if (wrong >= search.size()) wrong = search.size() - 1;
  std::size_t line = best + wrong;
  if (most == 0 || line >= file.size()) {
    double highest = -1;
    for (std::size_t at = 0; at < file.size(); ++at)
      if (const double like = likeness(trim(search[wrong]), trim(file[at])); like > highest) highest = like, line = at;
  }
  return fmt::format(
      "no lines of {} are those that are searched: line {} of them is \"{}\"; the nearest, line {} of the file, is "
      "\"{}\"",
      path, wrong + 1, shown(search[wrong]), line + 1, shown(file[line]));
}

// One application of edits.
class Editor {
 public:
  /// @param parent edits that these are made to; null: none
  Editor(const Family& family, const Overlay* parent) : family_(family), originals_(editable(family)) {
    if (parent == nullptr) return;
    for (const auto& [path, text] : parent->files) texts_[path] = lines_of(text);
    parent_ = *parent;
  }

  Overlay apply(const Edits& edits) {
    for (const WholeFile& file : edits.files) texts_[path_for(file.path, file.line)] = lines_of(file.text);
    for (const Replacement& one : edits.replacements) apply(one);
    return result();
  }

 private:
  // The editable path that a reply means.
  std::string path_for(const std::string& given, int line) const {
    if (originals_.count(given) != 0) return given;
    std::vector<std::string> ending;
    for (const auto& [path, text] : originals_)
      if (!given.empty() && path.ends_with("/" + given)) ending.push_back(path);
    if (ending.size() == 1) return ending.front();
    if (ending.size() > 1)
      throw EditError(
          fmt::format("{} of line {} of the reply may be {}; name the whole path", given, line, join(ending, " or ")),
          given);
    if (compile::device_files().count(given) != 0) {
      const std::string why = refusal_of_path(given);
      throw EditError(why.empty() ? fmt::format("{} is no source of {}, so a variant of it may not change {}", given,
                                                family_.name(), given)
                                  : fmt::format("{}, so a variant may not change it", why),
                      given);
    }
    std::vector<std::string_view> known;
    for (const auto& [path, text] : originals_) known.push_back(path);
    throw EditError(fmt::format("{} has no source {} (line {} of the reply); {}", family_.name(), given, line,
                                one_of(given, known)),
                    given);
  }

  Lines& text_of(const std::string& path) {
    const auto [at, is_new] = texts_.try_emplace(path);
    if (is_new) at->second = lines_of(originals_.at(path));
    return at->second;
  }

  // Where no path is given: the file that has the lines.
  std::string file_with(const Replacement& one) {
    std::vector<std::string> having;
    for (const Match match : {Match::exact, Match::without_indentation}) {
      for (const auto& [path, text] : originals_)
        if (!places_of(text_of(path), one.search, match).empty()) having.push_back(path);
      if (!having.empty()) break;
    }
    if (having.size() == 1) return having.front();
    throw EditError(
        having.empty()
            ? fmt::format("the edit of line {} of the reply names no file, and no source of {} has its lines; put "
                          "the path on the line before it",
                          one.line, family_.name())
            : fmt::format("the edit of line {} of the reply names no file, and {} all have its lines; put the "
                          "path on the line before it",
                          one.line, join(having, ", ")));
  }

  void apply(const Replacement& one) {
    const std::string path = one.path.empty() ? file_with(one) : path_for(one.path, one.line);
    Lines& file = text_of(path);
    if (one.search.empty()) {
      const auto at = static_cast<std::ptrdiff_t>(
          std::min<std::size_t>(static_cast<std::size_t>(std::max(one.hint, 0)), file.size()));
      file.insert(file.begin() + at, one.replace.begin(), one.replace.end());
      return;
    }
    for (const Match match : {Match::exact, Match::without_ends, Match::without_indentation}) {
      const std::vector<std::size_t> places = places_of(file, one.search, match);
      if (places.empty()) continue;
      replace(file, the_one(places, path, one), one, match);
      return;
    }
    throw EditError(fmt::format("the edit of line {} of the reply does not apply: {}", one.line,
                                nearest_place(path, file, one.search)),
                    path);
  }

  static std::size_t the_one(const std::vector<std::size_t>& places, const std::string& path, const Replacement& one) {
    if (places.size() == 1) return places.front();
    if (one.hint == 0) {
      std::vector<std::string> lines;
      for (const std::size_t place : places) lines.push_back(std::to_string(place + 1));
      throw EditError(
          fmt::format("the lines that the edit of line {} of the reply searches stand in several places of {} "
                      "(lines {}); search more lines around them",
                      one.line, path, join(lines, ", ")),
          path);
    }
    const auto distance = [&](std::size_t place) { return std::abs(static_cast<long>(place) + 1 - one.hint); };
    return *std::min_element(places.begin(), places.end(),
                             [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
  }

  static void replace(Lines& file, std::size_t at, const Replacement& one, Match match) {
    Lines lines = one.replace;
    if (match == Match::without_indentation) {
      std::size_t first = 0;
      while (first + 1 < one.search.size() && trim(one.search[first]).empty()) ++first;
      const std::string there = indentation_of(file[at + first]);
      const std::string given = indentation_of(one.search[first]);
      for (std::string& line : lines) {
        if (trim(line).empty()) continue;
        if (line.starts_with(given)) line = there + line.substr(given.size());
      }
    }
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(at);
    file.insert(file.erase(begin, begin + static_cast<std::ptrdiff_t>(one.search.size())), lines.begin(), lines.end());
  }

  [[nodiscard]] Overlay result() const {
    Overlay overlay;  // against the carried sources
    Overlay before;   // the parent's texts of the same files
    for (const auto& [path, lines] : texts_) {
      std::string text;
      for (const std::string& line : lines) text += line + "\n";
      if (text.size() > kMostFile)
        throw EditError(
            fmt::format("{} would have {}; a device source may have {}", path,
                        human_bytes(static_cast<double>(text.size())), human_bytes(static_cast<double>(kMostFile))),
            path);
      if (lines == lines_of(originals_.at(path))) continue;
      const std::string* parents = parent_.find(path);
      overlay.files.emplace(path, std::move(text));
      before.files.emplace(path, parents == nullptr ? originals_.at(path) : *parents);
    }
    if (overlay == parent_) throw EditError("the edits leave every source as it is");
    if (overlay.files.empty()) throw EditError("the edits take back all edits before them");
    if (overlay.files.size() >= parent_.files.size() && tokens_digest(overlay) == tokens_digest(before))
      throw EditError("the edits change white space and comments alone");
    return overlay;
  }

  const Family& family_;
  Overlay parent_;
  std::map<std::string, std::string, std::less<>> originals_;
  std::map<std::string, Lines> texts_;
};

}  // namespace

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

Overlay apply(const Edits& edits, const Family& family) {
  return Editor(family, nullptr).apply(edits);
}

Overlay apply(const Edits& edits, const Variant& parent) {
  return Editor(*parent.family, parent.overlay.get()).apply(edits);
}

Overlay overlay_of_diff(std::string_view diff, const Family& family) {
  return apply(parse_edits(diff), family);
}

Variant with_diff(Variant variant, std::string_view diff) {
  if (diff.empty()) return variant;
  variant.overlay = std::make_shared<const Overlay>(overlay_of_diff(diff, *variant.family));
  return variant;
}

}  // namespace heed::source

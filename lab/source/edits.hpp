/// Edits of device sources out of a reply: of a language model, an agent or a person, or a stored diff.
///
/// Small models get unified diffs wrong (counts, context), so blocks of search and replace and whole files are read
/// too, in the forms that models are used to (Aider's edit formats, https://aider.chat/docs/more/edit-formats.html),
/// and everything around them is passed over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::source {

/// Edits that cannot be read or do not apply; what() says where, in words for the one that wrote them.
class EditError final : public Error {
 public:
  explicit EditError(const std::string& sentence, std::string value = {})
      : Error(ErrorCode::usage, sentence, std::move(value)) {}
};

/// Some consecutive lines and what stands in their place.
struct Replacement {
  std::string path;                  ///< empty: the one file that has these lines
  std::vector<std::string> search;   ///< none: an insertion at `hint`
  std::vector<std::string> replace;  ///< none: the lines are taken out
  int line = 0;                      ///< of the reply, where it begins
  int hint = 0;                      ///< about which line of the file it is meant for; 0: unknown
};

struct WholeFile {
  std::string path;
  std::string text;
  int line = 0;  ///< of the reply, where it begins
};

struct Edits {
  std::string insight;  ///< a sentence on what the edits do; empty where there is none
  std::vector<Replacement> replacements;
  std::vector<WholeFile> files;
  [[nodiscard]] bool empty() const { return replacements.empty() && files.empty(); }
};

/// Bytes of a reply that are read. All sources of the largest family have 130 KB.
inline constexpr std::size_t kMostReply = std::size_t{1} << 20;

/// Reads, in any mixture:
/// - a path on a line of its own, then `<<<<<<< SEARCH`, lines, `=======`, lines, `>>>>>>> REPLACE`;
/// - unified diffs, bare or in a fence; counts may be wrong;
/// - `<file path="...">` text `</file>`, or a path and then a fence that holds the whole file;
/// - `<insight>` a sentence `</insight>`, else the first line of prose is the insight.
/// What stands in `<think>` or `<thinking>` or `<reasoning>` is no part of the answer, and passed over.
/// @throws EditError for a reply that is too long, cut off, or without edits
Edits parse_edits(std::string_view reply);

}  // namespace heed::source

/// Overlays as unified diffs, as they are stored, shown and handed to `git apply`.
#pragma once

#include <string>
#include <string_view>

#include "variant/family.hpp"

namespace heed::source {

/// `old` to `text` as a diff of git with three lines of context, empty where they are equal. Equal texts have equal
/// diffs: common lines are those of the longest common subsequence (Wagner and Fischer 1974), the first of them.
std::string unified_diff(std::string_view path, std::string_view old, std::string_view text);

/// The diffs of all files of an overlay, in the order of their paths.
std::string diff_of(const Overlay& overlay, const Family& family);

}  // namespace heed::source

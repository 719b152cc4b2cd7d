/// Unified diffs as replacements.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "source/edits.hpp"

namespace heed::source {

/// Whether a diff begins at this line: `diff --git`, `--- ` with `+++ ` behind it, or a hunk's `@@`.
bool begins_diff(const std::vector<std::string>& lines, std::size_t at);

/// Reads a diff from line `at` on up to the first line that is none of it, `end` at most.
/// @param path of its first hunks where no header names one
/// @return the line behind it
std::size_t read_diff(const std::vector<std::string>& lines, std::size_t at, std::size_t end, std::string path,
                      Edits& edits);

/// "kernels/tile/quad.cuh" of "a/kernels/tile/quad.cuh\t2024-01-01"; empty for /dev/null.
std::string path_of_header(std::string_view header);

}  // namespace heed::source

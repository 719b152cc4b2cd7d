/// Edits applied to the device sources of a family.
#pragma once

#include <string_view>

#include "source/edits.hpp"
#include "variant/family.hpp"
#include "variant/overlay.hpp"

namespace heed::source {

/// The sources of `family` with the edits, one after the other. Lines of a search are found as they are, else without
/// regard to white space at their ends, else to all indentation, and what takes their place is indented as they were.
/// @throws EditError for a file that may not be edited, lines that stand nowhere (with the nearest place) or in several
/// places, and edits that change nothing but white space and comments
Overlay apply(const Edits& edits, const Family& family);

/// The same for edits of a variant's sources, which may be edited already. @return all edits together, against the
/// carried sources
Overlay apply(const Edits& edits, const Variant& parent);

/// The overlay of a stored diff (diff_of). @throws EditError where it does not fit today's sources
Overlay overlay_of_diff(std::string_view diff, const Family& family);

/// The variant with its sources edited like that; the variant as it is where the diff is empty.
/// @throws EditError as overlay_of_diff
Variant with_diff(Variant variant, std::string_view diff);

/// Lines as texts are split into them for edits and diffs: of a text that ends with a line end no empty one at the end.
std::vector<std::string> lines_of(std::string_view text);

}  // namespace heed::source

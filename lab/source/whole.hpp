/// A variant as one file.
#pragma once

#include <string>

#include "variant/family.hpp"

namespace heed::source {

/// The translation unit with every device source that it includes in the place where it is included first, edits
/// applied: what a compiler without Heed's sources takes. A line `// ---- PATH` stands in front of each.
std::string whole_unit(const Variant& variant);

}  // namespace heed::source

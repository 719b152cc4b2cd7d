/// What each kernel family serves, as a Markdown table made of the families' own answers.
#pragma once

#include <string>

namespace heed::report {

/// A row for element types, head dims, masks and each feature; a column for each family but that of the teaching
/// kernels.
std::string support_table();

}  // namespace heed::report

/// What compilers see of a source, for digests: edits of comments and of white space leave it as it is.
#pragma once

#include <string>
#include <string_view>

namespace heed::compile {

/// The text without comments, each run of white space as one space. Lines end after preprocessing directives alone.
/// Literals stay as they are; raw ones, which device sources do not have, are read as plain ones.
std::string code_text(std::string_view source);

}  // namespace heed::compile

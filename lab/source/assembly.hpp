/// What inline assembly of edited sources is refused for, of CPUs and of GPUs.
#pragma once

#include <string>
#include <string_view>

namespace heed::source {

/// "has assembly that looks at the time (rdtsc)"; empty where nothing was seen. The audits of binaries see the rest.
/// @param instructions the template, its literals joined, escapes as they are written
/// @param has_operands whether a colon follows it: without, a single word may be the name of a symbol
std::string refusal_of_assembly(std::string_view instructions, bool has_operands);

}  // namespace heed::source

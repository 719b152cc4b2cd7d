/// Words for commands that a user may paste into a shell.
#pragma once

#include <string>
#include <string_view>

namespace heed {

/// As one word for a POSIX shell: as it is where nothing in it means anything to one, else in single quotes.
std::string shell_word(std::string_view text);

}  // namespace heed

/// The pass that lists the blocks of keys that a bias leaves (list_blocks.hpp): the program of a GPU, and the same on a
/// CPU.
#pragma once

#include <string>
#include <string_view>

#include "listing/list_blocks.hpp"

namespace heed::listing {

/// Name of the pass's program in files of programs, and of its entry.
inline constexpr std::string_view kListProgram = "list_blocks";
inline constexpr const char* kListEntry = "heed_list_blocks";

/// Its translation unit. The device sources that it includes are made known to compilers by the first call.
const std::string& list_source();

/// A pass whose `is_wide` is as its address and strides are.
Pass with_width(Pass pass);

/// Makes the list that comes `index`-th, in this thread.
void list_on_host(const Pass& pass, long long index);

}  // namespace heed::listing

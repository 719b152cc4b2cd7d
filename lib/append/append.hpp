/// New keys and values written into a cache (append_rows.hpp): the program of a GPU, and the same on a CPU.
#pragma once

#include <string>
#include <string_view>

#include "append/append_rows.hpp"

namespace heed::append {

/// Name of the program in files of programs, and of its entry.
inline constexpr std::string_view kAppendProgram = "append_rows";
inline constexpr const char* kAppendEntry = "heed_append_rows";

/// Its translation unit. The device sources that it includes are made known to compilers by the first call.
const std::string& append_source();

/// Whether the program of an architecture ("sm_90a", "compute_80") waits for the launch before it, so that it may be a
/// programmatic dependent launch.
bool can_be_dependent(std::string_view arch);

/// What is wrong with the numbers of an append, in a sentence: lengths below 0 or with the new rows beyond the cache,
/// cu_seqlens that decrease, reach past the new rows or give an entry more than len_new, pages that there are not,
/// given factors that are not positive and finite; "" where nothing is. For memory that the host can read.
std::string wrong_numbers(const Append& append);

/// Appends in this thread, as a GPU does: what wrong_numbers refuses too.
void append_on_host(const Append& append);

/// An append whose is_wide and is_copied_wide are as its addresses, strides and head dims are.
Append with_width(Append append);

}  // namespace heed::append

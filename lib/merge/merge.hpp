/// The merge of partial results (merge_partials.hpp): the program of a GPU, and the same on a CPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "merge/merge_partials.hpp"

namespace heed::merge {

/// Name of the merge's program in files of programs, and of its entry.
inline constexpr std::string_view kMergeProgram = "merge_partials";
inline constexpr const char* kMergeEntry = "heed_merge_partials";

/// Its translation unit. The device sources that it includes are made known to compilers by the first call.
const std::string& merge_source();

/// A merge whose `is_wide` is as its addresses, strides and head dim are.
Merge with_width(Merge merge);

/// Merges in this thread. @throws Error(internal) for a merge that cannot be
void merge_on_host(const Merge& merge);

/// @throws Error(internal) for counts and head dims that no merge can have
void expect_merge(const Merge& merge);

}  // namespace heed::merge

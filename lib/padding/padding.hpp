/// Problems that no program serves as they are, and one serves after a copy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "padding/copy_rows.hpp"

namespace heed::padding {

/// Name of the copies' program in files of programs, and of its entry.
inline constexpr std::string_view kCopyProgram = "copy_rows";
inline constexpr const char* kCopyEntry = "heed_copy_rows";

/// Its translation unit. The device sources that it includes are made known to compilers by the first call.
const std::string& copy_source();

/// Head dims that a problem may be padded to, the least first: those of programs, from the larger of dim and dim_v on.
std::vector<std::int64_t> padded_dims(const Workload& workload);

/// The same attention with rows of `dim` elements of Q and K and `dim_v` of V and O, of which those beyond the
/// workload's own are zeros; dense tensors.
Workload padded(const Workload& workload, std::int64_t dim, std::int64_t dim_v);

/// Whether rows can be moved 16 bytes at a time: both ends lie at multiples of 16 bytes and so do all strides.
bool is_wide(const RowCopy& copy);

/// Copies in this thread.
void copy_on_host(const RowCopy& copy);

}  // namespace heed::padding

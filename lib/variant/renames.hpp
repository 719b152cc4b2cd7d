/// Names that variants had in stored runs, champions and evidence of before families and knobs took the terms of
/// FlashAttention, CUTLASS and CUDA.
#pragma once

#include <string>
#include <string_view>

namespace heed {

/// "fwd_sm90_stream:schedule=one_tile" as "fwd_sm90_persistent:scheduler=single_tile": for texts that were stored, not
/// for what a user types. Texts with current names, and names that no table knows, stay as they are.
std::string with_current_names(std::string_view text);

/// The same of a family's name alone.
std::string_view current_family_name(std::string_view name);

}  // namespace heed

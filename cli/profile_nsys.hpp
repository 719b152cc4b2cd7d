/// heed profile --nsys
#pragma once

#include <string>

#include "variant/family.hpp"

namespace heed::cli {

/// Prints the command that records a timeline of the variant; where nsys is on the PATH, runs it and prints what the
/// recording says. Without nsys it says so: that is no failure, for the command may be meant for another machine.
/// @param report where to keep the recording; empty: nowhere
/// @throws Error(unsupported, invalid_input) when nsys is there and fails, or its exports cannot be read
int profile_with_nsys(const Variant& variant, const Workload& workload, std::string report, bool json);

}  // namespace heed::cli

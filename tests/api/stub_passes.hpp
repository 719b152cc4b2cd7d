/// Launches of the library's passes over tensors as the stand-in for the driver keeps them, for tests to look at.
#pragma once

#include <cuda.h>

namespace heed::stub {

/// Keeps a launch that lists blocks of keys. @return whether its grid is one that the pass takes
bool take_listing(const CUlaunchConfig& config, const void* parameters);
/// Keeps a launch that appends to a cache. @return the same
bool take_append(const CUlaunchConfig& config, const void* parameters);

}  // namespace heed::stub

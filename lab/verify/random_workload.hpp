/// Workloads drawn at random, for a wider look at what a family claims to support than a table of cases gives.
#pragma once

#include <vector>

#include "base/random.hpp"
#include "heed/heed.hpp"

namespace heed {

/// Any batch, grouping, ragged lengths, dtype, mask, window, scale and layout; head dims of 32 to 256. At most 2
/// billion floating-point operations, so that the oracle takes a fraction of a second. The same generator state gives
/// the same workload.
/// @param dtypes to draw from; one that stands there twice is drawn twice as often
Workload random_workload(Random& random, const std::vector<Dtype>& dtypes);

}  // namespace heed

/// Quantised tensors of a heed_problem: where their scale factors lie, read and checked, and the factors of a run.
#pragma once

#include "api/problem.hpp"
#include "kernels/attention/features.hpp"

namespace heed::api {

/// heed_scales, into a problem whose features have been read.
/// @throws Error(usage) for 8-bit elements without HEED_SCALED, HEED_SCALED without any, and strides or rows that none
/// of the layouts of heed_scales has, Error(invalid_workload) where they reach beyond 2^60 bytes
void read_scales(const heed_problem& given, Problem& problem);

/// Numbers from the first factor to the end of the last.
std::int64_t scale_extent(const Problem& problem, const TensorScales& scales, bool are_queries);

/// For memory that the host can read: the factors that rows of a launch see. Of keys that lists of blocks choose none
/// is looked at. @throws Error(usage) for one that is not positive and finite
void expect_factors(const Problem& problem, const FeatureParams& launch);

}  // namespace heed::api

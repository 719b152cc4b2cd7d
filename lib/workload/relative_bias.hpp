/// Buckets of relative-position biases (kernels/attention/relative_bias.hpp) as the numbers of a launch.
#pragma once

#include <string>

#include "heed/heed.hpp"
#include "kernels/attention/relative_bias.hpp"

namespace heed {

/// The bucket of a distance of `exact` or more, of `side` buckets, by the very operations of Transformers: in fp32.
std::int64_t far_bucket(const RelativeBias& bias, std::int64_t distance);
/// Buckets for keys on one side of a query's own key.
std::int64_t side_of(const RelativeBias& bias);
/// What is wrong with a table of these buckets; "" for nothing.
std::string wrong_buckets(const RelativeBias& bias);
/// @throws Error(internal) for buckets that wrong_buckets names
RelativeBuckets buckets_of(const RelativeBias& bias);

}  // namespace heed

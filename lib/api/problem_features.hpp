/// What a heed_problem asks for beside shapes, mask and scale, read and checked.
#pragma once

#include <string_view>

#include "api/problem.hpp"

namespace heed::api {

/// Softcap, bias, ALiBi, sinks, lengths and pages, into a problem whose workload has sizes and mask.
/// @throws Error(usage) for flags that contradict each other and strides that cannot be, Error(invalid_workload) for
/// numbers that cannot be, Error(unsupported) for an element type of biases that no family reads
void read_features(const heed_problem& given, Problem& problem);

/// @throws Error(usage) for a stride below 0 that is used
void expect_strides(std::string_view name, const heed_strides& given, const TensorSizes& sizes);
/// Of a tensor that is written. @throws Error(usage) for strides that lay elements over one another
void expect_apart(const char* name, const heed_strides& given, const TensorSizes& sizes);
/// @throws Error(invalid_workload) where a tensor reaches beyond 2^60 bytes
void expect_extent(std::string_view name, const TensorSizes& sizes, const TensorLayout& layout,
                   std::size_t element_bytes);

}  // namespace heed::api

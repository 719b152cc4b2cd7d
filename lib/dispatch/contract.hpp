/// Which kernel contract a binary keeps to: the layout of what its entry is given.
#pragma once

#include <string>
#include <string_view>

namespace heed::dispatch {

/// A digest of the names and places of all fields of ForwardParams and of the tensor maps behind it; of a program that
/// was built for a workload with features, of FeatureParams too, and of the numbers that stand for full blocks. A
/// binary that was built for another one reads its parameters where they are not, and must never be launched.
/// @param workload its text; any other text is one without features
const std::string& kernel_contract(std::string_view workload = {});

}  // namespace heed::dispatch

/// What is done to rows of O before they are written, as a workload's text says it: norms and gates.
#pragma once

#include <string>
#include <string_view>

#include "heed/heed.hpp"

namespace heed {

/// ":out_norm=1e-05/h:out_gate=element", "" for none.
std::string output_text(const Workload& workload);
/// Reads out_norm=EPS, out_norm=EPS/h and out_gate=element|head. @return false for another name
/// @throws Error(invalid_workload) where it is given twice or cannot be read; `whole` is the text
bool parse_output(std::string_view whole, std::string_view name, std::string_view value, Workload& workload);
/// What is wrong with an eps: it must be positive, from 1e-30 to 1e30. "" for nothing.
std::string wrong_eps(double eps);
/// What is wrong with the norm; "" for nothing.
std::string wrong_output(const Workload& workload);

}  // namespace heed

/// Errors on inputs as models send them, as multiples of what the unfused computation is off by on the same inputs.
///
/// The gate's own limits (tolerance.hpp) tell right from wrong and allow twice the unfused error. Where few keys of a
/// row compete, a kernel may keep to them and still be less exact than what it replaces; that shows here.
#pragma once

#include <optional>
#include <string_view>

#include "verify/gate.hpp"

namespace heed::verify {

/// The bar: what a kernel that is as good as the unfused computation keeps to. The largest error is one element's, and
/// differs more by chance than that of all elements together.
inline constexpr double kMostTimesMaxAbs = 1.25;
inline constexpr double kMostTimesRelRms = 1.1;

/// The name of the gate's check of a user's own tensors.
inline constexpr std::string_view kGivenTensors = "the given tensors";

struct AgainstUnfused {
  double max_abs = 0;  ///< times the unfused computation's
  double rel_rms = 0;
  [[nodiscard]] bool is_within() const { return max_abs <= kMostTimesMaxAbs && rel_rms <= kMostTimesRelRms; }
};

/// Multiples of a check whose inputs are as models send them: a low temperature (peaked), a sink, a row's own key far
/// above the others, or tensors of a model. Nothing for other checks, for fp32 and for quantised inputs, whose kernels
/// round in other places than the unfused computation, and where the unfused computation is exact.
std::optional<AgainstUnfused> against_unfused(const Workload& workload, const CheckResult& check);

}  // namespace heed::verify

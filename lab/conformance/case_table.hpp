/// Cases through the C interface, one after the other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/checked_plan.hpp"

namespace heed::conformance {

struct CaseResult {
  std::string workload;
  std::string variant;  ///< that ran; empty where no plan was made
  std::string failure;  ///< what was wrong; empty where everything holds
  double max_abs = 0;   ///< largest error of O against the oracle
  [[nodiscard]] bool passed() const { return failure.empty(); }
};

/// Makes a plan, runs it twice on one stream, and compares what is there with the oracle. A refusal of libheed's and
/// wrong output are failures. @throws Error(driver) where the device does not go on: whatever is run after it fails too
CaseResult run_case(const Workload& workload, DeviceKind device, const Program& program, std::uint64_t seed);

}  // namespace heed::conformance

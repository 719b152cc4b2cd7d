#include "conformance/case_table.hpp"

namespace heed::conformance {
namespace {

constexpr int kRuns = 2;  // the second finds what the first left in the workspace

}  // namespace

CaseResult run_case(const Workload& workload, DeviceKind device, const Program& program, std::uint64_t seed) {
  CaseResult result{to_string(workload), program.variant, {}, 0};
  try {
    CheckedPlan plan(workload, device, program, seed);
    result.variant = plan.plan().info().variant;
    CheckedRun tensors(plan);
    tensors.reset();
    for (int i = 0; i < kRuns; ++i) tensors.run();
    const verify::Comparison comparison = plan.check(tensors.result());
    result.max_abs = comparison.error.max_abs;
    if (comparison.finding != Finding::none) result.failure = comparison.text;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::internal) throw;
    result.failure = error.what();
  }
  return result;
}

}  // namespace heed::conformance

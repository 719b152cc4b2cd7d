/// How far an output is from the oracle, and how far it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "verify/scene.hpp"
#include "verify/verdict.hpp"

namespace heed::verify {

/// Error of an output against the oracle over a list of rows.
struct ErrorStats {
  double max_abs = 0;
  double rel_rms = 0;    ///< ||out - ref|| / ||ref|| over all rows
  double worst_row = 0;  ///< the same for the worst row; rows of small norm count as a tenth of the average norm
  double largest = 0;    ///< largest |ref|
  RowIndex at;           ///< where max_abs is
  std::int64_t column = 0;
  double got = 0;
  double expected = 0;
};

/// The largest error allowed.
struct Tolerance {
  double max_abs = 0;
  double rel_rms = 0;
  double worst_row = 0;
  double lse = 0;
};

/// What a scene's output is compared with: the oracle and the unfused computation on a list of rows.
struct Reference {
  std::vector<RowIndex> rows;
  ReferenceRows oracle;
  ErrorStats unfused;   ///< error of the unfused computation in the workload's dtype
  Tolerance tolerance;  ///< calibrated by it
};

/// Rows the oracle is computed for: all when that costs at most `budget_flops`, else whole groups of rows of random
/// heads, first and last row always among them.
std::vector<RowIndex> choose_rows(const Workload& workload, double budget_flops, std::uint64_t seed);

/// Twice the error of the unfused computation plus 3e-5 (relative measures: plus 2e-5 and 2e-4), because a fused kernel
/// rounds less often than an unfused one but in other places. Where few elements decide, the unfused error may be small
/// by luck: it counts as no less than the dtype's unit roundoff times the largest output (relative measures: than half
/// the unit roundoff), nor than the error of a score times the largest output: scores are fp32 in every dtype, and
/// where they are large that is what an output in fp32 is off by. The error of log-sum-exp is bounded by what rounding
/// P costs a row sum.
/// @param score_error as fp32_score_error says of the largest score
Tolerance calibrated_tolerance(Dtype dtype, const ErrorStats& unfused, double score_error);

/// How far a score may be off as a sum of `dim` products in fp32: sqrt(dim) unit roundoffs, the probabilistic bound of
/// Higham and Mary (SIAM J. Sci. Comput. 41(5), 2019), where the deterministic one has dim.
double fp32_score_error(double score, std::int64_t dim);

Reference make_reference(const Workload& workload, const HostTensors& tensors, const std::vector<RowIndex>& rows);
inline Reference make_reference(const Scene& scene, const std::vector<RowIndex>& rows) {
  return make_reference(scene.workload(), scene.tensors(), rows);
}

/// Reads O out of an image and measures it. `finite` becomes false at the first NaN or infinity, whose place is in the
/// result.
ErrorStats measure_error(const Scene& scene, const std::byte* image, const Reference& reference, bool& finite);

/// One look at an output image.
struct Comparison {
  Finding finding = Finding::none;
  std::string text;  ///< "row (b 0, h 3, 17) column 5: got 0.1, expected 0.2 ..."
  ErrorStats error;
};

/// Everything that must hold of the bytes a launch left: nothing outside touched, every element written and finite,
/// errors within tolerance, log-sum-exp right. @param hard_limit the workload's inputs are N(0,1) and its dtype fp16:
/// also 2e-3
Comparison compare(const Scene& scene, const std::byte* after, const Reference& reference, bool hard_limit);

}  // namespace heed::verify

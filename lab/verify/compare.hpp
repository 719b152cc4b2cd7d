/// How far an output is from the oracle, and how far it may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "verdict/verdict.hpp"
#include "verify/scene.hpp"
#include "verify/tolerance.hpp"

namespace heed::verify {

/// What a scene's output is compared with: the oracle and the unfused computation on a list of rows.
struct Reference {
  std::vector<RowIndex> rows;
  ReferenceRows oracle;
  std::vector<RowCondition> condition;
  ErrorStats unfused;   ///< error of the unfused computation in the workload's dtype
  Tolerance tolerance;  ///< calibrated by it
  bool finite = true;   ///< no row of the list is NaN or infinite, nor may be
  /// Whether a row whose scores are NaN must have a log-sum-exp that is NaN too, not only an output.
  bool lse_shows = true;
  /// Where all heads and batch entries compute the same up to the order and the signs of the value columns, of every
  /// (batch, key head): the rows, which are of the first head, stand for those of all heads. Else empty.
  std::vector<ColumnMap> columns;
};

/// Rows the oracle is computed for: all when that costs at most `budget_flops`, else as many in as many heads as the
/// budget allows, at least 8 a head; first and last head and of each head first and last row always among them.
std::vector<RowIndex> choose_rows(const Workload& workload, double budget_flops, std::uint64_t seed);

/// @throws Error(internal) for a tolerance that is no number, which nothing could fail
Reference make_reference(const Workload& workload, const HostTensors& tensors, const std::vector<RowIndex>& rows);
inline Reference make_reference(const Scene& scene, const std::vector<RowIndex>& rows) {
  return make_reference(scene.workload(), scene.tensors(), rows);
}

/// One look at an output image.
struct Comparison {
  Finding finding = Finding::none;
  std::string text;  ///< "row (b 0, h 3, 17) column 5: got 0.1, expected 0.2 ..."
  ErrorStats error;
};

/// Where outputs of a launch lie.
struct Written {
  const std::byte* o = nullptr;
  const std::byte* lse = nullptr;  ///< of scenes that have one
};

/// Everything that must hold of the bytes a launch left: nothing outside touched, every element written and finite,
/// errors within tolerance, log-sum-exp right. Where the oracle is NaN or infinite the output must be, and nowhere
/// else. @param hard_limit the workload's inputs are N(0,1) and its dtype fp16: also 2e-3, where
/// rows of O are normed times what the norm multiplies errors with
Comparison compare(const Scene& scene, const std::byte* after, const Reference& reference, bool hard_limit);
/// The part of it that is about outputs: all but what must be untouched.
Comparison compare_outputs(const Scene& scene, const Written& after, const Reference& reference, bool hard_limit);

}  // namespace heed::verify

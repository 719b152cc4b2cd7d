/// The total error of quantised attention: of an output against attention on the values before they were quantised. The
/// gate judges kernels by the values that they are given (compare.hpp); this says what quantising them cost.
#pragma once

#include <cstddef>
#include <vector>

#include "verify/compare.hpp"
#include "verify/scene.hpp"

namespace heed::verify {

/// Over the elements of a list of rows, out of the output and ref of the double-precision oracle.
struct Accuracy {
  double rel_rms = 0;    ///< ||out - ref|| / ||ref||
  double rel_l1 = 0;     ///< sum |out - ref| / sum |ref|, as SageAttention reports it (arXiv 2410.02367)
  double cosine = 1;     ///< <out, ref> / (||out|| ||ref||)
  double worst_row = 0;  ///< largest ||out - ref|| / ||ref|| of a row
  RowIndex at;           ///< that row
};

/// The same of any outputs. @param out, ref (rows, dim_v)
Accuracy accuracy_of(const std::vector<RowIndex>& rows, const std::vector<double>& out, const std::vector<double>& ref);

/// Rows that entries have, of a list.
std::vector<RowIndex> rows_that_are_there(const Scene& scene, const std::vector<RowIndex>& rows);

/// Accuracy of the bytes that a launch of a quantised scene left.
/// @param values that the scene was made of, rounded to the workload's dtype here
/// @param rows of which those that an entry does not have are left out
Accuracy total_error(const Scene& scene, const InputValues& values, const std::byte* after,
                     const std::vector<RowIndex>& rows);

}  // namespace heed::verify

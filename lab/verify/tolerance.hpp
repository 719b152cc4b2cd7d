/// How far an output may be from the oracle.
///
/// Three things separate an honest kernel from the exact result. It rounds P and O to the workload's dtype: what that
/// costs is measured, by the unfused computation, and allowed twice. Its scores are sums in fp32: what their error does
/// to a row is computed from the row itself, to first order where it is small. And below the smallest number of the
/// dtype nothing can be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "verify/reference.hpp"

namespace heed::verify {

/// Error of an output against the oracle over a list of rows. Relative errors of a row are relative to its size: its
/// norm, or what the norm would be were the values independent, where they cancel (RowCondition::value_size).
struct ErrorStats {
  double max_abs = 0;
  double rel_rms = 0;    ///< error over size, both summed over all rows
  double worst_row = 0;  ///< the same for the worst row
  double lse = 0;        ///< largest error of a log-sum-exp
  double largest = 0;    ///< largest |ref|
  RowIndex at;           ///< where max_abs is
  std::int64_t column = 0;
  double got = 0;
  double expected = 0;
};

/// What is allowed of one row.
struct RowLimit {
  double size = 0;       ///< what its error is relative to
  double error = 0;      ///< most ||out - ref||
  double lse = 0;        ///< most |lse - ref|
  bool finite = true;    ///< no element of the oracle is NaN or infinite
  bool resolved = true;  ///< fp32 scores determine the row; where they do not, it must only lie among its values
};

/// The largest error allowed.
struct Tolerance {
  double max_abs = 0;
  double rel_rms = 0;
  double worst_row = 0;         ///< largest of all rows' own limits over their sizes
  double lse = 0;               ///< largest of all rows' own
  std::vector<RowLimit> rows;   ///< in the reference's order
  std::int64_t unresolved = 0;  ///< rows that fp32 scores do not determine
};

/// Where the value columns of one key head lie: column d is `sign[d]` times column `from[d]` of the first head.
struct ColumnMap {
  std::vector<int> from;
  std::vector<float> sign;
};

/// The dim_v elements of row i of a list, in fp32; valid until the next call.
using RowValues = std::function<const float*(std::size_t)>;

/// Error of values over rows. Rows that are not finite in the oracle, or not resolved, are left out.
/// @param most if not null, gets the row whose error is the largest share of its limit, and that share
struct MostOfLimit {
  std::size_t row = 0;
  double share = 0;
  double error = 0;  ///< relative to the row's size
};
ErrorStats error_over(const Workload& workload, const std::vector<RowIndex>& rows, const ReferenceRows& oracle,
                      const std::vector<RowLimit>& limits, const RowValues& values, MostOfLimit* most = nullptr);

/// Twice the error of the unfused computation plus 3e-5 (relative measures: plus 2e-5 and 2e-4), because a fused kernel
/// rounds as often as an unfused one but in other places. Where few elements decide, the unfused error may be small by
/// luck: it counts as no less than 1.5 unit roundoffs of the largest output (relative RMS error: than 0.75 of them, of
/// a single row: than 2.25). That part is never over a quarter of a row's size. Added to it, row by row: twice what the
/// error of fp32 scores moves the row by, and what is below the dtype's smallest number. A row that fp32 scores move by
/// more than 0.65 of its size is not resolved. So relative limits end at 0.9 of a row's size, and at 0.65 of all rows'
/// together: zeros pass only where the output is zero for all that fp32 can tell.
///
/// Where V is of e4m3 or e5m2, P is rounded to that, which the unfused computation does too, and unit roundoffs of P
/// count as well. Where Q and K are, tensor cores add their products in about 13 bits of mantissa (DeepSeek-V3, arXiv
/// 2412.19437, 3.3.2), and lose a part of each: scores are off by D 2^-18 of what their products add up to at most,
/// which is 2^-12 at head dim 64 and 2^-10 at 256, and log-sum-exps by four times that.
///
/// Where rows of O are normed or gated, both computations do that, so that measured errors are of what is written, and
/// those that are computed grow as errors of a row do (RowCondition::growth).
///
/// A log-sum-exp may be off by what rounding P costs a row sum, by 4 times the error of a score, and by twice that of
/// the unfused computation.
/// @param unfused_out (rows, dim_v) @param unfused_lse (rows) @param unfused gets their error
/// @throws Error(internal) where a limit is NaN or infinite: nothing could fail it
Tolerance calibrated_tolerance(const Workload& workload, const std::vector<RowIndex>& rows, const ReferenceRows& oracle,
                               const std::vector<RowCondition>& conditions, const std::vector<float>& unfused_out,
                               const std::vector<float>& unfused_lse, ErrorStats& unfused);

}  // namespace heed::verify

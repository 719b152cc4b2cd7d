#include "verify/tolerance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "variant/element.hpp"

namespace heed::verify {
namespace {

constexpr double kAbsoluteSlack = 3e-5;
constexpr double kRelativeSlack = 2e-5;
constexpr double kRowSlack = 2e-4;
// Unit roundoffs that the unfused error counts as at least. A kernel whose parts of a row exchange their sums in the
// dtype rounds once more: relative RMS errors of 0.67 unit roundoffs were seen of honest ones, and 1.6 of the largest.
constexpr double kLeastRelative = 0.75;
constexpr double kLeastAbsolute = 1.5;
// The same of a single row. Where one value decides a row, its P, its O and what two KV groups hand each other of it in
// the dtype may all be a roundoff off in the same direction: 4 together; 4.07 were seen in one row of 691 workloads.
constexpr double kLeastRow = 2.25;
constexpr double kLse_fp32 = 1e-4;
// Of P in 8 bits, whose roundings are independent: of a row's size, of all rows', of the largest output.
constexpr double kLeastRow_8_bits = 1;
constexpr double kLeastRelative_8_bits = 0.25;
constexpr double kLeastAbsolute_8_bits = 0.5;
// Error of a score of such Q and K for each product, of what they add up to at most. Log-sum-exps with one large score
// were off by 0.11 to 0.15% at head dim 128 and 0.13 to 0.24% at 256 on an H200: a quarter of that is 2^-18 a product.
constexpr double kScore_8_bits = 0x1p-18;
constexpr double kMostRounding = 0.25;  // of a row's size: what roundings to the dtype may explain
constexpr double kMostMoved = 0.65;     // of a row's size: what fp32 scores may explain
constexpr double kMostMovedRms = 0.4;   // over all rows, where the rows' own bounds, 4 deviations wide, do not add up
constexpr double kFirstOrder = 0.25;    // error of a score up to which exp(x) - 1 is x
constexpr double kExchanged = 1.0;      // and from which on two scores that are near may change places
constexpr double kNegligible = 30;      // e^-30 of a row sum is below fp32's roundoff

double norm_of(const double* x, std::int64_t count) {
  double square = 0;
  for (std::int64_t d = 0; d < count; ++d) square += x[d] * x[d];
  return std::sqrt(square);
}

// How far a row moves when each of its scores is off by up to `error`: ||sum_j p_j x_j (v_j - o)|| for |x_j| <= error.
// The x_j are independent roundings, so that it is the smaller of two bounds: of Cauchy and Schwarz, and of a sum of
// independent terms. Infinite where the largest scores may have changed places.
double moved_by(double error, const RowCondition& row, double norm) {
  if (row.value_spread == 0) return 0;
  if (error < kFirstOrder) return 2 * error * std::min(row.value_spread, row.value_size + norm);
  if (error < kExchanged) return std::expm1(2 * error) * row.value_spread;
  return row.lead > 2 * error + kNegligible ? 0.0 : INFINITY;
}

// Whether a tensor's elements are of 8 bits with an exponent.
bool is_fp8(const std::optional<QuantisedTensor>& tensor) {
  return tensor && tensor->dtype != Dtype::int8;
}

// How far a score may be off.
double score_error_of(const Workload& w, double size) {
  const bool short_sums = w.quantised && is_fp8(w.quantised->q) && is_fp8(w.quantised->k);
  return fp32_score_error(size, w.dim) +
         (short_sums ? kScore_8_bits * static_cast<double>(w.dim) * std::abs(size) : 0.0);
}

void require_number(double limit, const char* what, const RowIndex& row) {
  if (std::isfinite(limit)) return;
  throw Error(ErrorCode::internal,
              fmt::format("the tolerance of the {} of (batch {}, head {}, row {}) is {}; it must be a number", what,
                          row.batch, row.head, row.row, limit));
}

}  // namespace

ErrorStats error_over(const Workload& w, const std::vector<RowIndex>& rows, const ReferenceRows& oracle,
                      const std::vector<RowLimit>& limits, const RowValues& values, MostOfLimit* most) {
  ErrorStats stats;
  double error_square = 0;
  double size_square = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowLimit& limit = limits[i];
    if (!limit.finite || !limit.resolved) continue;
    const float* got = values(i);
    const double* want = oracle.out.data() + i * static_cast<std::size_t>(w.dim_v);
    double row_error = 0;
    for (std::int64_t d = 0; d < w.dim_v; ++d) {
      const double error = std::abs(static_cast<double>(got[d]) - want[d]);
      if (error > stats.max_abs) {
        stats.max_abs = error;
        stats.at = rows[i];
        stats.column = d;
        stats.got = got[d];
        stats.expected = want[d];
      }
      stats.largest = std::max(stats.largest, std::abs(want[d]));
      row_error += error * error;
    }
    error_square += row_error;
    size_square += limit.size * limit.size;
    const double relative = limit.size > 0 ? std::sqrt(row_error) / limit.size : 0;
    stats.worst_row = std::max(stats.worst_row, relative);
    if (most != nullptr)
      // A limit of zero, of a row that sees nothing, is kept by nothing but zeros.
      if (const double share = limit.error > 0  ? std::sqrt(row_error) / limit.error
                               : row_error == 0 ? 0.0
                                                : INFINITY;
          share > most->share)
        *most = {i, share, relative};
  }
  if (size_square > 0) stats.rel_rms = std::sqrt(error_square / size_square);
  return stats;
}

Tolerance calibrated_tolerance(const Workload& w, const std::vector<RowIndex>& rows, const ReferenceRows& oracle,
                               const std::vector<RowCondition>& conditions, const std::vector<float>& unfused_out,
                               const std::vector<float>& unfused_lse, ErrorStats& unfused) {
  const double roundoff = facts_of(w.dtype).roundoff;
  const double p_roundoff = w.quantised && is_fp8(w.quantised->v) ? facts_of(w.quantised->v->dtype).roundoff : 0.0;
  const double least_number = facts_of(w.dtype).smallest;  // what lies below half of it rounds to zero
  const double smallest = least_number * std::sqrt(static_cast<double>(w.dim_v));
  const auto columns = static_cast<std::size_t>(w.dim_v);
  Tolerance tolerance;
  tolerance.rows.resize(rows.size());
  std::vector<double> slack(rows.size());  // of a row's error, beside what roundings to the dtype explain
  double worst_rounding = 0;
  double slack_square = 0;
  double size_square = 0;
  double most_slack = 0;
  // A row sum of rounded P is off by at most the unit roundoff of P's dtype, in the same direction for every key.
  const double lse_rounding = w.dtype == Dtype::fp32 ? kLse_fp32 : 2 * roundoff;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowLimit& limit = tolerance.rows[i];
    const double* want = oracle.out.data() + i * columns;
    limit.finite = std::all_of(want, want + columns, [](double x) { return std::isfinite(x); });
    const RowCondition& condition = conditions[i];
    const double score_error = score_error_of(w, condition.score_size);
    if (std::isfinite(oracle.lse[i])) {
      const double unfused_error = std::abs(static_cast<double>(unfused_lse[i]) - oracle.lse[i]);
      limit.lse = lse_rounding + 4 * score_error;
      if (std::isfinite(unfused_error)) {
        limit.lse += 2 * unfused_error;
        unfused.lse = std::max(unfused.lse, unfused_error);
      }
      tolerance.lse = std::max(tolerance.lse, limit.lse);
      require_number(limit.lse, "log-sum-exp", rows[i]);
    }
    if (!limit.finite) continue;
    const double norm = norm_of(want, w.dim_v);
    limit.size = std::max(norm, condition.value_size);
    const double moved = moved_by(score_error, condition, std::max(norm, condition.grown_size));
    const float* plain = unfused_out.data() + i * columns;
    const bool overflowed = std::any_of(plain, plain + columns, [](float x) { return !std::isfinite(x); });
    limit.resolved = moved <= kMostMoved * limit.size && !overflowed && !condition.may_leave_fp32;
    if (!limit.resolved) {
      ++tolerance.unresolved;
      limit.error = condition.largest_value + norm;  // any mean of its values
      require_number(limit.error, "error", rows[i]);
      continue;
    }
    slack[i] = moved + (limit.size > 0 ? smallest * std::max(1.0, condition.growth) : 0.0);
    // Where dropout takes the largest probabilities of a row, those that are left may be subnormal in the dtype of P,
    // or zero there. The row sum, which counts those that are dropped, is 1 or more.
    if (w.dropout > 0) slack[i] += least_number / 2 * static_cast<double>(w.len_k) * condition.largest_value;
    slack_square += slack[i] * slack[i];
    size_square += limit.size * limit.size;
    most_slack = std::max(most_slack, slack[i]);
    double square = 0;
    for (std::size_t d = 0; d < columns; ++d) {
      const double error = static_cast<double>(plain[d]) - want[d];
      square += error * error;
    }
    if (limit.size > 0) worst_rounding = std::max(worst_rounding, (std::sqrt(square) - slack[i]) / limit.size);
  }
  const ErrorStats of_unfused =
      error_over(w, rows, oracle, tolerance.rows, [&](std::size_t i) { return unfused_out.data() + i * columns; });
  const double unfused_lse_error = unfused.lse;
  unfused = of_unfused;
  unfused.lse = unfused_lse_error;

  const double row_rounding = std::min(
      kMostRounding, 2 * std::max(worst_rounding, kLeastRow * roundoff + kLeastRow_8_bits * p_roundoff) + kRowSlack);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowLimit& limit = tolerance.rows[i];
    if (!limit.finite || !limit.resolved) continue;
    limit.error = row_rounding * limit.size + slack[i];
    require_number(limit.error, "error", rows[i]);
    if (limit.size > 0) tolerance.worst_row = std::max(tolerance.worst_row, limit.error / limit.size);
  }
  const double moved_rms = size_square > 0 ? std::sqrt(slack_square / size_square) : 0;
  tolerance.rel_rms = std::min(kMostRounding, 2 * std::max(unfused.rel_rms, kLeastRelative * roundoff +
                                                                                kLeastRelative_8_bits * p_roundoff) +
                                                  kRelativeSlack) +
                      std::min(kMostMovedRms, moved_rms);
  tolerance.max_abs = 2 * std::max(unfused.max_abs,
                                   (kLeastAbsolute * roundoff + kLeastAbsolute_8_bits * p_roundoff) * unfused.largest) +
                      kAbsoluteSlack + most_slack;
  require_number(tolerance.max_abs, "largest error", {});
  require_number(tolerance.rel_rms, "relative error", {});
  return tolerance;
}

}  // namespace heed::verify

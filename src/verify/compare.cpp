#include "verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.hpp"
#include "cpu/unfused.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr double kHardLimit = 2e-3;  // max|error| on N(0,1) fp16 inputs
constexpr double kAbsoluteSlack = 3e-5;
constexpr double kRelativeSlack = 2e-5;
constexpr double kRowSlack = 2e-4;
constexpr std::int64_t kRowsPerHead =
    64;  // of a sampled head: converting its keys costs about as much as this many rows

// Error over rows; value(i, d) is element d of row i.
template <typename Value>
ErrorStats error_over(const Workload& w, const std::vector<RowIndex>& rows, const std::vector<double>& expected,
                      const Value& value) {
  ErrorStats stats;
  double error_square = 0;
  double norm_square = 0;
  std::vector<std::pair<double, double>> row_squares;  // (error, norm)
  row_squares.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double row_error = 0;
    double row_norm = 0;
    for (std::int64_t d = 0; d < w.dim_v; ++d) {
      const double want = expected[i * static_cast<std::size_t>(w.dim_v) + static_cast<std::size_t>(d)];
      const double got = value(i, d);
      const double error = std::abs(got - want);
      if (error > stats.max_abs) {
        stats.max_abs = error;
        stats.at = rows[i];
        stats.column = d;
        stats.got = got;
        stats.expected = want;
      }
      stats.largest = std::max(stats.largest, std::abs(want));
      row_error += error * error;
      row_norm += want * want;
    }
    error_square += row_error;
    norm_square += row_norm;
    row_squares.emplace_back(row_error, row_norm);
  }
  if (norm_square > 0) stats.rel_rms = std::sqrt(error_square / norm_square);
  const double smallest_norm =
      0.1 * std::sqrt(norm_square / static_cast<double>(std::max<std::size_t>(1, rows.size())));
  for (const auto& [row_error, row_norm] : row_squares)
    if (const double norm = std::max(std::sqrt(row_norm), smallest_norm); norm > 0)
      stats.worst_row = std::max(stats.worst_row, std::sqrt(row_error) / norm);
  return stats;
}

std::string place_text(const RowIndex& at, std::int64_t column) {
  return fmt::format("(batch {}, head {}, row {}, column {})", at.batch, at.head, at.row, column);
}

std::size_t output_index(const Scene& scene, const RowIndex& row) {
  const Strides& s = scene.o().strides;
  return static_cast<std::size_t>(row.batch * s.batch + row.head * s.head + row.row * s.row);
}

}  // namespace

std::vector<RowIndex> choose_rows(const Workload& w, double budget_flops, std::uint64_t seed) {
  const double rows_total = static_cast<double>(w.batch) * static_cast<double>(w.heads) * static_cast<double>(w.len_q);
  const double flops_per_row = std::max(1.0, w.flops() / rows_total);
  if (w.flops() <= budget_flops || rows_total <= static_cast<double>(kRowsPerHead)) return all_rows(w);
  const auto wanted =
      static_cast<std::int64_t>(std::max(static_cast<double>(kRowsPerHead), budget_flops / flops_per_row));
  const std::int64_t heads_total = w.batch * w.heads;
  const std::int64_t heads = std::clamp<std::int64_t>(wanted / kRowsPerHead, 1, heads_total);
  const std::int64_t per_head = std::min(w.len_q, std::max<std::int64_t>(2, wanted / heads));
  Random random(seed);
  std::vector<std::int64_t> order(static_cast<std::size_t>(heads_total));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = 0; i < static_cast<std::size_t>(heads); ++i)
    std::swap(order[i], order[i + random.below(static_cast<std::uint64_t>(order.size() - i))]);
  std::vector<RowIndex> rows;
  for (std::size_t i = 0; i < static_cast<std::size_t>(heads); ++i) {
    // One row from each of per_head equal stretches of the length, and the two ends: no stretch is left unseen.
    std::vector<std::int64_t> chosen = {0, w.len_q - 1};
    for (std::int64_t r = 0; r < per_head; ++r) {
      const std::int64_t begin = w.len_q * r / per_head;
      const std::int64_t end = std::max(begin + 1, w.len_q * (r + 1) / per_head);
      chosen.push_back(begin + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(end - begin))));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const std::int64_t row : chosen) rows.push_back({order[i] / w.heads, order[i] % w.heads, row});
  }
  return rows;
}

Tolerance calibrated_tolerance(Dtype dtype, const ErrorStats& unfused, double score_error) {
  const double roundoff = dtype == Dtype::fp16 ? 0x1p-11 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-24;
  Tolerance tolerance;
  tolerance.max_abs = 2 * std::max(unfused.max_abs, std::max(roundoff, score_error) * unfused.largest) + kAbsoluteSlack;
  tolerance.rel_rms = 2 * std::max(unfused.rel_rms, roundoff / 2) + kRelativeSlack;
  tolerance.worst_row = 2 * std::max(unfused.worst_row, roundoff / 2) + kRowSlack;
  // A row sum of rounded P is off by at most the unit roundoff of P's dtype, in the same direction for every key.
  tolerance.lse = dtype == Dtype::fp32 ? 1e-4 : 2 * roundoff;
  return tolerance;
}

double fp32_score_error(double score, std::int64_t dim) {
  return std::sqrt(static_cast<double>(dim)) * 0x1p-24 * std::abs(score);
}

Reference make_reference(const Workload& w, const HostTensors& tensors, const std::vector<RowIndex>& rows) {
  Reference reference;
  reference.rows = rows;
  reference.oracle = reference_attention(w, tensors, rows);
  const std::vector<float> unfused = unfused_attention(w, tensors, rows);
  reference.unfused = error_over(w, rows, reference.oracle.out, [&](std::size_t i, std::int64_t d) {
    return static_cast<double>(unfused[i * static_cast<std::size_t>(w.dim_v) + static_cast<std::size_t>(d)]);
  });
  // The log-sum-exp of a row is its largest score, or as little above it as the logarithm of the number of keys.
  double largest = 0;
  for (const double lse : reference.oracle.lse)
    if (std::isfinite(lse)) largest = std::max(largest, std::abs(lse));
  reference.tolerance = calibrated_tolerance(w.dtype, reference.unfused, fp32_score_error(largest, w.dim));
  return reference;
}

ErrorStats measure_error(const Scene& scene, const std::byte* image, const Reference& reference, bool& finite) {
  const Workload& w = scene.workload();
  const std::byte* out = image + scene.o().offset;
  finite = true;
  ErrorStats not_finite;
  const ErrorStats stats = error_over(w, reference.rows, reference.oracle.out, [&](std::size_t i, std::int64_t d) {
    const double value =
        load_element(w.dtype, out, output_index(scene, reference.rows[i]) + static_cast<std::size_t>(d));
    if (!std::isfinite(value) && finite) {
      finite = false;
      not_finite.at = reference.rows[i];
      not_finite.column = d;
      not_finite.got = value;
      not_finite.expected = reference.oracle.out[i * static_cast<std::size_t>(w.dim_v) + static_cast<std::size_t>(d)];
    }
    return value;
  });
  return finite ? stats : not_finite;
}

Comparison compare(const Scene& scene, const std::byte* after, const Reference& reference, bool hard_limit) {
  const Workload& w = scene.workload();
  Comparison result;
  if (const Scene::Trespass trespass = scene.trespass(after); trespass.finding != Finding::none) {
    result.finding = trespass.finding;
    result.text = trespass.text;
    return result;
  }
  // Every element of O, not only of the rows compared: still the poison, or not finite?
  const std::byte* out = after + scene.o().offset;
  for (std::int64_t batch = 0; batch < w.batch; ++batch)
    for (std::int64_t head = 0; head < w.heads; ++head)
      for (std::int64_t row = 0; row < w.len_q; ++row) {
        const std::size_t base = output_index(scene, {batch, head, row});
        for (std::int64_t d = 0; d < w.dim_v; ++d) {
          const std::size_t index = base + static_cast<std::size_t>(d);
          if (std::isfinite(load_element(w.dtype, out, index))) continue;
          const std::size_t size = size_of(w.dtype);
          const bool poison = std::all_of(out + index * size, out + (index + 1) * size,
                                          [](std::byte b) { return b == std::byte{0xff}; });
          result.finding = poison ? Finding::unwritten_output : Finding::not_finite;
          result.text =
              fmt::format("O at {} {}", place_text({batch, head, row}, d),
                          poison ? "was not written" : fmt::format("is {}", load_element(w.dtype, out, index)));
          return result;
        }
      }
  bool finite = true;
  result.error = measure_error(scene, after, reference, finite);
  const auto report = [&](Finding finding, const char* measure, double value, double limit) {
    result.finding = finding;
    result.text =
        fmt::format("{} is {:.3g}, allowed {:.3g}; worst at {}: got {:.6g}, expected {:.6g}", measure, value, limit,
                    place_text(result.error.at, result.error.column), result.error.got, result.error.expected);
  };
  const Tolerance& t = reference.tolerance;
  if (result.error.max_abs > t.max_abs) {
    report(Finding::inexact, "max|error|", result.error.max_abs, t.max_abs);
  } else if (hard_limit && result.error.max_abs > kHardLimit) {
    report(Finding::hard_limit, "max|error| on N(0,1) inputs", result.error.max_abs, kHardLimit);
  } else if (result.error.rel_rms > t.rel_rms) {
    report(Finding::inexact, "relative RMS error", result.error.rel_rms, t.rel_rms);
  } else if (result.error.worst_row > t.worst_row) {
    report(Finding::inexact, "relative error of the worst row", result.error.worst_row, t.worst_row);
  }
  if (result.finding != Finding::none || scene.lse().bytes == 0) return result;

  const std::byte* lse = after + scene.lse().offset;
  for (std::size_t i = 0; i < scene.lse().bytes / sizeof(float); ++i) {  // every element, not only of the rows compared
    float value = 0;
    std::memcpy(&value, lse + i * sizeof value, sizeof value);
    if (!std::isnan(value)) continue;
    result.finding = Finding::unwritten_output;
    result.text = fmt::format("log-sum-exp element {} was not written or is NaN", i);
    return result;
  }
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const RowIndex& row = reference.rows[i];
    float got = 0;
    std::memcpy(&got, lse + static_cast<std::size_t>((row.batch * w.heads + row.head) * w.len_q + row.row) * sizeof got,
                sizeof got);
    const double want = reference.oracle.lse[i];
    const bool right = std::isinf(want)
                           ? static_cast<double>(got) == want
                           : std::abs(static_cast<double>(got) - want) <= t.lse * std::max(1.0, std::abs(want) * 0.01);
    if (!right) {
      result.finding = Finding::wrong_lse;
      result.text = fmt::format("log-sum-exp of (batch {}, head {}, row {}): got {}, expected {:.7g} within {:.2g}",
                                row.batch, row.head, row.row, got, want, t.lse);
      return result;
    }
  }
  return result;
}

}  // namespace heed::verify

#include "verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "verify/unfused.hpp"
#include "workload/elements.hpp"

namespace heed::verify {
namespace {

constexpr double kHardLimit = 2e-3;          // max|error| on N(0,1) fp16 inputs
constexpr std::int64_t kRowsPerHead = 8;     // of a sampled head at least
constexpr std::int64_t kConversionRows = 8;  // converting a head's keys costs about as much as this many rows
constexpr double kConstantRow = 1e-6;        // deviation over norm of a row whose elements are all the same
constexpr double kDistinctRow = 0.1;         // of one that is not

std::string place_text(const RowIndex& at, std::int64_t column) {
  return fmt::format("(batch {}, head {}, row {}, column {})", at.batch, at.head, at.row, column);
}

float load_lse(const Scene& scene, const Written& after, const RowIndex& row) {
  float value = 0;
  std::memcpy(&value, after.lse + scene.lse_index(row) * sizeof value, sizeof value);
  return value;
}

bool is_poison(const std::byte* at, std::size_t size) {
  return std::all_of(at, at + size, [](std::byte b) { return b == std::byte{0xff}; });
}

template <typename Word>
bool any_has_bits(const std::byte* data, std::size_t index, std::int64_t count, Word bits) {
  const auto* from = reinterpret_cast<const Word*>(data) + index;
  bool found = false;
  for (std::int64_t d = 0; d < count; ++d) found |= (from[d] & bits) == bits;
  return found;
}

// Whether any of `count` elements of O from `index` on is NaN or infinite: all bits of its exponent are set.
bool any_not_finite(Dtype dtype, const std::byte* data, std::size_t index, std::int64_t count) {
  switch (dtype) {
    case Dtype::fp16:
      return any_has_bits<std::uint16_t>(data, index, count, 0x7c00);
    case Dtype::bf16:
      return any_has_bits<std::uint16_t>(data, index, count, 0x7f80);
    case Dtype::fp32:
      return any_has_bits<std::uint32_t>(data, index, count, 0x7f800000U);
    case Dtype::e4m3:
    case Dtype::e5m2:
    case Dtype::int8:
      break;
  }
  throw Error(ErrorCode::internal, fmt::format("O is of {}; it must be of fp16, bf16 or fp32", to_string(dtype)),
              std::string(to_string(dtype)));
}

Comparison failure(Finding finding, std::string text) {
  return {finding, std::move(text), {}};
}

// One element that is not finite: unwritten, or a value that should not be there.
Comparison not_finite(const Scene& scene, const Written& after, const RowIndex& row, std::int64_t column) {
  const Workload& w = scene.workload();
  const std::byte* out = after.o;
  const std::size_t index = scene.o_index(row) + static_cast<std::size_t>(column);
  const bool poison = is_poison(out + index * size_of(w.dtype), size_of(w.dtype));
  return failure(poison ? Finding::unwritten_output : Finding::not_finite,
                 fmt::format("O at {} {}", place_text(row, column),
                             poison ? "was not written" : fmt::format("is {}", load_element(w.dtype, out, index))));
}

// Every element of O, not only of the rows compared: still the poison, or not finite?
Comparison check_every_element(const Scene& scene, const Written& after) {
  const Workload& w = scene.workload();
  const std::byte* out = after.o;
  std::atomic<std::int64_t> first{w.batch * w.heads};
  parallel_for(w.batch * w.heads, 0, [&](std::int64_t head) {
    for (std::int64_t row = 0; row < scene.rows_of(head / w.heads) && head < first; ++row)
      if (any_not_finite(w.dtype, out, scene.o_index({head / w.heads, head % w.heads, row}), w.dim_v))
        for (std::int64_t known = first; head < known && !first.compare_exchange_weak(known, head);) {
        }
  });
  if (first == w.batch * w.heads) return {};
  for (std::int64_t row = 0;; ++row) {
    const RowIndex at{first / w.heads, first % w.heads, row};
    for (std::int64_t d = 0; d < w.dim_v; ++d)
      if (any_not_finite(w.dtype, out, scene.o_index(at) + static_cast<std::size_t>(d), 1))
        return not_finite(scene, after, at, d);
  }
}

// Rows of which some see NaN, infinity, or scores beyond fp32: there it must show, elsewhere it must not.
Comparison check_shown(const Scene& scene, const Written& after, const Reference& reference) {
  const Workload& w = scene.workload();
  const std::byte* out = after.o;
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const RowIndex& row = reference.rows[i];
    const double* want = reference.oracle.out.data() + i * static_cast<std::size_t>(w.dim_v);
    const bool row_is_finite = reference.tolerance.rows[i].finite;
    for (std::int64_t d = 0; d < w.dim_v; ++d) {
      const std::size_t index = scene.o_index(row) + static_cast<std::size_t>(d);
      const bool finite = std::isfinite(load_element(w.dtype, out, index));
      if (!finite && (row_is_finite || is_poison(out + index * size_of(w.dtype), size_of(w.dtype))) &&
          !(row_is_finite && reference.condition[i].may_leave_fp32))
        return not_finite(scene, after, row, d);
      if (finite && !std::isfinite(want[d]))
        return failure(
            Finding::swallowed_nan,
            fmt::format("O at {} is {:.6g}, but its row sees NaN, infinity or scores beyond fp32, which must "
                        "show",
                        place_text(row, d), load_element(w.dtype, out, index)));
    }
  }
  return {};
}

// A row that fp32 scores do not determine is a mean of its values all the same.
Comparison check_unresolved(const Workload& w, const Reference& reference, const RowValues& values) {
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const RowLimit& limit = reference.tolerance.rows[i];
    if (limit.resolved || !limit.finite) continue;
    const double* want = reference.oracle.out.data() + i * static_cast<std::size_t>(w.dim_v);
    const float* got = values(i);
    const auto deviation_and_norm = [&](const auto* x) {
      double sum = 0, square = 0;
      for (std::int64_t d = 0; d < w.dim_v; ++d) sum += x[d], square += static_cast<double>(x[d]) * x[d];
      const double mean = sum / static_cast<double>(w.dim_v);
      return std::pair{std::sqrt(std::max(0.0, square - mean * sum)), std::sqrt(square)};
    };
    const auto [deviation, norm] = deviation_and_norm(got);
    const auto [expected_deviation, expected_norm] = deviation_and_norm(want);
    double square = 0;
    for (std::int64_t d = 0; d < w.dim_v; ++d) square += std::pow(static_cast<double>(got[d]) - want[d], 2);
    if (reference.condition[i].may_leave_fp32 && !std::isfinite(square)) continue;
    const bool constant =
        w.dim_v > 3 && expected_deviation > kDistinctRow * expected_norm && deviation <= kConstantRow * norm;
    if (!constant && std::sqrt(square) <= limit.error) continue;
    return failure(
        Finding::inexact,
        fmt::format("O at {} is no mean of the values that the row sees ({}); fp32 scores tell no more of it",
                    place_text(reference.rows[i], 0),
                    constant ? fmt::format("every element is {:.6g}", got[0])
                             : fmt::format("off by {:.3g}, allowed {:.3g}", std::sqrt(square), limit.error)));
  }
  return {};
}

// `head` > 0 stands for a head that equals the first but for its columns.
Comparison check_values(const Scene& scene, const Written& after, const Reference& reference, std::int64_t batch,
                        std::int64_t head, bool hard_limit) {
  const Workload& w = scene.workload();
  const std::byte* out = after.o;
  const bool mapped = !reference.columns.empty();
  const ColumnMap* map =
      mapped ? &reference.columns[static_cast<std::size_t>(batch * w.heads_kv + head / (w.heads / w.heads_kv))]
             : nullptr;
  const auto place_of = [&](std::size_t i) {
    const RowIndex& row = reference.rows[i];
    return mapped ? RowIndex{batch, head, row.row} : row;
  };
  std::vector<float> row(static_cast<std::size_t>(w.dim_v));
  std::vector<float> turned(row.size());
  const RowValues values = [&](std::size_t i) {
    load_elements(w.dtype, out, scene.o_index(place_of(i)), row.size(), row.data());
    if (!mapped) return row.data();
    for (std::size_t d = 0; d < row.size(); ++d) turned[static_cast<std::size_t>(map->from[d])] = map->sign[d] * row[d];
    return turned.data();
  };
  Comparison result = check_unresolved(w, reference, values);
  if (result.finding != Finding::none) return result;
  MostOfLimit most;
  result.error = error_over(w, reference.rows, reference.oracle, reference.tolerance.rows, values, &most);
  ErrorStats& error = result.error;
  if (mapped) error.at = {batch, head, error.at.row};
  const auto report = [&](Finding finding, const std::string& measure, double value, double limit) {
    result.finding = finding;
    result.text = fmt::format("{} is {:.3g}, allowed {:.3g}; worst at {}: got {:.6g}, expected {:.6g}", measure, value,
                              limit, place_text(error.at, error.column), error.got, error.expected);
  };
  const Tolerance& t = reference.tolerance;
  // Of means of values; where a norm follows, errors of these grow by what it multiplies them with.
  double hard = kHardLimit;
  if (w.out_norm)
    for (const RowCondition& condition : reference.condition)
      if (condition.grown_size > 0) hard = std::max(hard, kHardLimit * condition.growth);
  // A negated comparison, so that an error that is NaN is none that passes.
  if (!(error.max_abs <= t.max_abs)) {
    report(Finding::inexact, "max|error|", error.max_abs, t.max_abs);
  } else if (hard_limit && !(error.max_abs <= hard)) {
    report(Finding::hard_limit, "max|error| on N(0,1) inputs", error.max_abs, hard);
  } else if (!(error.rel_rms <= t.rel_rms)) {
    report(Finding::inexact, "relative RMS error", error.rel_rms, t.rel_rms);
  } else if (!(most.share <= 1)) {
    const RowIndex at = place_of(most.row);
    report(Finding::inexact, fmt::format("relative error of (batch {}, head {}, row {})", at.batch, at.head, at.row),
           most.error, t.rows[most.row].size > 0 ? t.rows[most.row].error / t.rows[most.row].size : 0.0);
  }
  if (result.finding != Finding::none || scene.lse().bytes == 0) return result;

  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const RowIndex at = place_of(i);
    const double got = load_lse(scene, after, at);
    const double want = reference.oracle.lse[i];
    const RowLimit& limit = t.rows[i];
    if (std::isnan(want) || (!std::isfinite(got) && reference.condition[i].may_leave_fp32)) {
      if (!reference.lse_shows || std::isnan(got) || got == INFINITY) continue;
      result.finding = Finding::swallowed_nan;
      result.text = fmt::format(
          "log-sum-exp of (batch {}, head {}, row {}) is {}, but the row sees NaN or scores beyond "
          "fp32, which must show",
          at.batch, at.head, at.row, got);
      return result;
    }
    if (std::isfinite(want)) error.lse = std::max(error.lse, std::abs(got - want));
    if (std::isinf(want) ? got == want : std::abs(got - want) <= limit.lse) continue;
    result.finding = Finding::wrong_lse;
    result.text = std::isinf(want)
                      ? fmt::format(
                            "log-sum-exp of (batch {}, head {}, row {}): got {:.9g}, expected {}, for it sees no "
                            "key",
                            at.batch, at.head, at.row, got, want)
                      : fmt::format(
                            "log-sum-exp of (batch {}, head {}, row {}): got {:.9g}, expected {:.9g} within "
                            "{:.3g}",
                            at.batch, at.head, at.row, got, want, limit.lse);
    return result;
  }
  return result;
}

// The larger of each error, with the place of the largest.
void join(ErrorStats& all, const ErrorStats& one) {
  ErrorStats joined = one.max_abs > all.max_abs ? one : all;
  joined.rel_rms = std::max(all.rel_rms, one.rel_rms);
  joined.worst_row = std::max(all.worst_row, one.worst_row);
  joined.lse = std::max(all.lse, one.lse);
  joined.largest = std::max(all.largest, one.largest);
  all = joined;
}

}  // namespace

std::vector<RowIndex> choose_rows(const Workload& w, double budget_flops, std::uint64_t seed) {
  const std::int64_t heads_total = w.batch * w.heads;
  const double rows_total = static_cast<double>(heads_total) * static_cast<double>(w.len_q);
  const double flops_per_row = std::max(1.0, w.flops() / rows_total);
  if (w.flops() <= budget_flops || rows_total <= 64) return all_rows(w);
  const auto wanted = static_cast<std::int64_t>(std::max(64.0, budget_flops / flops_per_row));
  const std::int64_t heads = std::clamp<std::int64_t>(wanted / (kRowsPerHead + kConversionRows),
                                                      std::min<std::int64_t>(2, heads_total), heads_total);
  const std::int64_t per_head = std::clamp<std::int64_t>(wanted / heads - kConversionRows, kRowsPerHead, w.len_q);
  Random random(seed);
  std::vector<std::int64_t> order(static_cast<std::size_t>(heads_total));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::swap(order[std::min<std::size_t>(1, order.size() - 1)], order.back());
  for (std::size_t i = 2; i < static_cast<std::size_t>(heads); ++i)
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

Reference make_reference(const Workload& w, const HostTensors& tensors, const std::vector<RowIndex>& rows) {
  Reference reference;
  reference.rows = rows;
  if (w.ragged)  // rows that an entry does not have
    std::erase_if(reference.rows, [&](const RowIndex& row) {
      return row.row >= tensors.cu_seqlens_q[row.batch + 1] - tensors.cu_seqlens_q[row.batch];
    });
  reference.oracle = reference_attention(w, tensors, reference.rows, reference.condition);
  const UnfusedRows unfused = unfused_attention(w, tensors, reference.rows);
  reference.tolerance = calibrated_tolerance(w, reference.rows, reference.oracle, reference.condition, unfused.out,
                                             unfused.lse, reference.unfused);
  // Rows whose products may leave fp32 may show that, so that they too are looked at one by one.
  for (std::size_t i = 0; i < reference.rows.size(); ++i)
    reference.finite = reference.finite && reference.tolerance.rows[i].finite && !reference.condition[i].may_leave_fp32;
  return reference;
}

Comparison compare(const Scene& scene, const std::byte* after, const Reference& reference, bool hard_limit) {
  if (const Scene::ForbiddenWrite forbidden_write = scene.forbidden_write(after);
      forbidden_write.finding != Finding::none)
    return failure(forbidden_write.finding, forbidden_write.text);
  return compare_outputs(scene, {after + scene.o().offset, after + scene.lse().offset}, reference, hard_limit);
}

Comparison compare_outputs(const Scene& scene, const Written& after, const Reference& reference, bool hard_limit) {
  const Workload& w = scene.workload();
  Comparison result = reference.finite ? check_every_element(scene, after) : check_shown(scene, after, reference);
  if (result.finding != Finding::none) return result;
  if (reference.finite && scene.lse().bytes > 0)
    for (std::size_t i = 0; i < scene.lse().bytes / sizeof(float); ++i) {  // not only of the rows compared
      float value = 0;
      std::memcpy(&value, after.lse + i * sizeof value, sizeof value);
      if (!std::isnan(value)) continue;
      return failure(Finding::unwritten_output, fmt::format("log-sum-exp element {} was not written or is NaN", i));
    }
  if (reference.columns.empty()) return check_values(scene, after, reference, 0, 0, hard_limit);
  std::vector<Comparison> heads(static_cast<std::size_t>(w.batch * w.heads));
  parallel_for(w.batch * w.heads, 0, [&](std::int64_t i) {
    heads[static_cast<std::size_t>(i)] = check_values(scene, after, reference, i / w.heads, i % w.heads, hard_limit);
  });
  for (const Comparison& head : heads) {
    if (head.finding != Finding::none) return head;
    join(result.error, head.error);
  }
  return result;
}

}  // namespace heed::verify

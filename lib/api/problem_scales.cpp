#include "api/problem_scales.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "api/problem_features.hpp"
#include "workload/mask.hpp"

namespace heed::api {
namespace {

constexpr std::int64_t kMostScaleRows = std::int64_t{1} << 20;

struct ScaledTensor {
  const char* name;        // "q"
  const char* large_name;  // "Q"
  std::int32_t heed_problem::*dtype;
  heed_scales heed_problem::*given;
  TensorScales Problem::*scales;
  std::optional<QuantisedTensor> Quantised::*quantised;
  const float* heed_tensors::*address;
  bool are_queries;
};
constexpr std::array<ScaledTensor, 3> kScaledTensors = {
    {{"q", "Q", &heed_problem::dtype_q, &heed_problem::q_scales, &Problem::q_scales, &Quantised::q,
      &heed_tensors::q_scale, true},
     {"k", "K", &heed_problem::dtype_k, &heed_problem::k_scales, &Problem::k_scales, &Quantised::k,
      &heed_tensors::k_scale, false},
     {"v", "V", &heed_problem::dtype_v, &heed_problem::v_scales, &Problem::v_scales, &Quantised::v,
      &heed_tensors::v_scale, false}}};

[[noreturn]] void refuse_scales(const std::string& text, std::int64_t value) {
  throw Error(ErrorCode::usage, text, std::to_string(value));
}

TensorSizes sizes_of_factors(const Problem& problem, const TensorScales& scales, bool are_queries) {
  const Workload& w = problem.workload;
  const std::int64_t heads = are_queries ? w.heads : w.heads_kv;
  const std::int64_t columns = are_queries ? w.dim : w.dim_v;  // of V alone
  if (scales.strides.row == 0) return {w.batch, heads, 1, scales.channel != 0 ? columns : 1};
  const TensorSizes rows = are_queries ? problem.q_sizes() : problem.k_sizes();
  return {rows.batch, heads, (rows.rows + scales.rows - 1) / scales.rows, 1};
}

// "" where they are a layout of heed_scales.
std::string wrong_scales(const Problem& problem, const ScaledTensor& tensor, const heed_scales& s) {
  for (const auto& [name, value] : {std::pair{"batch", s.batch}, std::pair{"head", s.head}, std::pair{"row", s.row},
                                    std::pair{"dim", s.dim}, std::pair{"rows", s.rows}})
    if (value < 0) return fmt::format("{}_scales.{} is {}; it must not be negative", tensor.name, name, value);
  if (s.dim > 1)
    return fmt::format(
        "{}_scales.dim is {}; factors of columns must follow each other: give 1, or 0 where columns "
        "share them",
        tensor.name, s.dim);
  if (s.dim == 1 && tensor.name[0] != 'v')
    return fmt::format(
        "{}_scales.dim is 1, and only V has factors of columns, for a score sums over those of {}; give 0", tensor.name,
        tensor.large_name);
  if (s.dim == 1 && s.row != 0)
    return fmt::format("v_scales has factors of columns and of rows (dim 1, row {}); give one of them", s.row);
  if (s.row == 0 && s.rows > 1)
    return fmt::format(
        "{}_scales.rows is {} and its row is 0, which shares factors among all rows; give rows = 1, or "
        "the stride from one block to the next",
        tensor.name, s.rows);
  if (s.row != 0 && (s.rows < 1 || s.rows > kMostScaleRows))
    return fmt::format("{}_scales.rows is {}; a block of rows has 1 to {}", tensor.name, s.rows, kMostScaleRows);
  const bool is_ragged = tensor.are_queries ? problem.workload.ragged : problem.has_ragged_keys();
  if (is_ragged && s.row != 0 && (s.rows != 1 || s.batch != 0))
    return fmt::format(
        "{} is ragged and {}_scales has factors of {} rows with a batch stride of {}; give those of each "
        "row (rows = 1) with a batch stride of 0",
        tensor.large_name, tensor.name, s.rows, s.batch);
  return {};
}

ScaleBy granularity_of(const heed_scales& s) {
  if (s.dim != 0) return ScaleBy::channel;
  if (s.row != 0) return s.rows == 1 ? ScaleBy::token : ScaleBy::block;
  return s.head != 0 || s.batch != 0 ? ScaleBy::head : ScaleBy::tensor;
}

void expect_factor(const char* name, const float* at, long long index) {
  const float factor = at[index];
  if (factor > 0 && std::isfinite(factor)) return;
  throw Error(ErrorCode::usage,
              fmt::format("{}_scale[{}] is {}; a scale factor must be positive and finite", name, index, factor),
              fmt::format("{}", factor));
}

}  // namespace

void read_scales(const heed_problem& p, Problem& problem) {
  const bool is_scaled = (p.flags & HEED_SCALED) != 0;
  bool any = false;
  Quantised quantised;
  for (const ScaledTensor& tensor : kScaledTensors) {
    const heed_scales& s = p.*(tensor.given);
    const auto dtype = static_cast<Dtype>(p.*(tensor.dtype));
    if (!is_quantised(dtype)) {
      if (s.batch != 0 || s.head != 0 || s.row != 0 || s.dim != 0 || s.rows != 0)
        refuse_scales(fmt::format("{0}_scales is given, and {1} is not quantised; give dtype_{0} of 8 bits with "
                                  "HEED_SCALED, or leave {0}_scales 0",
                                  tensor.name, tensor.large_name),
                      p.*(tensor.dtype));
      continue;
    }
    if (!is_scaled)
      refuse_scales(fmt::format("dtype_{} is of 8 bits, which are nothing without scale factors; give HEED_SCALED and "
                                "{}_scales",
                                tensor.name, tensor.name),
                    p.*(tensor.dtype));
    any = true;
    if (const std::string wrong = wrong_scales(problem, tensor, s); !wrong.empty()) refuse_scales(wrong, s.rows);
    TensorScales& scales = problem.*(tensor.scales);
    scales = {.at = nullptr,
              .strides = {s.batch, s.head, s.row},
              .rows = static_cast<int>(s.row == 0 ? 1 : s.rows),
              .channel = static_cast<int>(s.dim),
              .first_row = 0,
              .reserved = 0};
    const TensorSizes sizes = sizes_of_factors(problem, scales, tensor.are_queries);
    expect_extent(fmt::format("{}_scale", tensor.name), sizes, {scales.strides, s.dim}, sizeof(float));
    const ScaleBy by = granularity_of(s);
    (quantised.*(tensor.quantised)) =
        QuantisedTensor{.dtype = dtype, .by = by, .rows = by == ScaleBy::block ? s.rows : 1};
  }
  if (is_scaled && !any)
    refuse_scales("HEED_SCALED is given, and none of Q, K and V has elements of 8 bits; leave it out", p.flags);
  if (any) problem.workload.quantised = quantised;
}

std::int64_t scale_extent(const Problem& problem, const TensorScales& scales, bool are_queries) {
  return static_cast<std::int64_t>(
      extent_bytes(sizes_of_factors(problem, scales, are_queries), {scales.strides, scales.channel}, 1));
}

void expect_factors(const Problem& problem, const FeatureParams& launch) {
  const Workload& w = problem.workload;
  if (!w.quantised || problem.has_own_factors) return;
  for (const ScaledTensor& tensor : kScaledTensors) {
    const bool is_key = tensor.name[0] == 'k';
    const TensorScales& all = tensor.are_queries ? launch.q_scales : is_key ? launch.k_scales : launch.v_scales;
    if (all.at == nullptr) continue;
    const std::int64_t heads = tensor.are_queries ? w.heads : w.heads_kv;
    for (int b = 0; b < launch.batch; ++b) {
      FeatureParams own = of_entry(launch, b, 1);
      take_scales_of_entry(own, launch, b);
      const TensorScales& s = tensor.are_queries ? own.q_scales : is_key ? own.k_scales : own.v_scales;
      int begin = 0, end = own.len_q;
      if (!tensor.are_queries) {
        if (s.strides.row != 0 && w.blocks) continue;
        const KeySpan seen = key_span(mask_kind(w), mask_bounds(own), 0, own.len_q);
        begin = seen.begin, end = seen.end;
        if (own.prefix_lengths != nullptr) end = end > prefix_of(own, b) ? end : prefix_of(own, b);
      }
      if (own.len_q == 0 || begin >= end) continue;
      for (int h = 0; h < heads; ++h) {
        if (s.strides.row == 0) {
          const long long first = scale_index(s, b, h, 0);
          const std::int64_t columns = s.channel != 0 ? w.dim_v : 1;
          for (std::int64_t d = 0; d < columns; ++d) expect_factor(tensor.name, s.at, first + d);
          continue;
        }
        // A page may begin within a block of the entry's rows, so that rows are looked at one by one there.
        const int step = own.page_table != nullptr && !tensor.are_queries ? 1 : s.rows;
        for (int row = begin; row < end; row += step)
          expect_factor(tensor.name, s.at,
                        tensor.are_queries ? scale_index(s, b, h, row) : key_scale_index(own, s, b, h, row));
        expect_factor(tensor.name, s.at,
                      tensor.are_queries ? scale_index(s, b, h, end - 1) : key_scale_index(own, s, b, h, end - 1));
      }
    }
  }
}

}  // namespace heed::api

#include "api/append_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "api/problem_features.hpp"
#include "append/append.hpp"
#include "kernels/element.hpp"

namespace heed::api {
namespace {

[[noreturn]] void refuse_append(const std::string& text, std::string value) {
  throw Error(ErrorCode::usage, text, std::move(value));
}

constexpr std::int64_t kMostGpuDim = 256;  // of a cache of 8 bits: elements of a warp's lanes (append_rows.cuh)

void expect_struct(const heed_append_rows* rows) {
  if (rows == nullptr || rows->struct_size != sizeof(heed_append_rows))
    refuse_append(fmt::format("heed_append_rows is null or has another size than the {} bytes that this library reads: "
                              "set it with heed_append_rows_init",
                              sizeof(heed_append_rows)),
                  rows == nullptr ? "null" : std::to_string(rows->struct_size));
  constexpr std::uint32_t kKnown = HEED_APPEND_RAGGED | HEED_APPEND_LENGTHS_AFTER;
  if ((rows->flags & ~kKnown) != 0)
    refuse_append(fmt::format("flags {:#x} of heed_append_rows are unknown", rows->flags & ~kKnown),
                  std::to_string(rows->flags));
  for (const std::uint64_t word : rows->reserved)
    if (word != 0) refuse_append("reserved fields of heed_append_rows must be 0", std::to_string(word));
}

void expect_lengths(const heed_problem& p, const heed_append_rows& rows) {
  const bool is_ragged = (rows.flags & HEED_APPEND_RAGGED) != 0;
  if (rows.len_new < 0 || rows.len_new >= kMostSize)
    throw Error(ErrorCode::invalid_workload, fmt::format("len_new is {}; it must be 0 to 2^31 - 1", rows.len_new),
                std::to_string(rows.len_new));
  if (!is_ragged && rows.total_new != 0)
    refuse_append(
        fmt::format("total_new is {} without HEED_APPEND_RAGGED; leave it 0, or give the flag", rows.total_new),
        std::to_string(rows.total_new));
  const std::int64_t least = p.batch == 0 ? 0 : rows.len_new;
  if (is_ragged && (rows.total_new < least || rows.total_new >= kMostSize))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("total_new is {}; it must be {} to 2^31 - 1, for an entry may get len_new = {} rows",
                            rows.total_new, least, rows.len_new),
                std::to_string(rows.total_new));
}

// Where the new rows of K, or of V, lie: (1 or batch, heads_kv, rows, dim).
TensorLayout layout_of_new(const char* name, const heed_strides& given, const TensorSizes& s, bool is_ragged,
                           std::size_t element_bytes) {
  TensorLayout layout = is_ragged ? TensorLayout{{0, s.dim, s.heads * s.dim}, 1}
                                  : TensorLayout{{s.heads * s.rows * s.dim, s.rows * s.dim, s.dim}, 1};
  if (given.batch != 0 || given.head != 0 || given.row != 0 || given.dim != 0) {
    expect_strides(name, given, s);
    layout = {{given.batch, given.head, given.row}, s.dim > 1 ? given.dim : 1};
  }
  expect_extent(name, s, layout, element_bytes);
  return layout;
}

append::Tensor tensor_of(const Problem& problem, bool is_value, const TensorLayout& from) {
  const Workload& w = problem.workload;
  const char* const name = is_value ? "V" : "K";
  const TensorLayout& to = is_value ? problem.v : problem.k;
  const TensorSizes sizes = is_value ? problem.v_sizes() : problem.k_sizes();
  expect_apart(name, {to.batch, to.head, to.row, to.step}, sizes);
  append::Tensor t{};
  t.rows.from_strides = from;
  t.rows.from_step = from.step;
  t.rows.to_strides = to;
  t.to_step = to.step;
  t.rows.heads = static_cast<int>(w.heads_kv);
  t.rows.dim = t.rows.to_dim = static_cast<int>(sizes.dim);
  t.rows.element = static_cast<int>(w.dtype);
  t.rows.to_element = static_cast<int>(is_value ? w.dtype_v() : w.dtype_k());
  t.rows.are_keys = 1;
  if (append::is_copied(t)) return t;
  if (problem.device == DeviceKind::cuda && sizes.dim > kMostGpuDim)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} of 8 bits and head dim {} is not supported by the append on a GPU; the largest that is: "
                    "{}",
                    name, sizes.dim, kMostGpuDim),
        std::to_string(sizes.dim));
  t.rows.scales = is_value ? problem.v_scales : problem.k_scales;
  const TensorStrides& s = t.rows.scales.strides;
  t.finds_factor = s.row != 0 && t.rows.scales.rows == 1 ? 1 : 0;
  const bool shares = (w.heads_kv > 1 && s.head == 0) || (sizes.batch > 1 && s.batch == 0);
  if (t.finds_factor != 0 && shares)
    refuse_append(fmt::format("rows of {} have factors of their own, which heads or entries share (strides {} and {}), "
                              "so that several would be written to one place; give each head and entry its own",
                              name, s.batch, s.head),
                  "0");
  return t;
}

class CpuAppend final : public AppendRun {
 public:
  explicit CpuAppend(const append::Append& parameters) : AppendRun(parameters) {}

 private:
  void launch(const append::Append& append, void*, bool) const override {
    if (const std::string wrong = append::wrong_numbers(append); !wrong.empty()) refuse_append(wrong, {});
    append::append_on_host(append);
  }
};

// What a run is given, and what of it is wrong.
struct GivenAddress {
  const char* name;
  const void* address;
  std::uintptr_t alignment;
  bool is_needed;
  const char* belongs_to;  // what an append that has such a tensor is; null: all may
};

void expect_addresses(std::initializer_list<GivenAddress> all) {
  for (const GivenAddress& one : all) {
    if (one.belongs_to != nullptr && one.address != nullptr)
      refuse_append(fmt::format("{} is given, which is of appends with {}; leave it null", one.name, one.belongs_to),
                    one.name);
    if (!one.is_needed) continue;
    if (one.address == nullptr) refuse_append(fmt::format("the address of {} is null", one.name), one.name);
    if (reinterpret_cast<std::uintptr_t>(one.address) % one.alignment != 0)
      refuse_append(fmt::format("{} lies at {}; its address must be a multiple of {} bytes", one.name, one.address,
                                one.alignment),
                    fmt::format("{}", one.address));
  }
}

std::size_t bytes_each(int element) {
  return static_cast<std::size_t>(bytes_of(static_cast<Element>(element)));
}

}  // namespace

AppendRun::AppendRun(const append::Append& parameters) : parameters_(parameters) {
  const append::Append& a = parameters;
  const bool is_ragged = a.total_new >= 0;
  const bool has_pages = a.page_size > 0;
  const bool has_rows = a.heads > 0 && (is_ragged ? a.total_new > 0 : a.batch > 0 && a.len_new > 0);
  const std::int64_t parts = has_pages ? a.pages : a.batch;
  const std::int64_t rows = has_pages ? a.page_size : a.len_cache;
  const auto layout = [](const TensorStrides& strides, long long step) {
    return TensorLayout{{strides.batch, strides.head, strides.row}, step};
  };
  if (has_rows) {
    const auto of_new = [&](const char* name, const append::Tensor& t) {
      return span_of(name, nullptr, {is_ragged ? 1 : a.batch, a.heads, is_ragged ? a.total_new : a.len_new, t.rows.dim},
                     layout(t.rows.from_strides, t.rows.from_step), bytes_each(t.rows.element));
    };
    const auto of_cache = [&](const char* name, const append::Tensor& t) {
      return span_of(name, nullptr, {parts, a.heads, rows, t.rows.dim}, layout(t.rows.to_strides, t.to_step),
                     bytes_each(t.rows.to_element));
    };
    const auto of_factors = [&](const char* name, const append::Tensor& t) {
      if (append::is_copied(t)) return Span{};
      const TensorScales& s = t.rows.scales;
      const std::int64_t blocks = (rows + s.rows - 1) / std::max(s.rows, 1);
      return span_of(name, nullptr, {parts, a.heads, blocks, s.channel != 0 ? t.rows.dim : 1}, layout(s.strides, 1),
                     sizeof(float));
    };
    const std::int64_t pages_each = has_pages ? (a.len_cache + a.page_size - 1) / a.page_size : 0;
    const std::int64_t numbers = has_pages && a.batch > 0 ? (a.batch - 1) * a.table_stride + pages_each : 0;
    spans_[0] = of_new("new_k", a.k);
    spans_[1] = of_new("new_v", a.v);
    spans_[2] = of_cache("k", a.k);
    spans_[3] = of_cache("v", a.v);
    spans_[7] = span_of_numbers("page_table", nullptr, numbers, sizeof(std::int32_t));
    spans_[8] = of_factors("k_scale", a.k);
    spans_[9] = of_factors("v_scale", a.v);
  }
  spans_[4] = span_of_numbers("lengths", nullptr, a.batch, sizeof(std::int32_t));
  spans_[5] = span_of_numbers("lengths_after", nullptr, a.batch, sizeof(std::int32_t));
  if (is_ragged && a.batch > 0)
    spans_[6] = span_of_numbers("cu_seqlens", nullptr, a.batch + std::int64_t{1}, sizeof(std::int32_t));
}

// Blocks of a launch read what others of it write.
void AppendRun::expect_apart_from_all(const heed_append_tensors& t) const {
  std::array<Span, kTensors> all = spans_;
  const std::array<const void*, kTensors> addresses = {
      t.new_k, t.new_v, t.k, t.v, t.lengths, t.lengths_after, t.cu_seqlens, t.page_table, t.k_scale, t.v_scale};
  for (std::size_t i = 0; i < kTensors; ++i) all[i].at = addresses[i];
  const std::array<bool, kTensors> is_written = {false,
                                                 false,
                                                 true,
                                                 true,
                                                 false,
                                                 true,
                                                 false,
                                                 false,
                                                 parameters_.k.finds_factor != 0,
                                                 parameters_.v.finds_factor != 0};
  for (std::size_t written = 0; written < kTensors; ++written)
    for (std::size_t i = 0; is_written[written] && i < kTensors; ++i)
      if (i != written && overlap(all[written], all[i]))
        refuse_append(fmt::format("{} overlaps {}; what is written must lie apart", all[written].name, all[i].name),
                      all[written].name);
}

append::Append AppendRun::bound(const heed_append_tensors& t) const {
  if (t.struct_size != sizeof(heed_append_tensors))
    refuse_append(fmt::format("heed_append_tensors has {} bytes; this library reads {}: set it with "
                              "heed_append_tensors_init",
                              t.struct_size, sizeof(heed_append_tensors)),
                  std::to_string(t.struct_size));
  for (const std::uint64_t word : t.reserved)
    if (word != 0) refuse_append("reserved fields of heed_append_tensors must be 0", std::to_string(word));
  if (t.reserved_flags != 0)
    refuse_append("reserved fields of heed_append_tensors must be 0", std::to_string(t.reserved_flags));
  append::Append a = parameters_;
  const bool is_ragged = a.total_new >= 0;
  const bool has_pages = a.page_size > 0;
  const bool has_rows = a.heads > 0 && (is_ragged ? a.total_new > 0 : a.batch > 0 && a.len_new > 0);
  const bool has_entries = a.batch > 0;
  const char* const of_k = append::is_copied(a.k) ? "HEED_SCALED and a K of 8 bits" : nullptr;
  const char* const of_v = append::is_copied(a.v) ? "HEED_SCALED and a V of 8 bits" : nullptr;
  constexpr std::uintptr_t kInt = sizeof(std::int32_t);
  expect_addresses(
      {{"new_k", t.new_k, bytes_each(a.k.rows.element), has_rows, nullptr},
       {"new_v", t.new_v, bytes_each(a.v.rows.element), has_rows, nullptr},
       {"k", t.k, bytes_each(a.k.rows.to_element), has_rows, nullptr},
       {"v", t.v, bytes_each(a.v.rows.to_element), has_rows, nullptr},
       {"lengths", t.lengths, kInt, has_entries, nullptr},
       {"lengths_after", t.lengths_after, kInt, has_entries && t.lengths_after != nullptr, nullptr},
       {"cu_seqlens", t.cu_seqlens, kInt, is_ragged && has_entries, is_ragged ? nullptr : "HEED_APPEND_RAGGED"},
       {"page_table", t.page_table, kInt, has_pages && has_rows, has_pages ? nullptr : "HEED_PAGED"},
       {"k_scale", t.k_scale, sizeof(float), has_rows && of_k == nullptr, of_k},
       {"v_scale", t.v_scale, sizeof(float), has_rows && of_v == nullptr, of_v}});
  expect_apart_from_all(t);
  a.k.rows.from = t.new_k;
  a.v.rows.from = t.new_v;
  a.k.rows.to = static_cast<unsigned char*>(t.k);
  a.v.rows.to = static_cast<unsigned char*>(t.v);
  a.k.rows.factors = t.k_scale;
  a.v.rows.factors = t.v_scale;
  a.lengths = t.lengths;
  a.lengths_after = t.lengths_after;
  a.cu_seqlens = t.cu_seqlens;
  a.page_table = t.page_table;
  return append::with_width(a);
}

void AppendRun::run(const heed_append_tensors& tensors, void* stream, std::uint32_t flags) const {
  if ((flags & ~HEED_RUN_DEPENDENT) != 0)
    refuse_append(fmt::format("flags {:#x} of an append are unknown", flags & ~HEED_RUN_DEPENDENT),
                  std::to_string(flags));
  const bool dependent = (flags & HEED_RUN_DEPENDENT) != 0;
  if (dependent && !can_be_dependent())
    refuse_append(
        "HEED_RUN_DEPENDENT is given, and this append cannot be a dependent launch; ask "
        "heed_append_can_be_dependent",
        std::to_string(flags));
  const append::Append append = bound(tensors);
  if (append.batch == 0) return;
  const bool has_rows = append::rows_of_all(append) > 0 && append.heads > 0;
  if (has_rows || append.lengths_after != nullptr) launch(append, stream, dependent);
}

std::unique_ptr<AppendRun> make_append(const heed_problem* given, const heed_append_rows* rows,
                                       const Options& options) {
  const Problem problem = read_problem(given);
  expect_struct(rows);
  expect_lengths(*given, *rows);
  const Workload& w = problem.workload;
  if (problem.has_ragged_keys())
    throw Error(ErrorCode::unsupported,
                "an append to the keys of a HEED_RAGGED problem is not supported, for they follow each other without "
                "room behind them; the nearest that are: keys in pages, or (batch, heads_kv, len_k, dim) with "
                "HEED_KEY_LENGTHS",
                "HEED_RAGGED");
  const bool is_ragged = (rows->flags & HEED_APPEND_RAGGED) != 0;
  const TensorSizes sizes{is_ragged ? 1 : w.batch, w.heads_kv, is_ragged ? rows->total_new : rows->len_new, w.dim};
  TensorSizes of_values = sizes;
  of_values.dim = w.dim_v;
  const auto element_bytes = size_of(w.dtype);
  append::Append a{};
  a.k = tensor_of(problem, false, layout_of_new("the new K", rows->k_strides, sizes, is_ragged, element_bytes));
  a.v = tensor_of(problem, true, layout_of_new("the new V", rows->v_strides, of_values, is_ragged, element_bytes));
  a.batch = static_cast<int>(given->batch);
  a.heads = given->heads == 0 ? 0 : static_cast<int>(given->heads_kv);
  a.len_new = static_cast<int>(rows->len_new);
  a.total_new = is_ragged ? static_cast<int>(rows->total_new) : -1;
  a.len_cache = static_cast<int>(given->len_k);
  a.page_size = static_cast<int>(w.page_size);
  a.pages = static_cast<int>(problem.pages);
  a.table_stride = problem.table_stride;
  a.are_after = (rows->flags & HEED_APPEND_LENGTHS_AFTER) != 0 ? 1 : 0;
  if (problem.device == DeviceKind::cpu) return std::make_unique<CpuAppend>(a);
  return make_gpu_append(problem, a, choose_append(options, facts_of_device(problem)));
}

}  // namespace heed::api

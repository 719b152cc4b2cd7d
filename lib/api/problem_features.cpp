#include "api/problem_features.hpp"

#include <fmt/format.h>

#include <cmath>

#include "workload/output.hpp"
#include "workload/relative_bias.hpp"

namespace heed::api {
namespace {

constexpr std::int64_t kMostPageSize = std::int64_t{1} << 20;  // as of a workload
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24;   // of a list of blocks: kernels count its keys in ints

bool has(const heed_problem& p, std::uint32_t flag) {
  return (p.flags & flag) != 0;
}

[[noreturn]] void refuse(ErrorCode code, const std::string& text, std::int64_t value) {
  throw Error(code, text, std::to_string(value));
}

void expect_flags(const heed_problem& p) {
  if (has(p, HEED_ALIBI_BY_BATCH) && !has(p, HEED_HAS_ALIBI))
    refuse(ErrorCode::usage, "HEED_ALIBI_BY_BATCH is given without HEED_HAS_ALIBI, whose slopes it is about", p.flags);
  if (has(p, HEED_RELATIVE_PAST) && !has(p, HEED_HAS_RELATIVE_BIAS))
    refuse(ErrorCode::usage, "HEED_RELATIVE_PAST is given without HEED_HAS_RELATIVE_BIAS, whose table it is about",
           p.flags);
  if (has(p, HEED_RAGGED) && has(p, HEED_KEY_LENGTHS) && !has(p, HEED_PAGED))
    refuse(ErrorCode::usage,
           "HEED_KEY_LENGTHS is given beside HEED_RAGGED, whose keys have lengths of their own; leave it out, or give "
           "keys in pages",
           p.flags);
}

BiasDtype dtype_of_bias(int dtype) {
  switch (dtype) {
    case HEED_FP16:
      return BiasDtype::fp16;
    case HEED_BF16:
      return BiasDtype::bf16;
    case HEED_FP32:
      return BiasDtype::fp32;
    case HEED_BOOL:
      return BiasDtype::boolean;
    case HEED_FP8_E4M3:
    case HEED_FP8_E5M2:
    case HEED_INT8:
      refuse(ErrorCode::unsupported,
             fmt::format("dtype_bias {} is an 8-bit type of numbers, which is not supported by any family; the nearest "
                         "that are: HEED_FP16, HEED_BF16 and HEED_FP32",
                         dtype),
             dtype);
    default:
      refuse(ErrorCode::usage, fmt::format("dtype_bias {} is no heed_dtype", dtype), dtype);
  }
}

void read_bias(const heed_problem& p, Problem& problem) {
  const BiasDtype dtype = dtype_of_bias(p.dtype_bias);
  const heed_strides& s = p.bias_strides;
  const TensorSizes sizes = problem.bias_sizes();
  expect_strides("the bias", s, sizes);
  problem.bias = {{s.batch, s.head, s.row}, s.dim};
  expect_extent("the bias", sizes, problem.bias, size_of(dtype));
  problem.workload.bias = Bias{
      .dtype = dtype, .by_batch = s.batch != 0, .by_head = s.head != 0, .by_row = s.row != 0, .by_key = s.dim != 0};
}

// Rows of all entries. At least as many as one may have, unless there is no entry.
std::int64_t total_of(const char* name, std::int64_t total, const char* length_name, std::int64_t length,
                      std::int64_t batch) {
  const std::int64_t least = batch == 0 ? 0 : length;
  if (total < least || total >= kMostSize)
    refuse(ErrorCode::invalid_workload,
           fmt::format("{} is {}; it must be {} to 2^31 - 1, for an entry may have {} = {} rows", name, total, least,
                       length_name, length),
           total);
  return std::max<std::int64_t>(total, 1);
}

void read_pages(const heed_problem& p, Problem& problem) {
  if (p.page_size < 1 || p.page_size > kMostPageSize)
    refuse(ErrorCode::invalid_workload,
           fmt::format("page_size is {}; with HEED_PAGED it must be 1 to {}", p.page_size, kMostPageSize), p.page_size);
  if (p.pages < 1 || p.pages >= kMostSize)
    refuse(ErrorCode::invalid_workload, fmt::format("pages is {}; with HEED_PAGED it must be 1 to 2^31 - 1", p.pages),
           p.pages);
  problem.workload.page_size = p.page_size;
  problem.pages = p.pages;
  const std::int64_t numbers = problem.pages_of_entry();
  problem.table_stride = p.page_table_stride == 0 ? numbers : p.page_table_stride;
  if (problem.table_stride < numbers)
    refuse(
        ErrorCode::invalid_workload,
        fmt::format("page_table_stride is {}; len_k = {} keys take {} pages of {}, so that it must be {} or more, or "
                    "0 for a dense page table",
                    p.page_table_stride, p.len_k, numbers, p.page_size, numbers),
        p.page_table_stride);
  expect_extent("the page table", {problem.workload.batch, 1, 1, numbers}, {{problem.table_stride, 0, 0}, 1},
                sizeof(std::int32_t));
}

void read_blocks(const heed_problem& p, Problem& problem) {
  for (const auto& [name, size] : {std::pair{"block_rows", p.block_rows}, std::pair{"block_keys", p.block_keys}})
    if (size != 64 && size != 128)
      refuse(ErrorCode::invalid_workload,
             fmt::format("{} is {}; with HEED_HAS_BLOCKS it must be 64 or 128", name, size), size);
  if (p.block_most < 1 || p.block_most > kMostNumbers)
    refuse(ErrorCode::invalid_workload,
           fmt::format("block_most is {}; with HEED_HAS_BLOCKS it must be 1 to 2^24", p.block_most), p.block_most);
  if (p.block_count_strides.dim != 0 || (p.block_index_strides.dim != 1 && p.block_most > 1))
    refuse(ErrorCode::usage,
           fmt::format("the numbers of a list of blocks must follow each other; give block_count_strides.dim = 0 and "
                       "block_index_strides.dim = 1, not {} and {}",
                       p.block_count_strides.dim, p.block_index_strides.dim),
           p.block_index_strides.dim);
  problem.workload.blocks = BlockPattern{.rows = p.block_rows,
                                         .keys = p.block_keys,
                                         .by_batch = p.block_index_strides.batch != 0,
                                         .by_head = p.block_index_strides.head != 0};
  problem.block_most = p.block_most;
  const auto read = [&](const char* name, const heed_strides& s, const TensorSizes& sizes, TensorLayout& layout) {
    expect_strides(name, s, sizes);
    layout = {{s.batch, s.head, s.row}, 1};
    expect_extent(name, sizes, layout, sizeof(std::int32_t));
  };
  read("block_counts", p.block_count_strides, problem.block_count_sizes(), problem.block_counts);
  read("block_indices", p.block_index_strides, problem.block_index_sizes(), problem.block_indices);
}

void read_norm(const heed_problem& p, Problem& problem) {
  if (!has(p, HEED_HAS_OUT_NORM)) {
    if (has(p, HEED_OUT_NORM_BY_HEAD))
      refuse(ErrorCode::usage, "HEED_OUT_NORM_BY_HEAD is given without HEED_HAS_OUT_NORM, whose weights it is about",
             p.flags);
    if (p.out_norm_eps != 0)
      throw Error(
          ErrorCode::usage,
          fmt::format("out_norm_eps is {} without HEED_HAS_OUT_NORM; leave it 0, or give the flag", p.out_norm_eps),
          std::to_string(p.out_norm_eps));
    return;
  }
  if (const std::string wrong = wrong_eps(p.out_norm_eps); !wrong.empty())
    throw Error(ErrorCode::invalid_workload, wrong, std::to_string(p.out_norm_eps));
  problem.workload.out_norm = OutNorm{.eps = p.out_norm_eps, .by_head = has(p, HEED_OUT_NORM_BY_HEAD)};
}

void read_gate(const heed_problem& p, Problem& problem) {
  const heed_strides& s = p.out_gate_strides;
  if (!has(p, HEED_HAS_OUT_GATE)) {
    if (s.batch != 0 || s.head != 0 || s.row != 0 || s.dim != 0)
      refuse(ErrorCode::usage, "out_gate_strides are given without HEED_HAS_OUT_GATE; leave them 0, or give the flag",
             s.row);
    return;
  }
  if (s.dim != 0 && s.dim != 1)
    refuse(
        ErrorCode::usage,
        fmt::format("out_gate_strides.dim is {}; it must be 1 for a gate each element, or 0 for one each row", s.dim),
        s.dim);
  const TensorSizes sizes = problem.o_sizes();
  expect_strides("the output gate", s, sizes);
  problem.out_gate = {{s.batch, s.head, s.row}, s.dim};
  expect_extent("the output gate", sizes, problem.out_gate, size_of(problem.workload.dtype));
  problem.workload.out_gate = s.dim == 0 ? OutGate::head : OutGate::element;
}

}  // namespace

void read_features(const heed_problem& p, Problem& problem) {
  expect_flags(p);
  Workload& w = problem.workload;
  if (!(p.softcap == 0 || (p.softcap >= 1e-30 && p.softcap <= 1e30)))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("softcap is {}; it must be positive, from 1e-30 to 1e30, or 0 for none", p.softcap),
                std::to_string(p.softcap));
  w.softcap = p.softcap;
  if (!(p.dropout >= 0 && p.dropout <= 1))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("dropout is {}; it must be a probability from 0 to 1, 0 for none", p.dropout),
                std::to_string(p.dropout));
  w.dropout = p.dropout;
  w.sinks = has(p, HEED_HAS_SINKS);
  w.alibi = has(p, HEED_HAS_ALIBI);
  problem.alibi_by_batch = has(p, HEED_ALIBI_BY_BATCH);
  w.key_lengths = has(p, HEED_KEY_LENGTHS);
  w.ragged = has(p, HEED_RAGGED);
  if (has(p, HEED_PAGED)) read_pages(p, problem);
  if (w.ragged) {
    problem.total_q = total_of("total_q", p.total_q, "len_q", p.len_q, p.batch);
    if (problem.has_ragged_keys())
      problem.total_k = total_of("total_k", p.total_k, "len_k", p.len_k, p.batch);
    else if (p.total_k != 0)
      refuse(ErrorCode::usage,
             fmt::format("total_k is {}, and keys lie in pages, so that queries alone are ragged; give total_k = 0",
                         p.total_k),
             p.total_k);
  }
  if (has(p, HEED_HAS_RELATIVE_BIAS)) {
    w.relative = RelativeBias{.buckets = p.relative_buckets,
                              .max_distance = p.relative_max_distance,
                              .bidirectional = !has(p, HEED_RELATIVE_PAST)};
    if (const std::string wrong = wrong_buckets(*w.relative); !wrong.empty())
      refuse(ErrorCode::invalid_workload, wrong, p.relative_buckets);
  }
  if (has(p, HEED_HAS_BIAS)) read_bias(p, problem);
  if (has(p, HEED_HAS_BLOCKS)) read_blocks(p, problem);
  if (has(p, HEED_HAS_PREFIX)) w.prefix = std::max<std::int64_t>(p.len_k, 1);  // at most
  problem.out_columns = w.dim_v;
  read_norm(p, problem);
  read_gate(p, problem);
}

}  // namespace heed::api

/// A caller's heed_problem, read and checked: what cannot be is refused here, what no family serves yet by its name.
/// And the other way round, the heed_problem of a workload.
#pragma once

#include <algorithm>

#include "device/device_facts.hpp"
#include "heed/heed.h"
#include "heed/heed.hpp"
#include "kernels/attention/scales.hpp"
#include "kernels/contract.hpp"
#include "workload/features.hpp"
#include "workload/quantised.hpp"

namespace heed::api {

inline constexpr std::int64_t kMostSize = std::int64_t{1} << 31;  ///< of a dimension, exclusive: kernels count in ints

/// Where the rows of a tensor lie, in elements.
struct TensorLayout : TensorStrides {
  long long step = 1;  ///< from one element of a row to the next
};

/// The sizes of a tensor. Of ragged rows `batch` is 1, of pages it counts them.
struct TensorSizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t rows = 1;
  std::int64_t dim = 1;
};

struct Problem {
  DeviceKind device = DeviceKind::cpu;
  int ordinal = 0;
  bool is_empty = false;  ///< no batch entry, head or query: nothing is computed and nothing written
  bool has_keys = true;   ///< else every row is zeros, and the workload counts one key that no row sees
  bool wants_lse = false;
  Workload workload;
  TensorLayout q;
  TensorLayout k;
  TensorLayout v;
  TensorLayout o;
  TensorLayout bias;              ///< of (batch, heads, len_q, len_k), steps from key to key; 0: shared
  bool alibi_by_batch = false;    ///< slopes of each batch entry
  std::int64_t total_q = 0;       ///< rows of ragged Q and O
  std::int64_t total_k = 0;       ///< rows of ragged K and V
  std::int64_t pages = 0;         ///< of K, and of V, where they lie in pages
  std::int64_t table_stride = 0;  ///< numbers from one entry of the page table to the next
  std::int64_t block_most = 0;    ///< numbers that a list of blocks has room for
  TensorLayout block_counts;      ///< of (batch, heads, blocks of rows); 0: shared
  TensorLayout block_indices;     ///< of (batch, heads, blocks of rows, block_most)
  TensorScales q_scales{};        ///< of quantised tensors, without addresses
  TensorScales k_scales{};
  TensorScales v_scales{};
  /// Whether the library makes the factors: NaN among them says that there was one in the inputs.
  bool has_own_factors = false;
  TensorLayout out_gate;         ///< of (batch, heads, len_q, dim_v), steps from column to column; 0: shared
  std::int64_t out_columns = 0;  ///< columns of O that the caller has; dim_v may be padded

  [[nodiscard]] bool has_ragged_keys() const { return workload.ragged && workload.page_size == 0; }
  /// Pages that the keys of an entry take: numbers of an entry of the page table.
  [[nodiscard]] std::int64_t pages_of_entry() const {
    return workload.page_size == 0 ? 0 : (workload.len_k + workload.page_size - 1) / workload.page_size;
  }
  [[nodiscard]] TensorSizes q_sizes() const { return of_queries(workload.dim); }
  [[nodiscard]] TensorSizes k_sizes() const { return of_keys(workload.dim); }
  [[nodiscard]] TensorSizes v_sizes() const { return of_keys(workload.dim_v); }
  [[nodiscard]] TensorSizes o_sizes() const { return of_queries(workload.dim_v); }
  [[nodiscard]] TensorSizes bias_sizes() const {
    return {workload.batch, workload.heads, workload.len_q, workload.len_k};
  }
  [[nodiscard]] TensorSizes block_count_sizes() const { return {workload.batch, workload.heads, row_blocks(), 1}; }
  [[nodiscard]] TensorSizes block_index_sizes() const {
    return {workload.batch, workload.heads, row_blocks(), block_most};
  }

 private:
  [[nodiscard]] std::int64_t row_blocks() const {
    return workload.blocks ? (workload.len_q + workload.blocks->rows - 1) / workload.blocks->rows : 1;
  }
  [[nodiscard]] TensorSizes of_queries(std::int64_t dim) const {
    const Workload& w = workload;
    return w.ragged ? TensorSizes{1, w.heads, total_q, dim} : TensorSizes{w.batch, w.heads, w.len_q, dim};
  }
  [[nodiscard]] TensorSizes of_keys(std::int64_t dim) const {
    const Workload& w = workload;
    if (w.page_size > 0) return {pages, w.heads_kv, w.page_size, dim};
    return w.ragged ? TensorSizes{1, w.heads_kv, total_k, dim} : TensorSizes{w.batch, w.heads_kv, w.len_k, dim};
  }
};

/// @throws Error(usage) for a struct of another size or version and for strides that cannot be, Error(invalid_workload)
/// for sizes that cannot be, Error(unsupported) for what no family serves
Problem read_problem(const heed_problem* problem);

/// The problem of a workload, as a caller would describe it: dense tensors (batch, head, length, dim), ragged ones in
/// the order of its layout and with room for as many rows as entries may have.
inline heed_problem problem_of(const Workload& w, DeviceKind device) {
  static_assert(static_cast<int>(Dtype::fp16) == HEED_FP16 && static_cast<int>(Dtype::bf16) == HEED_BF16 &&
                static_cast<int>(Dtype::fp32) == HEED_FP32 && static_cast<int>(Dtype::e4m3) == HEED_FP8_E4M3 &&
                static_cast<int>(Dtype::e5m2) == HEED_FP8_E5M2 && static_cast<int>(Dtype::int8) == HEED_INT8);
  static_assert(static_cast<int>(Mask::none) == HEED_MASK_NONE &&
                static_cast<int>(Mask::causal_top_left) == HEED_MASK_CAUSAL_TOP_LEFT &&
                static_cast<int>(Mask::causal_bottom_right) == HEED_MASK_CAUSAL_BOTTOM_RIGHT &&
                static_cast<int>(Mask::window_top_left) == HEED_MASK_WINDOW_TOP_LEFT &&
                static_cast<int>(Mask::window_bottom_right) == HEED_MASK_WINDOW_BOTTOM_RIGHT);
  heed_problem p;
  heed_problem_init(&p);
  p.device_type = device == DeviceKind::cpu ? HEED_CPU : HEED_CUDA;
  p.batch = w.batch;
  p.heads = w.heads;
  p.heads_kv = w.heads_kv;
  p.len_q = w.len_q;
  p.len_k = w.len_k;
  p.dim = w.dim;
  p.dim_v = w.dim_v;
  p.dtype_q = static_cast<int>(w.dtype_q());
  p.dtype_k = static_cast<int>(w.dtype_k());
  p.dtype_v = static_cast<int>(w.dtype_v());
  p.dtype_o = static_cast<int>(w.dtype);
  p.mask = static_cast<int>(w.mask);
  p.window_left = w.window.left;
  p.window_right = w.window.right;
  p.scale = w.scale.value_or(0);
  p.softcap = w.softcap;
  p.dropout = w.dropout;
  if (w.out_norm) p.out_norm_eps = w.out_norm->eps;
  const auto flag = [&](bool is_set, std::uint32_t bit) { p.flags |= is_set ? bit : 0; };
  flag(w.bias.has_value(), HEED_HAS_BIAS);
  flag(w.sinks, HEED_HAS_SINKS);
  flag(w.alibi, HEED_HAS_ALIBI);
  flag(w.key_lengths, HEED_KEY_LENGTHS);
  flag(w.ragged, HEED_RAGGED);
  flag(w.page_size > 0, HEED_PAGED);
  flag(w.blocks.has_value(), HEED_HAS_BLOCKS);
  flag(w.prefix > 0, HEED_HAS_PREFIX);
  flag(w.relative.has_value(), HEED_HAS_RELATIVE_BIAS);
  if (w.relative) {
    flag(!w.relative->bidirectional, HEED_RELATIVE_PAST);
    p.relative_buckets = w.relative->buckets;
    p.relative_max_distance = w.relative->max_distance;
  }
  flag(w.out_norm.has_value(), HEED_HAS_OUT_NORM);
  flag(w.out_norm && w.out_norm->by_head, HEED_OUT_NORM_BY_HEAD);
  flag(w.out_gate != OutGate::none, HEED_HAS_OUT_GATE);
  if (w.bias) {
    p.dtype_bias = w.bias->dtype == BiasDtype::boolean ? HEED_BOOL : static_cast<int>(dtype_of(w.bias->dtype));
    const BiasSizes sizes = bias_sizes(w);
    p.bias_strides = {w.bias->by_batch ? sizes.head * sizes.row * sizes.key : 0,
                      w.bias->by_head ? sizes.row * sizes.key : 0, w.bias->by_row ? sizes.key : 0,
                      w.bias->by_key ? 1 : 0};
  }
  const auto at_most = [](std::int64_t count) { return std::min(count, kMostSize - 1); };
  if (w.page_size > 0) {
    p.page_size = w.page_size;
    p.pages = at_most(w.batch * ((w.len_k + w.page_size - 1) / w.page_size));
  }
  if (w.blocks) {
    p.block_rows = w.blocks->rows;
    p.block_keys = w.blocks->keys;
    p.block_most = (w.len_k + p.block_keys - 1) / p.block_keys;
    const std::int64_t lists = (w.len_q + p.block_rows - 1) / p.block_rows;
    const std::int64_t by_head = w.blocks->by_head ? lists : 0;
    const std::int64_t by_batch = w.blocks->by_batch ? lists * (w.blocks->by_head ? w.heads : 1) : 0;
    p.block_count_strides = {by_batch, by_head, 1, 0};
    p.block_index_strides = {by_batch * p.block_most, by_head * p.block_most, p.block_most, 1};
  }
  if (w.quantised) {
    p.flags |= HEED_SCALED;
    const auto scales = [&](const std::optional<QuantisedTensor>& tensor, bool are_queries, std::int64_t columns) {
      if (!tensor) return heed_scales{};
      const bool of_rows = tensor->by == ScaleBy::block || tensor->by == ScaleBy::token;
      const bool of_pages = of_rows && !are_queries && w.page_size > 0;
      const std::int64_t rows = of_pages ? w.page_size : are_queries ? w.len_q : w.len_k;
      const bool is_ragged = of_rows && w.ragged && !of_pages;
      const ScaleSizes sizes =
          scale_sizes(*tensor,
                      of_pages    ? kMostSize
                      : is_ragged ? 1
                                  : w.batch,
                      are_queries ? w.heads : w.heads_kv, is_ragged ? at_most(w.batch * rows) : rows, columns);
      const Strides strides = sizes.strides();
      return heed_scales{strides.batch, strides.head, strides.row, tensor->by == ScaleBy::channel ? 1 : 0,
                         strides.row == 0 ? 1 : tensor->rows};
    };
    p.q_scales = scales(w.quantised->q, true, w.dim);
    p.k_scales = scales(w.quantised->k, false, w.dim);
    p.v_scales = scales(w.quantised->v, false, w.dim_v);
  }
  if (w.ragged) {
    p.total_q = at_most(w.batch * w.len_q);
    if (w.page_size == 0) p.total_k = at_most(w.batch * w.len_k);
    // Where a caller gives none they are (length, head, dim).
    if (w.layout == Layout::bhld) {
      p.q_strides = {0, p.total_q * w.dim, w.dim, 1};
      p.o_strides = {0, p.total_q * w.dim_v, w.dim_v, 1};
      if (w.page_size == 0) {
        p.k_strides = {0, p.total_k * w.dim, w.dim, 1};
        p.v_strides = {0, p.total_k * w.dim_v, w.dim_v, 1};
      }
    }
  }
  if (w.out_gate != OutGate::none) {
    // Rows as those of O: dense, ragged ones in the order of the layout.
    const std::int64_t columns = w.out_gate == OutGate::head ? 1 : w.dim_v;
    const std::int64_t rows = w.ragged ? p.total_q : w.len_q;
    p.out_gate_strides = w.ragged && w.layout == Layout::blhd
                             ? heed_strides{0, columns, w.heads * columns, 0}
                             : heed_strides{w.ragged ? 0 : w.heads * rows * columns, rows * columns, columns, 0};
    p.out_gate_strides.dim = w.out_gate == OutGate::head ? 0 : 1;
  }
  return p;
}

/// The byte after the last element of a tensor, from its first. Never overflows for a problem that read_problem took.
std::uint64_t extent_bytes(const TensorSizes& sizes, const TensorLayout& layout, std::size_t element_bytes);

}  // namespace heed::api

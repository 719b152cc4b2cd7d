// Calls of heed::forward_features: ragged tensors, pages, and tensors of features.
#include <algorithm>
#include <cmath>

#include "call_parts.hpp"
#include "layout.hpp"
#include "scaled_call.hpp"

namespace heed::torch {

namespace {

// Which tensors are (total rows, heads, dim).
struct Ragged {
  bool queries;
  bool keys;
};

// Sizes and strides of a featured call's tensors. False where they do not fit each other.
bool read_sizes(const Shape& q, const Shape& k, const Shape& v, const Ragged& ragged, bool paged, const Features& f,
                Call& call) {
  heed_problem& p = call.problem;
  if (q.rank != (ragged.queries ? 3 : 4) || k.rank != (ragged.keys ? 3 : 4) || v.rank != k.rank) return false;
  const auto heads_and_dim = [](const Shape& shape, std::int64_t& heads, std::int64_t& dim) {
    heads = shape.sizes[1];
    dim = shape.sizes[shape.rank - 1];
  };
  std::int64_t heads_of_v = 0, dim_of_k = 0;
  heads_and_dim(q, p.heads, p.dim);
  heads_and_dim(k, p.heads_kv, dim_of_k);
  heads_and_dim(v, heads_of_v, p.dim_v);
  if (dim_of_k != p.dim || heads_of_v != p.heads_kv || p.heads_kv == 0 || p.heads % p.heads_kv != 0) return false;
  if (ragged.queries) {
    p.total_q = q.sizes[0];
    p.len_q = f.max_len_q;
    p.q_strides = {0, q.strides[1], q.strides[0], q.strides[2]};
  } else {
    p.batch = q.sizes[0];
    p.len_q = q.sizes[2];
    p.q_strides = strides_of(q);
  }
  const std::int64_t rows = k.sizes[ragged.keys ? 0 : 2];
  if (rows != v.sizes[ragged.keys ? 0 : 2]) return false;
  if (ragged.keys) {
    p.total_k = rows;
    p.len_k = f.max_len_k;
    p.k_strides = {0, k.strides[1], k.strides[0], k.strides[2]};
    p.v_strides = {0, v.strides[1], v.strides[0], v.strides[2]};
    return true;
  }
  p.k_strides = strides_of(k);
  p.v_strides = strides_of(v);
  if (k.sizes[0] != v.sizes[0]) return false;
  if (paged) {
    p.pages = k.sizes[0];
    p.page_size = rows;
    p.len_k = f.max_len_k;
    return true;
  }
  p.len_k = rows;
  return k.sizes[0] == p.batch;
}

// Lists of blocks: of the sizes that broadcast to the problem's, the numbers of one dense.
bool read_blocks(const Features& f, Call& call) {
  static const std::int32_t int32 = libtorch().dtype_int32();
  heed_problem& p = call.problem;
  const std::optional<Shape> counts = shape_of(f.block_counts.get());
  const std::optional<Shape> indices = f.block_indices ? shape_of(f.block_indices.get()) : std::nullopt;
  if (!counts || !indices || counts->rank != 3 || indices->rank != 4 || counts->dtype != int32 ||
      indices->dtype != int32 || !is_on_device_of(call, *counts) || !is_on_device_of(call, *indices) ||
      f.block_rows < 1 || f.block_keys < 1)
    return false;
  const std::array<std::int64_t, 3> wanted = {p.batch, p.heads, (p.len_q + f.block_rows - 1) / f.block_rows};
  std::array<std::int64_t, 3> of_counts{}, of_indices{};
  for (std::size_t i = 0; i < 3; ++i) {
    const bool is_shared = i < 2 && counts->sizes[i] == 1;
    if (counts->sizes[i] != indices->sizes[i] || (!is_shared && counts->sizes[i] != wanted[i])) return false;
    of_counts[i] = is_shared ? 0 : counts->strides[i];
    of_indices[i] = is_shared ? 0 : indices->strides[i];
  }
  if (indices->sizes[3] > 1 && indices->strides[3] != 1) return false;
  p.flags |= HEED_HAS_BLOCKS;
  p.block_rows = f.block_rows;
  p.block_keys = f.block_keys;
  p.block_most = indices->sizes[3];
  p.block_count_strides = {of_counts[0], of_counts[1], of_counts[2], 0};
  p.block_index_strides = {of_indices[0], of_indices[1], of_indices[2], 1};
  return true;
}

// The gate of rows of O, which broadcasts to these, and the weights of their norm.
bool read_output(const Features& f, bool ragged, Call& call) {
  static const std::int32_t fp32 = libtorch().dtype_float32();
  heed_problem& p = call.problem;
  if (f.out_norm_weight) {
    const std::optional<Shape> weights = shape_of(f.out_norm_weight.get());
    const bool by_head = weights && weights->rank == 2;
    p.flags |= HEED_HAS_OUT_NORM | (by_head ? HEED_OUT_NORM_BY_HEAD : 0U);
    p.out_norm_eps = f.out_norm_eps;
    if (!(by_head ? is_array(f.out_norm_weight, fp32, call, {p.heads, p.dim_v})
                  : is_array(f.out_norm_weight, fp32, call, {p.dim_v})))
      return false;
  }
  if (!f.out_gate) return true;
  const std::optional<Shape> gate = shape_of(f.out_gate.get());
  if (!gate || gate->rank != (ragged ? 3 : 4) || gate->dtype != call.dtype || !is_on_device_of(call, *gate))
    return false;
  const std::array<std::int64_t, 4> wanted = ragged ? std::array{p.total_q, p.heads, p.dim_v, std::int64_t{0}}
                                                    : std::array{p.batch, p.heads, p.len_q, p.dim_v};
  std::array<std::int64_t, 4> strides{};
  const auto rank = static_cast<std::size_t>(gate->rank);
  for (std::size_t i = 0; i < rank; ++i) {
    if (gate->sizes[i] != wanted[i] && gate->sizes[i] != 1) return false;
    strides[i] = gate->sizes[i] == 1 ? 0 : gate->strides[i];
  }
  // Of a single column either kind of gate is the same.
  if (p.dim_v == 1) strides[rank - 1] = 1;
  if (strides[rank - 1] != 0 && strides[rank - 1] != 1) return false;
  p.flags |= HEED_HAS_OUT_GATE;
  p.out_gate_strides = ragged ? heed_strides{0, strides[1], strides[0], strides[2]}
                              : heed_strides{strides[0], strides[1], strides[2], strides[3]};
  return true;
}

}  // namespace

Refusal read_featured_call(TensorHandle q_tensor, TensorHandle k_tensor, TensorHandle v_tensor, const Masking& masking,
                           const Features& f, Call& call) {
  QkvShapes shapes;
  const bool is_scaled = f.scales.are_given();
  if (const Refusal refusal = (is_scaled ? read_scaled_shapes : read_shapes)(q_tensor, k_tensor, v_tensor, shapes);
      refusal != Refusal::none)
    return refusal;
  const auto& [q, k, v, dtype] = shapes;
  if (masking.scale && !(std::isfinite(*masking.scale) && *masking.scale > 0)) return Refusal::scale;

  static const std::int32_t cpu = libtorch().device_type_cpu();
  static const std::int32_t fp32 = libtorch().dtype_float32();
  static const std::int32_t int32 = libtorch().dtype_int32();
  heed_problem& p = call.problem;
  heed_problem_init(&p);
  p.device_type = q.device_type == cpu ? HEED_CPU : HEED_CUDA;
  p.device = q.device_type == cpu ? 0 : q.device;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = dtype;
  p.mask = static_cast<std::int32_t>(masking.mask);
  p.window_left = masking.window_left;
  p.window_right = masking.window_right;
  p.scale = masking.scale.value_or(0);
  p.softcap = f.softcap;
  p.dropout = f.dropout;
  p.flags = HEED_WANTS_LSE;
  call.dtype = q.dtype;
  call.device_type = q.device_type;
  if (is_scaled)
    if (const Refusal refusal = read_types(shapes, f.scales, call); refusal != Refusal::none) return refusal;

  const bool paged = static_cast<bool>(f.page_table);
  const Ragged ragged{static_cast<bool>(f.cu_seqlens_q), static_cast<bool>(f.cu_seqlens_k)};
  // Keys are ragged as queries are, or lie in pages.
  if (ragged.keys != (ragged.queries && !paged)) return Refusal::sizes;
  if (ragged.queries) {
    const std::optional<Shape> offsets = shape_of(f.cu_seqlens_q.get());
    if (!offsets || offsets->rank != 1) return Refusal::feature_tensor;
    p.batch = offsets->sizes[0] - 1;
    p.flags |= HEED_RAGGED;
  }
  if (!read_sizes(q, k, v, ragged, paged, f, call)) return Refusal::sizes;
  if (p.batch < 1 || p.heads == 0 || p.len_q == 0 || p.len_k == 0 || p.dim == 0 || p.dim_v == 0) return Refusal::empty;
  const auto takes = [&](const Tensor& tensor, std::uint32_t flag, std::int32_t type,
                         std::initializer_list<std::int64_t> sizes) {
    if (!tensor) return true;
    p.flags |= flag;
    return is_array(tensor, type, call, sizes);
  };
  bool fits = takes(f.sinks, HEED_HAS_SINKS, fp32, {p.heads}) &&
              takes(f.key_lengths, HEED_KEY_LENGTHS, int32, {p.batch}) &&
              takes(f.prefix_lengths, HEED_HAS_PREFIX, int32, {p.batch}) &&
              takes(f.cu_seqlens_q, HEED_RAGGED, int32, {p.batch + 1}) &&
              takes(f.cu_seqlens_k, HEED_RAGGED, int32, {p.batch + 1});
  if (f.alibi_slopes) {
    const std::optional<Shape> slopes = shape_of(f.alibi_slopes.get());
    const bool by_batch = slopes && slopes->rank == 2;
    fits = fits && (by_batch ? takes(f.alibi_slopes, HEED_HAS_ALIBI | HEED_ALIBI_BY_BATCH, fp32, {p.batch, p.heads})
                             : takes(f.alibi_slopes, HEED_HAS_ALIBI, fp32, {p.heads}));
  }
  if (paged) {
    const std::optional<Shape> table = shape_of(f.page_table.get());
    fits = fits && table && table->rank == 2 && table->dtype == int32 && is_on_device_of(call, *table) &&
           table->sizes[0] == p.batch && (table->strides[1] == 1 || table->sizes[1] == 1) &&
           table->sizes[1] * p.page_size >= p.len_k;
    if (fits) p.page_table_stride = std::max(table->strides[0], table->sizes[1]);
    p.flags |= HEED_PAGED;
  }
  if (f.relative_bias) {
    const std::optional<Shape> table = shape_of(f.relative_bias.get());
    p.relative_buckets = table && table->rank == 2 ? table->sizes[1] : 0;
    p.relative_max_distance = f.relative_max_distance;
    if (!f.relative_bidirectional) p.flags |= HEED_RELATIVE_PAST;
    fits = fits && takes(f.relative_bias, HEED_HAS_RELATIVE_BIAS, fp32, {p.heads, p.relative_buckets});
  }
  if (f.block_counts) fits = fits && read_blocks(f, call);
  fits = fits && read_output(f, ragged.queries, call);
  if (is_scaled) fits = fits && read_scales(f.scales, ragged.queries, ragged.keys, call);
  if (!fits) return Refusal::feature_tensor;
  if (f.bias)
    if (const Refusal refusal = add_bias(f.bias, call); refusal != Refusal::none) return refusal;

  if (ragged.queries) {
    call.rank = 3;
    call.o_sizes = {p.total_q, p.heads, p.dim_v};
    call.o_strides = {p.heads * p.dim_v, p.dim_v, 1};
    p.o_strides = {0, p.dim_v, p.heads * p.dim_v, 1};
    call.lse_sizes = {p.heads, p.total_q};
  } else {
    call.o_sizes = {p.batch, p.heads, p.len_q, p.dim_v};
    call.o_strides = strides_like(q, call.o_sizes);
    p.o_strides = {call.o_strides[0], call.o_strides[1], call.o_strides[2], 1};
    call.lse_sizes = {p.batch, p.heads, p.len_q};
  }
  write_key(call, threads_of(p));
  return Refusal::none;
}

}  // namespace heed::torch

#include "scaled_call.hpp"

namespace heed::torch {
namespace {

bool has_8_bits(std::int32_t dtype) {
  return dtype == HEED_FP8_E4M3 || dtype == HEED_FP8_E5M2 || dtype == HEED_INT8;
}

struct Rows {
  std::int64_t batch;  // entries, or pages, that rows of factors are of
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t columns;  // that may have factors: of V alone
  bool is_ragged;
};

// Factors of a size of 1 are shared. Those of ragged rows are an entry's or a head's.
bool read_one(const Scales::One& one, std::int32_t dtype, const Rows& sizes, const Call& call, heed_scales& scales) {
  if (!has_8_bits(dtype)) return !one.factors;
  static const std::int32_t fp32 = libtorch().dtype_float32();
  if (!one.factors || one.rows < 1) return false;
  const std::optional<Shape> shape = shape_of(one.factors.get());
  if (!shape || shape->rank != 4 || shape->dtype != fp32 || !is_on_device_of(call, *shape)) return false;
  const bool by_rows = shape->sizes[2] != 1;
  if (by_rows && sizes.is_ragged) return false;
  const std::array<std::int64_t, 4> wanted = {by_rows ? sizes.batch : call.problem.batch, sizes.heads,
                                              (sizes.rows + one.rows - 1) / one.rows, sizes.columns};
  std::array<std::int64_t, 4> strides{};
  for (std::size_t i = 0; i < 4; ++i) {
    if (shape->sizes[i] != 1 && shape->sizes[i] != wanted[i]) return false;
    strides[i] = shape->sizes[i] == 1 ? 0 : shape->strides[i];
  }
  scales = {strides[0], strides[1], strides[2], strides[3], by_rows ? one.rows : 1};
  return true;
}

}  // namespace

std::optional<heed_dtype> scaled_dtype_of(std::int32_t dtype) {
  static const std::int32_t e4m3 = libtorch().dtype_float8_e4m3fn();
  static const std::int32_t e5m2 = libtorch().dtype_float8_e5m2();
  static const std::int32_t int8 = libtorch().dtype_int8();
  if (dtype == e4m3) return HEED_FP8_E4M3;
  if (dtype == e5m2) return HEED_FP8_E5M2;
  if (dtype == int8) return HEED_INT8;
  return dtype_of(dtype);
}

Refusal read_scaled_shapes(TensorHandle q_tensor, TensorHandle k_tensor, TensorHandle v_tensor, QkvShapes& shapes) {
  const std::optional<Shape> q = shape_of(q_tensor);
  const std::optional<Shape> k = shape_of(k_tensor);
  const std::optional<Shape> v = shape_of(v_tensor);
  if (!q || !k || !v) return Refusal::symbolic_sizes;
  if (q->device_type != k->device_type || q->device_type != v->device_type || q->device != k->device ||
      q->device != v->device)
    return Refusal::device;
  const std::optional<heed_dtype> dtype = scaled_dtype_of(q->dtype);
  if (!dtype || !scaled_dtype_of(k->dtype) || !scaled_dtype_of(v->dtype)) return Refusal::dtype;
  shapes = {*q, *k, *v, *dtype};
  return Refusal::none;
}

Refusal read_types(const QkvShapes& shapes, const Scales& scales, Call& call) {
  heed_problem& p = call.problem;
  p.dtype_k = *scaled_dtype_of(shapes.k.dtype);
  p.dtype_v = *scaled_dtype_of(shapes.v.dtype);
  if (scales.out_dtype >= 0) {
    static const std::array<std::int32_t, 3> numbers = {libtorch().dtype_float16(), libtorch().dtype_bfloat16(),
                                                        libtorch().dtype_float32()};
    if (scales.out_dtype >= static_cast<std::int64_t>(numbers.size())) return Refusal::dtype;
    p.dtype_o = static_cast<std::int32_t>(scales.out_dtype);
    call.dtype = numbers[static_cast<std::size_t>(scales.out_dtype)];
  }
  return has_8_bits(p.dtype_o) ? Refusal::dtype : Refusal::none;
}

bool read_scales(const Scales& scales, bool ragged_queries, bool ragged_keys, Call& call) {
  heed_problem& p = call.problem;
  p.flags |= HEED_SCALED;
  const bool paged = p.page_size > 0;
  const Rows of_q{p.batch, p.heads, p.len_q, 1, ragged_queries};
  const Rows of_k{paged ? p.pages : p.batch, p.heads_kv, paged ? p.page_size : p.len_k, 1, ragged_keys};
  Rows of_v = of_k;
  of_v.columns = p.dim_v;
  return read_one(scales.q, p.dtype_q, of_q, call, p.q_scales) &&
         read_one(scales.k, p.dtype_k, of_k, call, p.k_scales) && read_one(scales.v, p.dtype_v, of_v, call, p.v_scales);
}

Scales Scales::shared() const {
  return {{q.factors.shared(), q.rows}, {k.factors.shared(), k.rows}, {v.factors.shared(), v.rows}, out_dtype};
}

}  // namespace heed::torch

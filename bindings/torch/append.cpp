// heed::append_kv: new keys and values written into a cache (heed/append.h).
#include "append.hpp"

#include <heed/append.h>

#include <array>
#include <map>
#include <mutex>

#include "call_parts.hpp"
#include "current_device.hpp"

namespace heed::torch {
namespace {

// What an append is made for: equal words, equal appends.
using AppendKey = std::array<std::int64_t, 48>;

struct AppendCall {
  Tensor new_k, new_v, k, v, lengths, page_table, cu_seqlens, k_scale, v_scale;
  std::int64_t max_new = 0;
  bool lengths_are_after = false;
  std::int64_t k_scale_rows = 1;
  std::int64_t v_scale_rows = 1;
};

[[noreturn]] void refuse(const char* what) {
  throw std::runtime_error(std::string("heed::append_kv cannot take ") + what);
}

Shape shape_or_refuse(const Tensor& tensor, std::int64_t rank, const char* what) {
  const std::optional<Shape> shape = shape_of(tensor.get());
  if (!shape || shape->rank != rank) refuse(what);
  return *shape;
}

// (parts, heads, blocks of rows, columns), 1 in the place of any that is shared.
heed_scales scales_of(const Tensor& factors, std::int64_t rows) {
  static const std::int32_t fp32 = libtorch().dtype_float32();
  const Shape s = shape_or_refuse(factors, 4, "scale factors of other than four dimensions");
  if (s.dtype != fp32 || rows < 1) refuse("scale factors that are not float32, or of fewer rows than one");
  const auto stride = [&](int i) { return s.sizes[i] == 1 ? 0 : s.strides[i]; };
  return {stride(0), stride(1), stride(2), stride(3), s.sizes[2] == 1 ? 1 : rows};
}

// One element that is repeated in every dimension: libheed reads strides that are all zero as dense ones.
bool is_one_element(const Tensor& tensor) {
  const std::optional<Shape> shape = shape_of(tensor.get());
  if (!shape) return false;
  bool repeats = false;
  for (std::int64_t i = 0; i < shape->rank; ++i) {
    if (shape->strides[i] != 0) return false;
    repeats = repeats || shape->sizes[i] > 1;
  }
  return repeats;
}

struct Described {
  heed_problem problem;
  heed_append_rows rows;
};

Described described(const AppendCall& call) {
  static const std::int32_t cpu = libtorch().device_type_cpu();
  const bool ragged = static_cast<bool>(call.cu_seqlens);
  const Shape new_k = shape_or_refuse(call.new_k, ragged ? 3 : 4, "a key of this number of dimensions");
  const Shape new_v = shape_or_refuse(call.new_v, ragged ? 3 : 4, "a value of this number of dimensions");
  const Shape k = shape_or_refuse(call.k, 4, "a key cache of other than four dimensions");
  const Shape v = shape_or_refuse(call.v, 4, "a value cache of other than four dimensions");
  const Shape lengths = shape_or_refuse(call.lengths, 1, "lengths of other than one dimension");
  const int heads_at = 1, rows_at = ragged ? 0 : 2, dim_at = ragged ? 2 : 3;
  Described d;
  heed_problem& p = d.problem;
  heed_problem_init(&p);
  p.device_type = k.device_type == cpu ? HEED_CPU : HEED_CUDA;
  p.device = k.device_type == cpu ? 0 : k.device;
  p.batch = lengths.sizes[0];
  p.heads = p.heads_kv = k.sizes[1];
  p.dim = k.sizes[3];
  p.dim_v = v.sizes[3];
  p.len_k = k.sizes[2];
  p.k_strides = strides_of(k);
  p.v_strides = strides_of(v);
  const std::int64_t parts = k.sizes[0];
  const bool same = k.sizes[0] == v.sizes[0] && k.sizes[1] == v.sizes[1] && k.sizes[2] == v.sizes[2] &&
                    new_k.sizes[heads_at] == p.heads_kv && new_v.sizes[heads_at] == p.heads_kv &&
                    new_k.sizes[rows_at] == new_v.sizes[rows_at] && new_k.sizes[dim_at] == p.dim &&
                    new_v.sizes[dim_at] == p.dim_v && (ragged || new_k.sizes[0] == p.batch) &&
                    (ragged || new_v.sizes[0] == p.batch);
  if (!same) refuse("tensors whose sizes do not fit each other");
  if (call.page_table) {
    const Shape table = shape_or_refuse(call.page_table, 2, "a page table of other than two dimensions");
    if (table.sizes[0] != p.batch || (table.strides[1] != 1 && table.sizes[1] > 1)) refuse("this page table");
    p.flags |= HEED_PAGED;
    p.page_size = k.sizes[2];
    p.pages = parts;
    p.len_k = table.sizes[1] * p.page_size;
    p.page_table_stride = std::max(table.strides[0], table.sizes[1]);
  } else if (parts != p.batch) {
    refuse("a cache of another number of entries than lengths has");
  }
  const std::optional<heed_dtype> wide = dtype_of(new_k.dtype);
  const std::optional<heed_dtype> of_k = scaled_dtype_of(k.dtype);
  const std::optional<heed_dtype> of_v = scaled_dtype_of(v.dtype);
  if (!wide || !of_k || !of_v || new_v.dtype != new_k.dtype) refuse("these element types");
  p.dtype_q = p.dtype_o = *wide;
  p.dtype_k = *of_k;
  p.dtype_v = *of_v;
  if (call.k_scale) p.k_scales = scales_of(call.k_scale, call.k_scale_rows);
  if (call.v_scale) p.v_scales = scales_of(call.v_scale, call.v_scale_rows);
  if (call.k_scale || call.v_scale) p.flags |= HEED_SCALED;
  heed_append_rows& r = d.rows;
  heed_append_rows_init(&r);
  const auto strides = [&](const Shape& s) {
    return ragged ? heed_strides{0, s.strides[1], s.strides[0], s.strides[2]} : strides_of(s);
  };
  r.k_strides = strides(new_k);
  r.v_strides = strides(new_v);
  r.len_new = ragged ? call.max_new : new_k.sizes[2];
  r.total_new = ragged ? new_k.sizes[0] : 0;
  r.flags = (ragged ? HEED_APPEND_RAGGED : 0U) | (call.lengths_are_after ? HEED_APPEND_LENGTHS_AFTER : 0U);
  return d;
}

AppendKey key_of(const Described& d) {
  const heed_problem& p = d.problem;
  AppendKey key{};
  std::size_t at = 0;
  const auto add = [&](std::initializer_list<std::int64_t> words) {
    for (const std::int64_t word : words) key.at(at++) = word;
  };
  add({p.device_type, p.device, p.batch, p.heads_kv, p.len_k, p.dim, p.dim_v, p.dtype_k, p.dtype_v, p.dtype_o, p.flags,
       p.page_size, p.pages, p.page_table_stride, d.rows.flags, d.rows.len_new, d.rows.total_new});
  for (const heed_strides& s : {p.k_strides, p.v_strides, d.rows.k_strides, d.rows.v_strides})
    add({s.batch, s.head, s.row, s.dim});
  for (const heed_scales& s : {p.k_scales, p.v_scales}) add({s.batch, s.head, s.row, s.dim, s.rows});
  return key;
}

// Destroyed when nobody uses it any more.
using Append = std::shared_ptr<heed_append>;

std::mutex& append_mutex() {
  static auto* const one = new std::mutex;  // outlives the threads that run while a process ends
  return *one;
}
std::map<AppendKey, Append>& appends() {
  static auto* const all = new std::map<AppendKey, Append>;
  return *all;
}

Append append_of(const Described& d) {
  constexpr std::size_t kMost = 1024;
  const AppendKey key = key_of(d);
  const std::lock_guard lock(append_mutex());
  if (const auto found = appends().find(key); found != appends().end()) return found->second;
  heed_append* made = nullptr;
  if (heed_append_create(&d.problem, &d.rows, nullptr, &made) != HEED_OK) throw std::runtime_error(heed_last_error());
  if (appends().size() >= kMost) appends().clear();
  return appends()[key] = Append(made, heed_append_destroy);
}

}  // namespace

void forget_appends() {
  const std::lock_guard lock(append_mutex());
  appends().clear();
}

void append_kernel(StableValue* stack, std::uint64_t, std::uint64_t) {
  AppendCall call;
  Tensor* const tensors[] = {&call.new_k, &call.new_v, &call.k, &call.v, &call.lengths};
  for (std::size_t i = 0; i < std::size(tensors); ++i) *tensors[i] = tensor_of(stack[i]);
  call.page_table = optional_tensor_of(stack[5]);
  call.cu_seqlens = optional_tensor_of(stack[6]);
  call.max_new = number_of<std::int64_t>(stack[7]);
  call.lengths_are_after = number_of<bool>(stack[8]);
  call.k_scale = optional_tensor_of(stack[9]);
  call.v_scale = optional_tensor_of(stack[10]);
  call.k_scale_rows = number_of<std::int64_t>(stack[11]);
  call.v_scale_rows = number_of<std::int64_t>(stack[12]);
  static const std::int32_t int32 = libtorch().dtype_int32();
  for (Tensor* const tensor : {&call.new_k, &call.new_v})
    if (is_one_element(*tensor)) *tensor = tensor->cloned();
  if (is_one_element(call.k) || is_one_element(call.v)) refuse("a cache whose elements share one place");
  const Described d = described(call);
  for (const Tensor* tensor : {&call.new_k, &call.new_v, &call.v, &call.lengths, &call.page_table, &call.cu_seqlens,
                               &call.k_scale, &call.v_scale}) {
    if (!*tensor) continue;
    const Shape shape = *shape_of(tensor->get());
    const Shape cache = *shape_of(call.k.get());
    if (shape.device_type != cache.device_type || shape.device != cache.device) refuse("tensors of several devices");
  }
  for (const Tensor* tensor : {&call.lengths, &call.page_table, &call.cu_seqlens}) {
    if (!*tensor) continue;
    const Shape shape = *shape_of(tensor->get());
    const bool is_dense = shape.rank == 2 || shape.sizes[0] == 1 || shape.strides[0] == 1;
    if (shape.dtype != int32 || !is_dense) refuse("lengths, offsets or a page table that are not dense int32");
  }
  if (call.cu_seqlens && shape_of(call.cu_seqlens.get())->sizes[0] != d.problem.batch + 1)
    refuse("cu_seqlens of another number of entries than lengths has");
  const CurrentDevice device(d.problem);
  const Append append = append_of(d);
  const std::int64_t stride = 1;
  const Shape cache = *shape_of(call.k.get());
  TensorHandle made = nullptr;
  check(libtorch().empty_strided(1, &d.problem.batch, &stride, int32, cache.device_type, d.problem.device, &made),
        "allocating the lengths");
  Tensor after(made);
  heed_append_tensors t;
  heed_append_tensors_init(&t);
  t.new_k = const_address(call.new_k);
  t.new_v = const_address(call.new_v);
  t.k = address_of(call.k);
  t.v = address_of(call.v);
  t.lengths = static_cast<const std::int32_t*>(const_address(call.lengths));
  t.lengths_after = static_cast<std::int32_t*>(address_of(after));
  if (call.cu_seqlens) t.cu_seqlens = static_cast<const std::int32_t*>(const_address(call.cu_seqlens));
  if (call.page_table) t.page_table = static_cast<const std::int32_t*>(const_address(call.page_table));
  if (call.k_scale) t.k_scale = static_cast<float*>(address_of(call.k_scale));
  if (call.v_scale) t.v_scale = static_cast<float*>(address_of(call.v_scale));
  if (heed_append_run(append.get(), &t, current_stream(d.problem), 0) != HEED_OK)
    throw std::runtime_error(heed_last_error());
  stack[0] = stable(std::move(after));
}

}  // namespace heed::torch

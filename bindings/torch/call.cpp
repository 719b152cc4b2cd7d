#include "call.hpp"

#include <cmath>
#include <cstring>

namespace heed::torch {
namespace {

constexpr const char* kRefusals[] = {
    "nothing",
    "a mask tensor (attn_mask)",
    "dropout",
    "tensors that are not 4-dimensional",
    "an element type other than float16, bfloat16 or, on a CPU, float32",
    "tensors of different element types",
    "tensors of different devices",
    "sizes that do not fit each other",
    "head counts of Q and K that differ without enable_gqa",
    "a tensor without elements",
    "a scale that is zero, negative or not finite",
    "a selection of backends (torch.nn.attention.sdpa_kernel)",
    "sizes that are symbols of a trace",
    "no program for this problem on this device",
};
static_assert(sizeof(kRefusals) / sizeof(kRefusals[0]) == static_cast<std::size_t>(Refusal::count));

std::optional<heed_dtype> dtype_of(std::int32_t dtype) {
  static const std::int32_t fp16 = libtorch().dtype_float16();
  static const std::int32_t bf16 = libtorch().dtype_bfloat16();
  static const std::int32_t fp32 = libtorch().dtype_float32();
  if (dtype == fp16) return HEED_FP16;
  if (dtype == bf16) return HEED_BF16;
  if (dtype == fp32) return HEED_FP32;
  return std::nullopt;
}

heed_strides strides_of(const Shape& shape) {
  return {shape.strides[0], shape.strides[1], shape.strides[2], shape.strides[3]};
}

bool has_size(const Shape& shape, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return shape.sizes[0] == a && shape.sizes[1] == b && shape.sizes[2] == c && shape.sizes[3] == d;
}

}  // namespace

const char* phrase(Refusal refusal) {
  return kRefusals[static_cast<int>(refusal)];
}

std::uint64_t PlanKey::hash() const {
  std::uint64_t hash = 0;
  for (const std::int64_t word : words)
    hash = (((hash << 5U) | (hash >> 59U)) ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15U;
  return hash;
}

std::optional<Shape> shape_of(TensorHandle tensor) {
  const Libtorch& t = libtorch();
  Shape shape;
  std::int64_t* sizes = nullptr;
  std::int64_t* strides = nullptr;
  if (t.tensor_dim(tensor, &shape.rank) != 0 || t.tensor_sizes(tensor, &sizes) != 0 ||
      t.tensor_strides(tensor, &strides) != 0 || t.tensor_dtype(tensor, &shape.dtype) != 0 ||
      t.tensor_device_type(tensor, &shape.device_type) != 0 || t.tensor_device_index(tensor, &shape.device) != 0)
    return std::nullopt;
  shape.sizes = sizes;
  shape.strides = strides;
  return shape;
}

Refusal read_call(TensorHandle q_tensor, TensorHandle k_tensor, TensorHandle v_tensor, const Masking& masking,
                  bool wants_lse, bool shares_heads, Call& call) {
  const std::optional<Shape> q = shape_of(q_tensor);
  const std::optional<Shape> k = shape_of(k_tensor);
  const std::optional<Shape> v = shape_of(v_tensor);
  if (!q || !k || !v) return Refusal::symbolic_sizes;
  if (q->rank != 4 || k->rank != 4 || v->rank != 4) return Refusal::rank;
  if (q->dtype != k->dtype || q->dtype != v->dtype) return Refusal::mixed_dtypes;
  if (q->device_type != k->device_type || q->device_type != v->device_type || q->device != k->device ||
      q->device != v->device)
    return Refusal::device;
  const std::optional<heed_dtype> dtype = dtype_of(q->dtype);
  if (!dtype) return Refusal::dtype;
  const std::int64_t batch = q->sizes[0];
  const std::int64_t heads = q->sizes[1];
  const std::int64_t heads_kv = k->sizes[1];
  const std::int64_t len_q = q->sizes[2];
  const std::int64_t len_k = k->sizes[2];
  const std::int64_t dim = q->sizes[3];
  const std::int64_t dim_v = v->sizes[3];
  if (!has_size(*k, batch, heads_kv, len_k, dim) || !has_size(*v, batch, heads_kv, len_k, dim_v)) return Refusal::sizes;
  if (batch == 0 || heads == 0 || heads_kv == 0 || len_q == 0 || len_k == 0 || dim == 0 || dim_v == 0)
    return Refusal::empty;
  if (heads != heads_kv && !shares_heads) return Refusal::head_counts;
  if (heads % heads_kv != 0) return Refusal::sizes;
  if (masking.scale && !(std::isfinite(*masking.scale) && *masking.scale > 0)) return Refusal::scale;

  static const std::int32_t cpu = libtorch().device_type_cpu();
  const bool is_cpu = q->device_type == cpu;
  heed_problem& p = call.problem;
  heed_problem_init(&p);
  p.device_type = is_cpu ? HEED_CPU : HEED_CUDA;
  p.device = is_cpu ? 0 : q->device;
  p.batch = batch;
  p.heads = heads;
  p.heads_kv = heads_kv;
  p.len_q = len_q;
  p.len_k = len_k;
  p.dim = dim;
  p.dim_v = dim_v;
  p.dtype_q = p.dtype_kv = p.dtype_o = *dtype;
  p.mask = static_cast<std::int32_t>(masking.mask);
  p.window_left = masking.window_left;
  p.window_right = masking.window_right;
  p.scale = masking.scale.value_or(0);
  p.q_strides = strides_of(*q);
  p.k_strides = strides_of(*k);
  p.v_strides = strides_of(*v);
  p.flags = wants_lse ? HEED_WANTS_LSE : 0;

  // (batch, length, head, dim) in memory where Q lies so, else (batch, head, length, dim).
  const bool is_length_outer = heads > 1 && len_q > 1 && q->strides[2] > q->strides[1];
  call.o_sizes = {batch, heads, len_q, dim_v};
  call.o_strides = is_length_outer ? std::array{len_q * heads * dim_v, dim_v, heads * dim_v, std::int64_t{1}}
                                   : std::array{heads * len_q * dim_v, len_q * dim_v, dim_v, std::int64_t{1}};
  p.o_strides = {call.o_strides[0], call.o_strides[1], call.o_strides[2], 1};
  call.dtype = q->dtype;
  call.device_type = q->device_type;

  std::uint32_t threads = 0;
  if (is_cpu) check(libtorch().thread_count(&threads), "asking for the number of threads");
  std::int64_t scale_bits = 0;
  std::memcpy(&scale_bits, &p.scale, sizeof(scale_bits));
  std::int64_t* word = call.key.words.data();
  for (const std::int64_t value :
       {static_cast<std::int64_t>(p.device_type), static_cast<std::int64_t>(p.device),
        static_cast<std::int64_t>(*dtype), masking.mask, masking.window_left, masking.window_right, scale_bits,
        static_cast<std::int64_t>(p.flags), static_cast<std::int64_t>(threads), batch, heads, heads_kv, len_q, len_k,
        dim, dim_v, static_cast<std::int64_t>(is_length_outer)})
    *word++ = value;
  for (const Shape* shape : {&*q, &*k, &*v})
    for (int i = 0; i < 4; ++i) *word++ = shape->strides[i];
  return Refusal::none;
}

std::string text_of(const heed_problem& problem) {
  std::string text(heed_problem_text(&problem, nullptr, 0), '\0');
  heed_problem_text(&problem, text.data(), text.size() + 1);
  return text;
}

}  // namespace heed::torch

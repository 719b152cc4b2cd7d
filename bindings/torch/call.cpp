#include <cmath>
#include <cstring>

#include "call_parts.hpp"
#include "layout.hpp"

namespace heed::torch {
namespace {

constexpr const char* kRefusals[] = {
    "nothing",
    "a mask tensor (attn_mask) beside is_causal",
    "a probability of dropout outside 0 to 1",
    "tensors of fewer than 2 dimensions, or that do not broadcast",
    "an element type other than float16, bfloat16 or float32",
    "tensors of different element types",
    "tensors of different devices",
    "sizes that do not fit each other",
    "head counts of Q and K that differ without enable_gqa",
    "a tensor without elements",
    "a scale that is not finite",
    "a selection of backends (torch.nn.attention.sdpa_kernel)",
    "sizes that are symbols of a trace",
    "a mask tensor of fewer than 2 dimensions, or that does not broadcast to the scores, or is of another type or "
    "device",
    "a tensor of a feature that has another type, size or device than it must have",
    "no program for this problem on this device",
};
static_assert(sizeof(kRefusals) / sizeof(kRefusals[0]) == static_cast<std::size_t>(Refusal::count));

bool has_size(const Shape& shape, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return shape.sizes[0] == a && shape.sizes[1] == b && shape.sizes[2] == c && shape.sizes[3] == d;
}

std::optional<heed_dtype> bias_dtype_of(std::int32_t dtype) {
  static const std::int32_t boolean = libtorch().dtype_bool();
  if (dtype == boolean) return HEED_BOOL;
  return dtype_of(dtype);
}

// Strides with which a tensor of `sizes` is read in place of the tensor, by the rules of broadcasting.
std::optional<heed_strides> broadcast_strides(const Shape& shape, const std::array<std::int64_t, 4>& sizes) {
  if (shape.rank > 4) return std::nullopt;
  std::array<std::int64_t, 4> strides{};
  for (std::int64_t i = 0; i < shape.rank; ++i) {
    const std::int64_t at = 4 - shape.rank + i;
    if (shape.sizes[i] == 1) continue;
    if (shape.sizes[i] != sizes[static_cast<std::size_t>(at)]) return std::nullopt;
    strides[static_cast<std::size_t>(at)] = shape.strides[i];
  }
  return heed_strides{strides[0], strides[1], strides[2], strides[3]};
}

// Q, K and V as tensors of four dimensions and of one batch size and one number of key heads, which may be one head for
// all of Q. Sizes and strides point to `words` then.
struct Lifting {
  struct Words {
    std::array<std::int64_t, 4> sizes{};
    std::array<std::int64_t, 4> strides{};
  };
  std::array<Words, 3> words{};

  Refusal lift(QkvShapes& shapes, bool shared_heads) {
    const std::array<Shape*, 3> all = {&shapes.q, &shapes.k, &shapes.v};
    const std::int64_t rank = shapes.q.rank;
    if (rank < 2 || rank > 4 || (rank < 3 && shared_heads)) return Refusal::rank;
    const auto agree = [&](std::size_t at) {
      return shapes.k.sizes[at] == shapes.q.sizes[at] && shapes.v.sizes[at] == shapes.q.sizes[at];
    };
    const bool are_of_four = rank == 4 && shapes.k.rank == 4 && shapes.v.rank == 4;
    if (are_of_four && agree(0) && (shared_heads || agree(1))) return Refusal::none;  // most calls
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i]->rank != rank) return Refusal::rank;
      Words& one = words[i];
      for (std::int64_t at = 3; at >= 0; --at) {
        const auto to = static_cast<std::size_t>(at);
        const std::int64_t from = at - (4 - rank);
        one.sizes[to] = from < 0 ? 1 : all[i]->sizes[from];
        one.strides[to] = from < 0 ? one.sizes[to + 1] * one.strides[to + 1] : all[i]->strides[from];
      }
      *all[i] = {4, one.sizes.data(), one.strides.data(), all[i]->dtype, all[i]->device_type, all[i]->device};
    }
    repeat(0);
    const bool has_one_key_head = words[1].sizes[1] == 1 && words[2].sizes[1] == 1;
    if (!shared_heads && !has_one_key_head) repeat(1);
    return Refusal::none;
  }

  // One entry or head stands for as many as the others have.
  void repeat(std::size_t at) {
    std::int64_t size = 1;
    for (const Words& one : words)
      if (one.sizes[at] != 1) size = one.sizes[at];
    for (Words& one : words) {
      if (one.sizes[at] != 1 || size == 1) continue;
      one.sizes[at] = size;
      one.strides[at] = 0;
    }
  }
};

}  // namespace

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

// What tells a plan from another, of a problem that was read.
void write_key(Call& call, std::uint32_t threads) {
  const heed_problem& p = call.problem;
  const auto bits = [](double number) {
    std::int64_t word = 0;
    std::memcpy(&word, &number, sizeof(word));
    return word;
  };
  std::int64_t* word = call.key.words.data();
  for (const std::int64_t value : {static_cast<std::int64_t>(p.device_type),
                                   static_cast<std::int64_t>(p.device),
                                   static_cast<std::int64_t>(p.dtype_q),
                                   static_cast<std::int64_t>(p.mask),
                                   p.window_left,
                                   p.window_right,
                                   bits(p.scale),
                                   static_cast<std::int64_t>(p.flags),
                                   static_cast<std::int64_t>(threads),
                                   p.batch,
                                   p.heads,
                                   p.heads_kv,
                                   p.len_q,
                                   p.len_k,
                                   p.dim,
                                   p.dim_v,
                                   static_cast<std::int64_t>(p.dtype_bias),
                                   bits(p.softcap),
                                   bits(p.dropout),
                                   bits(p.out_norm_eps),
                                   p.relative_buckets,
                                   p.relative_max_distance,
                                   p.total_q,
                                   p.total_k,
                                   p.page_size,
                                   p.pages,
                                   p.page_table_stride,
                                   p.block_rows,
                                   p.block_keys,
                                   p.block_most,
                                   2 * call.precision + (call.may_build ? 1 : 0)})
    *word++ = value;
  for (const heed_strides* s : {&p.q_strides, &p.k_strides, &p.v_strides, &p.o_strides, &p.bias_strides,
                                &p.block_count_strides, &p.block_index_strides, &p.out_gate_strides})
    for (const std::int64_t stride : {s->batch, s->head, s->row, s->dim}) *word++ = stride;
  if ((p.flags & HEED_SCALED) == 0) return;
  word = call.key.of_scales.data();
  for (const std::int32_t dtype : {std::int32_t{1}, p.dtype_k, p.dtype_v, p.dtype_o}) *word++ = dtype;
  for (const heed_scales* s : {&p.q_scales, &p.k_scales, &p.v_scales})
    for (const std::int64_t number : {s->batch, s->head, s->row, s->dim, s->rows}) *word++ = number;
}

std::uint32_t threads_of(const heed_problem& problem) {
  std::uint32_t threads = 0;
  if (problem.device_type == HEED_CPU) check(libtorch().thread_count(&threads), "asking for the number of threads");
  return threads;
}

bool is_on_device_of(const Call& call, const Shape& shape) {
  return shape.device_type == call.device_type &&
         (call.problem.device_type == HEED_CPU || shape.device == call.problem.device);
}

Refusal add_bias(const Tensor& bias, Call& call) {
  const std::optional<Shape> shape = shape_of(bias.get());
  if (!shape) return Refusal::symbolic_sizes;
  heed_problem& p = call.problem;
  const std::optional<heed_dtype> dtype = bias_dtype_of(shape->dtype);
  const std::optional<heed_strides> strides = broadcast_strides(*shape, {p.batch, p.heads, p.len_q, p.len_k});
  if (!dtype || !strides || !is_on_device_of(call, *shape)) return Refusal::mask_sizes;
  p.flags |= HEED_HAS_BIAS;
  p.dtype_bias = *dtype;
  p.bias_strides = *strides;
  return Refusal::none;
}

// A dense tensor of these sizes and this type.
bool is_array(const Tensor& tensor, std::int32_t dtype, const Call& call, std::initializer_list<std::int64_t> sizes) {
  const std::optional<Shape> shape = shape_of(tensor.get());
  if (!shape || shape->dtype != dtype || !is_on_device_of(call, *shape) ||
      shape->rank != static_cast<std::int64_t>(sizes.size()))
    return false;
  std::int64_t dense = 1;
  for (std::int64_t i = shape->rank - 1; i >= 0; --i) {
    if (shape->sizes[i] != sizes.begin()[i]) return false;
    if (shape->sizes[i] > 1 && shape->strides[i] != dense) return false;
    dense *= shape->sizes[i];
  }
  return true;
}

const char* phrase(Refusal refusal) {
  return kRefusals[static_cast<int>(refusal)];
}

bool may_have_other_form(Refusal refusal) {
  switch (refusal) {
    case Refusal::mask_and_causal:
    case Refusal::dropout:
    case Refusal::rank:
    case Refusal::sizes:
    case Refusal::empty:
    case Refusal::scale:
      return true;
    case Refusal::none:
    case Refusal::dtype:
    case Refusal::mixed_dtypes:
    case Refusal::device:
    case Refusal::head_counts:
    case Refusal::backend_selection:
    case Refusal::symbolic_sizes:
    case Refusal::mask_sizes:
    case Refusal::feature_tensor:
    case Refusal::unsupported:
    case Refusal::count:
      break;
  }
  return false;
}

std::uint64_t PlanKey::hash() const {
  const auto mixed = [](std::uint64_t before, std::int64_t word) {
    return (((before << 5U) | (before >> 59U)) ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15U;
  };
  std::uint64_t hash = 0;
  for (const std::int64_t word : words) hash = mixed(hash, word);
  if (of_scales[0] != 0)
    for (const std::int64_t word : of_scales) hash = mixed(hash, word);
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

Refusal read_shapes(TensorHandle q_tensor, TensorHandle k_tensor, TensorHandle v_tensor, QkvShapes& shapes) {
  const std::optional<Shape> q = shape_of(q_tensor);
  const std::optional<Shape> k = shape_of(k_tensor);
  const std::optional<Shape> v = shape_of(v_tensor);
  if (!q || !k || !v) return Refusal::symbolic_sizes;
  if (q->dtype != k->dtype || q->dtype != v->dtype) return Refusal::mixed_dtypes;
  if (q->device_type != k->device_type || q->device_type != v->device_type || q->device != k->device ||
      q->device != v->device)
    return Refusal::device;
  const std::optional<heed_dtype> dtype = dtype_of(q->dtype);
  if (!dtype) return Refusal::dtype;
  shapes = {*q, *k, *v, *dtype};
  return Refusal::none;
}

Refusal read_call(TensorHandle q_tensor, TensorHandle k_tensor, TensorHandle v_tensor, const Masking& masking,
                  bool wants_lse, Sizes allowed, Call& call) {
  // Before all else: in any other form, too, the call goes to PyTorch for it.
  if (masking.scale && !std::isfinite(*masking.scale)) return Refusal::scale;
  QkvShapes shapes;
  if (const Refusal refusal = read_shapes(q_tensor, k_tensor, v_tensor, shapes); refusal != Refusal::none)
    return refusal;
  call.allowed = allowed;
  Lifting lifting;
  if (allowed.broadcast) {
    call.lifted = 4 - shapes.q.rank;
    if (const Refusal refusal = lifting.lift(shapes, allowed.shared_heads); refusal != Refusal::none) return refusal;
  }
  const auto& [q, k, v, dtype] = shapes;
  if (q.rank != 4 || k.rank != 4 || v.rank != 4) return Refusal::rank;
  const std::int64_t batch = q.sizes[0];
  const std::int64_t heads = q.sizes[1];
  const std::int64_t heads_kv = k.sizes[1];
  const std::int64_t len_q = q.sizes[2];
  const std::int64_t len_k = k.sizes[2];
  const std::int64_t dim = q.sizes[3];
  const std::int64_t dim_v = v.sizes[3];
  if (!has_size(k, batch, heads_kv, len_k, dim) || !has_size(v, batch, heads_kv, len_k, dim_v)) return Refusal::sizes;
  if (batch == 0 || heads == 0 || heads_kv == 0 || len_q == 0 || len_k == 0 || dim == 0 || dim_v == 0)
    return Refusal::empty;
  if (heads != heads_kv && !allowed.shared_heads && !(allowed.broadcast && heads_kv == 1)) return Refusal::head_counts;
  if (heads % heads_kv != 0) return Refusal::sizes;
  if (masking.scale && *masking.scale <= 0) return Refusal::scale;

  static const std::int32_t cpu = libtorch().device_type_cpu();
  const bool is_cpu = q.device_type == cpu;
  heed_problem& p = call.problem;
  heed_problem_init(&p);
  p.device_type = is_cpu ? HEED_CPU : HEED_CUDA;
  p.device = is_cpu ? 0 : q.device;
  p.batch = batch;
  p.heads = heads;
  p.heads_kv = heads_kv;
  p.len_q = len_q;
  p.len_k = len_k;
  p.dim = dim;
  p.dim_v = dim_v;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = dtype;
  p.mask = static_cast<std::int32_t>(masking.mask);
  p.window_left = masking.window_left;
  p.window_right = masking.window_right;
  p.scale = masking.scale.value_or(0);
  p.q_strides = strides_of(q);
  p.k_strides = strides_of(k);
  p.v_strides = strides_of(v);
  p.flags = wants_lse ? HEED_WANTS_LSE : 0;

  call.o_sizes = {batch, heads, len_q, dim_v};
  // PyTorch's own kernels are unfused for tensors of less than four dimensions, and on a CPU where V has another head
  // dim than K: their output is dense whatever Q is.
  const bool is_unfused = call.lifted > 0 || (allowed.broadcast && is_cpu && dim != dim_v);
  call.o_strides = is_unfused ? dense_strides(call.o_sizes) : strides_like(q, call.o_sizes);
  p.o_strides = {call.o_strides[0], call.o_strides[1], call.o_strides[2], 1};
  call.dtype = q.dtype;
  call.device_type = q.device_type;
  call.lse_sizes = {batch, heads, len_q};
  write_key(call, threads_of(p));
  return Refusal::none;
}

Refusal read_mask(const Tensor& mask, Call& call) {
  const std::optional<Shape> shape = shape_of(mask.get());
  if (shape && shape->rank > 4 - call.lifted) return Refusal::mask_sizes;
  const Refusal refusal = add_bias(mask, call);
  // PyTorch takes masks of float32 beside any query, others of the query's type alone.
  const heed_problem& p = call.problem;
  if (refusal == Refusal::none && p.dtype_bias != HEED_BOOL && p.dtype_bias != HEED_FP32 && p.dtype_bias != p.dtype_q)
    return Refusal::mask_sizes;
  if (refusal == Refusal::none) write_key(call, threads_of(call.problem));
  return refusal;
}

Features Features::shared() const {
  return {bias.shared(),
          sinks.shared(),
          alibi_slopes.shared(),
          key_lengths.shared(),
          cu_seqlens_q.shared(),
          cu_seqlens_k.shared(),
          page_table.shared(),
          block_counts.shared(),
          block_indices.shared(),
          prefix_lengths.shared(),
          relative_bias.shared(),
          out_gate.shared(),
          out_norm_weight.shared(),
          softcap,
          max_len_q,
          max_len_k,
          block_rows,
          block_keys,
          dropout,
          dropout_seed,
          dropout_offset,
          relative_max_distance,
          relative_bidirectional,
          out_norm_eps,
          scales.shared()};
}

void set_dropout(Call& call, double probability) {
  call.problem.dropout = probability;
  write_key(call, threads_of(call.problem));
}

void set_precision(Call& call, std::int64_t precision) {
  call.precision = precision;
  write_key(call, threads_of(call.problem));
}

std::string text_of(const heed_problem& problem) {
  std::string text(heed_problem_text(&problem, nullptr, 0), '\0');
  heed_problem_text(&problem, text.data(), text.size() + 1);
  return text;
}

}  // namespace heed::torch

#include "api/problem.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "variant/element.hpp"

namespace heed::api {
namespace {

constexpr std::int64_t kMostSize = std::int64_t{1} << 31;    // of a dimension, exclusive: kernels count in ints
constexpr std::int64_t kMostOffset = std::int64_t{1} << 60;  // bytes

void require_version(const heed_problem* p) {
  if (p == nullptr) throw Error(ErrorCode::usage, "the problem is null; give one that heed_problem_init has set");
  if (p->struct_size != sizeof(heed_problem) || p->abi_version != HEED_ABI_VERSION)
    throw Error(ErrorCode::usage,
                fmt::format("heed_problem has {} bytes and version {}; this library reads {} bytes of version {}: set "
                            "it with heed_problem_init, and compile with the library's own header",
                            p->struct_size, p->abi_version, sizeof(heed_problem), HEED_ABI_VERSION),
                std::to_string(p->struct_size));
  for (const std::uint64_t word : p->reserved)
    if (word != 0) throw Error(ErrorCode::usage, "reserved fields of heed_problem must be 0", std::to_string(word));
  if (p->reserved_flags != 0)
    throw Error(ErrorCode::usage, "reserved fields of heed_problem must be 0", std::to_string(p->reserved_flags));
}

std::optional<Dtype> dtype_of(int dtype) {
  switch (dtype) {
    case HEED_FP16:
      return Dtype::fp16;
    case HEED_BF16:
      return Dtype::bf16;
    case HEED_FP32:
      return Dtype::fp32;
    default:
      return std::nullopt;
  }
}

void refuse_unserved(const heed_problem& p) {
  const auto refuse = [](std::string_view what, std::string_view instead) {
    throw Error(ErrorCode::unsupported, fmt::format("{} is not supported by any family; {}", what, instead),
                std::string(what));
  };
  constexpr std::uint32_t kKnown =
      HEED_WANTS_LSE | HEED_HAS_BIAS | HEED_HAS_SINKS | HEED_RAGGED | HEED_PAGED | HEED_SCALED;
  if ((p.flags & ~kKnown) != 0)
    throw Error(ErrorCode::usage, fmt::format("flags {:#x} of heed_problem are unknown", p.flags & ~kKnown),
                std::to_string(p.flags));
  if (p.softcap != 0) refuse("softcap", "the nearest that is: softcap = 0");
  if (p.dropout != 0) refuse("dropout", "the nearest that is: dropout = 0");
  if ((p.flags & HEED_HAS_BIAS) != 0) refuse("a bias", "the nearest that is: a causal mask or a window");
  if ((p.flags & HEED_HAS_SINKS) != 0)
    refuse("a sink", "the nearest that is: no sinks, and the log-sum-exp to add them");
  if ((p.flags & HEED_RAGGED) != 0) refuse("a packed batch of lengths", "the nearest that is: one problem a length");
  if ((p.flags & HEED_PAGED) != 0) refuse("a paged cache", "the nearest that is: K and V with strides");
  if ((p.flags & HEED_SCALED) != 0) refuse("a scale factor of quantised tensors", "the nearest that is: fp16 or bf16");
  for (const int dtype : {p.dtype_q, p.dtype_kv, p.dtype_o}) {
    if (dtype < HEED_FP16 || dtype > HEED_INT8)
      throw Error(ErrorCode::usage, fmt::format("{} is no heed_dtype", dtype), std::to_string(dtype));
    if (!dtype_of(dtype)) refuse("an 8-bit element type", "the nearest that are: HEED_FP16 and HEED_BF16");
  }
  if (p.dtype_q != p.dtype_kv || p.dtype_q != p.dtype_o)
    refuse("a problem with different element types", "the nearest that is: Q, K, V and O of one type");
}

Mask mask_of(int mask) {
  switch (mask) {
    case HEED_MASK_NONE:
      return Mask::none;
    case HEED_MASK_CAUSAL_TOP_LEFT:
      return Mask::causal_top_left;
    case HEED_MASK_CAUSAL_BOTTOM_RIGHT:
      return Mask::causal_bottom_right;
    case HEED_MASK_WINDOW_TOP_LEFT:
      return Mask::window_top_left;
    case HEED_MASK_WINDOW_BOTTOM_RIGHT:
      return Mask::window_bottom_right;
    default:
      throw Error(ErrorCode::usage, fmt::format("{} is no heed_mask", mask), std::to_string(mask));
  }
}

void require_sizes(const heed_problem& p) {
  struct Size {
    const char* name;
    std::int64_t value;
    bool may_be_zero;
  };
  for (const Size& size : {Size{"batch", p.batch, true}, Size{"heads", p.heads, true},
                           Size{"heads_kv", p.heads_kv, true}, Size{"len_q", p.len_q, true},
                           Size{"len_k", p.len_k, true}, Size{"dim", p.dim, false}, Size{"dim_v", p.dim_v, false}})
    if (size.value < (size.may_be_zero ? 0 : 1) || size.value >= kMostSize)
      throw Error(ErrorCode::invalid_workload,
                  fmt::format("{} is {}; it must be {} to 2^31 - 1", size.name, size.value, size.may_be_zero ? 0 : 1),
                  std::to_string(size.value));
  if (p.heads > 0 && (p.heads_kv == 0 || p.heads % p.heads_kv != 0))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("{} query heads do not divide among {} key heads; heads must be a multiple of heads_kv",
                            p.heads, p.heads_kv),
                std::to_string(p.heads));
}

struct Sizes {
  const char* name;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t dim;
};

// That of a caller, or of a dense tensor (batch, head, length, dim) where all are zero.
TensorLayout layout_of(const heed_strides& given, const Sizes& sizes, bool is_written) {
  if (given.batch == 0 && given.head == 0 && given.row == 0 && given.dim == 0)
    return {{sizes.heads * sizes.rows * sizes.dim, sizes.rows * sizes.dim, sizes.dim}, 1};
  struct One {
    const char* name;
    std::int64_t stride;
    std::int64_t count;
  };
  for (const One& one : {One{"batch", given.batch, sizes.batch}, One{"head", given.head, sizes.heads},
                         One{"row", given.row, sizes.rows}, One{"dim", given.dim, sizes.dim}}) {
    if (one.count <= 1) continue;  // it is never used
    if (one.stride < 0)
      throw Error(
          ErrorCode::usage,
          fmt::format("the {} stride of {} is {}; strides must not be negative", one.name, sizes.name, one.stride),
          std::to_string(one.stride));
    if (is_written && one.stride == 0)
      throw Error(ErrorCode::usage,
                  fmt::format("the {} stride of {} is 0, so that {} entries would be written to one place", one.name,
                              sizes.name, one.count),
                  "0");
  }
  return {{given.batch, given.head, given.row}, sizes.dim > 1 ? given.dim : 1};
}

void require_extent(const Sizes& sizes, const TensorLayout& layout, int element_bytes) {
  std::int64_t last = 1;
  for (const auto& [count, stride] : {std::pair{sizes.batch, layout.batch}, std::pair{sizes.heads, layout.head},
                                      std::pair{sizes.rows, layout.row}, std::pair{sizes.dim, layout.step}}) {
    std::int64_t step = 0;
    if (count > 1 && (__builtin_mul_overflow(count - 1, stride, &step) || __builtin_add_overflow(last, step, &last) ||
                      last > kMostOffset / element_bytes))
      throw Error(ErrorCode::invalid_workload, fmt::format("the strides of {} reach beyond 2^60 bytes", sizes.name),
                  std::to_string(stride));
  }
}

bool is_length_outer(const TensorLayout& s, const Sizes& sizes) {
  return s.step == 1 && s.head == sizes.dim && s.row == sizes.heads * sizes.dim && sizes.heads > 1;
}

}  // namespace

std::uint64_t extent_bytes(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t dim,
                           const TensorLayout& layout, int element_bytes) {
  const std::int64_t last =
      (batch - 1) * layout.batch + (heads - 1) * layout.head + (rows - 1) * layout.row + (dim - 1) * layout.step + 1;
  return static_cast<std::uint64_t>(last) * static_cast<std::uint64_t>(element_bytes);
}

Problem read_problem(const heed_problem* given) {
  require_version(given);
  const heed_problem& p = *given;
  Problem problem;
  if (p.device_type != HEED_CPU && p.device_type != HEED_CUDA)
    throw Error(ErrorCode::usage, fmt::format("{} is no heed_device_type", p.device_type),
                std::to_string(p.device_type));
  problem.device = p.device_type == HEED_CPU ? DeviceKind::cpu : DeviceKind::cuda;
  problem.ordinal = p.device;
  if (problem.device == DeviceKind::cpu && p.device != 0)
    throw Error(ErrorCode::no_device,
                fmt::format("there is no CPU device {}; the one there is has the number 0", p.device),
                std::to_string(p.device));
  require_sizes(p);
  refuse_unserved(p);
  problem.wants_lse = (p.flags & HEED_WANTS_LSE) != 0;
  problem.is_empty = p.batch == 0 || p.heads == 0 || p.len_q == 0;
  problem.has_keys = p.len_k > 0;
  Workload& w = problem.workload;
  w.batch = std::max<std::int64_t>(p.batch, 1);
  w.heads = std::max<std::int64_t>(p.heads, 1);
  w.heads_kv = p.heads == 0 ? 1 : p.heads_kv;
  w.len_q = std::max<std::int64_t>(p.len_q, 1);
  w.len_k = std::max<std::int64_t>(p.len_k, 1);
  w.dim = p.dim;
  w.dim_v = p.dim_v;
  w.dtype = *dtype_of(p.dtype_q);
  w.mask = mask_of(p.mask);
  w.window = {p.window_left, p.window_right};
  if (p.window_left < Window::kAll || p.window_right < Window::kAll)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("a window of {} and {} keys is none; give numbers of keys from 0 on, or -1 for all",
                            p.window_left, p.window_right),
                std::to_string(std::min(p.window_left, p.window_right)));
  if (!(p.scale >= 0)) {
    throw Error(ErrorCode::invalid_workload,
                fmt::format("the scale is {}; it must be positive, or 0 for 1/sqrt(dim)", p.scale),
                std::to_string(p.scale));
  }
  if (p.scale > 0) w.scale = p.scale;
  w = reduced(w);
  validate(w);
  const int bytes = facts_of(w.dtype).bytes;
  const Sizes q{"Q", w.batch, w.heads, w.len_q, w.dim};
  const Sizes k{"K", w.batch, w.heads_kv, w.len_k, w.dim};
  const Sizes v{"V", w.batch, w.heads_kv, w.len_k, w.dim_v};
  const Sizes o{"O", w.batch, w.heads, w.len_q, w.dim_v};
  problem.q = layout_of(p.q_strides, q, false);
  problem.k = layout_of(p.k_strides, k, false);
  problem.v = layout_of(p.v_strides, v, false);
  problem.o = layout_of(p.o_strides, o, true);
  require_extent(q, problem.q, bytes);
  require_extent(k, problem.k, bytes);
  require_extent(v, problem.v, bytes);
  require_extent(o, problem.o, bytes);
  if (is_length_outer(problem.q, q) && is_length_outer(problem.o, o)) w.layout = Layout::blhd;
  return problem;
}

}  // namespace heed::api

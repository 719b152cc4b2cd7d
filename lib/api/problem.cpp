#include "api/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "api/problem_features.hpp"
#include "api/problem_scales.hpp"
#include "variant/element.hpp"

namespace heed::api {
namespace {

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

void refuse_unserved(const heed_problem& p) {
  const auto refuse = [](std::string_view what, std::string_view instead) {
    throw Error(ErrorCode::unsupported, fmt::format("{} is not supported by any family; {}", what, instead),
                std::string(what));
  };
  constexpr std::uint32_t kKnown = HEED_WANTS_LSE | HEED_HAS_BIAS | HEED_HAS_SINKS | HEED_RAGGED | HEED_PAGED |
                                   HEED_SCALED | HEED_HAS_ALIBI | HEED_ALIBI_BY_BATCH | HEED_KEY_LENGTHS |
                                   HEED_HAS_BLOCKS | HEED_HAS_PREFIX | HEED_HAS_RELATIVE_BIAS | HEED_RELATIVE_PAST |
                                   HEED_HAS_OUT_GATE | HEED_HAS_OUT_NORM | HEED_OUT_NORM_BY_HEAD;
  if ((p.flags & ~kKnown) != 0)
    throw Error(ErrorCode::usage, fmt::format("flags {:#x} of heed_problem are unknown", p.flags & ~kKnown),
                std::to_string(p.flags));
  for (const int dtype : {p.dtype_q, p.dtype_k, p.dtype_v, p.dtype_o}) {
    if (dtype < HEED_FP16 || dtype > HEED_BOOL)
      throw Error(ErrorCode::usage, fmt::format("{} is no heed_dtype", dtype), std::to_string(dtype));
    if (dtype == HEED_BOOL)
      refuse("HEED_BOOL as a type of Q, K, V or O", "it is for biases: use HEED_FP16 or HEED_BF16");
  }
  if (is_quantised(static_cast<Dtype>(p.dtype_o)))
    refuse("an 8-bit element type of O", "the nearest that are: HEED_FP16 and HEED_BF16");
  for (const int dtype : {p.dtype_q, p.dtype_k, p.dtype_v})
    if (dtype != p.dtype_o && !is_quantised(static_cast<Dtype>(dtype)))
      refuse("a problem with different element types",
             "the nearest that is: Q, K and V each of the type of O, or of 8 bits with HEED_SCALED");
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

struct Stride {
  const char* name;
  std::int64_t value;
  std::int64_t count;
};
std::array<Stride, 4> strides_of(const heed_strides& s, const TensorSizes& sizes) {
  return {Stride{"batch", s.batch, sizes.batch}, Stride{"head", s.head, sizes.heads}, Stride{"row", s.row, sizes.rows},
          Stride{"dim", s.dim, sizes.dim}};
}

// Pages and ragged rows are not bounded by the sizes of the workload.
void expect_elements(std::string_view name, const TensorSizes& s) {
  constexpr double kMost = 0x1p40;
  const double elements = static_cast<double>(s.batch) * static_cast<double>(s.heads) * static_cast<double>(s.rows) *
                          static_cast<double>(s.dim);
  if (elements > kMost)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("{} would have {:.3g} elements; at most 2^40 are allowed", name, elements),
                fmt::format("{}", elements));
}

// A tensor that a caller describes.
struct Described {
  const char* name;
  const heed_strides& strides;
  TensorSizes sizes;
  bool is_ragged = false;
  bool is_written = false;
};

// That of a caller, or where all strides are zero that of a dense tensor: (batch, head, length, dim), and of ragged
// rows (length, head, dim).
TensorLayout layout_of(const Described& tensor) {
  const heed_strides& given = tensor.strides;
  const TensorSizes& sizes = tensor.sizes;
  if (given.batch == 0 && given.head == 0 && given.row == 0 && given.dim == 0) {
    if (tensor.is_ragged) return {{0, sizes.dim, sizes.heads * sizes.dim}, 1};
    return {{sizes.heads * sizes.rows * sizes.dim, sizes.rows * sizes.dim, sizes.dim}, 1};
  }
  expect_strides(tensor.name, given, sizes);
  if (tensor.is_written) expect_apart(tensor.name, given, sizes);
  return {{given.batch, given.head, given.row}, sizes.dim > 1 ? given.dim : 1};
}

bool is_length_outer(const TensorLayout& s, const TensorSizes& sizes) {
  return s.step == 1 && s.head == sizes.dim && s.row == sizes.heads * sizes.dim && sizes.heads > 1;
}

}  // namespace

void expect_strides(std::string_view name, const heed_strides& given, const TensorSizes& sizes) {
  for (const Stride& one : strides_of(given, sizes))
    if (one.count > 1 && one.value < 0)  // one of a single entry is never used
      throw Error(ErrorCode::usage,
                  fmt::format("the {} stride of {} is {}; strides must not be negative", one.name, name, one.value),
                  std::to_string(one.value));
}

// From the smallest stride on, each must pass over all that the ones before reach. In double, as strides come
// unchecked.
void expect_apart(const char* name, const heed_strides& given, const TensorSizes& sizes) {
  if (sizes.batch == 0 || sizes.heads == 0 || sizes.rows == 0 || sizes.dim == 0) return;
  std::array<Stride, 4> strides = strides_of(given, sizes);
  std::sort(strides.begin(), strides.end(), [](const Stride& a, const Stride& b) { return a.value < b.value; });
  double reach = 1;
  for (const Stride& one : strides) {
    if (one.count <= 1) continue;
    if (static_cast<double>(one.value) < reach)
      throw Error(ErrorCode::usage,
                  fmt::format("the {} stride of {} is {}, so that its {} entries would be written over one another; "
                              "each stride must pass over what smaller ones reach",
                              one.name, name, one.value, one.count),
                  std::to_string(one.value));
    reach += static_cast<double>(one.value) * static_cast<double>(one.count - 1);
  }
}

void expect_extent(std::string_view name, const TensorSizes& sizes, const TensorLayout& layout,
                   std::size_t element_bytes) {
  std::int64_t last = 1;
  for (const auto& [count, stride] : {std::pair{sizes.batch, layout.batch}, std::pair{sizes.heads, layout.head},
                                      std::pair{sizes.rows, layout.row}, std::pair{sizes.dim, layout.step}}) {
    std::int64_t step = 0;
    if (count > 1 && (__builtin_mul_overflow(count - 1, stride, &step) || __builtin_add_overflow(last, step, &last) ||
                      last > kMostOffset / static_cast<std::int64_t>(element_bytes)))
      throw Error(ErrorCode::invalid_workload, fmt::format("the strides of {} reach beyond 2^60 bytes", name),
                  std::to_string(stride));
  }
}

std::uint64_t extent_bytes(const TensorSizes& sizes, const TensorLayout& layout, std::size_t element_bytes) {
  std::int64_t last = 1;
  for (const auto& [count, stride] : {std::pair{sizes.batch, layout.batch}, std::pair{sizes.heads, layout.head},
                                      std::pair{sizes.rows, layout.row}, std::pair{sizes.dim, layout.step}})
    if (count > 1) last += (count - 1) * stride;
  return static_cast<std::uint64_t>(last) * element_bytes;
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
  w.dtype = static_cast<Dtype>(p.dtype_o);  // of equal values: problem_of
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
  read_features(p, problem);
  read_scales(p, problem);
  w = reduced(w);
  validate(w);
  const auto read = [&](TensorLayout& layout, const Described& tensor, Dtype dtype) {
    expect_elements(tensor.name, tensor.sizes);
    layout = layout_of(tensor);
    expect_extent(tensor.name, tensor.sizes, layout, size_of(dtype));
  };
  read(problem.q, {"Q", p.q_strides, problem.q_sizes(), w.ragged}, w.dtype_q());
  read(problem.k, {"K", p.k_strides, problem.k_sizes(), problem.has_ragged_keys()}, w.dtype_k());
  read(problem.v, {"V", p.v_strides, problem.v_sizes(), problem.has_ragged_keys()}, w.dtype_v());
  read(problem.o, {"O", p.o_strides, problem.o_sizes(), w.ragged, true}, w.dtype);
  if (is_length_outer(problem.q, problem.q_sizes()) && is_length_outer(problem.o, problem.o_sizes()))
    w.layout = Layout::blhd;
  return problem;
}

}  // namespace heed::api

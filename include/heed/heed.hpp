/// Heed's public C++ API: what an attention problem is, how errors are reported, and the reference every kernel is
/// judged by. This header compiles alone, knows no CUDA, and allocates only where it says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

// ------------------------------------------------------------------------------------------------ errors

/// What kind of thing went wrong. The command line exits with 2 for `usage`, 130 for `interrupted`, 1 otherwise.
enum class ErrorCode {
  usage,             ///< the request itself makes no sense: an unknown option, an unknown knob, a trial count of 0
  invalid_workload,  ///< a shape, dtype or scale that no attention problem can have
  unsupported,       ///< a valid problem that the chosen family or device cannot run
  invalid_input,     ///< a tensor file that cannot be used: unreadable, truncated, mismatched, NaN or infinity
  no_device,         ///< the requested device is not there or cannot be reached
  no_compiler,       ///< no compiler for the requested device
  build_failed,      ///< the compiler refused the source
  cache,             ///< the build cache cannot be read or written
  store,             ///< the database is corrupt, newer, read-only, locked, or its disk is full
  worker,            ///< a worker process could not be started or kept
  interrupted,       ///< the user asked to stop
  internal,          ///< a broken invariant of Heed itself
};

/// The name of a code as it appears in `--json` output, e.g. "invalid_workload".
std::string_view to_string(ErrorCode code);

/// The one exception type Heed throws. `what()` is a whole sentence: what was wrong, what would be right.
class Error : public std::runtime_error {
 public:
  /// @param value the offending value as the user wrote it; empty when there is none
  Error(ErrorCode code, const std::string& message, std::string value = {})
      : std::runtime_error(message), code_(code), value_(std::move(value)) {}

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] const std::string& value() const { return value_; }

 private:
  ErrorCode code_;
  std::string value_;
};

// ------------------------------------------------------------------------------------------------ workloads

/// Element type of Q, K, V and O. Accumulation is fp32 for every one of them; log-sum-exp is always fp32.
enum class Dtype { fp16, bf16, fp32 };

/// Which keys a query may attend to.
enum class Mask {
  none,
  causal_top_left,      ///< key j is visible to query i when j <= i (PyTorch's `is_causal=True`)
  causal_bottom_right,  ///< key j is visible to query i when j <= i + (len_k - len_q) (FlashAttention's `causal`)
};

/// Order of the dimensions in memory, innermost last: (batch, head, length, dim) or (batch, length, head, dim).
enum class Layout { bhld, blhd };

std::string_view to_string(Dtype dtype);
std::string_view to_string(Mask mask);
std::string_view to_string(Layout layout);
Dtype parse_dtype(std::string_view text);    ///< throws Error(usage)
Mask parse_mask(std::string_view text);      ///< "none", "top-left", "bottom-right" or the canonical names
Layout parse_layout(std::string_view text);  ///< throws Error(usage)

/// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : 2;
}

/// One attention problem: O = softmax(scale * Q K^T + mask) V for every batch and query head.
///
/// Q is (batch, heads, len_q, dim), K (batch, heads_kv, len_k, dim), V (batch, heads_kv, len_k, dim_v),
/// O (batch, heads, len_q, dim_v) and the log-sum-exp, where asked for, (batch, heads, len_q) in fp32, natural log.
/// Query head h reads key head h / (heads / heads_kv). A row with nothing to attend to is zeros, its log-sum-exp -inf.
struct Workload {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;
  std::int64_t len_q = 1;
  std::int64_t len_k = 1;
  std::int64_t dim = 64;
  std::int64_t dim_v = 64;
  Dtype dtype = Dtype::fp16;
  Mask mask = Mask::none;
  Layout layout = Layout::bhld;
  std::optional<double> scale;  ///< empty: 1 / sqrt(dim)

  bool operator==(const Workload&) const = default;

  [[nodiscard]] double softmax_scale() const;
  /// How many keys past its own index a query may see: key j is visible to query i when j <= i + causal_offset().
  [[nodiscard]] std::int64_t causal_offset() const { return mask == Mask::causal_bottom_right ? len_k - len_q : 0; }
  [[nodiscard]] bool is_causal() const { return mask != Mask::none; }
  /// Keys visible to query `row`, always the first ones: between 0 and len_k.
  [[nodiscard]] std::int64_t visible_keys(std::int64_t row) const;
  /// Scores that the mask leaves, over all heads and batches: one exponential each.
  [[nodiscard]] double visible_scores() const;
  /// Floating-point operations of both products over the visible scores: 2 * (dim + dim_v) each.
  [[nodiscard]] double flops() const;
  /// Compulsory traffic: Q, K and V read once, O written once.
  [[nodiscard]] double bytes() const;
};

/// Parses the compact grammar, e.g. "b1h8l512d64", "b8h32hkv4l1k8192d128",
/// "b1h8l512d64:bf16:causal_top_left:scale=0.1".
///
/// Shape: b (batch, default 1), h (query heads, default 1), hkv (key heads, default h), l (query length), k (key
/// length, default l), d (head dim), dv (value dim, default d); each a positive decimal number, at most once. Then, in
/// any order and each after a colon: a dtype, a mask, a layout, scale=NUMBER.
/// @throws Error(invalid_workload) naming the part that cannot be
Workload parse_workload(std::string_view text);

/// The canonical text; `parse_workload(to_string(w)) == w` for every valid workload.
std::string to_string(const Workload& workload);

/// Throws Error(invalid_workload) unless every dimension is in [1, 2^31), heads is a multiple of heads_kv, no tensor
/// has more than 2^40 elements and the scale is finite and positive.
void validate(const Workload& workload);

// ------------------------------------------------------------------------------------------------ the reference

/// Strides of a 4-D tensor in elements; the head dim is contiguous.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  bool operator==(const Strides&) const = default;
};

/// Host tensors of one problem. Pointers must be valid for every element the strides reach; nothing is copied.
struct HostTensors {
  const void* q = nullptr;  ///< (batch, heads, len_q, dim) in workload.dtype
  const void* k = nullptr;  ///< (batch, heads_kv, len_k, dim)
  const void* v = nullptr;  ///< (batch, heads_kv, len_k, dim_v)
  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
};

/// One row of the output: query `row` of head `head` of batch entry `batch`.
struct RowIndex {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  bool operator==(const RowIndex&) const = default;
};

/// Every row of a workload, batch by batch, head by head.
std::vector<RowIndex> all_rows(const Workload& workload);

/// Results of the reference for a list of rows.
struct ReferenceRows {
  std::vector<double> out;  ///< (rows, dim_v)
  std::vector<double> lse;  ///< (rows), natural log, -inf for a row with nothing to attend to
};

/// The oracle: attention in double precision with a running maximum (Milakov and Gimelshein 2018, "Online normalizer
/// calculation for softmax", arXiv 1805.02867) over tiles of keys, so that memory does not grow with len_q * len_k.
/// @param threads worker threads; 0 takes every processor this process may run on
ReferenceRows reference_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                                  int threads = 0);

}  // namespace heed

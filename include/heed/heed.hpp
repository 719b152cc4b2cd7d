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
  programs,          ///< a file of programs that is missing, truncated, altered, or of another version
  driver,            ///< the CUDA driver refused a call
  model,             ///< a language model, or a program or person in place of one, gave no answer that can be used
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

/// Element types. Accumulation is fp32 for every one of them; log-sum-exp is always fp32. Those of 8 bits are of Q, K
/// and V alone, with scale factors: e4m3 and e5m2 (OCP 8-bit Floating Point Specification) and int8.
enum class Dtype { fp16, bf16, fp32, e4m3, e5m2, int8 };

/// Which keys a query may attend to: bounds around its own key, which is key i for query i where the mask is aligned to
/// the top left and key i + (len_k - len_q) to the bottom right.
enum class Mask {
  none,
  causal_top_left,      ///< keys up to its own (PyTorch's `is_causal=True`)
  causal_bottom_right,  ///< the same (FlashAttention's `causal`)
  window_top_left,      ///< the keys of Workload::window around its own
  window_bottom_right,  ///< the same (FlashAttention's `window_size`)
};

/// FlashAttention's window_size=(left, right): how many keys before its own and after it a query sees.
struct Window {
  static constexpr std::int64_t kAll = -1;
  std::int64_t left = kAll;   ///< also of causal masks
  std::int64_t right = kAll;  ///< kAll under causal masks, which end with the own key
  bool operator==(const Window&) const = default;
};

/// Keys [begin, end), never begin > end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
  [[nodiscard]] bool is_empty() const { return begin == end; }
  [[nodiscard]] bool contains(std::int64_t key) const { return key >= begin && key < end; }
  bool operator==(const KeyRange&) const = default;
};

/// Order of the dimensions in memory, innermost last: (batch, head, length, dim) or (batch, length, head, dim).
enum class Layout { bhld, blhd };

std::string_view to_string(Dtype dtype);
std::string_view to_string(Mask mask);
std::string_view to_string(Layout layout);
Dtype parse_dtype(std::string_view text);    ///< throws Error(usage)
Mask parse_mask(std::string_view text);      ///< "none", "top-left", "bottom-right" or the canonical names of these
Layout parse_layout(std::string_view text);  ///< throws Error(usage)

/// Element types of a tensor of biases. boolean: one byte a score, 0 hides it.
enum class BiasDtype { boolean, fp16, bf16, fp32 };

std::string_view to_string(BiasDtype dtype);

/// A tensor that is added to scores, or hides them: (batch, heads, len_q, len_k), with a size of 1 in each dimension in
/// which all scores share it.
struct Bias {
  BiasDtype dtype = BiasDtype::fp32;
  bool by_batch = true;
  bool by_head = true;
  bool by_row = true;
  bool by_key = true;
  bool operator==(const Bias&) const = default;
};

/// A table of biases by the bucket of the distance between a query's own key and a key, as in T5 (arXiv 1910.10683;
/// kernels/attention/relative_bias.hpp): (heads, buckets) in fp32. Own keys are aligned to the bottom right.
struct RelativeBias {
  std::int64_t buckets = 32;
  std::int64_t max_distance = 128;  ///< at which logarithmic buckets would end; the last one has all that is beyond
  bool bidirectional = true;        ///< keys after the own one have half of the buckets; else they count as it
  bool operator==(const RelativeBias&) const = default;
};

/// What shares one scale factor of a quantised tensor.
enum class ScaleBy {
  tensor,   ///< all numbers: one factor
  head,     ///< those of one head of one batch entry: (batch, heads)
  block,    ///< rows [i B, (i + 1) B) of a head: (batch, heads, ceil(rows / B)); of pages counted in each page anew
  token,    ///< a row of a head: (batch, heads, rows)
  channel,  ///< a column of a head, of V alone: (batch, heads_kv, dim_v)
};

std::string_view to_string(ScaleBy by);

/// A tensor of 8-bit elements: a number is element times scale factor, which is fp32, positive and finite.
struct QuantisedTensor {
  Dtype dtype = Dtype::e4m3;  ///< e4m3, e5m2 or int8
  ScaleBy by = ScaleBy::head;
  std::int64_t rows = 1;  ///< B of ScaleBy::block, 2 to 2^20; else 1
  bool operator==(const QuantisedTensor&) const = default;
};

/// Which of Q, K and V are quantised; the others have the workload's dtype.
struct Quantised {
  std::optional<QuantisedTensor> q = {};
  std::optional<QuantisedTensor> k = {};
  std::optional<QuantisedTensor> v = {};
  bool operator==(const Quantised&) const = default;
};

/// An RMS norm of each row of O: o / sqrt(mean of o^2 + eps) * weight, weights (dim_v) or (heads, dim_v) in fp32. As
/// the norms of heads in RetNet (arXiv 2307.08621) and Differential Transformer (arXiv 2410.05258).
struct OutNorm {
  double eps = 1e-5;     ///< positive, so that a row of zeros stays one
  bool by_head = false;  ///< whether heads have weights of their own
  bool operator==(const OutNorm&) const = default;
};

/// Gates, in the dtype of O, by whose sigmoid O is multiplied, after its norm. As in gated attention (arXiv
/// 2505.06708).
enum class OutGate {
  none,
  element,  ///< a gate each element of O: (batch, heads, len_q, dim_v)
  head,     ///< a gate each row of a head: (batch, heads, len_q)
};

std::string_view to_string(OutGate gate);

/// Which blocks of keys a block of rows sees, by named parts: a block that any part names is seen. Blocks are counted
/// from a row's own key, which masks define too. Without a part all blocks are seen.
struct BlockPattern {
  std::int64_t rows = 128;                  ///< of a block: 64 or 128
  std::int64_t keys = 128;                  ///< 64 or 128
  std::optional<std::int64_t> window = {};  ///< blocks on either side of the own ones (Longformer, arXiv 2004.05150)
  std::int64_t dilation = 1;                ///< of the window: every so manieth block
  std::int64_t globals = 0;                 ///< first blocks of keys that all rows see, and of rows that see all keys
  std::int64_t random = 0;                  ///< blocks drawn for each block of rows (BigBird, arXiv 2007.14062)
  std::int64_t stride = 0;                  ///< every so manieth block before and after the own one (arXiv 1904.10509)
  std::int64_t wavefront = 0;               ///< blocks of which the numbers of row and key add up to a multiple of it
  double density = 0;                       ///< the probability of each block
  std::uint64_t seed = 0;                   ///< of random and density
  bool by_batch = false;  ///< whether batch entries have lists of their own, drawn anew; else they share them
  bool by_head = false;   ///< the same of query heads
  bool operator==(const BlockPattern&) const = default;
};

/// Bytes of one element.
std::size_t size_of(BiasDtype dtype);
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
    case Dtype::bf16:
      return 2;
    case Dtype::fp32:
      return 4;
    case Dtype::e4m3:
    case Dtype::e5m2:
    case Dtype::int8:
      return 1;
  }
  return 0;
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
  Dtype dtype = Dtype::fp16;  ///< of O, and of those of Q, K and V that are not quantised: fp16, bf16 or fp32
  Mask mask = Mask::none;
  Window window;
  Layout layout = Layout::bhld;
  std::optional<double> scale;  ///< empty: 1 / sqrt(dim)

  // Features: what most problems do not have. Scores are scaled, then capped, then biased, then masked.
  double softcap = 0;             ///< scores become softcap * tanh(score / softcap); 0: they stay as they are
  std::optional<Bias> bias = {};  ///< a tensor of biases or a boolean mask
  bool alibi = false;  ///< biases of -slope |own key - key|, a slope each query head (arXiv 2108.12409); own keys
                       ///< are aligned to the bottom right
  std::optional<RelativeBias> relative = {};  ///< biases by relative position, a table each query head
  bool sinks = false;          ///< a score each query head that joins the softmax of every row without a value
  bool key_lengths = false;    ///< entries of the batch use their first keys alone, as many as they say: at most len_k
  bool ragged = false;         ///< entries have lengths of their own, and their rows follow each other in one tensor
                               ///< (total rows, heads, dim); len_q and len_k are the most that one has
  std::int64_t page_size = 0;  ///< keys of a page where K and V lie in pages, 0 where they do not
  std::int64_t prefix = 0;  ///< rows also see, of their entry's first keys, what the mask's right bound hides: as many
                            ///< as entries say, at most this (prefix LM); 0: none
  std::optional<BlockPattern> blocks = {};  ///< rows see listed blocks of keys alone, and of these what the mask leaves
  double dropout = 0;  ///< the probability that a probability is dropped, up to 1 (kernels/attention/dropout.hpp)
  std::optional<Quantised> quantised = {};  ///< 8-bit Q, K or V with scale factors; at least one of them
  std::optional<OutNorm> out_norm = {};     ///< of the rows of O, before they are written
  OutGate out_gate = OutGate::none;         ///< after the norm

  bool operator==(const Workload&) const = default;

  [[nodiscard]] double softmax_scale() const;
  /// Whether the mask hides keys after a query's own, or from one after it on.
  [[nodiscard]] bool has_right_bound() const;
  /// Whether the mask hides keys before a query's own.
  [[nodiscard]] bool has_left_bound() const { return window.left != Window::kAll; }
  [[nodiscard]] bool is_masked() const { return has_right_bound() || has_left_bound(); }
  /// Whether a right bound is all the mask has: kernels for causal masks compute it.
  [[nodiscard]] bool is_causal() const { return has_right_bound() && !has_left_bound(); }
  [[nodiscard]] bool has_lengths() const { return key_lengths || ragged; }
  /// Whether there is any feature.
  [[nodiscard]] bool has_features() const {
    return softcap != 0 || bias || alibi || sinks || has_lengths() || page_size > 0 || prefix > 0 || blocks ||
           dropout != 0 || relative || quantised || changes_output();
  }
  /// Whether rows of O are more than means of values.
  [[nodiscard]] bool changes_output() const { return out_norm || out_gate != OutGate::none; }
  /// Element types of Q, K and V.
  [[nodiscard]] Dtype dtype_q() const { return quantised && quantised->q ? quantised->q->dtype : dtype; }
  [[nodiscard]] Dtype dtype_k() const { return quantised && quantised->k ? quantised->k->dtype : dtype; }
  [[nodiscard]] Dtype dtype_v() const { return quantised && quantised->v ? quantised->v->dtype : dtype; }
  /// The index of query `row`'s own key: of a mask at the bottom right it may be below 0, at the top left beyond the
  /// last key.
  [[nodiscard]] std::int64_t own_key(std::int64_t row) const;
  /// Keys that the mask leaves query `row`.
  [[nodiscard]] KeyRange keys_of(std::int64_t row) const;
  /// From the first key that the mask leaves any query to the last.
  [[nodiscard]] KeyRange seen_keys() const;
  /// Scores that the mask and the lists of blocks leave, over all heads and batches: one exponential each.
  [[nodiscard]] double visible_scores() const;
  /// Floating-point operations of both products over the visible scores: 2 * (dim + dim_v) each.
  [[nodiscard]] double flops() const;
  /// Compulsory traffic: Q and what is seen of K and V read once, O written once.
  [[nodiscard]] double bytes() const;
};

/// Parses the compact grammar, e.g. "b1h8l512d64", "b8h32hkv4l1k8192d128",
/// "b1h8l512d64:bf16:causal_top_left:scale=0.1".
///
/// Shape: b (batch, default 1), h (query heads, default 1), hkv (key heads, default h), l (query length), k (key
/// length, default l), d (head dim), dv (value dim, default d); each a positive decimal number, at most once. Then, in
/// any order and each after a colon: a dtype, a mask, a layout, scale=NUMBER, and features: softcap=NUMBER, alibi,
/// sinks, key_lengths, ragged, page=KEYS, prefix=KEYS, dropout=PROBABILITY, relative=BUCKETS/DISTANCE,
/// relative=BUCKETS/DISTANCE/past for a table that is not bidirectional, blocks=SIZE/PARTS, out_norm=EPS,
/// out_norm=EPS/h for weights of each head, out_gate=element, out_gate=head, and bias=DTYPE or bias=DTYPE/DIMENSIONS,
/// with a dtype or bool, and those of the letters b, h, l and k in whose dimensions biases differ: bias=bool/bk for
/// padding, bias=fp16/hlk for positions.
///
/// quantised=TENSORS/DTYPE/GRANULARITY, several joined by +: TENSORS are some of the letters q, k and v, a DTYPE is
/// e4m3, e5m2 or int8, and a GRANULARITY of scale factors tensor, head, blockB for blocks of B rows, token, or, of v
/// alone, channel: quantised=qkv/e4m3/head, quantised=q/int8/block128+k/int8/block64, quantised=kv/int8/token.
///
/// blocks=SIZE, blocks=SIZE/PARTS or blocks=SIZE/PARTS/DIMENSIONS: a SIZE is 64 or 128, or rows x keys as 64x128; PARTS
/// are windowN, dilatedNxM, globalN, randomN, strideN, wavefrontN and densityP, joined by + and ended by @SEED, or
/// longformer (window4+global1) or bigbird (window1+global2+random3); DIMENSIONS are b and h, in which lists differ.
///
/// A mask is causal_top_left, causal_bottom_right, or one of these with window=LEFT, or a window alone:
/// window=LEFT, window=LEFT/RIGHT, aligned to the bottom right, or window_top_left=...; LEFT and RIGHT are numbers of
/// keys, -1 stands for all. Windows that hide nothing are left out, and RIGHT = 0 is read as the causal mask, so that
/// one problem has one text.
/// @throws Error(invalid_workload) naming the part that cannot be
Workload parse_workload(std::string_view text);

/// The workload with its mask as parse_workload would read it: without bounds that hide nothing.
Workload reduced(const Workload& workload);

/// The canonical text; `parse_workload(to_string(w)) == reduced(w)` for every valid workload.
std::string to_string(const Workload& workload);

/// Throws Error(invalid_workload) unless every dimension is in [1, 2^31), heads is a multiple of heads_kv, no tensor
/// has more than 2^40 elements, the scale is finite and positive, the softcap too where there is one, and the window
/// fits its mask.
void validate(const Workload& workload);

// ------------------------------------------------------------------------------------------------ the reference

/// Strides of a 4-D tensor in elements; the head dim is contiguous.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  bool operator==(const Strides&) const = default;
};

/// Scale factors of a quantised tensor (ScaleBy).
struct HostScales {
  const float* at = nullptr;
  Strides strides;           ///< in numbers, 0: shared. `row` is from one block of rows to the next; where ragged the
                             ///< batch stride of those of rows is not used, of pages it is from page to page
  std::int64_t rows = 1;     ///< of a block
  std::int64_t channel = 0;  ///< from one column to the next: 0 or 1
};

/// Host tensors of one problem. Pointers must be valid for every element the strides reach; nothing is copied. Those of
/// features that the workload does not have are not read.
struct HostTensors {
  const void* q = nullptr;  ///< (batch, heads, len_q, dim) in dtype_q(); (total queries, heads, dim) where ragged
  const void* k = nullptr;  ///< (batch, heads_kv, len_k, dim); (total keys, heads_kv, dim); or pages: (pages, ..)
  const void* v = nullptr;  ///< (batch, heads_kv, len_k, dim_v), as k
  Strides q_strides;        ///< where ragged the batch stride is not used
  Strides k_strides;        ///< of pages the batch stride is from page to page
  Strides v_strides;
  const void* bias = nullptr;  ///< in workload.bias->dtype
  Strides bias_strides = {};
  std::int64_t bias_key_stride = 0;
  const float* alibi_slopes = nullptr;         ///< (heads)
  const float* relative_bias = nullptr;        ///< (heads, buckets)
  const float* sinks = nullptr;                ///< (heads)
  const std::int32_t* cu_seqlens_q = nullptr;  ///< (batch + 1): where an entry's queries begin, and the last's end
  const std::int32_t* cu_seqlens_k = nullptr;  ///< (batch + 1); not used where there are pages
  const std::int32_t* seqused_k = nullptr;     ///< (batch): keys of each entry; null where they are cu_seqlens_k's
  const std::int32_t* page_table = nullptr;    ///< (batch, pages of an entry)
  std::int64_t page_table_stride = 0;
  const std::int32_t* prefix_lengths = nullptr;  ///< (batch)
  const std::int32_t* block_counts = nullptr;    ///< (batch, heads, blocks of rows), by block_count_strides
  const std::int32_t* block_indices = nullptr;   ///< (batch, heads, blocks of rows, numbers), by block_index_strides
  Strides block_count_strides = {};              ///< `row` is from one block of rows to the next
  Strides block_index_strides = {};
  const void* out_gate = nullptr;  ///< in the dtype of O, rows as those of O (where ragged of one tensor)
  Strides out_gate_strides = {};
  std::int64_t out_gate_column_stride = 0;  ///< 1, or 0 for OutGate::head
  const float* out_norm_weight = nullptr;   ///< (dim_v), or (heads, dim_v) with OutNorm::by_head
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  std::int32_t dropout_first_entry = 0;  ///< what the first batch entry counts as
  HostScales q_scales = {};              ///< of quantised tensors
  HostScales k_scales = {};
  HostScales v_scales = {};
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

/// What an operator was called with, as a problem of libheed.
#pragma once

#include <heed/heed.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "values.hpp"

namespace heed::torch {

/// What one tensor says of itself. Pointers are borrowed from it.
struct Shape {
  std::int64_t rank = 0;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* strides = nullptr;
  std::int32_t dtype = 0;
  std::int32_t device_type = 0;
  std::int32_t device = 0;
};

/// Empty where sizes cannot be told: those of a traced tensor may be symbols.
std::optional<Shape> shape_of(TensorHandle tensor);

/// Arguments of heed::forward beside its tensors.
struct Masking {
  std::int64_t mask = HEED_MASK_NONE;  ///< heed_mask
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<double> scale;  ///< empty: 1 / sqrt(dim)
};

/// Scale factors of tensors of 8 bits (heed_scales): empty of tensors that have more.
struct Scales {
  struct One {
    Tensor factors;  ///< (batch, heads, blocks of rows, columns) or 1 in the place of any, float32; pages for batch
    std::int64_t rows = 1;  ///< of a block
  };
  One q, k, v;
  std::int64_t out_dtype = -1;  ///< a heed_dtype of O; -1: that of the query

  [[nodiscard]] bool are_given() const { return q.factors || k.factors || v.factors; }
  /// Other owners of the same tensors.
  [[nodiscard]] Scales shared() const;
};

/// Tensors and numbers of features (heed.h), which most calls do not have: empty, or 0.
struct Features {
  Tensor bias;             ///< broadcast to (batch, heads, len_q, len_k): bool, float16, bfloat16 or float32
  Tensor sinks;            ///< (heads), float32
  Tensor alibi_slopes;     ///< (heads) or (batch, heads), float32
  Tensor key_lengths;      ///< (batch), int32
  Tensor cu_seqlens_q;     ///< (batch + 1), int32: query is (total, heads, dim) then
  Tensor cu_seqlens_k;     ///< (batch + 1), int32: and key and value are, unless they lie in pages
  Tensor page_table;       ///< (batch, pages), int32: key and value are (pages, heads_kv, page_size, dim) then
  Tensor block_counts;     ///< (batch or 1, heads or 1, blocks of rows), int32
  Tensor block_indices;    ///< (batch or 1, heads or 1, blocks of rows, numbers), int32
  Tensor prefix_lengths;   ///< (batch), int32
  Tensor relative_bias;    ///< (heads, buckets), float32
  Tensor out_gate;         ///< of the sizes of O or 1 in the place of any, in its type; rows dense, or of one gate
  Tensor out_norm_weight;  ///< (dim_v) or (heads, dim_v), float32
  double softcap = 0;
  std::int64_t max_len_q = 0;     ///< of the entries of a ragged batch
  std::int64_t max_len_k = 0;     ///< of these, and of entries whose keys lie in pages
  std::int64_t block_rows = 0;    ///< of a block of rows that has a list
  std::int64_t block_keys = 0;    ///< of a block of keys
  double dropout = 0;             ///< the probability of dropping
  std::int64_t dropout_seed = 0;  ///< the bits of an unsigned number, and so is the offset
  std::int64_t dropout_offset = 0;
  std::int64_t relative_max_distance = 0;
  bool relative_bidirectional = true;
  double out_norm_eps = 0;
  Scales scales;  ///< of calls of heed::forward_scaled

  /// Other owners of the same tensors.
  [[nodiscard]] Features shared() const;
};

/// Why a call is not run by Heed. The order is that of kRefusals.
enum class Refusal {
  none,
  mask_and_causal,
  dropout,
  rank,
  dtype,
  mixed_dtypes,
  device,
  sizes,
  head_counts,
  empty,
  scale,
  backend_selection,
  symbolic_sizes,
  mask_sizes,
  feature_tensor,
  unsupported,
  count
};
/// A phrase that follows "because of".
const char* phrase(Refusal refusal);
/// Whether Python's heed::in_other_form may have an O of a call that is refused so.
bool may_have_other_form(Refusal refusal);

/// Everything that tells one plan from another; plain words, compared and hashed as such.
struct PlanKey {
  std::array<std::int64_t, 63> words{};
  std::array<std::int64_t, 19>
      of_scales{};  ///< 1, element types and layouts of scale factors; zeros where there are none
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
  [[nodiscard]] std::uint64_t hash() const;
};

/// Which sizes a call may have beside equal ones of four dimensions.
struct Sizes {
  bool shared_heads = false;  ///< a multiple of key heads as query heads
  bool broadcast = false;     ///< as torch.matmul has it: 2 or 3 dimensions, and one entry or head in the place of all
};

/// A call that has the form of attention: a problem whose O lies as Q does.
struct Call {
  heed_problem problem;
  PlanKey key;
  std::int32_t dtype = 0;        ///< PyTorch's number of the elements
  std::int32_t device_type = 0;  ///< PyTorch's number of the device's type
  std::int64_t rank = 4;         ///< of O: 3 where it is ragged
  Sizes allowed;                 ///< that it was read with
  std::int64_t lifted = 0;       ///< dimensions in front that were added to the tensors' own: O is without them
  std::array<std::int64_t, 4> o_sizes{};
  std::array<std::int64_t, 4> o_strides{};
  std::array<std::int64_t, 3> lse_sizes{};  ///< `rank` - 1 of them, dense
  std::int64_t precision = 0;  ///< 1 + the number of a mode of heed_precision_name, 0 for none; set before it is read
  bool may_build = false;      ///< whether NVRTC may build a program that no file has, in seconds; set likewise
};

/// Reads a call of heed::forward. `Refusal::none` where it has the form; libheed may still not support it.
Refusal read_call(TensorHandle q, TensorHandle k, TensorHandle v, const Masking& masking, bool wants_lse, Sizes allowed,
                  Call& call);

/// Adds a mask tensor of scaled_dot_product_attention to a call that was read: one that broadcasts to its scores.
Refusal read_mask(const Tensor& mask, Call& call);

/// Reads a call of heed::forward_features.
Refusal read_featured_call(TensorHandle q, TensorHandle k, TensorHandle v, const Masking& masking,
                           const Features& features, Call& call);

/// The same call with dropout, of a probability from 0 to 1.
void set_dropout(Call& call, double probability);

/// The same call with another precision.
void set_precision(Call& call, std::int64_t precision);

/// As the command line spells it: "b1h8l512d64:fp16".
std::string text_of(const heed_problem& problem);

}  // namespace heed::torch

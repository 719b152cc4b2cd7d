/// The kinds of inputs a kernel must be right on.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "heed/heed.hpp"
#include "tensors/tensor_file.hpp"
#include "verify/tolerance.hpp"
#include "workload/blocks.hpp"
#include "workload/features.hpp"

namespace heed::verify {

enum class InputClass {
  normal,           ///< N(0, 1)
  uniform,          ///< uniform in [-1, 1)
  large_logits,     ///< Q and K scaled so that scores reach about +-60 before the softmax
  one_hot,          ///< each query points at one visible key: its output is that key's value
  outliers,         ///< N(0, 1) with one key channel in 16 and one value in 1000 times 20
  constant_v,       ///< V equal for all keys of a head: the output is that constant, for every row
  zero_k,           ///< K = 0: the output is the mean of the visible values
  peaked_late,      ///< the largest score of a row comes late, so that every running maximum must move
  peaked,           ///< N(0, 1) at a low temperature: a few keys of a row compete
  outlier_channel,  ///< one channel of Q 40 and of K 300 above N(0, 1), as in Qwen2: scores near 1,000 that differ by
                    ///< few
  channel_offsets,  ///< every channel of K has a mean of its own, far from 0
  attention_sink,   ///< the first key far above the others for every query, and its value near zero
  own_key,          ///< a query's own key, at its own place, far above the others
  equal_heads,      ///< all heads and batch entries compute the same: one head checks every row
};

std::string_view to_string(InputClass inputs);
const std::vector<InputClass>& all_input_classes();

/// Leaves new elements as they come: whoever fills them does so on all processors, where zeros beforehand would come
/// from one (0.1 s for the keys of a long decoding workload, at every check).
template <typename T>
struct Uninitialised : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Uninitialised<U>;
  };
  template <typename U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
  }
};
using Values = std::vector<float, Uninitialised<float>>;

/// Dense fp32 values (batch, heads or heads_kv, length, dim), row-major, of the three inputs, and those of features
/// that the workload has. Where entries have lengths of their own, values of rows past them are not used.
struct InputValues {
  Values q;
  Values k;
  Values v;
  Values bias = {};                         ///< in the sizes of bias_sizes; not 0 shows a score where it is boolean
  std::vector<float> alibi_slopes = {};     ///< (heads)
  std::vector<float> relative_bias = {};    ///< (heads, buckets)
  std::vector<float> sinks = {};            ///< (heads)
  std::vector<float> out_norm_weight = {};  ///< (dim_v), or (heads, dim_v)
  Values out_gate = {};                     ///< (batch, heads, len_q, dim_v), or 1 in place of dim_v
  std::vector<EntryLengths> lengths = {};   ///< (batch)
  std::vector<std::int32_t> prefix_lengths = {};  ///< (batch)
  BlockLists blocks = {};                         ///< without rows where the workload has none
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  std::int32_t dropout_first_entry = 0;
};

/// Where the value columns of the heads of InputClass::equal_heads lie, of every (batch, key head). Channels of Q and
/// K, columns of V and, without a mask, the keys of each head are in an order and of signs of their own, so that no
/// comparison of a few elements tells that heads are equal. The first head is in the original order.
std::vector<ColumnMap> equal_head_columns(const Workload& workload, std::uint64_t seed);

/// Values of one kind for one workload; the same seed gives the same values on every machine. Values are not yet
/// rounded to the workload's dtype, whose range they keep to at every scale.
InputValues make_inputs(const Workload& workload, InputClass inputs, std::uint64_t seed);

/// Values of the features of a workload, and the lengths that it stands for: biases of which one in eight hides, rows
/// that they hide altogether, slopes of the range in Press et al. (arXiv 2108.12409) that follow from nothing else,
/// sinks near the scores' maxima, the lists of blocks that the pattern stands for, a seed and an offset of dropout,
/// weights of norms around 1, and gates of which a few are infinite.
void make_features(const Workload& workload, std::uint64_t seed, InputValues& values);
/// Lengths from nothing to all there are, 0, 1 and the most among them, in place of those that the workload stands for.
void draw_lengths(const Workload& workload, std::uint64_t seed, InputValues& values);

/// Sets keys and values that no query attends to to NaN: they may hold anything.
void poison_unseen_keys(const Workload& workload, InputValues& values);

}  // namespace heed::verify

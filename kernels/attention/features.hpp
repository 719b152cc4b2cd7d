/// Features: what most problems do not have, and the numbers of a launch that has them. Host and device.
///
/// A score goes through, in this order (as in FlashAttention-3 and in Transformers):
///
///     s = scale * q.k       softcap * tanh(s / softcap)       s + bias       s + table[bucket of key - own key]
///
///     s - slope |own key - key|       the mask
///
/// and the sink of a head is one more score of each of its rows, without a value. Of the probabilities some may be
/// dropped (kernels/attention/dropout.hpp). Entries of a batch may have lengths of their own, K and V may lie in pages,
/// and blocks of rows may see the blocks of keys of a list alone. Q, K and V may be quantised: q and k above are then
/// element times scale factor (kernels/attention/scales.hpp). A program that is built with a feature runs launches
/// without it too: a null pointer, or a number of 0, says that a launch has none.
///
/// A row of O, once divided by the sum of its probabilities, goes through, in this order and in fp32:
///
///     o = o / sqrt(mean of its o^2 + eps) * weight       o = o * sigmoid(gate)
///
/// the norm of a head's rows as in RetNet (arXiv 2307.08621) and Differential Transformer (arXiv 2410.05258), the gate
/// as in gated attention (arXiv 2505.06708). Log-sum-exps are those without.
#pragma once

#include "kernels/attention/bias_element.hpp"
#include "kernels/attention/dropout.hpp"
#include "kernels/attention/mask.hpp"
#include "kernels/attention/relative_bias.hpp"
#include "kernels/attention/scales.hpp"
#include "kernels/contract.hpp"

namespace heed {

/// ForwardParams of a program with features: what the entry's first parameter then is. Pointers are to memory of the
/// device that runs the launch.
struct ScoreFeatureParams : ForwardParams {
  /// A value for each score, added to it after the softcap; boolean: one byte a score, 0 hides it. -infinity hides a
  /// score, and so does what is not above the most negative finite number of the bias's element type, which is what
  /// models write for it. Stride 0: the same for all. Read for visible keys of rows that there are alone.
  const void* bias;
  long long bias_batch;  ///< strides in elements
  long long bias_head;
  long long bias_row;
  long long bias_key;
  const float* alibi_slopes;  ///< (heads), or (batch, heads) with alibi_batch = heads; Press et al., arXiv 2108.12409
  long long alibi_batch;
  const float* sinks;  ///< (heads), in the units of scores: natural logarithms
  /// Where entries of the batch have lengths of their own: entry b has queries [cu_seqlens_q[b], cu_seqlens_q[b + 1])
  /// of one tensor of all entries' queries, or all len_q of a batch stride where it is null; keys likewise. Of its keys
  /// the first seqused_k[b] are used. Lengths below 0, or beyond len_q and len_k, count as the nearest that can be.
  const int* cu_seqlens_q;  ///< (batch + 1)
  const int* cu_seqlens_k;  ///< (batch + 1)
  const int* seqused_k;     ///< (batch)
  /// Where K and V lie in pages: key j of entry b is row j % page_size of page page_table[b, j / page_size], and the
  /// batch stride of K and V is from page to page. A page that there is not counts as the nearest there is.
  const int* page_table;
  long long page_table_batch;  ///< stride, in numbers
  long long lse_batch;         ///< strides of lse, in numbers; its rows are dense
  long long lse_head;
  int page_size;
  int pages;
  int bias_element;        ///< a BiasElement
  int aligned_to_the_end;  ///< whether an entry's mask is aligned to the end of its own lengths (bottom right), else to
                           ///< their begin; right_offset and left_offset are those of len_q and len_k
  float softcap;           ///< 0: none
  int total_q;             ///< rows of the one tensor of all entries' queries, with cu_seqlens_q: tensor maps end there
  /// Where rows see listed blocks of keys alone: row i of an entry is in block i / block_rows of rows, whose list is
  /// the first block_counts[b, h, block] numbers of block_indices[b, h, block, ..], in any order, each once. Number n
  /// stands for the entry's keys [n, n + 1) * block_keys; one that stands for none hides nothing and shows nothing.
  /// What the mask or a bias hides of listed blocks stays hidden. Blocks that no list has are not read. In launches
  /// with a bias, kFullBlock + n stands for block n too, of which the bias shows all scores and changes none, so that
  /// it need not be read there.
  const int* block_counts;
  const int* block_indices;
  TensorStrides block_count_strides;  ///< in numbers; `row` is from one block of rows to the next. 0: shared
  TensorStrides block_index_strides;
  int block_most;  ///< numbers that a list has room for; a greater count stands for it
  int block_rows;  ///< 64 or 128
  int block_keys;  ///< 64 or 128
  int total_k;     ///< likewise of keys, with cu_seqlens_k
  /// Entry b's rows also see, of its keys before prefix_lengths[b], those that the mask's right bound hides (prefix
  /// LM). Below 0 and beyond len_k counts as the nearest that can be.
  const int* prefix_lengths;  ///< (batch)
  unsigned long long dropout_seed;
  unsigned long long dropout_offset;
  unsigned dropout_threshold;  ///< of a byte, 1 to 256; 0: no dropout
  float dropout_scale;         ///< of what is not dropped
  int dropout_first_entry;     ///< what the launch's first batch entry counts as
  int dropout_first_key;       ///< what the launch's first key counts as: those that `trimmed` has cut off
  const float* relative_bias;  ///< (heads, relative_buckets.all); the own key of query i is i + len_k - len_q
  RelativeBuckets relative_buckets;
  TensorScales q_scales;
  TensorScales k_scales;
  TensorScales v_scales;
};
static_assert(
    sizeof(ScoreFeatureParams) == sizeof(ForwardParams) + 11 * sizeof(void*) + 10 * sizeof(long long) +
                                      2 * sizeof(TensorStrides) + 20 * 4 + 3 * sizeof(TensorScales),
    "eleven pointers, fourteen strides, two words, twenty numbers and three kinds of scales, without padding");

/// Those of a program that changes rows of O too, and of every launch as hosts keep it. Behind all other fields, so
/// that programs that change none have the tensor maps where they had them.
struct FeatureParams : ScoreFeatureParams {
  const void* out_gate;            ///< (batch, heads, len_q, out_columns) in the element type of O, rows as those of O
  TensorStrides out_gate_strides;  ///< in elements, 0: shared
  long long out_gate_column;       ///< 1, or 0 where a row has one gate
  const float* out_norm_weight;    ///< (heads, out_columns); null: no norm
  long long out_norm_head;         ///< stride, 0: heads share their weights
  float out_norm_eps;
  int out_columns;  ///< columns of O that there are: a program's head dim may be larger, where V has zeros
};
static_assert(sizeof(FeatureParams) == sizeof(ScoreFeatureParams) + 2 * sizeof(void*) + 2 * sizeof(long long) +
                                           sizeof(TensorStrides) + 2 * 4,
              "two pointers, five strides and two numbers, without padding");

HEED_HOST_DEVICE constexpr bool has_features(const Features& f) {
  return !(f == Features{});
}
/// Whether rows of O are more than means of values.
HEED_HOST_DEVICE constexpr bool changes_output(const Features& f) {
  return f.out_norm || f.out_gate;
}
/// Whether scores are more than scale * q.k.
HEED_HOST_DEVICE constexpr bool changes_scores(const Features& f) {
  return f.softcap || f.bias || f.relative || f.alibi;
}

namespace detail {
template <bool kHas, bool kChangesOutput>
struct ParamsWhere {
  using Type = ForwardParams;
};
template <>
struct ParamsWhere<true, false> {
  using Type = ScoreFeatureParams;
};
template <>
struct ParamsWhere<true, true> {
  using Type = FeatureParams;
};
}  // namespace detail

/// The type of an entry's first parameter.
template <const Problem& kProblem>
using Params = typename detail::ParamsWhere<has_features(kProblem.features) || is_quantised(kProblem),
                                            changes_output(kProblem.features)>::Type;

/// Bytes of an element of each tensor.
struct TensorBytes {
  int q;
  int k;
  int v;
  int o;
  HEED_HOST_DEVICE constexpr TensorBytes(int all) : q(all), k(all), v(all), o(all) {}
  HEED_HOST_DEVICE constexpr TensorBytes(int of_q, int of_k, int of_v, int of_o) : q(of_q), k(of_k), v(of_v), o(of_o) {}
};

HEED_HOST_DEVICE constexpr int clamped(int x, int least, int most) {
  return x < least ? least : (x > most ? most : x);
}

/// The launch as entry `entry` of its batch has it: len_q and len_k are its own, offsets of the mask count from them,
/// and where its rows follow those of other entries, Q, K, V, O and lse begin at its own, with a batch stride of 0.
/// To be called with the launch's parameters, once.
/// @tparam LaunchParams ScoreFeatureParams or FeatureParams
template <typename LaunchParams>
HEED_HOST_DEVICE inline LaunchParams of_entry(const LaunchParams& launch, int entry, TensorBytes bytes) {
  LaunchParams p = launch;
  if (launch.cu_seqlens_q != nullptr) {
    const long long begin = launch.cu_seqlens_q[entry];
    p.len_q = clamped(launch.cu_seqlens_q[entry + 1] - launch.cu_seqlens_q[entry], 0, launch.len_q);
    p.q = static_cast<const char*>(launch.q) + begin * launch.q_strides.row * bytes.q;
    p.o = static_cast<char*>(launch.o) + begin * launch.o_strides.row * bytes.o;
    if (launch.lse != nullptr) p.lse = launch.lse + begin;
    p.q_strides.batch = p.o_strides.batch = p.lse_batch = 0;
  }
  if (launch.cu_seqlens_k != nullptr) {
    const long long begin = launch.cu_seqlens_k[entry];
    p.len_k = clamped(launch.cu_seqlens_k[entry + 1] - launch.cu_seqlens_k[entry], 0, launch.len_k);
    p.k = static_cast<const char*>(launch.k) + begin * launch.k_strides.row * bytes.k;
    p.v = static_cast<const char*>(launch.v) + begin * launch.v_strides.row * bytes.v;
    p.k_strides.batch = p.v_strides.batch = 0;
  }
  if (launch.seqused_k != nullptr) p.len_k = clamped(launch.seqused_k[entry], 0, p.len_k);
  if (launch.aligned_to_the_end != 0) {
    const int moved = (p.len_k - p.len_q) - (launch.len_k - launch.len_q);
    p.right_offset += moved;
    p.left_offset += moved;
  }
  return p;
}

namespace detail {
/// Factors of rows, where all entries' rows lie in one tensor: an entry's begin at its first row.
HEED_HOST_DEVICE inline void begin_at(TensorScales& scales, int row) {
  if (scales.at == nullptr || scales.strides.row == 0) return;
  scales.strides.batch = 0;
  scales.first_row = row;
}
}  // namespace detail

/// Scale factors as entry `entry` has them, in its parameters that of_entry gave. For programs of quantised inputs.
HEED_HOST_DEVICE inline void take_scales_of_entry(ScoreFeatureParams& p, const ScoreFeatureParams& launch, int entry) {
  if (launch.cu_seqlens_q != nullptr) detail::begin_at(p.q_scales, launch.cu_seqlens_q[entry]);
  if (launch.cu_seqlens_k == nullptr) return;
  detail::begin_at(p.k_scales, launch.cu_seqlens_k[entry]);
  detail::begin_at(p.v_scales, launch.cu_seqlens_k[entry]);
}

/// The gate as entry `entry` has it, in its parameters that of_entry gave: its rows begin where those of O do. For
/// programs with gates.
/// @param element_bytes of O
HEED_HOST_DEVICE inline void take_gate_of_entry(FeatureParams& p, const FeatureParams& launch, int entry,
                                                int element_bytes) {
  if (launch.cu_seqlens_q == nullptr || launch.out_gate == nullptr) return;
  p.out_gate = static_cast<const char*>(launch.out_gate) +
               launch.cu_seqlens_q[entry] * launch.out_gate_strides.row * element_bytes;
  p.out_gate_strides.batch = 0;
}

/// `trimmed` of a launch that may have features. Where keys are those of entries with lengths, of pages or of listed
/// blocks, or counted by a prefix, none are cut off: programs with these features read none in front of the first that
/// a tile of rows sees.
HEED_HOST_DEVICE inline FeatureParams trimmed(const FeatureParams& params, MaskKind mask, KeyBytes bytes) {
  const int front = unseen_in_front(mask, mask_bounds(params));
  if (front == 0 || params.seqused_k != nullptr || params.cu_seqlens_k != nullptr || params.cu_seqlens_q != nullptr ||
      params.page_table != nullptr || params.block_counts != nullptr || params.prefix_lengths != nullptr)
    return params;
  FeatureParams p = params;
  static_cast<ForwardParams&>(p) = trimmed(static_cast<const ForwardParams&>(params), mask, bytes);
  if (params.bias != nullptr)
    p.bias = static_cast<const char*>(params.bias) +
             front * params.bias_key * bytes_of(static_cast<BiasElement>(params.bias_element));
  p.dropout_first_key += front;
  p.k_scales.first_row += front;
  p.v_scales.first_row += front;
  return p;
}

/// Keys that all rows of an entry see beside those that a causal mask leaves; 0 where a launch has none.
/// @param p the launch as the entry has it (of_entry)
HEED_HOST_DEVICE inline int prefix_of(const ScoreFeatureParams& p, int entry) {
  return p.prefix_lengths == nullptr ? 0 : clamped(p.prefix_lengths[entry], 0, p.len_k);
}

/// What the dropout of one head's probabilities follows from.
HEED_HOST_DEVICE inline HeadDropout dropout_of_head(const ScoreFeatureParams& p, int entry, int head) {
  return dropout_of_head(p.dropout_seed, p.dropout_offset, p.dropout_first_entry + entry, head, p.heads);
}
/// What outputs are multiplied by, 1 where a launch has no dropout.
HEED_HOST_DEVICE inline float dropout_scale(const ScoreFeatureParams& p) {
  return p.dropout_threshold == 0 ? 1.0F : p.dropout_scale;
}

/// What is added to the numbers of listed blocks that the bias leaves as they are: FlexAttention's full blocks
/// (torch.nn.attention.flex_attention.BlockMask).
inline constexpr int kFullBlock = 1 << 30;

/// Whether a program takes lists with full blocks.
HEED_HOST_DEVICE constexpr bool has_full_blocks(const Features& f) {
  return f.blocks && f.bias;
}

/// Whether numbers of a launch's lists may have it added.
/// @tparam kHasFull has_full_blocks of the program
template <bool kHasFull>
HEED_HOST_DEVICE inline bool takes_full_blocks(const ScoreFeatureParams& p) {
  return kHasFull && p.bias != nullptr;
}

/// The list of the blocks of keys that a tile of rows walks. The tile lies in one block of rows.
struct KeyBlocks {
  const int* numbers;  ///< null where a launch has no lists: rows see all keys then
  int count;           ///< of blocks to walk
  int keys;            ///< of a block
  int len_k;

  /// Whether the bias leaves a block of the list as it is.
  [[nodiscard]] HEED_HOST_DEVICE bool is_full(int index) const {
    return numbers != nullptr && numbers[index] >= kFullBlock;
  }
  /// The first key of a block of the list; len_k where its number stands for none.
  /// @param takes_full takes_full_blocks of the launch
  [[nodiscard]] HEED_HOST_DEVICE int first_key(int index, bool takes_full = false) const {
    if (numbers == nullptr) return 0;
    int number = numbers[index];
    if (takes_full && number >= kFullBlock) number -= kFullBlock;
    // As unsigned, so that numbers below 0 are too large.
    return static_cast<unsigned>(number) < static_cast<unsigned>((len_k + keys - 1) / keys) ? number * keys : len_k;
  }
};

/// Without the blocks at the end of the list that begin at or after key `end`, which the rows see nothing of: in order
/// of keys these are all that a causal mask hides.
/// @param p the launch as the entry has it (of_entry)
template <bool kHasFull = false>
HEED_HOST_DEVICE inline KeyBlocks key_blocks(const ScoreFeatureParams& p, int entry, int head, int first_row, int end) {
  if (p.block_counts == nullptr) return {nullptr, 1, p.len_k, p.len_k};
  const int block = first_row / p.block_rows;
  const TensorStrides& c = p.block_count_strides;
  const TensorStrides& n = p.block_index_strides;
  KeyBlocks blocks{p.block_indices + entry * n.batch + head * n.head + block * n.row,
                   clamped(p.block_counts[entry * c.batch + head * c.head + block * c.row], 0, p.block_most),
                   p.block_keys, p.len_k};
  while (blocks.count > 0 && blocks.first_key(blocks.count - 1, takes_full_blocks<kHasFull>(p)) >= end) --blocks.count;
  return blocks;
}

/// Where row `key` of K or V lies, in elements from the tensor's first of the head: strides are the tensor's.
HEED_HOST_DEVICE inline long long key_offset(const ScoreFeatureParams& p, const TensorStrides& strides, int entry,
                                             int key) {
  if (p.page_table == nullptr) return entry * strides.batch + key * strides.row;
  const int page = clamped(p.page_table[entry * p.page_table_batch + key / p.page_size], 0, p.pages - 1);
  return page * strides.batch + key % p.page_size * strides.row;
}

/// The index of the factor of row `key` of K or V: `scales` are the tensor's.
HEED_HOST_DEVICE inline long long key_scale_index(const ScoreFeatureParams& p, const TensorScales& scales, int entry,
                                                  int head, int key) {
  if (p.page_table == nullptr || scales.strides.row == 0) return scale_index(scales, entry, head, key);
  const int page = clamped(p.page_table[entry * p.page_table_batch + key / p.page_size], 0, p.pages - 1);
  return scale_index(scales, page, head, key % p.page_size);
}

}  // namespace heed

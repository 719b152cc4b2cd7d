/// Sizes and features of a launch for an emulated kernel (features_case.hpp).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/attention/features.hpp"

namespace heed::emulator {

/// A tensor of biases. Random, with a tenth of the scores hidden.
struct BiasTensor {
  BiasElement element = BiasElement::fp32;
  bool per_batch = true;  ///< else stride 0, and so on
  bool per_head = true;
  bool per_row = true;
  bool per_key = true;
  int key_stride = 1;
  int row_padding = 0;      ///< elements
  bool hides_rows = false;  ///< every fifth row wholly, and the first 70 keys of every third
};

/// Lists of blocks of keys, drawn, in no order, with numbers that stand for no block among them.
struct ListsOfBlocks {
  int rows = 64;
  int keys = 64;
  double density = 0.5;
  bool per_batch = true;  ///< else stride 0
  bool per_head = true;
  int whole = 0;    ///< of every head, the lists of its first so many blocks of rows, which have all blocks of keys
  double full = 0;  ///< share of the listed blocks on which the bias is not read, whatever it holds there
};

/// Of T5's encoder and of its decoder: buckets_of 32 to 128, which lib/ computes and emulated tests do not use.
inline constexpr RelativeBuckets kT5Buckets{.all = 32, .side = 16, .exact = 8, .far = 91, .rate = 2, .shift = -5.9919F};
inline constexpr RelativeBuckets kT5PastBuckets{
    .all = 32, .side = 32, .exact = 16, .far = 113, .rate = 16.0F / 3, .shift = -21.3278F};

struct FeatureShape {
  int batch = 1;
  int heads = 1;
  int heads_kv = 1;
  int len_q = 64;  ///< of the longest entry
  int len_k = 64;
  int right_offset = 0;
  int left_offset = 0;
  bool to_the_end = false;  ///< FeatureParams::aligned_to_the_end
  float score_scale = 1;    ///< of Q
  float softcap = 0;
  std::optional<BiasTensor> bias = {};
  int slopes = 0;                 ///< 1: of heads, 2: of batch and heads
  std::vector<float> sinks = {};  ///< heads
  std::vector<int> cu_q = {};     ///< batch + 1; empty: none
  std::vector<int> cu_k = {};
  std::vector<int> used_k = {};  ///< batch
  int page_size = 0;
  bool heads_first = false;  ///< in K and V: (.., heads, rows, head dim), else (.., rows, heads, head dim)
  std::optional<ListsOfBlocks> blocks = {};
  std::vector<int> prefixes = {};  ///< batch
  double dropout = 0;              ///< the probability of dropping
  int cut_keys = 0;                ///< FeatureParams::dropout_first_key
  std::optional<RelativeBuckets> relative = {};
  int norm = 0;  ///< of output rows; 1: heads share weights, 2: each has its own
  float norm_eps = 1e-5F;
  int gate = 0;         ///< of outputs; 1: of elements, 2: of rows
  int out_columns = 0;  ///< 0: as many as the head dim; values behind them are zeros
};

/// Where an entry's rows and keys lie, and how many it has.
struct FeatureEntry {
  int first_q = 0;
  int first_k = 0;
  int len_q = 0;
  int len_k = 0;
};

inline FeatureEntry entry_of(const FeatureShape& shape, int b) {
  const auto at = static_cast<std::size_t>(b);
  FeatureEntry e{0, 0, shape.len_q, shape.len_k};
  if (!shape.cu_q.empty()) {
    e.first_q = shape.cu_q[at];
    e.len_q = std::min(std::max(shape.cu_q[at + 1] - e.first_q, 0), shape.len_q);
  }
  if (!shape.cu_k.empty()) {
    e.first_k = shape.cu_k[at];
    e.len_k = std::min(std::max(shape.cu_k[at + 1] - e.first_k, 0), shape.len_k);
  }
  if (!shape.used_k.empty()) e.len_k = std::min(std::max(shape.used_k[at], 0), e.len_k);
  return e;
}

}  // namespace heed::emulator

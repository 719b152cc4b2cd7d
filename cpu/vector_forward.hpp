/// fwd_cpu on the vector unit: one-pass attention in fp32.
///
/// Queries sit in the lanes of a vector and keys are broadcast, so everything is kept transposed:
///
///                    queries ->                          queries ->
///            +---------------------+             +---------------------+
///   keys     | S^T = K (scale Q)^T |    value    | O^T += V^T P^T      |
///    |       |                     |    columns  |                     |
///    v       +---------------------+             +---------------------+
///
/// That way K and V are read as they lie in memory (no transposing copy), and maximum, exponential and sum of the
/// softmax are lane-wise, without a single shuffle. The running maximum and rescaling are the online softmax of Milakov
/// and Gimelshein (arXiv 1805.02867) over tiles of block_n keys, as in FlashAttention (Dao et al., arXiv 2205.14135).
#pragma once

#include "cpu/config.hpp"
#include "cpu/exp2.hpp"
#include "cpu/features.hpp"
#include "cpu/key_tile.hpp"
#include "cpu/output.hpp"
#include "cpu/rows.hpp"
#include "cpu/simd.hpp"

namespace heed::cpu {

/// sums[r][v] += a[r * row_stride] * b[v]: one step of a register tile.
template <int kRows, int kVectors>
[[gnu::always_inline]] inline void multiply_step(Vec (&sums)[kRows][kVectors], const float* a, long long row_stride,
                                                 const Vec* b) {
  Vec row[kVectors];
  for (int v = 0; v < kVectors; ++v) row[v] = b[v];
  for (int r = 0; r < kRows; ++r) {
    const float scalar = a[r * row_stride];
    for (int v = 0; v < kVectors; ++v) sums[r][v] += scalar * row[v];
  }
}

/// kRows x kVectors register tile: out[r][v] (+)= sum over t of a[r * row_stride + t * step_stride] * b[t * kVectors +
/// v]. `out` has kVectors vectors a row.
template <int kRows, int kVectors, int kUnroll, bool kAccumulate>
[[gnu::always_inline]] inline void outer_products(Vec* out, const float* a, long long row_stride, long long step_stride,
                                                  const Vec* b, int steps) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = kAccumulate ? out[r * kVectors + v] : Vec{};
  // The pragma wants a literal, so each unroll factor has its loop.
  if constexpr (kUnroll == 4) {
#pragma GCC unroll 4
    for (int t = 0; t < steps; ++t) multiply_step(sums, a + t * step_stride, row_stride, b + t * kVectors);
  } else if constexpr (kUnroll == 2) {
#pragma GCC unroll 2
    for (int t = 0; t < steps; ++t) multiply_step(sums, a + t * step_stride, row_stride, b + t * kVectors);
  } else {
    for (int t = 0; t < steps; ++t) multiply_step(sums, a + t * step_stride, row_stride, b + t * kVectors);
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) out[r * kVectors + v] = sums[r][v];
}

/// The same for any number of rows: whole register tiles, then halves of one, then single rows.
template <int kRows, int kVectors, int kUnroll, bool kAccumulate>
inline void outer_products_all(Vec* out, const float* a, long long row_stride, long long step_stride, const Vec* b,
                               int rows, int steps) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows)
    outer_products<kRows, kVectors, kUnroll, kAccumulate>(out + r * kVectors, a + r * row_stride, row_stride,
                                                          step_stride, b, steps);
  if constexpr (kRows > 3)
    for (; r + kRows / 2 <= rows; r += kRows / 2)
      outer_products<kRows / 2, kVectors, kUnroll, kAccumulate>(out + r * kVectors, a + r * row_stride, row_stride,
                                                                step_stride, b, steps);
  for (; r < rows; ++r)
    outer_products<1, kVectors, kUnroll, kAccumulate>(out + r * kVectors, a + r * row_stride, row_stride, step_stride,
                                                      b, steps);
}

/// One block of query rows of one head. See ForwardParams for the tensors' shapes.
template <Config kConfig, Problem kProblem>
class VectorForward {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kVectors = kConfig.tile_vectors;
  static constexpr int kQueries = kVectors * kLanes;
  static constexpr bool kQuantised = is_quantised(kProblem);
  static constexpr bool kMasked = kProblem.mask != MaskKind::none;
  static constexpr bool kHasFeatures = has_features(kProblem.features) || kQuantised;
  static constexpr bool kChangesScores = changes_scores(kProblem.features);
  static constexpr bool kPages = kProblem.features.pages;
  static constexpr bool kPrefix = kProblem.features.prefix;
  static constexpr bool kDrops = kProblem.features.dropout;
  using QueryElement = Stored<q_element(kProblem)>;
  static constexpr Scratch kPlan = scratch_plan(kConfig, kProblem, kLanes);
  static_assert(kConfig.block_m % kQueries == 0, "block_m must hold whole register tiles of queries");

 public:
  VectorForward(const ForwardParams& params, long long block, float* scratch)
      : place_(place_of<kConfig, kProblem>(params, block)),
        params_(Held<kProblem>::of(params, place_.batch)),
        query_(reinterpret_cast<Vec*>(scratch + kPlan.query)),
        out_(reinterpret_cast<Vec*>(scratch + kPlan.out)),
        maximum_(reinterpret_cast<Vec*>(scratch + kPlan.maximum)),
        sum_(reinterpret_cast<Vec*>(scratch + kPlan.sum)),
        scores_(reinterpret_cast<Vec*>(scratch + kPlan.scores)),
        keys_(scratch + kPlan.keys),
        values_(scratch + kPlan.values) {
    batch_ = place_.batch;
    head_ = place_.head;
    first_row_ = place_.first_row;
    if constexpr (kPrefix) prefix_ = prefix_of(params_, static_cast<int>(batch_));
    if constexpr (kDrops) dropout_ = dropout_of_head(params_, static_cast<int>(batch_), static_cast<int>(head_));
    rows_ = min(kConfig.block_m, params_.len_q - first_row_);
    groups_ = (rows_ + kQueries - 1) / kQueries;
  }

  void run() {
    if constexpr (kHasFeatures)
      if (rows_ <= 0) return;  // of an entry that has fewer rows than others
    load_queries();
    const auto span = span_of(first_row_, first_row_ + rows_);
    const auto walk = [&](const Span& walked, bool reads_bias) {
      for (int tile = walked.begin; tile < walked.end; tile += kConfig.block_n) {
        const int count = min(kConfig.block_n, walked.end - tile);
        const KeyTile keys = load_keys(tile, count, walked.end);
        const KeyTile values = load_values(tile, count, walked.end);
        for (int group = 0; group < groups_; ++group) process(group, tile, count, keys, values, reads_bias);
      }
    };
    walk_blocks<kProblem.features>(params_, batch_, head_, first_row_, Span{span.begin, span.end}, walk);
    store();
  }

 private:
  [[nodiscard]] KeyRows rows_from(int tile, int count, int keys_end) const {
    const long long kv_head = head_ / params_.group_size;
    return {batch_, kv_head, tile, count, keys_end};
  }
  /// Rows [tile, tile + count) of K and of V. @param keys_end of the keys that are walked
  [[nodiscard]] KeyTile load_keys(int tile, int count, int keys_end) const {
    const KeyRows rows = rows_from(tile, count, keys_end);
    constexpr Element kElement = k_element(kProblem);
    if constexpr (kQuantised)
      if (const TensorScales& scales = params_.k_scales; scales.at != nullptr)
        return dequantised_tile<kProblem, kElement>(params_, params_.k, params_.k_strides, scales, rows, keys_);
    return loaded_tile<kConfig, kProblem, kElement>(params_, params_.k, params_.k_strides, rows, keys_);
  }
  [[nodiscard]] KeyTile load_values(int tile, int count, int keys_end) const {
    const KeyRows rows = rows_from(tile, count, keys_end);
    constexpr Element kElement = v_element(kProblem);
    if constexpr (kQuantised)
      if (const TensorScales& scales = params_.v_scales; scales.at != nullptr)
        return dequantised_tile<kProblem, kElement>(params_, params_.v, params_.v_strides, scales, rows, values_);
    return loaded_tile<kConfig, kProblem, kElement>(params_, params_.v, params_.v_strides, rows, values_);
  }

  /// Keys that rows [first, end) see.
  [[nodiscard]] auto span_of(int first, int end) const {
    auto span = key_span<kProblem.mask>(mask_bounds(params_), first, end);
    if constexpr (kPrefix) span.end = max(span.end, prefix_);
    if constexpr (kPrefix && !has_left_bound(kProblem.mask)) span.full_end = max(span.full_end, prefix_);
    return span;
  }

  static constexpr int min(int a, int b) { return a < b ? a : b; }
  static constexpr int max(int a, int b) { return a > b ? a : b; }
  static Vec max(Vec a, Vec b) { return cpu::max(a, b); }

  /// Q of every group, transposed to (head_dim, queries) and scaled into powers of two; rows past the end are zeros.
  void load_queries() {
    const float scale = params_.scale * 1.44269504F;  // log2(e)
    const long long base = batch_ * params_.q_strides.batch + head_ * params_.q_strides.head;
    for (int group = 0; group < groups_; ++group) {
      auto* transposed = reinterpret_cast<float*>(query_ + static_cast<long long>(group) * kDim * kVectors);
      for (int lane = 0; lane < kQueries; ++lane) {
        const int row = group * kQueries + lane;
        const long long offset = base + (first_row_ + row) * params_.q_strides.row;
        float of_row = scale;
        if constexpr (kQuantised)
          if (params_.q_scales.at != nullptr && row < rows_)
            of_row *= params_.q_scales.at[scale_index(params_.q_scales, batch_, head_, first_row_ + row)];
        for (int d = 0; d < kDim; ++d) {
          const float value =
              row < rows_ ? load_scalar<q_element(kProblem)>(static_cast<const QueryElement*>(params_.q) + offset + d)
                          : 0.0F;
          transposed[d * kQueries + lane] = value * of_row;
        }
      }
      for (int i = 0; i < kDim * kVectors; ++i) out_[static_cast<long long>(group) * kDim * kVectors + i] = Vec{};
      for (int v = 0; v < kVectors; ++v) {
        maximum_[group * kVectors + v] = broadcast(-kInfinity);
        sum_[group * kVectors + v] = Vec{};
      }
    }
  }

  /// One tile of keys for one group of queries: scores, softmax, values.
  void process(int group, int tile, int count, KeyTile keys, KeyTile values, bool reads_bias) {
    const int first_query = first_row_ + group * kQueries;
    // Of the tile's keys every row of the group sees [full_begin, full_end).
    int full_begin = 0;
    int full_end = count;
    if constexpr (kMasked) {
      // Keys that no row of the group sees are neither multiplied nor read.
      const auto span = span_of(first_query, first_row_ + min(rows_, (group + 1) * kQueries));
      count = min(count, span.end - tile);
      if constexpr (has_left_bound(kProblem.mask)) {
        const int unseen = max(0, span.begin - tile);
        tile += unseen;
        count -= unseen;
        keys = keys.from(unseen);
        values = values.from(unseen);
      }
      if (count <= 0) return;
      full_end = max(0, min(count, span.full_end - tile));
      if constexpr (has_left_bound(kProblem.mask)) full_begin = max(0, min(full_end, span.full_begin - tile));
    }
    const Vec* query = query_ + static_cast<long long>(group) * kDim * kVectors;
    Vec* out = out_ + static_cast<long long>(group) * kDim * kVectors;
    Vec* maximum = maximum_ + group * kVectors;
    Vec* sum = sum_ + group * kVectors;

    outer_products_all<kConfig.tile_rows, kVectors, kConfig.unroll, false>(scores_, keys.rows, keys.row_stride, 1,
                                                                           query, count, kDim);

    if constexpr (kChangesScores) {
      for (int j = 0; j < count; ++j)
        for (int v = 0; v < kVectors; ++v) {
          Vec& scores = scores_[j * kVectors + v];
          scores = changed_scores<kProblem.features, kConfig.exp2>(params_, batch_, head_, scores,
                                                                   lane_indices() + first_query + v * kLanes,
                                                                   IntVec{} + (tile + j), reads_bias);
        }
    }
    if constexpr (kMasked) {
      hide_unseen_keys(first_query, tile, 0, full_begin);
      hide_unseen_keys(first_query, tile, full_end, count);
    }

    Vec tile_maximum[kVectors];
    for (int v = 0; v < kVectors; ++v) tile_maximum[v] = maximum[v];
    for (int j = 0; j < count; ++j)
      for (int v = 0; v < kVectors; ++v) tile_maximum[v] = max(tile_maximum[v], scores_[j * kVectors + v]);

    Vec reference[kVectors];  // what is subtracted: the maximum, or 0 for a row that has seen nothing yet
    bool grown = kConfig.rescale == Rescale::always;
    for (int v = 0; v < kVectors; ++v) {
      reference[v] = select(tile_maximum[v] == -kInfinity, Vec{}, tile_maximum[v]);
      if (kConfig.rescale == Rescale::when_grown) grown = grown || any(tile_maximum[v] > maximum[v]);
    }
    if (grown) {
      Vec factor[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        factor[v] = exp2<kConfig.exp2>(maximum[v] - reference[v]);
        sum[v] *= factor[v];
        maximum[v] = tile_maximum[v];
      }
      for (int d = 0; d < kDim; ++d)
        for (int v = 0; v < kVectors; ++v) out[d * kVectors + v] *= factor[v];
    }

    Vec tile_sum[kVectors] = {};
    for (int j = 0; j < count; ++j)
      for (int v = 0; v < kVectors; ++v) {
        const Vec p = exp2<kConfig.exp2>(scores_[j * kVectors + v] - reference[v]);
        scores_[j * kVectors + v] = p;
        tile_sum[v] += p;
      }
    for (int v = 0; v < kVectors; ++v) sum[v] += tile_sum[v];
    if constexpr (kDrops) drop(first_query, tile, count);

    // Zero weights times NaN or infinity would reach rows that do not see the key.
    int begin = 0;
    int end = count;
    if constexpr (kMasked) {
      if (!is_finite(values, 0, full_begin)) begin = full_begin;
      if (!is_finite(values, full_end, count)) end = full_end;
    }
    outer_products_all<kConfig.tile_rows, kVectors, kConfig.unroll, true>(
        out, values.rows + begin * values.row_stride, 1, values.row_stride, scores_ + begin * kVectors, kDim,
        end - begin);
    if constexpr (kMasked) {
      add_seen_values(out, first_query, tile, 0, begin, values);
      add_seen_values(out, first_query, tile, end, count, values);
    }
  }

  /// Whether rows [begin, end) of a tile hold neither NaN nor infinity.
  static bool is_finite(const KeyTile& values, int begin, int end) {
    int found = 0;
    for (int j = begin; j < end; ++j)
      for (int d = 0; d < kDim; ++d)
        found |= (__builtin_bit_cast(int, values.rows[j * values.row_stride + d]) & 0x7fffffff) >= 0x7f800000;
    return found == 0;
  }

  /// out += P V over keys [begin, end) of a tile, each only where it is seen.
  void add_seen_values(Vec* out, int first_query, int tile, int begin, int end, const KeyTile& values) const {
    for (int j = begin; j < end; ++j)
      for (int v = 0; v < kVectors; ++v) {
        const IntVec seen = sees(first_query + v * kLanes, tile + j);
        for (int d = 0; d < kDim; ++d) {
          Vec& sum = out[d * kVectors + v];
          sum = select(seen, sum + scores_[j * kVectors + v] * values.rows[j * values.row_stride + d], sum);
        }
      }
  }

  /// In each lane whether the row that many after `first_row` sees a key.
  [[nodiscard]] IntVec sees(int first_row, int key) const {
    const IntVec row = lane_indices() + first_row;
    IntVec seen = row + params_.right_offset >= key;
    if constexpr (kPrefix) seen = seen | (IntVec{} + key < prefix_);
    if constexpr (has_left_bound(kProblem.mask)) seen = seen & (row + params_.left_offset <= key);
    return seen;
  }

  /// Leaves out what is dropped of a tile's probabilities.
  void drop(int first_query, int tile, int count) {
    if (params_.dropout_threshold == 0) return;
    for (int j = 0; j < count; ++j)
      for (int v = 0; v < kVectors; ++v) {
        Vec& p = scores_[j * kVectors + v];
        p = without_dropped(params_, dropout_, p, lane_indices() + first_query + v * kLanes, IntVec{} + (tile + j));
      }
  }

  void hide_unseen_keys(int first_query, int tile, int begin, int end) {
    for (int j = begin; j < end; ++j)
      for (int v = 0; v < kVectors; ++v)
        scores_[j * kVectors + v] =
            select(sees(first_query + v * kLanes, tile + j), scores_[j * kVectors + v], broadcast(-kInfinity));
  }

  void store() const {
    const long long base = batch_ * params_.o_strides.batch + head_ * params_.o_strides.head;
    for (int row = 0; row < rows_; ++row) {
      const int group = row / kQueries;
      const int lane = row % kQueries;
      const auto* transposed = reinterpret_cast<const float*>(out_ + static_cast<long long>(group) * kDim * kVectors);
      const float sum = reinterpret_cast<const float*>(sum_ + group * kVectors)[lane];
      const float maximum = reinterpret_cast<const float*>(maximum_ + group * kVectors)[lane];
      const auto span = span_of(first_row_ + row, first_row_ + row + 1);
      const RowEnd end = end_of_row<kProblem.features, kConfig.exp2>(
          params_, head_,
          sees_any<kProblem.features>(params_, batch_, head_, first_row_ + row, Span{span.begin, span.end}), maximum,
          sum);
      const long long offset = base + (first_row_ + row) * params_.o_strides.row;
      auto* const to = static_cast<Stored<kProblem.element>*>(params_.o) + offset;
      if constexpr (changes_output(kProblem.features)) {
        float finished[kDim];
        for (int d = 0; d < kDim; ++d) finished[d] = end.sees ? transposed[d * kQueries + lane] * end.inverse : 0.0F;
        finish_output<kProblem.features, kProblem.element>(params_, batch_, head_, first_row_ + row, finished);
        for (int d = 0; d < kDim; ++d) store_scalar<kProblem.element>(to + d, finished[d]);
      } else {
        for (int d = 0; d < kDim; ++d) {
          const float value = end.sees ? transposed[d * kQueries + lane] * end.inverse : 0.0F;
          store_scalar<kProblem.element>(to + d, value);
        }
      }
      if (params_.lse != nullptr) lse_of<kHasFeatures>(params_, batch_, head_)[first_row_ + row] = end.log_sum;
    }
  }

  const BlockPlace place_;
  typename Held<kProblem>::Type params_;
  Vec* query_;
  Vec* out_;
  Vec* maximum_;
  Vec* sum_;
  Vec* scores_;
  float* keys_;
  float* values_;
  long long batch_;
  long long head_;
  int first_row_;
  int rows_;
  int groups_;
  int prefix_ = 0;  ///< keys that all rows see
  HeadDropout dropout_{};
};

}  // namespace heed::cpu

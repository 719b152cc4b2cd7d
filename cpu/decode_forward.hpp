/// fwd_cpu on the vector unit for few queries: columns of the head dim in the lanes.
///
/// With queries in the lanes (vector_forward.hpp) one query leaves all lanes but one empty. Here a block holds the rows
/// of all query heads that read one key head, so that K and V are read from memory once, and products read both in
/// their own element type:
///
///     scores    lanes: columns    q_r . k_j, four rows by four keys at once on AVX-512, sums of lanes by one transpose
///     softmax   lanes: keys
///     O         lanes: columns    o_r += p_rj v_j, four rows by four vectors
///
/// The running maximum is that of vector_forward.hpp. Where blocks are fewer than threads the keys of a block are
/// divided (decode_plan.hpp); the part that ends last adds the others, in their order, by their row maxima and sums.
#pragma once

#include "cpu/decode_plan.hpp"
#include "cpu/decode_products.hpp"
#include "cpu/exp2.hpp"
#include "cpu/features.hpp"
#include "cpu/output.hpp"
#include "cpu/rows.hpp"
#include "cpu/simd.hpp"

namespace heed::cpu {

/// One part of the keys of one block of rows. See ForwardParams for the tensors' shapes.
template <Config kConfig, Problem kProblem>
class DecodeForward {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kStride = decode_columns(kDim);  // of rows in scratch
  static constexpr int kColumns = (kDim + kLanes - 1) / kLanes * kLanes;
  static constexpr int kKeys = kConfig.block_n;
  static constexpr int kScoreStride = (kKeys + 15) / 16 * 16;
  static constexpr bool kQuantised = is_quantised(kProblem);
  static constexpr bool kInPlace = reads_in_place(kProblem, kLanes);
  static constexpr bool kMasked = kProblem.mask != MaskKind::none;
  static constexpr bool kHasFeatures = has_features(kProblem.features) || kQuantised;
  static constexpr bool kChangesScores = changes_scores(kProblem.features);
  static constexpr bool kPages = kProblem.features.pages;
  static constexpr bool kPrefix = kProblem.features.prefix;
  static constexpr bool kDrops = kProblem.features.dropout;
  static constexpr DecodeScratch kPlan = decode_scratch(kConfig, kProblem, kLanes);
  using Reader = RowReader<kInPlace ? k_element(kProblem) : Element::fp32, kColumns>;
  using Memory = typename Reader::Memory;
  using Rows = TileRows<Memory, kInPlace && kPages>;

 public:
  DecodeForward(const ForwardParams& launch, long long block, float* scratch)
      : launch_(launch),
        rows_of_head_(packed_rows(launch.len_q, launch.group_size)),
        units_(decode_units(kConfig, launch.batch, launch.heads_kv, rows_of_head_)),
        splits_(decode_splits(kConfig, units_, launch.len_k)),
        unit_(block / splits_),
        split_(block % splits_),
        batch_(unit_ / (units_ / launch.batch)),
        params_(Held<kProblem>::of(launch, unit_ < units_ ? batch_ : 0)),
        query_(scratch + kPlan.query),
        out_(scratch + kPlan.out),
        sum_(reinterpret_cast<Vec*>(scratch + kPlan.sum)),
        maximum_(scratch + kPlan.maximum),
        spans_(reinterpret_cast<Span*>(scratch + kPlan.spans)),
        scores_(scratch + kPlan.scores),
        k_offsets_(reinterpret_cast<long long*>(scratch + kPlan.offsets)),
        v_offsets_(k_offsets_ + kScoreStride),
        keys_(scratch + kPlan.keys),
        values_(scratch + kPlan.values) {
    const long long row_blocks = units_ / (static_cast<long long>(launch.batch) * launch.heads_kv);
    kv_head_ = unit_ / row_blocks % launch.heads_kv;
    first_row_ = static_cast<int>(unit_ % row_blocks * kConfig.block_m);
    const long long left = packed_rows(params_.len_q, params_.group_size) - first_row_;
    rows_ = static_cast<int>(left < kConfig.block_m ? left : kConfig.block_m);
    if constexpr (kPrefix) prefix_ = prefix_of(params_, static_cast<int>(batch_));
  }

  void run() {
    // A block beyond the last part, or of an entry that has fewer rows than others.
    if (unit_ >= units_ || rows_ <= 0) return;
    load_queries();
    clear();
    Span walked = all_seen();
    if (splits_ > 1) walked = part_of(walked);
    if (kProblem.features.blocks && has_lists())
      walk_lists(walked);
    else
      walk(0, rows_, walked, true);
    if (splits_ > 1 && !collect_parts()) return;
    store();
  }

 private:
  struct Place {
    long long head;
    int row;
  };
  /// Where a row of the block lies in Q and O.
  [[nodiscard]] Place place(int row) const {
    return {kv_head_ * params_.group_size + (first_row_ + row) / params_.len_q, (first_row_ + row) % params_.len_q};
  }

  [[nodiscard]] Span span_of(int first, int end) const {
    const auto keys = key_span<kProblem.mask>(mask_bounds(params_), first, end);
    Span span{keys.begin, keys.end};
    if constexpr (kPrefix)
      if (span.end < prefix_) span.end = prefix_;
    return span;
  }

  [[nodiscard]] bool has_lists() const {
    if constexpr (kProblem.features.blocks) return params_.block_counts != nullptr;
    return false;
  }

  /// Some keys for rows [first, last).
  void walk(int first, int last, const Span& keys, bool reads_bias) {
    for (int tile = keys.begin; tile < keys.end; tile += kKeys)
      process(first, last, tile, keys.end - tile < kKeys ? keys.end - tile : kKeys, reads_bias);
  }

  /// Each row by itself: heads of a group may have lists of their own.
  void walk_lists(const Span& keys) {
    for (int r = 0; r < rows_; ++r) {
      const Place at = place(r);
      Span own = span_of(at.row, at.row + 1);
      if (own.begin < keys.begin) own.begin = keys.begin;
      if (own.end > keys.end) own.end = keys.end;
      walk_blocks<kProblem.features>(params_, batch_, at.head, at.row, own,
                                     [&](const Span& listed, bool reads_bias) { walk(r, r + 1, listed, reads_bias); });
    }
  }

  /// The keys that each row sees, and those that any does.
  Span all_seen() {
    if constexpr (!kMasked) return {0, params_.len_k};
    Span all{params_.len_k, 0};
    for (int r = 0; r < rows_; ++r) {
      const int row = place(r).row;
      spans_[r] = span_of(row, row + 1);
      if (spans_[r].begin < all.begin) all.begin = spans_[r].begin;
      if (spans_[r].end > all.end) all.end = spans_[r].end;
    }
    return all;
  }

  /// This block's part of some keys, whole tiles but for the last.
  [[nodiscard]] Span part_of(const Span& all) const {
    const long long tiles = (static_cast<long long>(all.end) - all.begin + kKeys - 1) / kKeys;
    if (tiles <= 0) return {0, 0};
    const long long begin = all.begin + tiles * split_ / splits_ * kKeys;
    const long long end = all.begin + tiles * (split_ + 1) / splits_ * kKeys;
    return {static_cast<int>(begin), static_cast<int>(end < all.end ? end : all.end)};
  }

  /// Q of every row, scaled into powers of two, in the reader's order of columns.
  void load_queries() {
    constexpr Element kElement = q_element(kProblem);
    for (int r = 0; r < rows_; ++r) {
      const Place at = place(r);
      const auto* const from = static_cast<const Stored<kElement>*>(params_.q) + batch_ * params_.q_strides.batch +
                               at.head * params_.q_strides.head + at.row * params_.q_strides.row;
      float scale = params_.scale * kLog2E;
      if constexpr (kQuantised)
        if (params_.q_scales.at != nullptr)
          scale *= params_.q_scales.at[scale_index(params_.q_scales, batch_, at.head, at.row)];
      float* const to = query_ + r * kStride;
      for (int d = 0; d < kColumns; ++d)
        to[Reader::place_of(d)] = d < kDim ? load_scalar<kElement>(from + d) * scale : 0.0F;
    }
  }

  void clear() {
    for (int r = 0; r < rows_; ++r) {
      for (int d = 0; d < kColumns; d += kLanes) *reinterpret_cast<Vec*>(out_ + r * kStride + d) = Vec{};
      sum_[r] = Vec{};
      maximum_[r] = -kInfinity;
    }
    if constexpr (!kInPlace && kColumns != kDim)
      for (int j = 0; j < kKeys; ++j)
        for (int d = kDim; d < kColumns; ++d) keys_[j * kStride + d] = values_[j * kStride + d] = 0.0F;
  }

  /// Rows [tile, tile + count) of K or V as products read them.
  template <Element kElement>
  Rows load_rows(const void* tensor, const TensorStrides& strides, const TensorScales* scales, int tile, int count,
                 long long* offsets, float* scratch) const {
    const auto* const from = static_cast<const Stored<kElement>*>(tensor);
    if constexpr (kInPlace && kPages) {
      for (int j = 0; j < count; ++j) offsets[j] = row_of_keys<true>(params_, strides, batch_, kv_head_, tile + j);
      return {from, 0, offsets};
    } else if constexpr (kInPlace) {
      return {from + row_of_keys<false>(params_, strides, batch_, kv_head_, tile), strides.row, nullptr};
    } else {
      for (int j = 0; j < count; ++j) {
        const auto* const row = from + row_of_keys<kPages>(params_, strides, batch_, kv_head_, tile + j);
        float* const to = scratch + j * kStride;
        if constexpr (kQuantised) {
          if (scales->at != nullptr) {
            const long long factor =
                key_scale_index(params_, *scales, static_cast<int>(batch_), static_cast<int>(kv_head_), tile + j);
            dequantise_row<kElement>(row, scales->at + factor, scales->channel != 0, to, kDim);
            continue;
          }
        }
        convert_row<kElement>(row, to, kDim);
      }
      return {scratch, kStride, nullptr};
    }
  }

  /// One tile of keys for rows [first, last): scores, softmax, values.
  void process(int first, int last, int tile, int count, bool reads_bias) {
    const TensorScales* k_scales = nullptr;
    const TensorScales* v_scales = nullptr;
    if constexpr (kQuantised) k_scales = &params_.k_scales, v_scales = &params_.v_scales;
    const Rows keys =
        load_rows<k_element(kProblem)>(params_.k, params_.k_strides, k_scales, tile, count, k_offsets_, keys_);
    by_rows(first, last, [&]<int kRows>(int r) {
      dot_products<Reader, kRows, kConfig.prefetch>(query_ + r * kStride, kStride, keys, count,
                                                    scores_ + r * kScoreStride, kScoreStride);
    });
    for (int r = first; r < last; ++r) softmax(r, tile, count, reads_bias);
    const Rows values =
        load_rows<v_element(kProblem)>(params_.v, params_.v_strides, v_scales, tile, count, v_offsets_, values_);
    by_rows(first, last, [&]<int kRows>(int r) {
      const auto add = [&]<int kOf>(int row, int begin, int end) {
        add_values<Reader, kOf, kConfig.prefetch>(out_ + row * kStride, kStride, scores_ + row * kScoreStride,
                                                  kScoreStride, values, begin, end);
      };
      if constexpr (kMasked) {
        // A weight of zero times NaN or infinity would reach rows that do not see the key.
        Span common{0, count};
        for (int i = r; i < r + kRows; ++i) {
          const Span seen = spans_[i].in_tile(tile, count);
          if (seen.begin > common.begin) common.begin = seen.begin;
          if (seen.end < common.end) common.end = seen.end;
        }
        if (common.end < common.begin) common.end = common.begin;
        for (int i = r; kRows > 1 && i < r + kRows; ++i) {
          const Span seen = spans_[i].in_tile(tile, count);
          add.template operator()<1>(i, seen.begin, seen.end < common.begin ? seen.end : common.begin);
          add.template operator()<1>(i, seen.begin > common.end ? seen.begin : common.end, seen.end);
        }
        add.template operator()<kRows>(r, common.begin, common.end);
      } else {
        add.template operator()<kRows>(r, 0, count);
      }
    });
  }

  /// Scores of one row to probabilities, its sums to their reference.
  void softmax(int r, int tile, int count, [[maybe_unused]] bool reads_bias) {
    float* const scores = scores_ + r * kScoreStride;
    const int padded = (count + kLanes - 1) / kLanes * kLanes;
    const auto vector = [&](int j) -> Vec& { return *reinterpret_cast<Vec*>(scores + j); };
    [[maybe_unused]] const Place at = place(r);
    if constexpr (kChangesScores)
      for (int j = 0; j < padded; j += kLanes) {
        const IntVec key = lane_indices() + (tile + j);
        // Of a key that the tile does not have no bias is read.
        const IntVec there = key < tile + count ? key : IntVec{} + params_.len_k;
        vector(j) = changed_scores<kProblem.features, kConfig.exp2>(params_, batch_, at.head, vector(j),
                                                                    IntVec{} + at.row, there, reads_bias);
      }
    Span seen{0, count};
    if constexpr (kMasked) seen = spans_[r].in_tile(tile, count);
    for (int j = 0; j < seen.begin; ++j) scores[j] = -kInfinity;
    for (int j = seen.end; j < padded; ++j) scores[j] = -kInfinity;

    Vec largest = broadcast(maximum_[r]);
    for (int j = 0; j < padded; j += kLanes) largest = max(largest, vector(j));
    const float maximum = largest_lane(largest)[0];
    const Vec reference = broadcast(maximum == -kInfinity ? 0.0F : maximum);  // 0: nothing is seen yet
    if (!(maximum == maximum_[r])) {
      const Vec factor = exp2<kConfig.exp2>(broadcast(maximum_[r]) - reference);
      maximum_[r] = maximum;
      sum_[r] *= factor;
      for (int d = 0; d < kColumns; d += kLanes) *reinterpret_cast<Vec*>(out_ + r * kStride + d) *= factor;
    }
    Vec sum = sum_[r];
    for (int j = 0; j < padded; j += kLanes) {
      const Vec p = exp2<kConfig.exp2>(vector(j) - reference);
      vector(j) = p;
      sum += p;
    }
    sum_[r] = sum;
    if constexpr (kDrops) {
      if (params_.dropout_threshold == 0) return;
      const HeadDropout of_head = dropout_of_head(params_, static_cast<int>(batch_), static_cast<int>(at.head));
      for (int j = 0; j < padded; j += kLanes)
        vector(j) = without_dropped(params_, of_head, vector(j), IntVec{} + at.row, lane_indices() + (tile + j));
    }
  }

  /// The partial sums of a part of this block's keys: rows of kColumns sums, the maximum, and the sum.
  [[nodiscard]] float* part(long long split) const {
    return static_cast<float*>(launch_.workspace) +
           (unit_ * splits_ + split) * partial_floats(kConfig, kDim, rows_of_head_);
  }

  /// Leaves the block's sums in the workspace. Where all its other parts have done so too, adds them together.
  /// @return whether the sums are now those of all parts
  bool collect_parts() {
    constexpr int kRow = static_cast<int>(partial_row_floats(kDim));
    for (int r = 0; r < rows_; ++r) {
      float* const to = part(split_) + r * kRow;
      for (int d = 0; d < kColumns; ++d) to[d] = out_[r * kStride + d];
      to[kStride] = maximum_[r];
      to[kStride + 1] = sum_of_lanes(sum_[r])[0];
    }
    unsigned* const done = launch_.semaphores + unit_;
    if (__atomic_fetch_add(done, 1U, __ATOMIC_ACQ_REL) + 1 != static_cast<unsigned>(splits_)) return false;
    __atomic_store_n(done, 0U, __ATOMIC_RELAXED);
    clear();
    for (int r = 0; r < rows_; ++r) {
      float maximum = -kInfinity;
      for (long long s = 0; s < splits_; ++s) {
        const float of_part = part(s)[r * kRow + kStride];
        if (!(of_part <= maximum)) maximum = of_part;  // NaN stays
      }
      maximum_[r] = maximum;
      const float reference = maximum == -kInfinity ? 0.0F : maximum;
      float* const out = out_ + r * kStride;
      float sum = 0;
      for (long long s = 0; s < splits_; ++s) {
        const float* const from = part(s) + r * kRow;
        const Vec factor = exp2<kConfig.exp2>(broadcast(from[kStride] - reference));
        sum += from[kStride + 1] * factor[0];
        for (int d = 0; d < kColumns; d += kLanes)
          *reinterpret_cast<Vec*>(out + d) += factor * *reinterpret_cast<const UnalignedVec*>(from + d);
      }
      sum_[r][0] = sum;
    }
    return true;
  }

  void store() {
    constexpr Element kElement = kProblem.element;
    for (int r = 0; r < rows_; ++r) {
      const Place at = place(r);
      const bool sees = sees_any<kProblem.features>(params_, batch_, at.head, at.row, span_of(at.row, at.row + 1));
      const RowEnd end =
          end_of_row<kProblem.features, kConfig.exp2>(params_, at.head, sees, maximum_[r], sum_of_lanes(sum_[r])[0]);
      alignas(64) float finished[kColumns];
      for (int d = 0; d < kDim; ++d)
        finished[d] = end.sees ? out_[r * kStride + Reader::place_of(d)] * end.inverse : 0.0F;
      if constexpr (changes_output(kProblem.features))
        finish_output<kProblem.features, kElement>(params_, batch_, at.head, at.row, finished);
      auto* const to = static_cast<Stored<kElement>*>(params_.o) + batch_ * params_.o_strides.batch +
                       at.head * params_.o_strides.head + at.row * params_.o_strides.row;
      int d = 0;
      for (; d + kLanes <= kDim; d += kLanes)
        store_vector<kElement>(to + d, *reinterpret_cast<const Vec*>(finished + d));
      for (; d < kDim; ++d) store_scalar<kElement>(to + d, finished[d]);
      if (params_.lse != nullptr) lse_of<kHasFeatures>(params_, batch_, at.head)[at.row] = end.log_sum;
    }
  }

  const ForwardParams& launch_;
  const long long rows_of_head_;
  const long long units_;
  const long long splits_;
  const long long unit_;
  const long long split_;
  const long long batch_;
  typename Held<kProblem>::Type params_;
  float* query_;
  float* out_;
  Vec* sum_;
  float* maximum_;
  Span* spans_;
  float* scores_;
  long long* k_offsets_;
  long long* v_offsets_;
  float* keys_;
  float* values_;
  long long kv_head_;
  int first_row_;
  int rows_;
  int prefix_ = 0;  ///< keys that all rows see
};

}  // namespace heed::cpu

/// fwd_cpu on a matrix unit (unit=matrix): one-pass attention whose two products run on tiles of bf16 pieces.
///
/// Queries are rows, keys are columns; a group is 32 query rows:
///
///              keys of a tile ->                          value columns ->
///            +-----------------+   softmax   +---------+            +-----------------+
///   queries  | S = Q K^T, fp32 | ----------> | P, bf16 |  times V   | O += P V, fp32  |
///    |       +-----------------+             +---------+            +-----------------+
///
/// K and V are packed into tiles once for all rows of a block. Inputs and weights are sums of bf16 pieces (pieces.hpp);
/// sums are fp32. The order of the 32 numbers a product sums over does not matter, so both sides of each product hold
/// them as pairs (i, 16 + i), which takes no shuffles.
#pragma once

#include "cpu/config.hpp"
#include "cpu/exp2.hpp"
#include "cpu/features.hpp"
#include "cpu/matrix_packing.hpp"
#include "cpu/matrix_products.hpp"
#include "cpu/output.hpp"
#include "cpu/rows.hpp"

#if defined(__x86_64__) && defined(__AVX512F__)

namespace heed::cpu {

/// One block of query rows. See ForwardParams for the tensors' shapes.
template <Config kConfig, Problem kProblem>
class MatrixForward {
  static constexpr MatrixShape kShape = matrix_shape(kConfig, kProblem);
  static constexpr MatrixScratch kPlan = matrix_scratch(kConfig, kProblem);
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kPieces = kShape.pieces;
  static constexpr int kRows = MatrixShape::kGroupRows;
  static constexpr int kColumns = kShape.columns;
  static constexpr int kDepth = kShape.depth;
  static constexpr int kKeys = kConfig.block_n;
  static constexpr long long kWeightRow = kKeys * 2 + 64;  // rows begin in different sets of the L1
  static constexpr int kScoreRow = kKeys + 16;
  static constexpr long long kWeightPiece = kRows * kWeightRow;
  static constexpr bool kHasFeatures = has_features(kProblem.features);
  static constexpr bool kChangesScores = changes_scores(kProblem.features);
  static constexpr bool kPages = kProblem.features.pages;
  static constexpr bool kPrefix = kProblem.features.prefix;
  static constexpr bool kDrops = kProblem.features.dropout;
  using Memory = Stored<kProblem.element>;
  /// A row is scaled anew where its maximum grew by more than 2^8 (conditional rescaling, FlashAttention-4): weights
  /// are 256 at most, and the branch is foreseen. Where any growth counted half of the rows of a second tile branched,
  /// at random: 9% of the time of b1h8l512d64 in bf16.
  static constexpr float kRescaleAbove = 8;

 public:
  MatrixForward(const ForwardParams& params, long long block, float* scratch)
      : place_(place_of<kConfig, kProblem>(params, block)), params_(Held<kProblem>::of(params, place_.batch)) {
    char* const base = reinterpret_cast<char*>(scratch);
    packed_ = {base + kPlan.queries, base + kPlan.keys, base + kPlan.values};
    weights_ = base + kPlan.weights;
    scores_ = reinterpret_cast<float*>(base + kPlan.scores);
    out_ = reinterpret_cast<float*>(base + kPlan.out);
    sums_ = reinterpret_cast<Vec*>(base + kPlan.sums);
    maximum_ = reinterpret_cast<float*>(base + kPlan.maximum);
    block_ = block;
    batch_ = place_.batch;
    head_ = place_.head;
    first_row_ = place_.first_row;
    if constexpr (kPrefix) prefix_ = prefix_of(params_, static_cast<int>(batch_));
    rows_ = min(kConfig.block_m, rows_of_head<kConfig>(params_) - first_row_);
  }

  void run() {
    if constexpr (kHasFeatures)
      if (rows_ <= 0) return;  // of an entry that has fewer rows than others
    const tiles::Session session;
    k_ = head_of(params_.k, params_.k_strides, batch_, head_);
    v_ = head_of(params_.v, params_.v_strides, batch_, head_);
    clear_sums();
    packed_.pack_queries(rows_, [&](int row) { return query(row); });
    const auto walk = [&](const Span& span, bool reads_bias) {
      for (int tile = span.begin; tile < span.end; tile += kKeys) {
        const int count = min(kKeys, span.end - tile);
        packed_.pack_keys(count, [&](int row) { return key(tile + row); });
        packed_.pack_values(count, params_.v_strides.row, [&](int row) { return value(tile + row); });
        fetch_next(tile + kKeys, span.end);
        for (int row = 0; row < rows_; row += kRows) process(row, tile, count, reads_bias);
      }
    };
    walk_blocks<kProblem.features>(params_, batch_, head_, first_row_, span_of(first_row_, rows_), walk);
    store();
  }

 private:
  static constexpr int min(int a, int b) { return a < b ? a : b; }

  struct Row {
    long long head;
    int row;
  };
  /// Where a row of the block lies in Q and O.
  [[nodiscard]] Row place(int row) const {
    if constexpr (!kConfig.pack_gqa) return {head_, first_row_ + row};
    return {head_ + (first_row_ + row) / params_.len_q, (first_row_ + row) % params_.len_q};
  }
  [[nodiscard]] const Memory* query(int row) const {
    const Row at = place(row);
    return static_cast<const Memory*>(params_.q) + batch_ * params_.q_strides.batch + at.head * params_.q_strides.head +
           at.row * params_.q_strides.row;
  }

  /// The first row of K or V that a query head reads.
  [[nodiscard]] const Memory* head_of(const void* tensor, const TensorStrides& strides, long long batch,
                                      long long head) const {
    const long long first = head / params_.group_size * strides.head;
    return static_cast<const Memory*>(tensor) + (kPages ? first : batch * strides.batch + first);
  }

  /// A row of K or V of the block's head.
  [[nodiscard]] const Memory* key(int row) const {
    if constexpr (kPages)
      return k_ + key_offset(params_, params_.k_strides, static_cast<int>(batch_), row);
    else
      return k_ + row * params_.k_strides.row;
  }
  [[nodiscard]] const Memory* value(int row) const {
    if constexpr (kPages)
      return v_ + key_offset(params_, params_.v_strides, static_cast<int>(batch_), row);
    else
      return v_ + row * params_.v_strides.row;
  }

  /// Keys that a row of the block sees.
  [[nodiscard]] Span seen(int row) const { return span_of(first_row_ + row, 1); }
  [[nodiscard]] Span span_of(int first, int count) const {
    Span span = span_of_rows<kConfig, kProblem>(params_, first, count);
    if constexpr (kPrefix)
      if (span.end < prefix_) span.end = prefix_;
    return span;
  }

  /// The keys and values of the tile from `tile` on, or of the first tile of the block that is this thread's next one
  /// if threads take turns, are fetched into the L2 beside the softmax: 10% of the time of b8h12l128d64 in fp32.
  void fetch_next(int tile, int keys_end) {
    next_ = {};
    if constexpr (kHasFeatures) return;  // the next tile may be of another page, the next block of another length
    next_ = {k_ + tile * params_.k_strides.row, v_ + tile * params_.v_strides.row, min(kKeys, keys_end - tile)};
    if (next_.rows > 0) return;
    const long long next = block_ + kConfig.threads;
    const long long blocks_of_head = (rows_of_head<kConfig>(params_) + kConfig.block_m - 1) / kConfig.block_m;
    const int heads = kConfig.pack_gqa ? params_.heads_kv : params_.heads;
    if (next >= params_.batch * heads * blocks_of_head) return;
    const BlockPlace place = place_of<kConfig, kProblem>(params_, next);
    const Span span = span_of(place.first_row, min(kConfig.block_m, rows_of_head<kConfig>(params_) - place.first_row));
    next_ = {head_of(params_.k, params_.k_strides, place.batch, place.head) + span.begin * params_.k_strides.row,
             head_of(params_.v, params_.v_strides, place.batch, place.head) + span.begin * params_.v_strides.row,
             min(kKeys, span.end - span.begin)};
  }

  void clear_sums() {
    for (int row = 0; row < (rows_ + kRows - 1) / kRows * kRows; ++row) {
      for (int d = 0; d < kColumns; d += 16) *reinterpret_cast<Vec*>(out_ + row * kColumns + d) = Vec{};
      sums_[row] = Vec{};
      maximum_[row] = -kInfinity;
    }
  }

  /// One tile of keys for one group of rows: scores, softmax, values.
  void process(int row, int tile, int count, bool reads_bias) {
    const int group_rows = min(kRows, rows_ - row);
    const Span keys = span_of(first_row_ + row, group_rows).in_tile(tile, count);
    if (keys.begin == keys.end) return;
    const int first_step = keys.begin / 32;
    const int steps = (keys.end + 31) / 32;
    const Operands scores = packed_.of_scores(row);
    for (int j = first_step; j < steps; ++j) {
      tiles::zero<0>(), tiles::zero<1>(), tiles::zero<2>(), tiles::zero<3>();
      for (int d = 0; d < kDepth / 32; ++d)
        multiply_step<kPieces, true>(scores, scores.left + d * 64,
                                     scores.right + j * 2 * scores.right_column + d * scores.right_step);
      store_sums(scores_ + j * 32, kScoreRow * 4);
    }
    if (!packed_.queries_split || !packed_.keys_split) [[unlikely]]
      multiply_scores_apart(row, tile, group_rows, keys);
    for (int r = 0; r < group_rows; ++r) {
      next_.template fetch<kDim>(params_.k_strides.row, params_.v_strides.row);
      softmax(row, r, tile, seen(row + r).in_tile(tile, count), first_step, steps, reads_bias);
    }
    if (!packed_.values_split && (kPieces > 1 || kProblem.mask != MaskKind::none)) [[unlikely]]
      return multiply_values_apart(row, tile, group_rows, count);
    const Operands values = packed_.of_values(weights_, kWeightRow, kWeightPiece);
    for (int d = 0; d < kColumns; d += 32) {
      float* const out = out_ + row * kColumns + d;
      tiles::load<0>(out, kColumns * 4), tiles::load<1>(out + 16, kColumns * 4);
      tiles::load<2>(out + 16 * kColumns, kColumns * 4), tiles::load<3>(out + 16 * kColumns + 16, kColumns * 4);
      for (int j = first_step; j < steps; ++j)
        multiply_step<kPieces, false>(values, values.left + j * 64,
                                      values.right + j * values.right_step + d / 16 * values.right_column);
      store_sums(out, kColumns * 4);
    }
  }

  /// Weights of one row of a group for the keys of the tile that it sees, and zeros for the others of the group's steps
  /// of 32 keys, [first_step, steps).
  void softmax(int first, int r, int tile, const Span& keys, int first_step, int steps, bool reads_bias) {
    auto* const scores = reinterpret_cast<Vec*>(scores_ + r * kScoreRow);
    char* const weights = weights_ + r * kWeightRow;
    const bool sees = keys.begin < keys.end;
    const int first_pair = sees ? keys.begin / 32 : steps;
    const int pairs = sees ? (keys.end + 31) / 32 : steps;
    if (sees) {
      if constexpr (kChangesScores) {
        const Row at = place(first + r);
        for (int i = 2 * first_pair; i < 2 * pairs; ++i)
          scores[i] = changed_scores<kProblem.features, kConfig.exp2>(
              params_, batch_, at.head, scores[i] * (params_.scale * kLog2E), IntVec{} + at.row,
              lane_indices() + (tile + 16 * i), reads_bias);
      }
      if (keys.end % 32 != 0) {
        for (int i = 2 * pairs - 2; i < 2 * pairs; ++i)
          scores[i] = select(lane_indices() + 16 * i < keys.end, scores[i], broadcast(-kInfinity));
      }
      if constexpr (has_left_bound(kProblem.mask)) {
        for (int i = 2 * first_pair; i < 2 * first_pair + 2; ++i)
          scores[i] = select(lane_indices() + 16 * i >= keys.begin, scores[i], broadcast(-kInfinity));
      }
      const float scale = kChangesScores ? 1.0F : params_.scale * kLog2E;
      Vec even = scores[2 * first_pair];
      Vec odd = scores[2 * first_pair + 1];
      for (int i = first_pair + 1; i < pairs; ++i) {
        even = max(even, scores[2 * i]);
        odd = max(odd, scores[2 * i + 1]);
      }
      const float before = maximum_[first + r];
      const float now = largest_lane(max(even, odd)) * scale;
      const bool grown = now > before + kRescaleAbove;
      const float highest = grown ? now : before;
      const float reference = highest == -kInfinity ? 0 : highest;
      if (grown) {
        const Vec factor = exp2<kConfig.exp2>(broadcast(before - reference));
        maximum_[first + r] = highest;
        sums_[first + r] *= factor;
        for (int d = 0; d < kColumns; d += 16) *reinterpret_cast<Vec*>(out_ + (first + r) * kColumns + d) *= factor;
      }
      const Vec subtracted = broadcast(reference);
      Vec even_sum{};
      Vec odd_sum{};
      HeadDropout dropout{};
      Row at{};
      bool drops = false;
      if constexpr (kDrops) {
        at = place(first + r);
        drops = params_.dropout_threshold != 0;
        dropout = dropout_of_head(params_, static_cast<int>(batch_), static_cast<int>(at.head));
      }
      for (int i = first_pair; i < pairs; ++i) {
        even = exp2<kConfig.exp2>(scores[2 * i] * scale - subtracted);
        odd = exp2<kConfig.exp2>(scores[2 * i + 1] * scale - subtracted);
        even_sum += even;
        odd_sum += odd;
        if constexpr (kDrops)
          if (drops) {
            const IntVec keys_of_lanes = lane_indices() + (tile + 32 * i);
            even = without_dropped(params_, dropout, even, IntVec{} + at.row, keys_of_lanes);
            odd = without_dropped(params_, dropout, odd, IntVec{} + at.row, keys_of_lanes + 16);
          }
        Pairs pieces[kPieces];
        split_weights(even, odd, pieces);
        for (int p = 0; p < kPieces; ++p) *reinterpret_cast<Pairs*>(weights + p * kWeightPiece + i * 64) = pieces[p];
      }
      sums_[first + r] += even_sum + odd_sum;
    }
    const auto clear = [&](int begin, int end) {
      for (int i = begin; i < end; ++i)
        for (int p = 0; p < kPieces; ++p) *reinterpret_cast<Pairs*>(weights + p * kWeightPiece + i * 64) = Pairs{};
    };
    clear(first_step, first_pair);
    clear(pairs, steps);
  }

  /// Scores of numbers that are no sums of pieces (NaN, infinity, next to infinity): one by one.
  [[gnu::noinline]] void multiply_scores_apart(int row, int tile, int group_rows, const Span& keys) {
    for (int r = 0; r < group_rows; ++r)
      for (int j = keys.begin; j < keys.end; ++j) {
        const Memory* numbers = query(row + r);
        const Memory* key = this->key(tile + j);
        float score = 0;
        for (int d = 0; d < kDim; ++d)
          score += load_scalar<kProblem.element>(numbers + d) * load_scalar<kProblem.element>(key + d);
        scores_[r * kScoreRow + j] = score == score ? score : __builtin_nanf("");  // without a payload
      }
  }

  /// The same for values, each only where its key is seen: a zero weight times NaN is NaN.
  [[gnu::noinline]] void multiply_values_apart(int row, int tile, int group_rows, int count) {
    for (int r = 0; r < group_rows; ++r) {
      const Span keys = seen(row + r).in_tile(tile, count);
      for (int j = keys.begin; j < keys.end; ++j) {
        const int number = j / 32 * 32 + j % 16 * 2 + j % 32 / 16;
        float weight = 0;
        for (int p = 0; p < kPieces; ++p)
          weight += to_float<Element::bf16>(
              reinterpret_cast<const unsigned short*>(weights_ + p * kWeightPiece + r * kWeightRow)[number]);
        const Memory* value = this->value(tile + j);
        for (int d = 0; d < kDim; ++d)
          out_[(row + r) * kColumns + d] += weight * load_scalar<kProblem.element>(value + d);
      }
    }
  }

  void store() const {
    auto* const o = static_cast<Memory*>(params_.o) + batch_ * params_.o_strides.batch;
    for (int row = 0; row < rows_; ++row) {
      float sum = 0;
      for (int i = 0; i < kLanes; ++i) sum += sums_[row][i];
      const Span keys = seen(row);
      const Row at = place(row);
      const RowEnd end = end_of_row<kProblem.features, kConfig.exp2>(
          params_, at.head, sees_any<kProblem.features>(params_, batch_, at.head, at.row, keys), maximum_[row], sum);
      Memory* const to = o + at.head * params_.o_strides.head + at.row * params_.o_strides.row;
      float* const from = out_ + row * kColumns;
      int d = 0;
      if constexpr (changes_output(kProblem.features)) {
        for (; d < kDim; ++d) from[d] *= end.inverse;
        finish_output<kProblem.features, kProblem.element>(params_, batch_, at.head, at.row, from);
        for (d = 0; d < kDim; ++d) store_scalar<kProblem.element>(to + d, from[d]);
      }
      for (; d + 16 <= kDim; d += 16)
        store_vector<kProblem.element>(to + d, *reinterpret_cast<const Vec*>(from + d) * end.inverse);
      for (; d < kDim; ++d) store_scalar<kProblem.element>(to + d, from[d] * end.inverse);
      if (params_.lse != nullptr) lse_of<kHasFeatures>(params_, batch_, at.head)[at.row] = end.log_sum;
    }
  }

  const BlockPlace place_;
  typename Held<kProblem>::Type params_;
  const Memory* k_ = nullptr;  ///< the head's first key
  const Memory* v_ = nullptr;
  MatrixPacking<kConfig, kProblem> packed_;
  char* weights_;           ///< (pieces, 32, block_n)
  float* scores_;           ///< (32, block_n)
  float* out_;              ///< (block_m, columns)
  Vec* sums_;               ///< (block_m), lane by lane
  float* maximum_;          ///< (block_m)
  RowsAhead<Memory> next_;  ///< what is fetched into the L2
  long long block_;
  long long batch_;
  long long head_;
  int first_row_;
  int rows_;
  int prefix_ = 0;  ///< keys that all rows see
};

}  // namespace heed::cpu

#endif

// The oracle of heed.hpp: double precision, tiled over keys, one task per block of rows of a head.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "verify/entry.hpp"
#include "verify/reference.hpp"
#include "verify/row_tasks.hpp"
#include "verify/small_matrix.hpp"
#include "workload/elements.hpp"

namespace heed {
namespace {

constexpr std::int64_t kKeyTile = 64;   // keys a tile: the score tile of 16 rows is 8 KiB and stays in L1; a block of a
                                        // list of blocks has one or two
constexpr std::int64_t kRowBlock = 16;  // rows that share one pass over a tile
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kLog2E = 1.4426950408889634;  // kernels keep scores in powers of two
// Where the largest probabilities of a row are dropped, what is left of it may be as small as exponentials that kernels
// take for zero, below 2^-126 of a maximum that they need not know.
constexpr double kLeastKept = 0x1p-100;
constexpr double kExchanging = 0.1;        // error of a score from which on the second largest is followed
constexpr std::size_t kRowsPerTask = 128;  // converting a tile to double is amortised over this many rows

// Rows of one head, all state of the running softmax beside them.
class HeadRows {
 public:
  HeadRows(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows, double* out,
           double* lse, RowCondition* condition)
      : entry_(workload, tensors, rows[0].batch),
        workload_(entry_.workload()),
        rows_(rows),
        out_(out),
        lse_(lse),
        condition_(condition),
        dim_v_padded_(padded_columns(workload.dim_v)),
        query_(rows.size() * static_cast<std::size_t>(workload.dim)),
        state_(rows.size()),
        value_(rows.size() * static_cast<std::size_t>(dim_v_padded_), 0.0),
        key_tile_(static_cast<std::size_t>(workload.dim * kKeyTile)),
        value_tile_(static_cast<std::size_t>(kKeyTile * dim_v_padded_)),
        key_(static_cast<std::size_t>(workload.dim)),
        scores_(static_cast<std::size_t>(kRowBlock * kKeyTile)) {
    const double scale = workload.softmax_scale();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      double* query = query_.data() + i * static_cast<std::size_t>(workload.dim);
      entry_.load_query(rows[i].head, rows[i].row, query);
      for (std::int64_t d = 0; d < workload.dim; ++d) query[d] *= scale;
      state_[i].query_norm = std::sqrt(square_of(query, workload.dim));
    }
  }

  void run() {
    const KeyRange seen = keys_of_rows(workload_, rows_);
    // From a multiple of it on, so that a tile lies in one block of a list of blocks.
    for (std::int64_t tile = seen.begin / kKeyTile * kKeyTile; tile < seen.end; tile += kKeyTile) {
      load_tile(tile, std::min(kKeyTile, seen.end - tile));
      for (std::size_t first = 0; first < rows_.size(); first += kRowBlock)
        process_block(tile, first, std::min<std::size_t>(kRowBlock, rows_.size() - first));
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      finish_row(i);
      if (workload_.changes_output()) change_output(i);
    }
  }

 private:
  struct RowState {
    double query_norm = 0;  // of scale * q
    double maximum = -kInfinity;
    double second = -kInfinity;  // the next largest score; followed only where rounding may exchange it with the first
    double sum = 0;
    double k_squares = 0;  // sum of p |k|^2, relative to the maximum as the sum is
    double v_squares = 0;  // sum of p |v|^2
    double p_squares = 0;  // sum of p^2 |v|^2
    double largest_value = 0;
    bool sees = false;  // a key that its mask and its list of blocks leave
    bool may_leave_fp32 = false;
  };

  static double square_of(const double* x, std::int64_t count) {
    double square = 0;
    for (std::int64_t d = 0; d < count; ++d) square += x[d] * x[d];
    return square;
  }

  void finish_row(std::size_t i) {
    const RowState& row = state_[i];
    double* out = out_ + i * static_cast<std::size_t>(workload_.dim_v);
    const double* value = value_.data() + i * static_cast<std::size_t>(dim_v_padded_);
    const double sink = entry_.sink(rows_[i].head);
    // A bias that hides every key leaves as little as a mask that does; beside a sink keys of scores of -infinity do.
    const bool all_hidden = (workload_.bias || sink > -kInfinity) && row.maximum == -kInfinity && row.sum == 0;
    if (all_hidden || !row.sees) {
      std::fill_n(out, workload_.dim_v, 0.0);
      lse_[i] = sink;
      condition_[i].may_leave_fp32 = row.may_leave_fp32;
      return;
    }
    if (!(row.sum > 0)) {  // NaN among its scores, or none above -infinity
      std::fill_n(out, workload_.dim_v, std::numeric_limits<double>::quiet_NaN());
      lse_[i] = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    // The sink is one more score, which takes a share of the probability: the keys' is the rest.
    const double highest = std::max(row.maximum, sink);
    const double of_keys = row.sum * std::exp(row.maximum - highest);
    const double with_sink = of_keys + std::exp(sink - highest);
    for (std::int64_t d = 0; d < workload_.dim_v; ++d) out[d] = value[d] / row.sum * (of_keys / with_sink);
    lse_[i] = highest + std::log(with_sink);
    RowCondition& condition = condition_[i];
    condition.score_size = row.query_norm * std::sqrt(row.k_squares / row.sum);
    condition.value_size = std::sqrt(row.p_squares) / row.sum;
    condition.value_spread = std::sqrt(std::max(0.0, row.v_squares / row.sum - square_of(out, workload_.dim_v)));
    condition.largest_value = row.largest_value;
    if (entry_.drops()) {
      condition.largest_value /= std::max(1 - workload_.dropout, 0x1p-32);
      condition.value_size = std::max(condition.value_size, kLeastKept * condition.largest_value);
    }
    condition.lead = row.maximum - row.second;
    condition.may_leave_fp32 = row.may_leave_fp32;
  }

  // Norms and gates a row; what is known of its errors grows as they do.
  void change_output(std::size_t i) {
    double* out = out_ + i * static_cast<std::size_t>(workload_.dim_v);
    RowCondition& condition = condition_[i];
    const double square = square_of(out, workload_.dim_v);
    condition.growth = entry_.finish(rows_[i].head, rows_[i].row, out, [](double x) { return x; });
    // Kernels add squares up in fp32.
    if (workload_.out_norm && std::isfinite(square) && square > kLargest / 4) condition.may_leave_fp32 = true;
    if (!std::isfinite(square) || !std::isfinite(condition.growth)) return;  // judged by what shows, not by size
    condition.grown_size = condition.growth * std::sqrt(square);
    for (double* size : {&condition.value_size, &condition.value_spread, &condition.largest_value})
      *size *= condition.growth;
  }

  // K transposed to (dim, kKeyTile), V as (kKeyTile, dim_v_padded), and their squares; keys past `count` are zeros and
  // never read as keys.
  void load_tile(std::int64_t tile, std::int64_t count) {
    std::fill(key_tile_.begin(), key_tile_.end(), 0.0);
    std::fill(value_tile_.begin(), value_tile_.end(), 0.0);
    const std::int64_t head = rows_[0].head / (workload_.heads / workload_.heads_kv);
    for (std::int64_t j = 0; j < count; ++j) {
      entry_.load_key(head, tile + j, key_.data());
      for (std::int64_t d = 0; d < workload_.dim; ++d)
        key_tile_[static_cast<std::size_t>(d * kKeyTile + j)] = key_[static_cast<std::size_t>(d)];
      double* value = value_tile_.data() + j * dim_v_padded_;
      entry_.load_value(head, tile + j, value);
      k_square_[j] = square_of(key_.data(), workload_.dim);
      v_square_[j] = square_of(value, workload_.dim_v);
      key_size_[j] = std::sqrt(k_square_[j]);
      value_size_[j] = std::sqrt(v_square_[j]);
      if (!std::isfinite(k_square_[j])) k_square_[j] = 0;  // of probability 0, or its rows are not judged by size
      if (!std::isfinite(v_square_[j])) v_square_[j] = 0;
    }
  }

  void process_block(std::int64_t tile, std::size_t first, std::size_t count) {
    KeyRange seen[kRowBlock];  // keys of this tile that each row sees, from its first one on
    bool all_equal = true;
    bool any = false;
    for (std::size_t r = 0; r < count; ++r) {
      const RowIndex& at = rows_[first + r];
      seen[r] =
          entry_.lists(at.head, at.row, tile) ? keys_of_tile(workload_.keys_of(at.row), tile, kKeyTile) : KeyRange{};
      all_equal = all_equal && seen[r] == seen[0];
      any = any || !seen[r].is_empty();
    }
    if (!any) return;
    std::fill(scores_.begin(), scores_.end(), 0.0);
    multiply_add(scores_.data(), kKeyTile, query_.data() + first * static_cast<std::size_t>(workload_.dim),
                 workload_.dim, key_tile_.data(), kKeyTile, static_cast<std::int64_t>(count), kKeyTile, workload_.dim);
    for (std::size_t r = 0; r < count; ++r) softmax_row(first + r, tile, scores_.data() + r * kKeyTile, seen[r]);
    double* value = value_.data() + first * static_cast<std::size_t>(dim_v_padded_);
    if (all_equal) {
      multiply_add(value, dim_v_padded_, scores_.data() + seen[0].begin, kKeyTile,
                   value_tile_.data() + seen[0].begin * dim_v_padded_, dim_v_padded_, static_cast<std::int64_t>(count),
                   dim_v_padded_, seen[0].count());
      return;
    }
    // Rows that see different keys: each begins at its own first key and stops at its own last, so that a NaN it must
    // not see cannot reach it as 0 * NaN.
    for (std::size_t r = 0; r < count; ++r)
      multiply_add(value + r * static_cast<std::size_t>(dim_v_padded_), dim_v_padded_,
                   scores_.data() + static_cast<std::int64_t>(r) * kKeyTile + seen[r].begin, kKeyTile,
                   value_tile_.data() + seen[r].begin * dim_v_padded_, dim_v_padded_, 1, dim_v_padded_,
                   seen[r].count());
  }

  // scores -> exponentials relative to the running maximum; rescales what the row has summed so far.
  void softmax_row(std::size_t i, std::int64_t tile, double* scores, const KeyRange& seen) {
    if (seen.is_empty()) return;
    RowState& row = state_[i];
    row.sees = true;
    double largest_key = 0;  // of those that are numbers
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      largest_key = std::max(largest_key, key_size_[j]);
      row.largest_value = std::max(row.largest_value, value_size_[j]);
    }
    // What the products of a score add up to at most, and without the scale, as some kernels multiply by it afterwards.
    const double size = row.query_norm * largest_key;
    const double scale = workload_.softmax_scale();
    if (!(size * kLog2E < kLargest && size / scale < kLargest)) {
      row.may_leave_fp32 = true;
      for (std::int64_t j = seen.begin; j < seen.end; ++j)
        if (std::abs(scores[j]) > kLargest) scores[j] = std::copysign(kInfinity, scores[j]);
    }
    if (entry_.changes_scores())
      for (std::int64_t j = seen.begin; j < seen.end; ++j)
        scores[j] = entry_.changed(scores[j], rows_[i].head, rows_[i].row, tile + j);
    double tile_maximum = -kInfinity;
    for (std::int64_t j = seen.begin; j < seen.end; ++j) tile_maximum = std::max(tile_maximum, scores[j]);
    if (fp32_score_error(size, workload_.dim) > kExchanging) {
      double first = row.maximum;
      for (std::int64_t j = seen.begin; j < seen.end; ++j) {
        row.second = std::max(row.second, std::min(first, scores[j]));
        first = std::max(first, scores[j]);
      }
    }
    if (tile_maximum > row.maximum) {
      const double rescale = std::exp(row.maximum - tile_maximum);
      row.sum *= rescale;
      row.k_squares *= rescale;
      row.v_squares *= rescale;
      row.p_squares *= rescale * rescale;
      double* value = value_.data() + i * static_cast<std::size_t>(dim_v_padded_);
      for (std::int64_t d = 0; d < dim_v_padded_; ++d) value[d] *= rescale;
      row.maximum = tile_maximum;
    }
    const double reference = row.maximum == -kInfinity ? 0.0 : row.maximum;
    double sum = 0, k_squares = 0, v_squares = 0, p_squares = 0;
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      const double p = scores[j] = std::exp(scores[j] - reference);
      sum += p;
      k_squares += p * k_square_[j];
      if (entry_.drops()) {  // after the sum: what is kept counts as larger values
        const double kept = entry_.kept(rows_[i].head, rows_[i].row, tile + j);
        scores[j] *= kept;
        v_squares += p * kept * kept * v_square_[j];
        p_squares += p * p * kept * kept * v_square_[j];
        continue;
      }
      v_squares += p * v_square_[j];
      p_squares += p * p * v_square_[j];
    }
    row.sum += sum;
    row.k_squares += k_squares;
    row.v_squares += v_squares;
    row.p_squares += p_squares;
  }

  Entry entry_;
  const Workload& workload_;  ///< of the entry
  std::span<const RowIndex> rows_;
  double* out_;
  double* lse_;
  RowCondition* condition_;
  std::int64_t dim_v_padded_;
  std::vector<double> query_;       // (rows, dim), scaled
  std::vector<RowState> state_;     // (rows)
  std::vector<double> value_;       // (rows, dim_v_padded), not yet divided by the sum
  std::vector<double> key_tile_;    // (dim, kKeyTile)
  std::vector<double> value_tile_;  // (kKeyTile, dim_v_padded)
  std::vector<double> key_;         // (dim)
  std::vector<double> scores_;      // (kRowBlock, kKeyTile)
  double k_square_[kKeyTile] = {};  // |k|^2 of the tile's keys
  double v_square_[kKeyTile] = {};
  double key_size_[kKeyTile] = {};  // |k|
  double value_size_[kKeyTile] = {};
};

}  // namespace

double fp32_score_error(double size, std::int64_t dim) {
  return (std::sqrt(static_cast<double>(dim)) + 4) * 0x1p-24 * std::abs(size);
}

ReferenceRows reference_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                                  std::vector<RowCondition>& condition, int threads) {
  validate(workload);
  require_memory(static_cast<double>(rows.size()) * static_cast<double>(workload.dim_v) * sizeof(double),
                 "the reference's output");
  ReferenceRows result;
  result.out.resize(rows.size() * static_cast<std::size_t>(workload.dim_v));
  result.lse.resize(rows.size());
  condition.assign(rows.size(), {});
  const std::vector<RowTask> tasks = split_rows(rows, kRowsPerTask);
  parallel_for(static_cast<std::int64_t>(tasks.size()), threads, [&](std::int64_t index) {
    const RowTask& task = tasks[static_cast<std::size_t>(index)];
    HeadRows(workload, tensors, rows.subspan(task.first, task.count),
             result.out.data() + task.first * static_cast<std::size_t>(workload.dim_v), result.lse.data() + task.first,
             condition.data() + task.first)
        .run();
  });
  return result;
}

ReferenceRows reference_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                                  int threads) {
  std::vector<RowCondition> condition;
  return reference_attention(workload, tensors, rows, condition, threads);
}

}  // namespace heed

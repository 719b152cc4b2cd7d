// The oracle of heed.hpp: double precision, tiled over keys, one task per block of rows of a head.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "cpu/row_tasks.hpp"
#include "cpu/small_matrix.hpp"

namespace heed {
namespace {

constexpr std::int64_t kKeyTile = 64;      // keys a tile: the score tile of 16 rows is 8 KiB and stays in L1
constexpr std::int64_t kRowBlock = 16;     // rows that share one pass over a tile
constexpr std::size_t kRowsPerTask = 128;  // converting a tile to double is amortised over this many rows

// Rows of one head, all state of the running softmax beside them.
class HeadRows {
 public:
  HeadRows(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows, double* out,
           double* lse)
      : workload_(workload),
        tensors_(tensors),
        rows_(rows),
        out_(out),
        lse_(lse),
        dim_v_padded_(padded_columns(workload.dim_v)),
        query_(rows.size() * static_cast<std::size_t>(workload.dim)),
        sum_(rows.size(), 0.0),
        maximum_(rows.size(), -std::numeric_limits<double>::infinity()),
        value_(rows.size() * static_cast<std::size_t>(dim_v_padded_), 0.0),
        key_tile_(static_cast<std::size_t>(workload.dim * kKeyTile)),
        value_tile_(static_cast<std::size_t>(kKeyTile * dim_v_padded_)),
        scores_(static_cast<std::size_t>(kRowBlock * kKeyTile)) {
    const double scale = workload.softmax_scale();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t base = row_offset(tensors.q_strides, rows[i].batch, rows[i].head, rows[i].row);
      for (std::int64_t d = 0; d < workload.dim; ++d)
        query_[i * static_cast<std::size_t>(workload.dim) + static_cast<std::size_t>(d)] =
            scale * static_cast<double>(load_element(workload.dtype, tensors.q, base + static_cast<std::size_t>(d)));
    }
  }

  void run() {
    std::int64_t most_visible = 0;
    for (const RowIndex& row : rows_) most_visible = std::max(most_visible, workload_.visible_keys(row.row));
    for (std::int64_t tile = 0; tile < most_visible; tile += kKeyTile) {
      load_tile(tile, std::min(kKeyTile, most_visible - tile));
      for (std::size_t first = 0; first < rows_.size(); first += kRowBlock)
        process_block(tile, first, std::min<std::size_t>(kRowBlock, rows_.size() - first));
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const bool empty = sum_[i] == 0;
      for (std::int64_t d = 0; d < workload_.dim_v; ++d)
        out_[i * static_cast<std::size_t>(workload_.dim_v) + static_cast<std::size_t>(d)] =
            empty ? 0.0 : value_[i * static_cast<std::size_t>(dim_v_padded_) + static_cast<std::size_t>(d)] / sum_[i];
      lse_[i] = empty ? -std::numeric_limits<double>::infinity() : maximum_[i] + std::log(sum_[i]);
    }
  }

 private:
  // K transposed to (dim, kKeyTile), V as (kKeyTile, dim_v_padded); keys past `count` are zeros and never read as keys.
  void load_tile(std::int64_t tile, std::int64_t count) {
    std::fill(key_tile_.begin(), key_tile_.end(), 0.0);
    std::fill(value_tile_.begin(), value_tile_.end(), 0.0);
    const std::int64_t batch = rows_[0].batch;
    const std::int64_t head = rows_[0].head / (workload_.heads / workload_.heads_kv);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::size_t k_base = row_offset(tensors_.k_strides, batch, head, tile + j);
      for (std::int64_t d = 0; d < workload_.dim; ++d)
        key_tile_[static_cast<std::size_t>(d * kKeyTile + j)] =
            static_cast<double>(load_element(workload_.dtype, tensors_.k, k_base + static_cast<std::size_t>(d)));
      const std::size_t v_base = row_offset(tensors_.v_strides, batch, head, tile + j);
      for (std::int64_t d = 0; d < workload_.dim_v; ++d)
        value_tile_[static_cast<std::size_t>(j * dim_v_padded_ + d)] =
            static_cast<double>(load_element(workload_.dtype, tensors_.v, v_base + static_cast<std::size_t>(d)));
    }
  }

  void process_block(std::int64_t tile, std::size_t first, std::size_t count) {
    std::int64_t visible[kRowBlock];  // keys of this tile that each row sees
    std::int64_t fewest = kKeyTile;
    std::int64_t most = 0;
    for (std::size_t r = 0; r < count; ++r) {
      visible[r] = std::clamp<std::int64_t>(workload_.visible_keys(rows_[first + r].row) - tile, 0, kKeyTile);
      fewest = std::min(fewest, visible[r]);
      most = std::max(most, visible[r]);
    }
    if (most == 0) return;
    std::fill(scores_.begin(), scores_.end(), 0.0);
    multiply_add(scores_.data(), kKeyTile, query_.data() + first * static_cast<std::size_t>(workload_.dim),
                 workload_.dim, key_tile_.data(), kKeyTile, static_cast<std::int64_t>(count), kKeyTile, workload_.dim);
    for (std::size_t r = 0; r < count; ++r) softmax_row(first + r, scores_.data() + r * kKeyTile, visible[r]);
    double* value = value_.data() + first * static_cast<std::size_t>(dim_v_padded_);
    if (fewest == most) {
      multiply_add(value, dim_v_padded_, scores_.data(), kKeyTile, value_tile_.data(), dim_v_padded_,
                   static_cast<std::int64_t>(count), dim_v_padded_, most);
      return;
    }
    // Rows that see different numbers of keys: each stops at its own last key, so that a NaN it must not see cannot
    // reach it as 0 * NaN.
    for (std::size_t r = 0; r < count; ++r)
      multiply_add(value + r * static_cast<std::size_t>(dim_v_padded_), dim_v_padded_, scores_.data() + r * kKeyTile,
                   kKeyTile, value_tile_.data(), dim_v_padded_, 1, dim_v_padded_, visible[r]);
  }

  // scores -> exponentials relative to the running maximum; rescales what the row has summed so far.
  void softmax_row(std::size_t i, double* scores, std::int64_t visible) {
    if (visible == 0) return;
    const double tile_maximum = *std::max_element(scores, scores + visible);
    if (tile_maximum > maximum_[i]) {
      const double rescale = std::exp(maximum_[i] - tile_maximum);
      sum_[i] *= rescale;
      double* value = value_.data() + i * static_cast<std::size_t>(dim_v_padded_);
      for (std::int64_t d = 0; d < dim_v_padded_; ++d) value[d] *= rescale;
      maximum_[i] = tile_maximum;
    }
    double sum = 0;
    for (std::int64_t j = 0; j < visible; ++j) sum += scores[j] = std::exp(scores[j] - maximum_[i]);
    sum_[i] += sum;
  }

  const Workload& workload_;
  const HostTensors& tensors_;
  std::span<const RowIndex> rows_;
  double* out_;
  double* lse_;
  std::int64_t dim_v_padded_;
  std::vector<double> query_;       // (rows, dim), scaled
  std::vector<double> sum_;         // (rows)
  std::vector<double> maximum_;     // (rows)
  std::vector<double> value_;       // (rows, dim_v_padded), not yet divided by the sum
  std::vector<double> key_tile_;    // (dim, kKeyTile)
  std::vector<double> value_tile_;  // (kKeyTile, dim_v_padded)
  std::vector<double> scores_;      // (kRowBlock, kKeyTile)
};

}  // namespace

ReferenceRows reference_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                                  int threads) {
  validate(workload);
  require_memory(static_cast<double>(rows.size()) * static_cast<double>(workload.dim_v) * sizeof(double),
                 "the reference's output");
  ReferenceRows result;
  result.out.resize(rows.size() * static_cast<std::size_t>(workload.dim_v));
  result.lse.resize(rows.size());
  const std::vector<RowTask> tasks = split_rows(rows, kRowsPerTask);
  parallel_for(static_cast<std::int64_t>(tasks.size()), threads, [&](std::int64_t index) {
    const RowTask& task = tasks[static_cast<std::size_t>(index)];
    HeadRows(workload, tensors, rows.subspan(task.first, task.count),
             result.out.data() + task.first * static_cast<std::size_t>(workload.dim_v), result.lse.data() + task.first)
        .run();
  });
  return result;
}

}  // namespace heed

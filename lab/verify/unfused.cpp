#include "verify/unfused.hpp"

#include <algorithm>
#include <cmath>

#include "base/parallel.hpp"
#include "verify/entry.hpp"
#include "verify/row_tasks.hpp"
#include "verify/small_matrix.hpp"
#include "workload/elements.hpp"

namespace heed {
namespace {

constexpr std::size_t kRowsPerTask = 64;
constexpr std::int64_t kKeyTile = 64;
constexpr float kShift_8_bits = 256;  // what probabilities of 8 bits are multiplied with, so that few are subnormal

// Both operands of a product have one type: beside values of 8 bits with an exponent, probabilities have theirs.
float rounded_probability(const Workload& w, float p) {
  const bool has_exponent = w.quantised && w.quantised->v && w.quantised->v->dtype != Dtype::int8;
  return has_exponent ? round_to(w.quantised->v->dtype, p * kShift_8_bits) / kShift_8_bits : round_to(w.dtype, p);
}

void unfused_rows(const Workload& whole, const HostTensors& tensors, std::span<const RowIndex> rows, float* out,
                  float* lse) {
  const Entry entry(whole, tensors, rows[0].batch);
  const Workload& workload = entry.workload();
  const std::int64_t dim = workload.dim;
  const std::int64_t dim_v = padded_columns(workload.dim_v);
  KeyRange seen = keys_of_rows(workload, rows);
  seen.begin = seen.begin / kKeyTile * kKeyTile;           // so that a tile lies in one block of a list of blocks
  const std::int64_t keys = padded_columns(seen.count());  // of scores, which begin with the first key that is seen
  const std::int64_t head = rows[0].head / (workload.heads / workload.heads_kv);
  const auto scale = static_cast<float>(workload.softmax_scale());
  const auto count = static_cast<std::int64_t>(rows.size());

  std::vector<float> query(static_cast<std::size_t>(count * dim));
  for (std::int64_t r = 0; r < count; ++r) {
    const RowIndex& at = rows[static_cast<std::size_t>(r)];
    entry.load_query(at.head, at.row, query.data() + r * dim);
  }

  std::vector<float> scores(static_cast<std::size_t>(count * keys), 0.0F);
  std::vector<float> key_tile(static_cast<std::size_t>(dim * kKeyTile));
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (std::int64_t tile = 0; tile < seen.count(); tile += kKeyTile) {
    std::fill(key_tile.begin(), key_tile.end(), 0.0F);
    const std::int64_t in_tile = std::min(kKeyTile, seen.count() - tile);
    for (std::int64_t j = 0; j < in_tile; ++j) {
      entry.load_key(head, seen.begin + tile + j, key.data());
      for (std::int64_t d = 0; d < dim; ++d)
        key_tile[static_cast<std::size_t>(d * kKeyTile + j)] = key[static_cast<std::size_t>(d)];
    }
    multiply_add(scores.data() + tile, keys, query.data(), dim, key_tile.data(), kKeyTile, count,
                 std::min(kKeyTile, keys - tile), dim);
  }

  std::vector<float> row_sum(static_cast<std::size_t>(count));
  for (std::int64_t r = 0; r < count; ++r) {
    float* row = scores.data() + r * keys;
    const KeyRange of_row =
        keys_of_tile(workload.keys_of(rows[static_cast<std::size_t>(r)].row), seen.begin, seen.count());
    float maximum = -INFINITY;
    bool sees = false;
    const RowIndex& at = rows[static_cast<std::size_t>(r)];
    for (std::int64_t j = of_row.begin; j < of_row.end; ++j) {
      row[j] *= scale;
      if (entry.changes_scores()) row[j] = entry.changed(row[j], at.head, at.row, seen.begin + j);
      const bool listed = entry.lists(at.head, at.row, seen.begin + j);
      if (!listed) row[j] = -INFINITY;
      sees = sees || listed;
      maximum = std::max(maximum, row[j]);
    }
    const auto sink = static_cast<float>(entry.sink(at.head));
    // All hidden, by the mask or by a bias, or by scores of -infinity beside the sink's.
    if (!sees || ((workload.bias || sink > -INFINITY) && maximum == -INFINITY)) {
      std::fill(row + of_row.begin, row + of_row.end, 0.0F);
      row_sum[static_cast<std::size_t>(r)] = 0;
      lse[r] = sink;
      continue;
    }
    maximum = std::max(maximum, sink);
    float sum = workload.sinks ? std::exp(sink - maximum) : 0.0F;
    for (std::int64_t j = of_row.begin; j < of_row.end; ++j) {
      const float p = std::exp(row[j] - maximum);
      sum += p;
      row[j] = entry.kept(at.head, at.row, seen.begin + j) == 0 ? 0 * p : rounded_probability(workload, p);
    }
    row_sum[static_cast<std::size_t>(r)] = sum;
    lse[r] = maximum + std::log(sum);
  }

  std::vector<float> value_tile(static_cast<std::size_t>(kKeyTile * dim_v));
  std::vector<float> result(static_cast<std::size_t>(count * dim_v), 0.0F);
  for (std::int64_t tile = 0; tile < seen.count(); tile += kKeyTile) {
    std::fill(value_tile.begin(), value_tile.end(), 0.0F);
    const std::int64_t in_tile = std::min(kKeyTile, seen.count() - tile);
    for (std::int64_t j = 0; j < in_tile; ++j) {
      entry.load_value(head, seen.begin + tile + j, value_tile.data() + j * dim_v);
    }
    const auto keys_in_tile = [&](std::int64_t r) {
      const RowIndex& at = rows[static_cast<std::size_t>(r)];
      if (!entry.lists(at.head, at.row, seen.begin + tile)) return KeyRange{};
      return keys_of_tile(workload.keys_of(at.row), seen.begin + tile, in_tile);
    };
    bool all_see_all = true;
    for (std::int64_t r = 0; r < count; ++r) all_see_all = all_see_all && keys_in_tile(r).count() == in_tile;
    if (all_see_all) {
      multiply_add(result.data(), dim_v, scores.data() + tile, keys, value_tile.data(), dim_v, count, dim_v, in_tile);
      continue;
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const KeyRange of_row = keys_in_tile(r);
      multiply_add(result.data() + r * dim_v, dim_v, scores.data() + r * keys + tile + of_row.begin, keys,
                   value_tile.data() + of_row.begin * dim_v, dim_v, 1, dim_v, of_row.count());
    }
  }
  const float scale_of_kept = workload.dropout < 1 ? static_cast<float>(1 / (1 - workload.dropout)) : 0.0F;
  for (std::int64_t r = 0; r < count; ++r) {
    const float sum = row_sum[static_cast<std::size_t>(r)];
    for (std::int64_t d = 0; d < workload.dim_v; ++d) {
      const float value = result[static_cast<std::size_t>(r * dim_v + d)];
      out[r * workload.dim_v + d] = sum == 0 ? 0.0F : round_to(workload.dtype, value / sum * scale_of_kept);
    }
    if (!workload.changes_output()) continue;
    const RowIndex& at = rows[static_cast<std::size_t>(r)];
    entry.finish(at.head, at.row, out + r * workload.dim_v, [&](float x) { return round_to(workload.dtype, x); });
  }
}

}  // namespace

UnfusedRows unfused_attention(const Workload& workload, const HostTensors& tensors, std::span<const RowIndex> rows,
                              int threads) {
  UnfusedRows result;
  result.out.resize(rows.size() * static_cast<std::size_t>(workload.dim_v));
  result.lse.resize(rows.size());
  const std::vector<RowTask> tasks = split_rows(rows, kRowsPerTask);
  parallel_for(static_cast<std::int64_t>(tasks.size()), threads, [&](std::int64_t index) {
    const RowTask& task = tasks[static_cast<std::size_t>(index)];
    unfused_rows(workload, tensors, rows.subspan(task.first, task.count),
                 result.out.data() + task.first * static_cast<std::size_t>(workload.dim_v),
                 result.lse.data() + task.first);
  });
  return result;
}

}  // namespace heed

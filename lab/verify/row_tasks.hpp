/// Splits a list of output rows into pieces of work that share one head, for the oracle and the unfused computation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "heed/heed.hpp"
#include "workload/half.hpp"

namespace heed {

/// Consecutive entries of a row list that belong to one head of one batch entry.
struct RowTask {
  std::size_t first = 0;
  std::size_t count = 0;
};

inline std::vector<RowTask> split_rows(std::span<const RowIndex> rows, std::size_t most) {
  std::vector<RowTask> tasks;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool same = !tasks.empty() && tasks.back().count < most && rows[i].batch == rows[tasks.back().first].batch &&
                      rows[i].head == rows[tasks.back().first].head;
    if (same) {
      ++tasks.back().count;
    } else {
      tasks.push_back({i, 1});
    }
  }
  return tasks;
}

/// From the first key that any of some rows sees to the last.
inline KeyRange keys_of_rows(const Workload& workload, std::span<const RowIndex> rows) {
  KeyRange all;
  bool any = false;
  for (const RowIndex& row : rows) {
    const KeyRange seen = workload.keys_of(row.row);
    if (seen.is_empty()) continue;
    all = any ? KeyRange{std::min(all.begin, seen.begin), std::max(all.end, seen.end)} : seen;
    any = true;
  }
  return all;
}

/// What of a range lies in the tile of `count` keys from `tile` on, counted from there.
inline KeyRange keys_of_tile(const KeyRange& keys, std::int64_t tile, std::int64_t count) {
  return {std::clamp<std::int64_t>(keys.begin - tile, 0, count), std::clamp<std::int64_t>(keys.end - tile, 0, count)};
}

}  // namespace heed

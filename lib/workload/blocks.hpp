/// Block-sparse workloads: the text of a pattern, the lists of blocks that it stands for, and the scores they leave.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed {

/// Lists of the blocks of keys that blocks of rows see, as FlexAttention's kv_num_blocks and kv_indices.
struct BlockLists {
  std::int64_t batch = 1;                 ///< 1 where entries share them
  std::int64_t heads = 1;                 ///< 1 where heads share them
  std::int64_t rows = 0;                  ///< blocks of rows
  std::int64_t most = 0;                  ///< numbers that a list has room for: one more than the longest takes
  std::vector<std::int32_t> counts = {};  ///< (batch, heads, rows)
  std::vector<std::int32_t> numbers =
      {};  ///< (batch, heads, rows, most), in order; behind a list a block that it has not

  /// Which list is that of a block of rows.
  [[nodiscard]] std::size_t list(std::int64_t entry, std::int64_t head, std::int64_t row_block) const {
    return static_cast<std::size_t>(((batch == 1 ? 0 : entry) * heads + (heads == 1 ? 0 : head)) * rows + row_block);
  }
  [[nodiscard]] bool has(std::int64_t entry, std::int64_t head, std::int64_t row_block, std::int64_t key_block) const;
};

/// The lists of a workload that has blocks. A block counts from the row's own key, which is aligned to the bottom right
/// unless the mask is at the top left. Entries with lengths of their own take those of the longest.
BlockLists block_lists(const Workload& workload);

/// Scores that lists and mask leave, over all heads and entries.
double listed_scores(const Workload& workload);

/// Whether any part names blocks; else all are seen.
bool names_any_block(const BlockPattern& pattern);
/// "128/window1+random2@7/h"
std::string to_string(const BlockPattern& pattern);
/// @throws Error(invalid_workload); `whole` is the workload's text
BlockPattern parse_block_pattern(std::string_view whole, std::string_view text);
/// What is wrong with a workload's blocks; "" for nothing.
std::string wrong_blocks(const Workload& workload);

}  // namespace heed

/// fwd_cpu with columns of the head dim in the lanes: how a launch is divided, and the memory that it needs. Host and
/// program compute both by these functions.
#pragma once

#include "cpu/config.hpp"

namespace heed::cpu {

/// Blocks from which on keys are no longer divided: two for each thread of the largest CPU, and partial sums stay below
/// 17 MiB at 16 rows of head dim 512.
inline constexpr long long kEnoughBlocks = 512;

/// Query rows that read one key head: those of all its query heads, one head after another (FlashAttention's pack_gqa).
constexpr long long packed_rows(int len_q, int group_size) {
  return static_cast<long long>(len_q) * group_size;
}

/// Blocks of a launch before keys are divided: block_m packed rows of one key head each.
constexpr long long decode_units(const Config& config, long long batch, long long heads_kv, long long rows) {
  return batch * heads_kv * ((rows + config.block_m - 1) / config.block_m);
}

/// Parts that the keys of a block are divided into (split-KV; FlashDecoding, https://pytorch.org/blog/flash-decoding).
/// Host and program may count different keys, as a program's launch has none in front of the first that a row sees:
/// fewer keys have no more parts, and blocks beyond the last part have nothing to do.
constexpr long long decode_splits(const Config& config, long long units, long long len_k) {
  if (config.split_keys == 0 || units == 0) return 1;
  const long long by_keys = (len_k + config.split_keys - 1) / config.split_keys;
  const long long by_blocks = kEnoughBlocks / units;
  const long long splits = by_keys < by_blocks ? by_keys : by_blocks;
  return splits < 1 ? 1 : splits;
}

/// Columns of a row in scratch and workspace: whole vectors of any width.
constexpr int decode_columns(int head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// Floats of the partial sums of one part: of each row its columns, and its maximum and sum, in 64 bytes.
constexpr long long partial_row_floats(int head_dim) {
  return decode_columns(head_dim) + 16;
}
constexpr long long partial_floats(const Config& config, int head_dim, long long rows) {
  return (rows < config.block_m ? rows : config.block_m) * partial_row_floats(head_dim);
}

/// Scratch of one thread, in floats, each part a multiple of 16 floats (64 bytes).
struct DecodeScratch {
  long long query;    ///< (block_m, columns): Q, scaled
  long long out;      ///< (block_m, columns): O, not yet divided by the row sums
  long long sum;      ///< (block_m, 16): the sums of each lane
  long long maximum;  ///< (block_m)
  long long spans;    ///< (block_m, 2) ints: the keys that each row sees
  long long scores;   ///< (block_m, block_n)
  long long offsets;  ///< (2, block_n) 64-bit numbers: where rows of K and V in pages begin
  long long keys;     ///< (block_n, columns): K converted to fp32; unused where products read it as it lies in memory
  long long values;   ///< (block_n, columns): the same for V
  long long total;
};

/// Whether products read K and V as they lie in memory: whole vectors, without scale factors.
constexpr bool reads_in_place(const Problem& problem, int lanes) {
  return problem.head_dim % lanes == 0 && !problem.inputs.quantised;
}

constexpr DecodeScratch decode_scratch(const Config& config, const Problem& problem, int lanes) {
  const long long rows = (config.block_m + 15) / 16 * 16;
  const long long columns = decode_columns(problem.head_dim);
  const long long keys = (config.block_n + 15) / 16 * 16;
  const long long converted = reads_in_place(problem, lanes) ? 0 : keys * columns;
  DecodeScratch plan{};
  plan.query = 0;
  plan.out = plan.query + rows * columns;
  plan.sum = plan.out + rows * columns;
  plan.maximum = plan.sum + rows * 16;
  plan.spans = plan.maximum + rows;
  plan.scores = plan.spans + rows * 2;
  plan.offsets = plan.scores + rows * keys;
  plan.keys = plan.offsets + (problem.features.pages ? keys * 4 : 0);
  plan.values = plan.keys + converted;
  plan.total = plan.values + converted;
  return plan;
}

}  // namespace heed::cpu

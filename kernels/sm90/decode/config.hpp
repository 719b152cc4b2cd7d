/// fwd_sm90_decode: the knobs, what is legal, the resources a config takes, and which block and group holds which rows
/// and keys. Shared by the host, nvcc and NVRTC; all of it constexpr, so that the host can test what no GPU is needed
/// for.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/named_barriers.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/contract.hpp"
#include "kernels/element.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/packed_rows.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_decode {

/// Where the line of all tiles may be cut.
enum class SplitPoints {
  anywhere,       ///< into as many equal ranges as blocks run at a time
  at_work_tiles,  ///< where jobs begin, and every job into as many parts, where that leaves 15 of 16 blocks
};

/// What a block's groups of warps divide among themselves.
enum class GroupSplit {
  kv_tiles,  ///< every group takes whole tiles in turn; partial results of all groups meet at the end
  columns,   ///< all take every tile: each the scores of some keys, then some columns of the output
};

/// One point of the space. Fields change speed, never results beyond the rounding the gate allows.
struct Config {
  int block_m = 8;           ///< packed rows a thread block: 8, 16, 32 or 64; up to 16 are one fragment
  int block_n = 32;          ///< keys a tile
  int kv_groups = 4;         ///< groups of warps that hold the same rows and take the block's tiles of keys in turn
  int stages = 12;           ///< tiles of K and V a block has in shared memory or under way
  int min_blocks = 1;        ///< thread blocks a multiprocessor, which registers and the plan leave room for
  int l2_promotion = 0;      ///< bytes that the L2 fetches at once where a copy misses: TensorMapSpec::l2_bytes
  int l2_prefetch_kib = 64;  ///< KiB of keys and values that the L2 is asked for before the first copies
  int merge_warps = 2;       ///< warps that merge partial results while the others go on
  GroupSplit group_split = GroupSplit::kv_tiles;
  SplitPoints split_points = SplitPoints::at_work_tiles;
  bool producer_warp = true;  ///< one warp asks for all copies; else every group, then one warp, for its own
  bool evict_first = true;    ///< the L2 gives lines of K and V up before any other: for keys that are read once
  bool pdl = true;            ///< the next launch may set itself up while this one runs, where it is launched so
  int max_splits = 0;         ///< blocks that share the keys of a tile of rows at most; 0: as many as run at a time
  attention::Exp2 exp2{};
  attention::Rescale rescale{};
  constexpr bool operator==(const Config&) const = default;
};

inline constexpr int kStateWords = 8;  ///< of the row_max and row_sum of a row in global memory
inline constexpr int kWarpRows = 16;   ///< rows of a fragment, and of a warp

using tile::ceil_div;
using tile::divide;
using tile::least;
using tile::packed_row;
using tile::PackedRow;

/// Of an element of K and of V: both are quantised or neither is.
HEED_HOST_DEVICE constexpr int key_bytes(const Problem& problem) {
  return bytes_of(k_element(problem));
}

/// Columns of tiles and accumulators: the head dim up to whole boxes. Copies fill the rest with zeros. A row of a box
/// has 128 bytes, of 8-bit elements and head dims up to 64 it has 64.
HEED_HOST_DEVICE constexpr int padded_dim(int head_dim, int key_bytes = 2) {
  const int columns = key_bytes == 1 && head_dim > tile::kBoxColumns ? tile::kBoxRowBytes : tile::kBoxColumns;
  return ceil_div(head_dim, columns) * columns;
}
HEED_HOST_DEVICE constexpr int padded_dim(const Problem& problem) {
  return padded_dim(problem.head_dim, key_bytes(problem));
}
/// Of a box of K or V.
/// @param dim padded_dim
HEED_HOST_DEVICE constexpr int box_columns(int dim, int key_bytes) {
  return key_bytes == 1 && dim > tile::kBoxColumns ? tile::kBoxRowBytes : tile::kBoxColumns;
}

// ---------------------------------------------------------------------------------------------- rows

/// Of block_m rows, that the packed rows of one key head make.
HEED_HOST_DEVICE constexpr int row_tiles(const Config& c, int group_size, int len_q) {
  return ceil_div(group_size * len_q, c.block_m);
}

/// One tile of rows with all its keys: what a result needs.
struct Job {
  int batch;
  int kv_head;
  int first;       ///< packed row
  int rows;        ///< real ones, 1 to block_m
  int keys_end;    ///< keys that some row sees; what lies beyond may hold NaN and is not used
  int keys_plain;  ///< keys that every row sees: below, no mask is needed
};

/// Where a job lies.
struct JobPlace {
  int batch;
  int head;  ///< counts key heads and, within each, tiles of rows
};

/// `index`: (batch * heads_kv + kv_head) * row_tiles + row tile.
HEED_HOST_DEVICE constexpr JobPlace place_of_job(const Config& c, const ForwardParams& p, int index) {
  const int heads = p.heads_kv * row_tiles(c, p.group_size, p.len_q);
  const int batch = p.batch == 1 ? 0 : divide(index, heads);
  return {batch, index - batch * heads};
}

HEED_HOST_DEVICE constexpr Job job_at(const Config& c, MaskKind mask, const ForwardParams& p, const JobPlace& place) {
  const int tiles = row_tiles(c, p.group_size, p.len_q);
  Job job{};
  job.batch = place.batch;
  job.kv_head = tiles == 1 ? place.head : divide(place.head, tiles);
  job.first = (place.head - job.kv_head * tiles) * c.block_m;
  job.rows = least(c.block_m, p.group_size * p.len_q - job.first);
  job.keys_end = visible_keys(mask, has_right_bound(mask) ? divide(job.first + job.rows - 1, p.group_size) : 0,
                              p.right_offset, p.len_k);
  job.keys_plain =
      visible_keys(mask, has_right_bound(mask) ? divide(job.first, p.group_size) : 0, p.right_offset, p.len_k);
  return job;
}

/// Keys that some row of the job does not see at the left, under a mask with a left bound: from there on, no row has
/// any. Packed rows are few, so the tiles of keys begin with key 0 all the same.
HEED_HOST_DEVICE constexpr int keys_hidden(MaskKind mask, const ForwardParams& p, const Job& job) {
  return has_left_bound(mask)
             ? hidden_keys(mask, divide(job.first + job.rows - 1, p.group_size), p.left_offset, p.len_k)
             : 0;
}

// ---------------------------------------------------------------------------------------------- keys

/// Tiles of keys of every job: as many as the row that sees most needs, and one where none sees any.
HEED_HOST_DEVICE constexpr int tiles_of_job(const Config& c, MaskKind mask, int len_q, int right_offset, int len_k) {
  const int keys = visible_keys(mask, len_q - 1, right_offset, len_k);
  return ceil_div(keys > 0 ? keys : 1, c.block_n);
}

/// All tiles of all jobs, one job after the other, are one line, cut into one range a block: all blocks get the same
/// number of tiles or one more.
///
///   3 jobs of 5 tiles, 4 blocks     | 0 1 2 3 4 | 0 1 2 3 4 | 0 1 2 3 4 |
///                                     block 0 |  block 1  |  2  |  3
///
/// A block's tiles of one job are a segment. A segment that is a whole job gives the result; others give partial
/// results, which one of the job's blocks adds up. Where the number of blocks is a multiple of that of jobs, every job
/// is cut alike, so that a block has one segment:
///
///   3 jobs of 5 tiles, 6 blocks     | 0 1 2 3 4 | 0 1 2 3 4 | 0 1 2 3 4 |
///                                     0   |  1    2   |  3    4   |  5
struct Share {
  int each;       ///< tiles of every block
  int more;       ///< blocks that have one more: the first ones, of all or of a job
  int job_tiles;  ///< all of a job
  int parts;      ///< blocks a job, where every job is cut alike; else 0

  HEED_HOST_DEVICE constexpr int first_tile(int block) const {
    const int job = parts == 0 ? 0 : divide(block, parts);
    const int within = block - job * parts;
    return job * job_tiles + within * each + least(within, more);
  }
  HEED_HOST_DEVICE constexpr int tiles(int block) const { return first_tile(block + 1) - first_tile(block); }
  HEED_HOST_DEVICE constexpr int block_of(int tile) const {
    const int by_more = more * (each + 1);
    return tile < by_more ? divide(tile, each + 1) : more + divide(tile - by_more, each);
  }
  HEED_HOST_DEVICE constexpr int first_block(int job) const {
    return parts == 0 ? block_of(job * job_tiles) : job * parts;
  }
  HEED_HOST_DEVICE constexpr int last_block(int job) const {
    return parts == 0 ? block_of((job + 1) * job_tiles - 1) : (job + 1) * parts - 1;
  }
};

/// `blocks` is at most jobs * job_tiles.
HEED_HOST_DEVICE constexpr Share share(const Config& c, int jobs, int job_tiles, int blocks) {
  const int parts = c.split_points == SplitPoints::at_work_tiles && blocks % jobs == 0 ? divide(blocks, jobs) : 0;
  const int all = parts == 0 ? jobs * job_tiles : job_tiles;
  const int ranges = parts == 0 ? blocks : parts;
  const int each = divide(all, ranges);
  return {each, all - each * ranges, job_tiles, parts};
}

/// The grid of so many blocks. Where every job is cut alike, (parts, key heads and their tiles of rows, batch), so that
/// a block finds its job without a division: there were five of them, one after the other, before the first copy.
HEED_HOST_DEVICE constexpr attention::Grid3 grid_of(const Config& c, int batch, int heads, int blocks) {
  const int jobs = batch * heads;
  if (c.split_points != SplitPoints::at_work_tiles || blocks % jobs != 0) return {static_cast<unsigned>(blocks), 1, 1};
  return {static_cast<unsigned>(blocks / jobs), static_cast<unsigned>(heads), static_cast<unsigned>(batch)};
}

/// How many blocks a launch has where `places` run at a time: all that have a tile, or a few fewer that need to merge
/// less. Reading keeps the memory busy from 15 of 16 multiprocessors as from all.
HEED_HOST_DEVICE constexpr long long blocks_of(const Config& c, long long jobs, long long job_tiles, long long places) {
  const long long splits = c.max_splits > 0 && c.max_splits < job_tiles ? c.max_splits : job_tiles;
  const long long most = places < jobs * splits ? places : jobs * splits;
  if (c.split_points == SplitPoints::anywhere) return most;
  long long blocks = most;
  if (jobs <= most) {
    blocks = most - most % jobs;
  } else {
    while (jobs % blocks != 0) --blocks;
  }
  return 16 * blocks >= 15 * most ? blocks : most;
}

/// Rows of a box: those of a tile of keys, or as many of them as lie in one page wherever the tile begins.
/// @param page_size a multiple of 8; 0: keys do not lie in pages
HEED_HOST_DEVICE constexpr int rows_of_box(const Config& c, int page_size) {
  if (page_size == 0) return c.block_n;
  int rows = c.block_n;  // a power of two
  while (page_size % rows != 0) rows /= 2;
  return rows;
}
inline constexpr int kLeastPage = 8;  ///< keys: eight rows are the least that a box's swizzle repeats after

// ---------------------------------------------------------------------------------------------- resources

HEED_HOST_DEVICE constexpr bool by_columns(const Config& c) {
  return c.group_split == GroupSplit::columns;
}
HEED_HOST_DEVICE constexpr int warps_per_group(const Config& c) {
  return by_columns(c) || c.block_m <= kWarpRows ? 1 : c.block_m / kWarpRows;
}
/// By columns, rows are the columns of a fragment, eight at a time; keys and output columns are its rows.
inline constexpr int kRowsAtATime = 8;
HEED_HOST_DEVICE constexpr int row_groups(const Config& c) {
  return c.block_m / kRowsAtATime;
}
/// Fragments of 16 output columns a warp, by columns.
/// @param dim padded_dim, here and below
HEED_HOST_DEVICE constexpr int column_fragments(const Config& c, int dim) {
  return dim / (16 * c.kv_groups);
}
/// What named barriers are for.
enum class NamedBarrier {
  mbarriers_set,  ///< all threads: the mbarriers exist
  weights,        ///< by columns: the warps that compute have put their weights
  partials,       ///< by tiles: a segment's partial results are put
  room,           ///< by tiles: they are taken
  mergers,        ///< by tiles: the warps that merge
};

HEED_HOST_DEVICE constexpr attention::NamedBarriers<NamedBarrier, 5> named_barriers(const Config& c) {
  using enum NamedBarrier;
  attention::NamedBarriers<NamedBarrier, 5> b;
  b[mbarriers_set] = {4, 1};
  if (by_columns(c)) {
    b[weights] = {1, 1};
  } else {
    b[partials] = {1, 1};
    b[room] = {2, 1};
    b[mergers] = {3, 1};
  }
  return b;
}

/// Threads that compute. One more warp may ask for copies, others merge.
HEED_HOST_DEVICE constexpr int consumers(const Config& c) {
  return 32 * warps_per_group(c) * c.kv_groups;
}
HEED_HOST_DEVICE constexpr int merging_threads(const Config& c) {
  return 32 * c.merge_warps;
}
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return consumers(c) + (c.producer_warp ? 32 : 0) + merging_threads(c);
}

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | stage 0 K, V | stage 1 K, V | ... | partial O, fp32 | (row_max, sum) | barriers | is last |
///
/// Nothing shares a place: the next segment's tiles arrive while the last one's partials meet. Tile t of a block lies
/// in stage t % stages and is taken by group t % groups. Stages are a multiple of groups, so that a stage is always the
/// same group's: a barrier shows the parity of its phase only, which a group that did not see every phase would
/// misread.
///
/// By columns the partials' place is taken by
///
///   | ... | P of two tiles, 16 bits | row maxima | barriers | counted | is last |
///
struct SharedPlan {
  int tile_bytes;     ///< K or V of one stage: boxes of box_columns, one behind the other
  int weights;        ///< by columns: (2, row groups, block_n, 8) 16-bit, P of one tile and of the next
  int row_maxima;     ///< by columns: (groups, block_m) fp32, maxima of each warp's keys
  int partial_out;    ///< (groups, block_m, partial_pitch) fp32
  int partial_pitch;  ///< floats; 4 more than the head dim, so that rows start in different banks
  int row_state;      ///< (groups, block_m, 2) fp32
  int barriers;       ///< (full, empty, by columns full of values; stages), 8 bytes each
  int ending;         ///< 8 bytes, of the segment that goes on in the next block: its last tiles are there
  int counted;        ///< by columns: (2), 8 bytes each, of the block's first segment and of its last
  int is_last;        ///< (2), 4 bytes each: by columns of these segments, else the first
  int total;
};

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int dim, int key_bytes = 2) {
  SharedPlan plan{};
  plan.tile_bytes = c.block_n * dim * key_bytes;
  const int ring_end = c.stages * 2 * plan.tile_bytes;
  plan.weights = ring_end;
  plan.row_maxima = plan.weights + 2 * c.block_m * c.block_n * 2;
  plan.partial_out = ring_end;
  plan.partial_pitch = dim + 4;
  plan.row_state = plan.partial_out + c.kv_groups * c.block_m * plan.partial_pitch * 4;
  plan.barriers =
      by_columns(c) ? plan.row_maxima + c.kv_groups * c.block_m * 4 : plan.row_state + c.kv_groups * c.block_m * 2 * 4;
  plan.ending = plan.barriers + (by_columns(c) ? 3 : 2) * c.stages * 8;
  plan.counted = plan.ending + 8;
  plan.is_last = plan.counted + 2 * 8;
  plan.total = plan.is_last + 16;
  return plan;
}

/// The 32-bit words in global memory through which blocks hand each other partial results, zero before and after each
/// launch, so that launches of any shape may share them:
///
///   | arrivals, one a block, padded to 8 | place 0 | place 1 | ...
///
///   a place, by tiles     a row: partial O (dim) and 4 times (row_max, sum)
///   a place, by columns   eight rows: a warp: a fragment of 16 columns: a lane's 4 elements; then, four times, the
///                         (row_max, sum) of two rows
///
/// A job's arrivals are counted at its first block: a block begins at most one job that another ends. What is written
/// at once is whole sectors of 32 bytes, which is why (row_max, sum) are there four times: the L2 reads a sector that
/// is written in part from memory first. A block has two places: 2 * block for the segment whose job began in an
/// earlier block, 2 * block + 1 for the one whose job ends in a later block. Rows are the real ones of the largest tile
/// of rows.
struct Words {
  int blocks;
  int place_words;

  HEED_HOST_DEVICE constexpr long long place(int index) const {
    return (blocks + 7) / 8 * 8 + static_cast<long long>(index) * place_words;
  }
  HEED_HOST_DEVICE constexpr long long total() const { return place(2 * blocks); }
};

/// By tiles: of a row.
HEED_HOST_DEVICE constexpr int row_words(int dim) {
  return dim + kStateWords;
}
/// By columns: of a warp, for eight rows.
HEED_HOST_DEVICE constexpr int warp_words(const Config& c, int dim) {
  return 128 * column_fragments(c, dim) + 16;
}
/// `rows`: the real ones of the largest tile of rows.
HEED_HOST_DEVICE constexpr Words words_of(const Config& c, int dim, int blocks, int rows) {
  return {blocks,
          by_columns(c) ? ceil_div(rows, kRowsAtATime) * c.kv_groups * warp_words(c, dim) : rows * row_words(dim)};
}

/// Into how many parts the block that merges divides the partials, so that all its threads have something to add: each
/// part is added up by other threads, and the parts then meet in shared memory, where there is room for `groups`.
HEED_HOST_DEVICE constexpr int merge_parts(const Config& c, int dim, int rows, int partials) {
  const int parts = least(divide(merging_threads(c), rows * (dim / 4)), least(c.kv_groups, partials));
  return parts > 1 ? parts : 1;
}

/// Registers a thread needs: output and score accumulators, P packed beside the scores, Q, and 48 for addresses, row
/// state and the job: with 40 instead of 48, configs of 168 registers spilled up to 32 bytes. `beside`: ends of the
/// rows' keys, and what a merge of four warps holds of them; without, NVRTC 13.0 spilled 4 to 32 bytes. Biases take
/// pointers, and more beside ALiBi's slopes or an entry's own numbers: 4 to 68 bytes were spilled.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, const Problem& problem) {
  const int dim = padded_dim(problem);
  const int polynomial = c.exp2 == attention::Exp2{} ? 0 : 4;
  int beside = 0;
  if (dim >= 128 && by_columns(c)) beside = has_right_bound(problem.mask) && c.block_m == 32 ? 16 : 0;
  if (dim >= 128 && !by_columns(c))
    beside = (c.block_m >= 32 ? 4 : 0) + (has_right_bound(problem.mask) && c.merge_warps == 4 ? 13 : 0);
  const Features& f = problem.features;
  if (f.bias) beside += 4;
  if (f.bias && (f.alibi || f.lengths || f.pages)) beside += by_columns(c) ? 4 * row_groups(c) : 5 + c.block_n / 4;
  // Of head dims beyond 128 two groups of rows spilled up to 100 bytes beside an entry's own numbers, 8 beside biases.
  if (dim > 128 && c.block_m > 8 && (f.bias || f.lengths || f.pages)) beside += 16;
  // Factors of keys, rows and columns of V beside a head dim of 256 spilled 32 bytes of two groups of rows.
  if (key_bytes(problem) == 1 && dim > 128 && c.block_m > 8) beside += 16;
  if (by_columns(c)) {
    const int fragments = column_fragments(c, dim);
    const int a_row_group = dim / 8 + 4 * fragments + 4 + c.block_n / c.kv_groups / 4 + c.block_n / 8;
    return row_groups(c) * a_row_group + fragments * c.block_n / 4 + 48 + polynomial + beside;
  }
  return dim / 2 + c.block_n / 2 + c.block_n / 4 + dim / 4 + 48 + polynomial + beside;
}

/// Registers a thread may use so that min_blocks blocks fit.
HEED_HOST_DEVICE constexpr int registers_allowed(const Config& c) {
  return tile::registers_at_launch(threads(c), c.min_blocks);
}

/// Partials of other blocks that a block asks for at once where it merges: each takes four registers of a thread, and a
/// lane of those that have a row (dim / 4) its row maximum and sum.
HEED_HOST_DEVICE constexpr int merge_batch(const Config& c, int dim) {
  return least(registers_allowed(c) > 168 ? 20 : registers_allowed(c) > 144 ? 8 : 6, dim / 4);
}

}  // namespace heed::sm90_decode

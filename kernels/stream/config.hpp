/// fwd_sm90_stream: the knobs, what is legal and the resources a config takes. Shared by the host, nvcc and NVRTC.
///
/// Words of this family:
///   row group   a warpgroup (128 threads) with 64 query rows of its own
///   key group   the row groups of one block that share a part of the keys; with 2, a block holds every row twice
///   part        what shares the keys of a row with others: a key group, or a block of a cluster
///   key tile    the keys of one score product
///   turn        what one row group multiplies at a time: the scores of a tile, and the values of one before it
///   stage       a place in a key group's ring: the keys and the values of one turn, which are not of the same tile
///   row tile    the query rows of one block at a time: 64 a row group, neighbours unless mirrored
#pragma once

#include "kernels/contract.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::stream {

inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;
inline constexpr int kStepKeys = 16;  ///< what one probability-value product contracts

/// Which row tiles a block works on.
enum class Schedule {
  one_tile,    ///< one: as many blocks as row tiles
  persistent,  ///< every gridDim.x-th: as many blocks as fit the device at once
  dynamic,     ///< the next that no block has taken, by a counter in global memory
};

/// What a row group's exponentials run beside, of its own products.
enum class Overlap {
  nothing,   ///< products of other row groups only: one tile's scores and probabilities in registers
  values,    ///< the values of the last tile: no more registers, as exponentials take their scores' place
  products,  ///< the scores of the next tile and the values of the last: two tiles' scores and probabilities
};

/// The order in which the two products go to the tensor cores.
enum class ProductOrder { values_first, scores_first, alternating };

/// What is subtracted from scores before the exponential.
enum class Reference {
  exact,       ///< the maximum so far, with the output rescaled where it grew
  first_tile,  ///< that of the first tiles: softmax does not depend on the value subtracted. A warp whose sums leave
               ///< the range of 16 bits takes the tile again with its maximum
  first_keys,  ///< the same, but of the first 16 keys of the first tile
};

/// When a row group's products go to the tensor cores.
enum class Turns {
  any,       ///< as soon as their operands are there
  in_order,  ///< after those of the row group before it, so that one's exponentials run beside the others' products
};

/// Who starts the copies into shared memory.
enum class Producer {
  own_warp,   ///< a warp that does nothing else
  own_group,  ///< a warpgroup of which one thread does it and which leaves its registers to the others (setmaxnreg)
};

/// When the next launch may start its set-up (programmatic dependent launch).
enum class Trigger {
  none,         ///< not at all: no launch of this config can be a dependent one
  last_copies,  ///< when a block's last copies are under way
};

/// How finished rows are written.
enum class Store {
  pairs,       ///< 4 bytes a lane, as the accumulators lie
  pieces,      ///< 16 bytes a lane, after a transposition over four lanes: 64 bytes of a row at once
  rows,        ///< whole lines of 128 bytes, by way of shared memory
  aimed_rows,  ///< the same; where they go is worked out beside the first copies, and kept in shared memory
  boxes,       ///< the same lines by bulk copies, which one lane of a warp starts
};

/// The order of row tiles. Under a causal mask the last rows, which see most keys, come first where row tiles differ.
enum class TileOrder {
  rows_first,   ///< one head after the other: blocks that run together share keys
  heads_first,  ///< the same rows of all heads that fit the L2 together, or with Schedule::one_tile of all: the longest
                ///< row tiles first
  mirrored,     ///< one head after the other; row groups take rows from the head's start and end by turns, so that row
                ///< tiles are equal under a causal mask
  folded,       ///< the longer half of all heads' row tiles, longest first, then the others, shortest first: where two
                ///< blocks share a multiprocessor, a long one meets a short one
};

/// What becomes of key tiles that only one of two mirrored row groups sees.
enum class Pairs {
  apart,     ///< they are that one's: under a causal mask it works on long after the other is done
  together,  ///< both take them, every other tile each; the one with fewer keys before its own, and hands what it has
             ///< of the other's rows over through shared memory
};

/// What the L2 may give up before other lines.
enum class EvictFirst {
  none,
  queries,  ///< queries: one block reads them, once
  passing,  ///< queries and outputs, which no one reads again
  inputs,   ///< keys and values too: read once where one row tile holds all rows of a head
  all,      ///< outputs as well
};

/// When a warpgroup asks whether the tiles that its next products take have arrived.
enum class Arrival {
  at_use,  ///< in front of those products
  ahead,   ///< beside the exponentials before them; in front of them only if they had not arrived then
};

/// How a consumer finds its place in the rings and gives it back.
enum class Upkeep {
  branches,    ///< operands by their addresses, freed by one lane in a branch
  conditions,  ///< operands counted on from the first stage's, freed under a condition among the exponentials
};

/// When the four lanes of a row add up what each of them has summed.
enum class Sums {
  at_end,         ///< behind all products
  beside_values,  ///< beside the last of them
};

/// How far ahead of its exponentials, or how far behind, a tile's other instructions stand in the source, in steps of
/// 16 keys. ptxas moves them again, and ends elsewhere: the same work takes up to 5% more or less.
enum class Scaling {
  at_use,      ///< scores are scaled, and the reference is subtracted, where they are exponentiated
  step_ahead,  ///< a step earlier
  tile_ahead,  ///< in front of all exponentials of the tile
};
enum class Packing {
  at_once,     ///< probabilities are rounded as soon as they are there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};
enum class Adding {
  at_once,     ///< probabilities are summed as soon as they are there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};

/// Where exponentials run beside products (Overlap::products): when a warp asks whether its probabilities overflow,
/// which sends it into the exact softmax.
enum class Vote {
  at_once,         ///< as it has them
  after_products,  ///< once the products beside them are done: the way to the next ones has the branch, but the wait
                   ///< for these hides the vote
};

/// Where exponentials run beside products: how a tile that some row does not see whole leaves the usual way.
enum class Masking {
  ahead,      ///< in front of its exponentials, by a branch that ptxas moves nothing across
  with_vote,  ///< as if its probabilities had overflown: its exponentials are taken again, from hidden scores
  apart,      ///< the same as ahead, but rows of which it is only the first tile have a program without
};

struct Config {
  int row_groups = 2;
  int key_groups = 1;
  int cluster = 1;  ///< blocks that share a row tile, split its keys and merge
  int tile_keys = 64;
  int stages = 4;        ///< turns whose keys and values a key group keeps in shared memory
  int query_stages = 1;  ///< row tiles of queries kept in shared memory
  Schedule schedule = Schedule::one_tile;
  Overlap overlap = Overlap::nothing;
  ProductOrder product_order = ProductOrder::values_first;
  Reference reference = Reference::first_tile;
  Turns turns = Turns::any;
  Vote vote = Vote::at_once;
  Masking masking = Masking::ahead;
  Producer producer = Producer::own_warp;
  Trigger trigger = Trigger::last_copies;
  Store store = Store::pieces;
  TileOrder tile_order = TileOrder::rows_first;
  Pairs pairs = Pairs::apart;
  EvictFirst evict_first = EvictFirst::none;
  Arrival arrival = Arrival::at_use;
  Upkeep upkeep = Upkeep::branches;
  Sums sums = Sums::at_end;
  Scaling scaling = Scaling::at_use;
  Packing packing = Packing::at_once;
  Adding adding = Adding::at_once;
  int min_blocks = 1;
  constexpr bool operator==(const Config&) const = default;
};

HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return kGroupThreads * c.row_groups * c.key_groups;
}
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return consumer_threads(c) + (c.producer == Producer::own_warp ? 32 : kGroupThreads);
}
HEED_HOST_DEVICE constexpr int block_rows(const Config& c) {
  return c.row_groups * kGroupRows;
}

/// Who shares the keys of a row: key groups of one block, or blocks of a cluster.
HEED_HOST_DEVICE constexpr int parts(const Config& c) {
  return c.key_groups * c.cluster;
}

using tile::padded_dim;

// ---------------------------------------------------------------------------------------------- who works on which

struct Range {
  int first;
  int end;
  constexpr bool operator==(const Range&) const = default;
};

// What follows is unsigned where it divides and has no loops: a launch's first copies wait for it, and in a chain of
// constants of the block every instruction waits for the one before.

/// Tiles that hold so many keys.
HEED_HOST_DEVICE constexpr unsigned key_tiles(const Config& c, int keys) {
  return (static_cast<unsigned>(keys) + c.tile_keys - 1) / static_cast<unsigned>(c.tile_keys);
}
/// How many times 64 rows a head has, the last perhaps in part.
HEED_HOST_DEVICE constexpr int group_tiles(int len_q) {
  return static_cast<int>((static_cast<unsigned>(len_q) + kGroupRows - 1) / kGroupRows);
}

/// Key tiles of a part, of all the tiles that hold the first `keys` keys: as even as whole tiles allow. Of an odd
/// number the second block of a cluster has the fewer: under a causal mask the last tile is its, which takes longest.
HEED_HOST_DEVICE constexpr Range tiles_of_part(const Config& c, int keys, int part) {
  const unsigned all = key_tiles(c, keys);
  const unsigned sharers = static_cast<unsigned>(parts(c));
  const unsigned up = c.cluster > 1 ? sharers - 1 : 0;
  return {static_cast<int>((all * part + up) / sharers), static_cast<int>((all * (part + 1) + up) / sharers)};
}

/// Which 64 rows of a head, counted in 64s, a row group of row tile `index` works on; `all` there are. May lie past the
/// last.
///
///   mirrored, 2 row groups, 7 times 64 rows      | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
///                               row tile           0   1   2   3   2   1   0
HEED_HOST_DEVICE constexpr int group_tile(const Config& c, int index, int row_group, int all) {
  const int n = index * c.row_groups + row_group;
  if (c.tile_order != TileOrder::mirrored || (row_group > 0 && n >= all)) return n;
  const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
  return n % 2 == 0 ? half : all - 1 - half;
}

/// The last row of row tile `index`: the one that sees most keys.
HEED_HOST_DEVICE constexpr int last_row(const Config& c, int index, int len_q) {
  int last = (index + 1) * c.row_groups - 1;
  if (c.tile_order == TileOrder::mirrored) {
    // Of mirrored row groups the first that comes from the head's end, if there is one.
    const int all = group_tiles(len_q);
    const int n = index * c.row_groups;
    const int from_end = n | 1;
    const int half = static_cast<int>(static_cast<unsigned>(n) / 2);
    last = from_end < n + c.row_groups && from_end < all ? all - 1 - half : half;
  }
  const int end = (last + 1) * kGroupRows;
  return (end < len_q ? end : len_q) - 1;
}

/// Keys that some row of row tile `index` sees: those before this.
HEED_HOST_DEVICE constexpr int keys_seen(const Config& c, bool causal, int index, int len_q, int len_k,
                                         int causal_offset) {
  return visible_keys(causal, last_row(c, index, len_q), causal_offset, len_k);
}

/// Pairs of row groups that share their key tiles out among them.
HEED_HOST_DEVICE constexpr int pairs(const Config& c) {
  return c.pairs == Pairs::together ? c.row_groups / 2 : 0;
}

/// Key tiles that a row group of row tile `index` sees: those before this, which may be 0.
HEED_HOST_DEVICE constexpr int tiles_seen(const Config& c, bool causal, int index, int row_group, int len_q, int len_k,
                                          int causal_offset) {
  const int first = group_tile(c, index, row_group, group_tiles(len_q)) * kGroupRows;
  const int end = first + kGroupRows < len_q ? first + kGroupRows : len_q;
  return first < len_q ? static_cast<int>(key_tiles(c, visible_keys(causal, end - 1, causal_offset, len_k))) : 0;
}

/// Key tiles of a key group where one row group sees `longer` tiles and the other, of the same pair, `shorter`: as
/// even as whole tiles allow in what both multiply.
///
///   shorter 2, longer 8, 2 key groups     key tile     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
///                                         row groups     2   2   1   1   1   1   1   1
///                                         key group      0   0   0   1   1   1   1   1
HEED_HOST_DEVICE constexpr Range tiles_of_part(const Config& c, int shorter, int longer, int key_group) {
  const auto cut = [&](int group) {
    if (group == 0 || group == c.key_groups) return group == 0 ? 0 : longer;
    const unsigned groups = static_cast<unsigned>(c.key_groups);
    const int work = static_cast<int>((static_cast<unsigned>(shorter + longer) * group + groups / 2) / groups);
    return work <= 2 * shorter ? work / 2 : work - shorter;
  };
  return {cut(key_group), cut(key_group + 1)};
}

/// How many tiles the values of a turn are behind its keys:
///
///   turn               0      1      2      3      4           tiles 3, 2, 1, 0, last first
///   Overlap::products  K 3    K 2    K 1 V 3  K 0 V 2  V 1  V 0
///   otherwise          K 3    K 2 V 3  K 1 V 2  K 0 V 1  V 0
HEED_HOST_DEVICE constexpr int value_lag(const Config& c) {
  return c.overlap == Overlap::products ? 2 : 1;
}

/// Turns of a key group with so many tiles.
HEED_HOST_DEVICE constexpr int turns_of(const Config& c, int tiles) {
  return tiles > 0 ? tiles + value_lag(c) : 0;
}

/// Rows of one head and batch entry.
struct RowTile {
  int index;  ///< in row tiles
  int head;
  int batch;
  constexpr bool operator==(const RowTile&) const = default;
};

/// Bytes of K and V that are read again and again while they are in the L2: half of it on Hopper.
inline constexpr long long kResidentBytes = 32LL << 20;

/// Heads whose K and V stay in the L2 together.
HEED_HOST_DEVICE constexpr int heads_together(const Problem& problem, int len_k, int all_heads) {
  const long long bytes = 4LL * (len_k < 1 ? 1 : len_k) * problem.head_dim;
  const long long fit = kResidentBytes / bytes;
  return fit < 1 ? 1 : fit < all_heads ? static_cast<int>(fit) : all_heads;
}

/// Of Schedule::persistent under a causal mask, what block `block` takes instead of the `index`-th row tile, which is
/// its own in a wave that goes backwards: as far from the wave's end as that is from its start.
HEED_HOST_DEVICE constexpr int backwards(int index, int block, int blocks, int all) {
  const int end = index - block + blocks;
  return (end < all ? end : all) - 1 - block;
}

/// Of one_tile, whether blocks go through the heads first: a grid of (heads of a cluster each, row tiles, batch). Else
/// it is (row tiles of a cluster each, heads, batch).
HEED_HOST_DEVICE constexpr bool heads_in_x(const Config& c) {
  return c.tile_order == TileOrder::folded || c.tile_order == TileOrder::heads_first;
}

/// Of one_tile, which row tile of a head comes `x`-th: under a causal mask the longest comes first.
HEED_HOST_DEVICE constexpr int row_tile_of_block(const Config& c, bool causal, int x, int row_tiles) {
  const int longer = (row_tiles + 1) / 2;
  if (c.tile_order == TileOrder::folded && x >= longer) return x - longer;
  return causal && c.tile_order != TileOrder::mirrored ? row_tiles - 1 - x : x;
}

/// The row tile that comes `index`-th; `together` from heads_together.
HEED_HOST_DEVICE constexpr RowTile row_tile_at(const Config& c, int index, int row_tiles, int heads, int batch,
                                               int together) {
  int row = 0;
  int all_heads = 0;
  if (c.tile_order != TileOrder::heads_first) {
    all_heads = index / row_tiles;
    row = index - all_heads * row_tiles;
  } else {
    const int section = index / (row_tiles * together);
    const int within = index - section * row_tiles * together;
    const int left = heads * batch - section * together;
    const int width = left < together ? left : together;
    row = within / width;
    all_heads = section * together + within - row * width;
  }
  const int batch_index = batch == 1 ? 0 : all_heads / heads;
  return {row_tiles - 1 - row, all_heads - batch_index * heads, batch_index};
}

// ------------------------------------------------------------------------------------------------------- shared memory

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of query stage 0: row group 0, 1, .. | 1 | .. | key group 0: K of stage 0, 1, .. V of stage 0, 1, .. |
///   key group 1: .. | what key groups send each other | what row groups of a pair do | rows | lines | barriers | row
///   tiles |
struct SharedPlan {
  int q;               ///< (query_stages, row_groups, boxes, 64 rows, 128 bytes)
  int query_bytes;     ///< of one query stage
  int ring;            ///< (key_groups, {K, V}, stages, boxes, tile_keys, 128 bytes)
  int box;             ///< bytes of one box of a key tile
  int operand;         ///< bytes of K or V of one stage
  int exchange;        ///< (row_groups, key_groups): what a key group sends, its slices of the others' and two floats a
                       ///< row. In the sender's stages where it is the only one who reads those. Of two blocks of a
                       ///< cluster, what the other one sent
  int exchange_bytes;  ///< from one row group to the next
  int sender_bytes;    ///< from one sender to the next
  int help;            ///< (pairs, key_groups, help_bytes): what one row group of a pair has of the other's rows
  int help_bytes;      ///< an output, a reference and a sum, in fp32, in the order of registers: 16 bytes a thread each
  int rows;   ///< (row_groups, 4 warps, boxes, 16 rows, 128 bytes): finished rows on their way out. Where key groups
              ///< become one, lines take the place of what has been received; boxes of Schedule::one_tile that of the
              ///< queries
  int lines;  ///< (consumer threads, 16 bytes), with Store::aimed_rows: where a thread's lines go, and how
              ///< far it is from one to the next
  int barriers;
  int row_tiles;  ///< (query_stages, 16 bytes): the RowTile whose queries a stage holds; index -1: there is none left
  int total;
};

/// Barriers, 8 bytes each.
struct BarrierPlan {
  int queries;        ///< (query_stages, row_groups): a row group's queries have arrived
  int queries_freed;  ///< (query_stages): every warp has read them
  int ring;           ///< (key_groups, stages): the keys and values of a turn have arrived
  int ring_freed;     ///< (key_groups, stages): every warp of the key group is done with them
  int inbox;          ///< (row_groups), in a cluster: what the other block sends has arrived
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.queries = 0;
  b.queries_freed = b.queries + c.query_stages * c.row_groups;
  b.ring = b.queries_freed + c.query_stages;
  b.ring_freed = b.ring + c.key_groups * c.stages;
  b.inbox = b.ring_freed + c.key_groups * c.stages;
  b.count = b.inbox + (c.cluster > 1 ? c.row_groups : 0);
  return b;
}

/// Where key groups become one, each keeps a slice of the output: of two rows that a lane has, one, so that a quad of
/// lanes has 64 bytes of a row and not 32 of each; of four groups, half of that one's columns.
HEED_HOST_DEVICE constexpr int row_slices(const Config& c) {
  return parts(c) == 1 ? 1 : 2;
}
HEED_HOST_DEVICE constexpr int column_slices(const Config& c) {
  return parts(c) / row_slices(c);
}

/// Whether a key group keeps whole boxes of columns, so that finished rows can go through shared memory.
HEED_HOST_DEVICE constexpr bool keeps_boxes(const Config& c, int head_dim) {
  return padded_dim(head_dim) / column_slices(c) % tile::kBoxColumns == 0;
}
/// Whether they do, and leave as lines.
HEED_HOST_DEVICE constexpr bool writes_lines(const Config& c) {
  return c.store == Store::rows || c.store == Store::aimed_rows;
}
/// Whether finished boxes lie where the row tile's queries were, which nobody reads any more.
HEED_HOST_DEVICE constexpr bool boxes_replace_queries(const Config& c) {
  return c.store == Store::boxes && c.schedule == Schedule::one_tile;
}
/// Rows of a box that a warp writes.
HEED_HOST_DEVICE constexpr int box_rows(const Config& c) {
  return kGroupRows / 4 / row_slices(c);
}

/// What a part sends of one row group, in bytes: every slice but its own in fp32, and two floats a row. Between blocks
/// of a cluster it is 16 bits a value, and two floats for each row that is sent.
HEED_HOST_DEVICE constexpr int bytes_sent(const Config& c, int head_dim) {
  const int slice = kGroupRows * padded_dim(head_dim) / parts(c) * (c.cluster > 1 ? 2 : 4);
  return parts(c) == 1 ? 0 : (parts(c) - 1) * slice + kGroupRows * 8 / (c.cluster > 1 ? 2 : 1);
}

/// Whether it is sent by way of the sender's stages: nobody else reads those, and nothing comes into them any more.
HEED_HOST_DEVICE constexpr bool sends_in_stages(const Config& c, int head_dim) {
  const int stages = c.stages * 2 * c.tile_keys * padded_dim(head_dim) * 2;
  return c.key_groups > 1 && c.row_groups == 1 && c.schedule == Schedule::one_tile && stages >= bytes_sent(c, head_dim);
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  const int boxes = dim / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.query_bytes = c.row_groups * boxes * kGroupRows * tile::kBoxRowBytes;
  p.ring = c.query_stages * p.query_bytes;
  p.box = c.tile_keys * tile::kBoxRowBytes;
  p.operand = boxes * p.box;
  const int ring_end = p.ring + c.key_groups * c.stages * 2 * p.operand;
  const bool in_stages = sends_in_stages(c, head_dim);
  p.exchange = in_stages ? p.ring : ring_end;
  p.sender_bytes = in_stages ? c.stages * 2 * p.operand : bytes_sent(c, head_dim);
  p.exchange_bytes = in_stages ? 0 : c.key_groups * p.sender_bytes;
  const int exchange_end = ring_end + c.row_groups * p.exchange_bytes;
  p.help = exchange_end;
  p.help_bytes = (dim / 8 + 1) * 16 * kGroupThreads;
  const int help_end = p.help + pairs(c) * c.key_groups * p.help_bytes;
  p.rows = help_end;
  const bool has_rows = (writes_lines(c) && parts(c) == 1) || (c.store == Store::boxes && !boxes_replace_queries(c));
  p.lines = help_end + (has_rows ? p.query_bytes : 0);
  p.barriers = p.lines + (c.store == Store::aimed_rows ? 16 * consumer_threads(c) : 0);
  p.row_tiles = (p.barriers + 8 * barrier_plan(c).count + 15) / 16 * 16;
  p.total = p.row_tiles + 16 * c.query_stages;
  return p;
}

// ----------------------------------------------------------------------------------------------------------- registers

/// Registers a thread needs at least: output, scores, probabilities, and 28 for addresses and row state (36
/// beside the widest output). Where blocks stay and key groups merge, ptxas keeps more of the merge beside the loop, up
/// to 3/8 of the head dim; little with one box of columns and one tile's scores, twice as much with pairs. A warp that
/// multiplies scores again (Overlap::values) has operands of its own then, more where blocks stay with mirrored rows.
/// What was asked ahead is kept for two rings. Where key groups meet beside several row groups, instructions far from
/// their exponentials (Scaling, Packing, Adding) keep more alive.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  const int tiles = c.overlap == Overlap::products ? 2 : 1;
  const bool narrow = dim == tile::kBoxColumns && c.overlap == Overlap::nothing;
  const int merge = c.key_groups == 1 || c.schedule == Schedule::one_tile ? 0
                    : narrow                                              ? (pairs(c) > 0 ? 8 : 4)
                                                                          : dim * 3 / 8;
  const int counted = c.upkeep == Upkeep::branches ? 0 : dim > tile::kBoxColumns ? 8 : 4;
  const bool mirrored_stay = c.tile_order == TileOrder::mirrored && c.schedule != Schedule::one_tile;
  const int again = c.overlap != Overlap::values ? 0
                                                 : counted + (mirrored_stay ? 4 : 0) +
                                                       (dim > tile::kBoxColumns ? 16
                                                        : c.tile_keys % 64 == 0 ? 4
                                                                                : 8);
  const bool apart = c.scaling != Scaling::at_use || c.packing == Packing::at_end || c.adding != Adding::at_once;
  const int orders = apart && c.key_groups > 1 && c.row_groups > 1 ? 8 : 0;
  const int ahead = c.arrival != Arrival::ahead ? 0 : c.tile_keys % 64 == 0 ? 2 : 8;
  return dim / 2 + tiles * (c.tile_keys / 2 + c.tile_keys / 4) + merge + again + ahead + orders +
         (dim == 256 ? 36 : 28);
}

/// Registers a thread has at launch so that min_blocks blocks fit.
HEED_HOST_DEVICE constexpr int launch_registers(const Config& c) {
  return tile::registers_at_launch(threads(c), c.min_blocks);
}

/// Registers a consumer thread may use: with own_group, its share of what the producers give back.
HEED_HOST_DEVICE constexpr int registers_allowed(const Config& c) {
  const int at_launch = launch_registers(c);
  if (c.producer != Producer::own_group || at_launch == tile::kMostRegisters) return at_launch;
  return tile::registers_of_consumers(at_launch, threads(c), consumer_threads(c));
}

/// Registers that its widest product names.
HEED_HOST_DEVICE constexpr int registers_named(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  return tile::registers_named(dim > c.tile_keys ? dim : c.tile_keys);
}

/// Whether registers move from the producers to the consumers: not where every thread has as many as it can name.
HEED_HOST_DEVICE constexpr bool moves_registers(const Config& c) {
  return c.producer == Producer::own_group && launch_registers(c) < tile::kMostRegisters;
}

// ------------------------------------------------------------------------------------------------------------ legality

/// Whether row groups come in pairs whose keys differ, and key groups can be cut for all of them alike. One that takes
/// every other tile holds two turns at a time.
HEED_HOST_DEVICE constexpr bool can_pair(const Config& c) {
  return c.tile_order == TileOrder::mirrored && c.stages > 1 && c.row_groups % 2 == 0 &&
         (c.key_groups == 1 || c.row_groups == 2) && c.cluster == 1 && c.overlap != Overlap::products;
}

/// The config that makes the same program as `c` where knobs have no effect, and the nearest that fits together where
/// they contradict each other. Says nothing about shared memory and registers.
HEED_HOST_DEVICE constexpr Config canonical(Config c, const Problem& problem) {
  if (c.tile_order == TileOrder::mirrored && (!problem.causal || c.row_groups == 1))
    c.tile_order = TileOrder::rows_first;
  if (c.schedule != Schedule::one_tile || c.key_groups > 1) c.cluster = 1;
  if (c.tile_order == TileOrder::folded && (!problem.causal || c.schedule != Schedule::one_tile))
    c.tile_order = TileOrder::rows_first;
  if (c.schedule == Schedule::one_tile) {
    c.query_stages = 1;
  }
  if (c.reference == Reference::exact) c.overlap = Overlap::nothing;
  if (!can_pair(c)) c.pairs = Pairs::apart;
  if (c.row_groups == 1 || c.pairs == Pairs::together) c.turns = Turns::any;
  if (c.overlap != Overlap::products) c.vote = Vote::at_once;
  if (c.overlap != Overlap::products || !problem.causal) c.masking = Masking::ahead;
  if (c.store == Store::boxes && c.key_groups > 1 && c.schedule != Schedule::one_tile) c.store = Store::rows;
  if ((c.store == Store::boxes || writes_lines(c)) && !keeps_boxes(c, problem.head_dim)) c.store = Store::pieces;
  if (c.store == Store::aimed_rows && c.schedule != Schedule::one_tile) c.store = Store::rows;
  if (c.overlap == Overlap::values) {
    // Its exponentials take their scores' place, in an order of their own.
    c.scaling = Scaling::at_use;
    c.packing = Packing::at_once;
    c.adding = Adding::at_once;
    c.product_order = ProductOrder::scores_first;
    c.arrival = Arrival::at_use;  // it has no register left to keep an answer in, and waits for values behind scores
  }
  if (c.producer == Producer::own_group && !moves_registers(c)) c.producer = Producer::own_warp;
  return c;
}

enum class Illegal {
  no,
  head_dim,
  threads,
  tile_keys,
  overlap,
  shared_memory,
  occupancy,
  registers,
  operands,
  same_program,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  if (problem.head_dim % 8 != 0 || problem.head_dim < 8 || problem.head_dim > 256) return Illegal::head_dim;
  if (threads(c) > 1024) return Illegal::threads;
  if (c.tile_keys % kStepKeys != 0 || c.tile_keys < 32 || c.tile_keys > 128) return Illegal::tile_keys;
  if (c.overlap != Overlap::nothing && c.reference == Reference::exact) return Illegal::overlap;
  const int total = shared_plan(c, problem.head_dim).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  // The runtime keeps 1 KiB of each block's shared memory to itself.
  if (static_cast<long long>(c.min_blocks) * (total + 1024) > shared_bytes_per_processor) return Illegal::occupancy;
  if (threads(c) * c.min_blocks > 2048) return Illegal::occupancy;
  if (registers_needed(c, problem.head_dim) > registers_allowed(c)) return Illegal::registers;
  if (registers_named(c, problem.head_dim) > launch_registers(c)) return Illegal::operands;
  if (!(canonical(c, problem) == c)) return Illegal::same_program;
  return Illegal::no;
}

}  // namespace heed::stream

/// fwd_sm90: the knobs, what is legal, the resources a config takes and the order in which it works. Shared by the
/// host, nvcc and NVRTC.
///
/// Words of this family:
///   row group   a warpgroup (128 threads) with 64 query rows of its own
///   key group   the row groups of one block that share a part of the keys; with 2, a block holds every row twice
///   part        the keys of one key group of one block: cluster x key_groups parts share the keys of a row tile evenly
///   chunk       keys of one score product
///   segment     `chunks` chunks, worked on in one unrolled pass; a part is one segment or several
///   step        16 keys: what one probability-value product contracts
#pragma once

#include "kernels/contract.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90 {

inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = 128;
inline constexpr int kStepKeys = 16;

/// What is subtracted from scores before the exponential.
enum class Reference {
  exact,        ///< the maximum of every segment, with the output rescaled where it grew
  first_chunk,  ///< the maximum of the part's first chunk: softmax does not depend on the value subtracted. Where a
                ///< later score is so much larger that a sum overflows, the part is computed again, chunk by chunk
  first_keys,   ///< the same of the part's first 16 keys: found sooner, misled more often
};

/// How the sum of a row's probabilities is found.
enum class RowSum {
  adds,         ///< one addition a probability
  ones_column,  ///< from the tensor cores: V gets columns of ones
};

/// When the threads of a part of one segment tell each other that its first keys misled one of them.
enum class Vote {
  before_sending,  ///< before the part is merged with others
  after_writing,   ///< once rows are written: infinite log-sum-exps have told the other parts, and all compute again
};

/// Where keys that a row does not see are taken out, under a causal mask.
enum class Mask {
  scores,         ///< before the exponentials, in a branch around chunks that every row sees whole
  probabilities,  ///< after them, without a branch, where the mask's edge runs through the corners of chunks of 64; a
                  ///< launch where it does not takes the other way
};

/// Whose keys a query head reads.
enum class KeyHeads {
  shared,  ///< its group's: found by a division, for which the launch's first key copy waits
  own,     ///< its own; for workloads whose heads do not share any
};

/// Who copies the queries of blocks that share a row tile.
enum class Multicast {
  none,     ///< every block all of them, before anything else
  queries,  ///< every block its share of them to all blocks of the cluster, once these have set up their barriers
};

/// What the thread that starts the copies has worked out before it asks for the first. Parameters are constants that
/// nobody has read yet: it waits for each line of them.
enum class Opening {
  lengths_first,  ///< which rows and keys are the block's, beside everybody; then where the tensor maps lie
  maps_first,     ///< the same, but where the maps lie is asked for beside the lengths
  queries_first,  ///< where the maps lie, and the queries are asked for; then which keys, by itself
};

/// In which precision partial outputs travel between the parts of a row tile.
enum class Exchange { half, single };

/// What a block of a cluster waits for before it weighs the parts' results.
enum class Weights {
  with_slices,  ///< everything that the other parts send
  first,        ///< their log2-sum-exps, which are sent first and have a barrier of their own
};

/// When a part multiplies the columns of its slice, which it keeps.
enum class KeptColumns {
  with_sent,      ///< beside those that it sends
  while_sending,  ///< after all of those, while they travel
};

/// Where exponentials and conversions may go.
enum class Placing {
  in_order,  ///< where they stand in the source, as far as that is PTX's to say
  free,      ///< wherever the compiler likes
};

/// Who starts the copies into shared memory.
enum class Producer {
  own_warp,    ///< a warp that does nothing else
  own_group,   ///< a warpgroup of which one thread does it and which leaves its registers to the others (setmaxnreg)
  first_warp,  ///< a thread of each key group's first warp, before its own work and between segments
};

/// When the next launch may start its set-up (programmatic dependent launch).
enum class Trigger {
  none,           ///< not at all: no launch of this config can be a dependent one
  first_scores,   ///< when the first keys have arrived
  last_products,  ///< when all products are issued
};

/// How finished rows are written.
enum class Store {
  pairs,   ///< 4 bytes a lane, as the accumulators lie
  pieces,  ///< 16 bytes a lane, after a transposition over four lanes
  boxes,   ///< the same to shared memory; from there a bulk copy for every 16 rows of 32 columns
};

/// The order of row tiles. Under a causal mask the last rows see most keys.
enum class TileOrder {
  ascending,   ///< head by head, first rows first
  descending,  ///< head by head, last rows first
  folded,      ///< the longer half of all heads' row tiles, longest first, then the others, shortest first: where two
               ///< blocks share a multiprocessor, a long one meets a short one
};

/// What a program knows of its launches' sizes (Problem::sizes).
enum class Sizes {
  any,    ///< nothing: the same program for all
  fixed,  ///< lengths, heads, batch and how the mask is aligned: no constant of a launch is waited for to know them
};

/// What a program for fixed sizes holds.
enum class Programs {
  all,     ///< all that any launch may need, as programs for any sizes do
  needed,  ///< what launches of these sizes do: a quarter to nine tenths of the instructions. ptxas places the rest
           ///< otherwise then, for better or worse
};

/// Where a program for fixed sizes finds the rows of the output.
enum class Outputs {
  any,    ///< by the strides of a launch
  dense,  ///< one behind the other, in the order of the workload's layout: their addresses are constants
};

struct Config {
  int row_groups = 1;
  int key_groups = 1;
  int cluster = 2;               ///< blocks that share a row tile
  int chunk = 64;                ///< keys
  int chunks = 4;                ///< a segment
  int stages = 1;                ///< segments a key group keeps in shared memory
  int score_lead = 2;            ///< chunks whose scores are asked for before the first exponential
  int value_waits = 2;           ///< barriers for the values of a segment
  int product_steps = 2;         ///< steps of probabilities that go to the tensor cores together
  int product_start = 8;         ///< step of exponentials before which none goes
  bool late_packing = true;      ///< probabilities are rounded one step after their exponentials
  bool prefetch_scores = false;  ///< the next segment's first scores are asked for within this one
  Reference reference = Reference::first_chunk;
  Mask mask = Mask::scores;
  RowSum row_sum = RowSum::ones_column;
  Vote vote = Vote::after_writing;
  Exchange exchange = Exchange::half;
  Weights weights = Weights::with_slices;
  KeptColumns kept_columns = KeptColumns::with_sent;
  Placing placing = Placing::in_order;
  KeyHeads key_heads = KeyHeads::shared;
  Multicast multicast = Multicast::none;
  Opening opening = Opening::lengths_first;
  Producer producer = Producer::first_warp;
  Trigger trigger = Trigger::first_scores;
  Store store = Store::pieces;
  TileOrder tile_order = TileOrder::descending;
  Sizes sizes = Sizes::any;
  Programs programs = Programs::all;
  Outputs outputs = Outputs::any;
  int min_blocks = 1;
  constexpr bool operator==(const Config&) const = default;
};

HEED_HOST_DEVICE constexpr int parts(const Config& c) {
  return c.cluster * c.key_groups;
}
HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return kGroupThreads * c.row_groups * c.key_groups;
}
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  const int producers = c.producer == Producer::own_warp ? 32 : c.producer == Producer::own_group ? kGroupThreads : 0;
  return consumer_threads(c) + producers;
}
HEED_HOST_DEVICE constexpr int segment_keys(const Config& c) {
  return c.chunk * c.chunks;
}
HEED_HOST_DEVICE constexpr int segment_steps(const Config& c) {
  return segment_keys(c) / kStepKeys;
}

using tile::launch_registers;
using tile::moves_registers;
using tile::padded_dim;
using tile::registers_allowed;

/// Rows of one copy of queries.
HEED_HOST_DEVICE constexpr int query_box_rows(const Config& c) {
  return c.multicast == Multicast::queries ? kGroupRows / c.cluster : kGroupRows;
}

// ---------------------------------------------------------------------------------------------- who works on which
// keys

/// Whether the blocks of a grid go through the heads first: (heads of a cluster each, row tiles, batch). Else it is
/// (row tiles of a cluster each, heads, batch).
HEED_HOST_DEVICE constexpr bool heads_first(const Config& c) {
  return c.tile_order == TileOrder::folded;
}

/// Which row tile of a head comes `index`-th of so many.
HEED_HOST_DEVICE constexpr int row_tile_at(const Config& c, int index, int row_tiles) {
  if (c.tile_order == TileOrder::ascending) return index;
  const int longer = (row_tiles + 1) / 2;
  return c.tile_order == TileOrder::descending || index < longer ? row_tiles - 1 - index : index - longer;
}

struct Range {
  int first;
  int end;
  constexpr bool operator==(const Range&) const = default;
};

/// Chunks of part `part`, of all the chunks that hold the first `keys` keys (at most 2^31 / 16): as even as whole
/// chunks allow. Unsigned: a launch's first copy waits for this, and divisions of signed numbers by powers of two take
/// three instructions more each.
HEED_HOST_DEVICE constexpr Range chunks_of_part(const Config& c, int keys, int part) {
  const unsigned all = (static_cast<unsigned>(keys) + c.chunk - 1) / static_cast<unsigned>(c.chunk);
  const unsigned sharers = static_cast<unsigned>(parts(c));
  return {static_cast<int>(all * part / sharers), static_cast<int>(all * (part + 1) / sharers)};
}

HEED_HOST_DEVICE constexpr int segments_of(const Config& c, Range chunks) {
  return static_cast<int>(static_cast<unsigned>(chunks.end - chunks.first + c.chunks - 1) /
                          static_cast<unsigned>(c.chunks));
}

// --------------------------------------------------------------------------------------------- the order within a
// segment

HEED_HOST_DEVICE constexpr int products(const Config& c) {
  return segment_steps(c) / c.product_steps;
}

/// The step of exponentials after which product group j goes to the tensor cores. Its probabilities are packed by then.
HEED_HOST_DEVICE constexpr int product_after_step(const Config& c, int j) {
  const int last = segment_steps(c) - 1;
  int step = (j + 1) * c.product_steps - 1 + (c.late_packing ? 1 : 0);
  if (step < c.product_start) step = c.product_start;
  return step < last ? step : last;
}

/// The step of exponentials after which the scores that were not asked for at the start are.
HEED_HOST_DEVICE constexpr int late_scores_after_step(const Config&) {
  return 1;
}

// ------------------------------------------------------------------------------------------------------- shared memory

/// Room of what four lanes, two rows, send at once: 64 bytes and a gap.
inline constexpr int kQuadBytes = 80;
/// Room of 16 bytes of every thread of a row group.
HEED_HOST_DEVICE constexpr int piece_bytes() {
  return kGroupThreads / 4 * kQuadBytes;
}

/// Columns of a row that a part keeps and writes.
HEED_HOST_DEVICE constexpr int slice_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) / parts(c);
}
/// Store::boxes: what one copy writes, the rows of a warp and the columns that four lanes have of a row.
inline constexpr int kStoredRows = 16;
inline constexpr int kStoredColumns = 32;
inline constexpr int kStoredBytes = kStoredRows * kStoredColumns * 2;

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of every row group | key group 0: segment 0: K chunk 0, 1, .. V part 0, 1, .. | segment 1 | .. | key group 1:
///   .. | | ones | rows on their way out | what other parts send, for every row group of every key group | barriers |
struct SharedPlan {
  int q;              ///< (row_groups, boxes, 64 rows, 128 bytes)
  int ring;           ///< (key_groups, stages, {K, V}, segment)
  int key_box;        ///< bytes of one box of a chunk of K: (chunk, 128)
  int value_box;      ///< bytes of one box of the values behind one barrier: (segment_keys / value_waits, 128)
  int operand_bytes;  ///< K or V of one segment
  int ones;           ///< (16 rows, 128 bytes) of ones; 0 bytes without ones columns
  int rows;           ///< (key_groups, row_groups, 4 warps, slice columns / 32, 16 rows, 64 bytes) with Store::boxes
  int inbox;          ///< (key_groups, row_groups, inbox_bytes)
  int inbox_bytes;    ///< of one row group: (parts - 1, slice of a partial output), (parts - 1, 64 log-sum-exps)
  int slice_bytes;    ///< place of one sender's 64 rows of head dim / parts columns
  int sent_bytes;     ///< what the other parts send to one inbox, counted on its barrier
  int sums_bytes;     ///< and on that of its log2-sum-exps
  int barriers;
  int total;
};

/// Barriers, 8 bytes each. Of every key group: chunk k of stage s at s * chunks + k, and so on.
struct BarrierPlan {
  int q;
  int keys;    ///< (key_groups, stages, chunks): a chunk of K has arrived (the first with Q, in the first segment)
  int values;  ///< (key_groups, stages, value_waits)
  int freed;   ///< (key_groups, stages): a segment has been read; only own_warp waits for it
  int again;   ///< (key_groups): a chunk has arrived for the second computation
  int inbox;   ///< (key_groups, row_groups): every other part's share has arrived
  int sums;    ///< (key_groups, row_groups): with Weights::first, its log2-sum-exps
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.q = 0;
  b.keys = b.q + 1;
  b.values = b.keys + c.key_groups * c.stages * c.chunks;
  b.freed = b.values + c.key_groups * c.stages * c.value_waits;
  b.again = b.freed + c.key_groups * c.stages;
  b.inbox = b.again + c.key_groups;
  b.sums = b.inbox + c.key_groups * c.row_groups;
  b.count = b.sums + (c.weights == Weights::first ? c.key_groups * c.row_groups : 0);
  return b;
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  const int boxes = padded_dim(head_dim) / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.ring = c.row_groups * boxes * kGroupRows * tile::kBoxRowBytes;
  p.key_box = c.chunk * tile::kBoxRowBytes;
  p.value_box = segment_keys(c) / c.value_waits * tile::kBoxRowBytes;
  p.operand_bytes = boxes * segment_keys(c) * tile::kBoxRowBytes;
  p.ones = p.ring + c.key_groups * c.stages * 2 * p.operand_bytes;
  p.rows = p.ones + (c.row_sum == RowSum::ones_column ? kStepKeys * tile::kBoxRowBytes : 0);
  p.inbox = p.rows +
            (c.store == Store::boxes ? c.key_groups * c.row_groups * 2 * kGroupRows * slice_columns(c, head_dim) : 0);
  const int pieces = slice_columns(c, head_dim) / (c.exchange == Exchange::half ? 16 : 8);
  p.slice_bytes = pieces * piece_bytes();
  p.inbox_bytes = (parts(c) - 1) * (p.slice_bytes + kGroupRows * 4);
  const int sums = (parts(c) - 1) * kGroupRows * 4;
  p.sums_bytes = c.weights == Weights::first ? sums : 0;
  p.sent_bytes = (parts(c) - 1) * pieces * 16 * kGroupThreads + sums - p.sums_bytes;
  p.barriers = p.inbox + c.key_groups * c.row_groups * p.inbox_bytes;
  p.total = p.barriers + 8 * barrier_plan(c).count;
  return p;
}

// ------------------------------------------------------------------------------------------------------------
// registers

/// Accumulator registers of the output, columns of ones included.
HEED_HOST_DEVICE constexpr int out_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) + (c.row_sum == RowSum::ones_column ? 8 : 0);
}

/// Registers a thread needs at least: output, all scores of a segment, prefetched ones, what is seen of the diagonal,
/// and 48 for probabilities on their way, descriptors and row state.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, int head_dim) {
  const int seen = c.mask == Mask::probabilities ? kGroupRows / 8 + 1 : 0;
  return out_columns(c, head_dim) / 2 + segment_keys(c) / 2 + (c.prefetch_scores ? c.chunk / 2 : 0) + seen + 48;
}

/// Registers that its widest product names.
HEED_HOST_DEVICE constexpr int registers_named(const Config& c, int head_dim) {
  const int columns = out_columns(c, head_dim);
  return tile::registers_named(columns > c.chunk ? columns : c.chunk);
}

// --------------------------------------------------------------------------------------------------------------
// legality

/// Whether probabilities can be taken out: sums then have to come from what the tensor cores see of them.
HEED_HOST_DEVICE constexpr bool can_mask_probabilities(const Config& c, const Problem& problem) {
  return problem.causal && c.chunk == kGroupRows && c.reference != Reference::exact && c.row_sum == RowSum::ones_column;
}

/// Whether the columns that a part keeps are boxes of their own, and its values stay until they are multiplied.
HEED_HOST_DEVICE constexpr bool can_keep_for_later(const Config& c, int head_dim) {
  return c.cluster == 2 && c.key_groups == 1 && c.stages == 1 && padded_dim(head_dim) % (2 * tile::kBoxColumns) == 0;
}

HEED_HOST_DEVICE constexpr bool can_store_boxes(const Config& c, int head_dim) {
  return slice_columns(c, head_dim) % kStoredColumns == 0;
}

/// The config that makes the same program as `c` where knobs have no effect, and the nearest that fits together where
/// they contradict each other: every program has one name, and a search that changes one knob is not turned away by
/// another. Says nothing about shared memory and registers.
HEED_HOST_DEVICE constexpr Config canonical(Config c, const Problem& problem) {
  const int dim = padded_dim(problem.head_dim);
  while (dim % (16 * parts(c)) != 0) (c.key_groups > 1 ? c.key_groups : c.cluster) /= 2;
  while (segment_keys(c) > 256) --c.chunks;
  while (c.chunks % c.value_waits != 0) --c.value_waits;
  while (segment_steps(c) / c.value_waits % c.product_steps != 0) c.product_steps /= 2;
  if (c.score_lead > c.chunks || c.reference == Reference::exact) c.score_lead = c.chunks;
  if (dim != 64) c.row_sum = RowSum::adds;
  if (c.chunks < 2 || c.stages < 2) c.prefetch_scores = false;
  if (c.stages > 1 || c.reference == Reference::exact) c.vote = Vote::before_sending;
  if (parts(c) == 1) c.exchange = Exchange::half;
  if (c.cluster == 1) c.weights = Weights::with_slices;
  if (c.cluster == 1) c.multicast = Multicast::none;
  if (c.multicast == Multicast::queries && c.opening == Opening::queries_first) c.opening = Opening::maps_first;
  if (c.store == Store::boxes && !can_store_boxes(c, problem.head_dim)) c.store = Store::pieces;
  if (!can_keep_for_later(c, problem.head_dim)) c.kept_columns = KeptColumns::with_sent;
  if (!can_mask_probabilities(c, problem)) c.mask = Mask::scores;
  if (!problem.causal && c.tile_order == TileOrder::folded) c.tile_order = TileOrder::descending;
  if (c.producer == Producer::own_group && !moves_registers(c)) c.producer = Producer::own_warp;
  if (c.store == Store::boxes || problem.sizes.len_q == 0) c.outputs = Outputs::any;  // boxes go where a map says
  if (c.outputs == Outputs::dense) c.sizes = Sizes::fixed;
  if (problem.sizes.len_q == 0) c.sizes = Sizes::any;
  if (c.sizes == Sizes::fixed) c.key_heads = KeyHeads::shared;  // by how many is a constant
  if (c.sizes == Sizes::any) c.programs = Programs::all;
  Config eager = c;
  eager.product_start = 0;
  if (c.product_start <= product_after_step(eager, 0)) c.product_start = 0;
  if (c.product_start >= segment_steps(c)) c.product_start = 0;
  return c;
}

enum class Illegal {
  no,
  head_dim,
  threads,
  parts,
  cluster,
  segment,
  value_waits,
  products,
  score_lead,
  ones_column,
  prefetch_scores,
  shared_memory,
  occupancy,
  registers,
  operands,
  same_program,
};

/// `shared_bytes`: what one block may use; `shared_bytes_per_processor`: what all blocks of a multiprocessor share.
HEED_HOST_DEVICE constexpr Illegal is_legal(const Config& c, const Problem& problem, long long shared_bytes,
                                            long long shared_bytes_per_processor) {
  const int dim = padded_dim(problem.head_dim);
  if (problem.head_dim % 8 != 0 || problem.head_dim < 8 || problem.head_dim > 256) return Illegal::head_dim;
  if (threads(c) > 1024) return Illegal::threads;
  if (c.cluster > 8) return Illegal::cluster;             // the largest that every device schedules
  if (dim % (16 * parts(c)) != 0) return Illegal::parts;  // two accumulator tiles a part at least
  if (segment_keys(c) > 256) return Illegal::segment;     // 128 score registers
  if (c.chunks % c.value_waits != 0) return Illegal::value_waits;
  if (segment_steps(c) % c.product_steps != 0 || segment_steps(c) / c.value_waits % c.product_steps != 0)
    return Illegal::products;
  if (c.score_lead > c.chunks) return Illegal::score_lead;
  if (c.row_sum == RowSum::ones_column && dim != 64) return Illegal::ones_column;
  if (c.prefetch_scores && (c.chunks < 2 || c.stages < 2)) return Illegal::prefetch_scores;
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

}  // namespace heed::sm90

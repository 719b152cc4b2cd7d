/// fwd_sm90_stream: the knobs. Shared by the host, nvcc and NVRTC, as are the rows and keys that follow from them
/// (shares.hpp), the shared memory (shared_plan.hpp), and what is legal (legality.hpp).
///
/// Words of this family:
///   row group   a warpgroup (128 threads) with 64 query rows of its own
///   key group   the row groups of one block that share a part of the keys; with 2, a block holds every row twice
///   part        what shares the keys of a row with others: a key group, or a block of a cluster
///   key tile    the keys of one score product
///   turn        what one row group multiplies at a time: the scores of a tile, and the values of one before it
///   stage       a place in a key group's ring: the keys and the values of one turn, which are not of the same tile
///   row tile    the query rows of one block at a time: 64 a row group, neighbours unless mirrored
///   team        what would be a block of its own, with row tiles, rings and a producer warp of its own, but shares a
///               block with others; what is said here of a block that stays holds for a team
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
  persistent,  ///< every gridDim.x-th: no more blocks than fit the device at once (Waves)
  dynamic,     ///< the next that no block has taken when it has nearly asked for all of its own, by a counter in
               ///< global memory
};

/// How many blocks stay (Schedule::persistent).
enum class Waves {
  filled,  ///< as many as fit the device at once; of the last wave some may be idle
  even,    ///< as few as need no more waves: each has as many row tiles as the others or one less, and the processors
           ///< that would idle in the last wave do so in all of them
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

/// When the key groups of a block begin.
enum class Starts {
  together,  ///< as their keys arrive: they may stay in step, all at their exponentials and then all waiting for
             ///< products
  in_turn,   ///< a key group's first products come after the first scores of the one before it, so that exponentials of
             ///< one run beside what another waits for; of tiles that do not go up evenly the first has more
};

/// Who starts the copies into shared memory.
enum class Producer {
  own_warp,   ///< a warp that does nothing else
  own_group,  ///< a warpgroup of which one thread does it and which leaves its registers to the others (setmaxnreg)
};

/// When a producer warpgroup leaves its registers to the others, which wait for them.
enum class Release {
  at_once,       ///< before it does anything else
  after_copies,  ///< when the first copies are under way
};

/// When a consumer works out which rows and tiles are its, of a block that stays those of its first row tile.
enum class Shares {
  when_due,  ///< when its queries have arrived
  ahead,     ///< while they are on their way
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

/// What the L2 may give up before other lines. Where the next launch reads the same tensors and they do not all fit,
/// what is not marked is still there.
enum class EvictFirst {
  none,
  queries,         ///< queries: one block reads them, once
  passing,         ///< queries and outputs, which no one reads again
  inputs,          ///< keys and values too: read once where one row tile holds all rows of a head
  all,             ///< outputs as well
  values,          ///< values and outputs
  but_keys,        ///< queries, values and outputs
  but_most_keys,   ///< the same, and the keys of the last quarter of the heads
  half,            ///< outputs, and all that is read of the second half of the heads
  but_opening,     ///< all but what each block begins with: the queries of its first row tile, and two tiles of keys
  but_first_keys,  ///< all but the queries and keys of each block's first row tile
};

/// Where blocks stay (Schedule::persistent, dynamic), the key tiles of a block's first row tile those names hold for,
/// with its queries; 0: they hold for all row tiles alike. A launch begins with these, and everything waits for them:
/// what later turns read comes from memory meanwhile, unnoticed.
HEED_HOST_DEVICE constexpr int first_tiles_that_stay(EvictFirst e) {
  return e == EvictFirst::but_opening ? 2 : e == EvictFirst::but_first_keys ? 1 << 30 : 0;
}

/// Of the key heads of all batch entries, one after the other, how many eighths those names hold for: of the others
/// everything leaves first. Where what is not marked does not fit either, it pushes itself out: at b64h12l128d64 the
/// keys of three heads in four are 1 to 1.5% faster than those of all, causal 1.5 to 2% (H200, two sets in turn).
HEED_HOST_DEVICE constexpr int eighths_that_stay(EvictFirst e) {
  return e == EvictFirst::but_most_keys ? 6 : e == EvictFirst::half ? 4 : 8;
}

HEED_HOST_DEVICE constexpr bool queries_leave_first(EvictFirst e) {
  return e != EvictFirst::none && e != EvictFirst::values && e != EvictFirst::half && first_tiles_that_stay(e) == 0;
}
HEED_HOST_DEVICE constexpr bool keys_leave_first(EvictFirst e) {
  return e == EvictFirst::inputs || e == EvictFirst::all;
}
HEED_HOST_DEVICE constexpr bool values_leave_first(EvictFirst e) {
  return keys_leave_first(e) || e == EvictFirst::values || e == EvictFirst::but_keys ||
         e == EvictFirst::but_most_keys || first_tiles_that_stay(e) > 0;
}
HEED_HOST_DEVICE constexpr bool outputs_leave_first(EvictFirst e) {
  return e != EvictFirst::none && e != EvictFirst::queries && e != EvictFirst::inputs;
}

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

/// What a program knows of its launches' sizes (Problem::sizes). What follows from them the compiler works out, and no
/// constant of a launch is waited for to know it.
enum class Sizes {
  any,    ///< nothing: the same program for all
  fixed,  ///< lengths, heads, batch and how the mask is aligned
  whole,  ///< and that row tiles are whole: nothing asks whether a row is past the last, or sees past the last key
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
  int row_groups = 2;
  int key_groups = 1;
  int cluster = 1;  ///< blocks that share a row tile, split its keys and merge
  int tile_keys = 64;
  int stages = 4;        ///< turns whose keys and values a key group keeps in shared memory
  int query_stages = 1;  ///< row tiles of queries kept in shared memory
  Schedule schedule = Schedule::one_tile;
  Waves waves = Waves::filled;
  Overlap overlap = Overlap::nothing;
  ProductOrder product_order = ProductOrder::values_first;
  Reference reference = Reference::first_tile;
  Turns turns = Turns::any;
  Starts starts = Starts::together;
  Vote vote = Vote::at_once;
  Masking masking = Masking::ahead;
  Producer producer = Producer::own_warp;
  Release release = Release::at_once;
  Shares shares = Shares::when_due;
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
  Sizes sizes = Sizes::any;
  Programs programs = Programs::all;
  Outputs outputs = Outputs::any;
  int teams = 1;  ///< of a block that stays
  int min_blocks = 1;
  constexpr bool operator==(const Config&) const = default;
};

/// Consumers of a team.
HEED_HOST_DEVICE constexpr int team_threads(const Config& c) {
  return kGroupThreads * c.row_groups * c.key_groups;
}
HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return c.teams * team_threads(c);
}
/// A block's: all consumers, team by team, then a producer warp for each team.
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return consumer_threads(c) + (c.producer == Producer::own_warp ? 32 * c.teams : kGroupThreads);
}
HEED_HOST_DEVICE constexpr int block_rows(const Config& c) {
  return c.row_groups * kGroupRows;
}

/// Who shares the keys of a row: key groups of one block, or blocks of a cluster.
HEED_HOST_DEVICE constexpr int parts(const Config& c) {
  return c.key_groups * c.cluster;
}

/// Whether it is known that all row tiles have all their rows, and that under a mask every row sees a key and none a
/// key past the last.
HEED_HOST_DEVICE constexpr bool has_whole_row_tiles(const Config& c) {
  return c.sizes == Sizes::whole;
}

using tile::padded_dim;

}  // namespace heed::stream

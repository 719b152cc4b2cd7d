/// fwd_sm90_persistent: the knobs. Shared by the host, nvcc and NVRTC, as are the rows and keys that follow from them
/// (shares.hpp), the shared memory (shared_plan.hpp), and what is legal (legality.hpp).
///
/// Words of this family:
///   consumer warpgroup   a warpgroup (128 threads) with 64 query rows of its own
///   KV group   the consumer warpgroups of one block that share a part of the keys; with 2, a block holds every row twice
///   part        what shares the keys of a row with others: a KV group, or a block of a cluster
///   KV tile    the keys of one score product
///   iteration        what one consumer warpgroup multiplies at a time: the scores of a tile, and the values of one before it
///   stage       a place in a KV group's ring: the keys and the values of one iteration, which are not of the same tile
///   Q tile    the query rows of one block at a time: 64 a consumer warpgroup, neighbours unless paired
///   virtual CTA        what would be a block of its own, with Q tiles, rings and a producer warp of its own, but shares a
///               block with others; what is said here of a block that stays holds for a virtual CTA
#pragma once

#include "kernels/contract.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_persistent {

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kMmaK = 16;  ///< what one probability-value product contracts

/// Which Q tiles a block works on.
enum class Scheduler {
  single_tile,    ///< one: as many blocks as Q tiles
  static_persistent,  ///< every gridDim.x-th: no more blocks than fit the device at once (Waves)
  dynamic_persistent,     ///< the next that no block has taken when it has nearly asked for all of its own, by a counter in
               ///< global memory
};

/// How many blocks stay (Scheduler::static_persistent).
enum class Grid {
  full,  ///< as many as fit the device at once; of the last wave some may be idle
  balanced,    ///< as few as need no more waves: each has as many Q tiles as the others or one less, and the multiprocessors
           ///< that would idle in the last wave do so in all of them
};

/// What a consumer warpgroup's exponentials run beside, of its own products.
enum class SoftmaxOverlap {
  none,   ///< products of other consumer warpgroups only: one tile's scores and probabilities in registers
  pv,    ///< the values of the last tile: no more registers, as exponentials take their scores' place
  qk_pv,  ///< the scores of the next tile and the values of the last: two tiles' scores and probabilities
};

/// The order in which the two products go to the tensor cores.
enum class GemmOrder { pv_first, qk_first, interleaved };

/// What is subtracted from scores before the exponential.
enum class RowMax {
  online,       ///< the maximum so far, with the output rescaled where it grew
  stale_tile,  ///< that of the first tiles: softmax does not depend on the value subtracted. A warp whose sums leave
               ///< the range of 16 bits takes the tile again with its maximum
  stale_16,  ///< the same, but of the first 16 keys of the first tile
};

/// When a consumer warpgroup's products go to the tensor cores.
enum class Pingpong {
  off,       ///< as soon as their operands are there
  on,  ///< after those of the consumer warpgroup before it, so that one's exponentials run beside the others' products
};

/// When the KV groups of a block begin.
enum class StaggerSplits {
  off,  ///< as their keys arrive: they may stay in step, all at their exponentials and then all waiting for
             ///< products
  on,   ///< a KV group's first products come after the first scores of the one before it, so that exponentials of
             ///< one run beside what another waits for; of tiles that do not go up evenly the first has more
};

/// Who starts the loads into shared memory.
enum class Producer {
  warp,   ///< a warp that does nothing else
  warpgroup,  ///< a warpgroup of which one thread does it and which leaves its registers to the others (setmaxnreg)
};

/// When a producer warpgroup leaves its registers to the others, which wait for them.
enum class Setmaxnreg {
  early,       ///< before it does anything else
  after_loads,  ///< when the first loads are under way
};

/// When a consumer works out which rows and tiles are its, of a block that stays those of its first Q tile.
enum class TileSetup {
  lazy,  ///< when its queries have arrived
  early,     ///< while they are on their way
};

/// When the next launch may start its set-up (programmatic dependent launch).
enum class PdlTrigger {
  none,         ///< not at all: no launch of this config can be a dependent one
  last_load,  ///< when a block's last loads are under way
};

/// How finished rows are written.
enum class EpilogueStore {
  st_b32,       ///< 4 bytes a lane, as the accumulators lie
  st_b128,      ///< 16 bytes a lane, after a transposition over four lanes: 64 bytes of a row at once
  smem_b128,        ///< whole lines of 128 bytes, by way of shared memory
  smem_b128_preaddressed,  ///< the same; where they go is worked out beside the first loads, and kept in shared memory
  tma,       ///< the same lines by bulk loads, which one lane of a warp starts
};

/// The order of Q tiles. Under a causal mask the last rows, which see most keys, come first where Q tiles differ.
enum class TileOrder {
  row_major,   ///< one head after the other: blocks that run together share keys
  lpt_l2,  ///< the same rows of all heads that fit the L2 together, or with Scheduler::single_tile of all: the longest
                ///< Q tiles first
  paired,     ///< one head after the other; consumer warpgroups take rows from the head's start and end by turns, so that row
                ///< tiles are equal under a causal mask
  lpt_then_spt,       ///< the longer half of all heads' Q tiles, longest first, then the others, shortest first: where two
                ///< blocks share a multiprocessor, a long one meets a short one
};

/// What becomes of KV tiles that only one of two paired consumer warpgroups sees.
enum class ShareCausalTail {
  off,     ///< they are that one's: under a causal mask it works on long after the other is done
  on,  ///< both take them, every other tile each; the one with fewer keys before its own, and hands what it has
             ///< of the other's rows over through shared memory
};

/// What the L2 may give up before other lines. Where the next launch reads the same tensors and they do not all fit,
/// what is not marked is still there.
enum class EvictFirst {
  none,
  q,         ///< queries: one block reads them, once
  q_o,         ///< queries and outputs, which no one reads again
  q_kv,          ///< keys and values too: read once where one Q tile holds all rows of a head
  q_kv_o,             ///< outputs as well
  v_o,          ///< values and outputs
  q_v_o,        ///< queries, values and outputs
  q_v_o_quarter_k,   ///< the same, and the keys of the last quarter of the heads
  half_heads,            ///< outputs, and all that is read of the second half of the heads
  all_but_first_q_2k,     ///< all but what each block begins with: the queries of its first Q tile, and two tiles of keys
  all_but_first_q_k,  ///< all but the queries and keys of each block's first Q tile
};

/// Where blocks stay (Scheduler::static_persistent, dynamic), the KV tiles of a block's first Q tile those names hold for,
/// with its queries; 0: they hold for all Q tiles alike. A launch begins with these, and everything waits for them:
/// what later iterations read comes from memory meanwhile, unnoticed.
HEED_HOST_DEVICE constexpr int resident_first_tiles(EvictFirst e) {
  return e == EvictFirst::all_but_first_q_2k ? 2 : e == EvictFirst::all_but_first_q_k ? 1 << 30 : 0;
}

/// Of the key heads of all batch entries, one after the other, how many eighths those names hold for: of the others
/// everything leaves first. Where what is not marked does not fit either, it pushes itself out: at b64h12l128d64 the
/// keys of three heads in four are 1 to 1.5% faster than those of all, causal 1.5 to 2% (H200, two sets in turn).
HEED_HOST_DEVICE constexpr int resident_head_eighths(EvictFirst e) {
  return e == EvictFirst::q_v_o_quarter_k ? 6 : e == EvictFirst::half_heads ? 4 : 8;
}

HEED_HOST_DEVICE constexpr bool q_evict_first(EvictFirst e) {
  return e != EvictFirst::none && e != EvictFirst::v_o && e != EvictFirst::half_heads && resident_first_tiles(e) == 0;
}
HEED_HOST_DEVICE constexpr bool k_evict_first(EvictFirst e) {
  return e == EvictFirst::q_kv || e == EvictFirst::q_kv_o;
}
HEED_HOST_DEVICE constexpr bool v_evict_first(EvictFirst e) {
  return k_evict_first(e) || e == EvictFirst::v_o || e == EvictFirst::q_v_o ||
         e == EvictFirst::q_v_o_quarter_k || resident_first_tiles(e) > 0;
}
HEED_HOST_DEVICE constexpr bool o_evict_first(EvictFirst e) {
  return e != EvictFirst::none && e != EvictFirst::q && e != EvictFirst::q_kv;
}

/// When a warpgroup asks whether the tiles that its next products take have arrived.
enum class BarrierWait {
  at_use,  ///< in front of those products
  try_wait_early,   ///< beside the exponentials before them; in front of them only if they had not arrived then
};

/// How a consumer finds its place in the rings and gives it back.
enum class StageRelease {
  branch,    ///< operands by their addresses, freed by one lane in a branch
  predicated,  ///< operands counted on from the first stage's, freed under a condition among the exponentials
};

/// When the four lanes of a row add up what each of them has summed.
enum class RowsumReduce {
  at_end,         ///< behind all products
  beside_pv,  ///< beside the last of them
};

/// How far ahead of its exponentials, or how far behind, a tile's other instructions stand in the source, in steps of
/// 16 keys. ptxas moves them again, and ends elsewhere: the same work takes up to 5% more or less.
enum class ScalePlacement {
  at_use,      ///< scores are scaled, and the reference is subtracted, where they are exponentiated
  step_ahead,  ///< a step earlier
  tile_ahead,  ///< in front of all exponentials of the tile
};
enum class ConvertPlacement {
  at_once,     ///< probabilities are rounded as soon as they are there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};
enum class RowsumPlacement {
  at_once,     ///< probabilities are summed as soon as they are there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};

/// Where exponentials run beside products (SoftmaxOverlap::qk_pv): when a warp asks whether its probabilities overflow,
/// which sends it into the exact softmax.
enum class OverflowCheck {
  inlined,         ///< as it has them
  deferred,  ///< once the products beside them are done: the way to the next ones has the branch, but the wait
                   ///< for these hides the vote
};

/// Where exponentials run beside products: how a tile that some row does not see whole leaves the usual way.
enum class MaskPath {
  branch,      ///< in front of its exponentials, by a branch that ptxas moves nothing across
  redo,  ///< as if its probabilities had overflown: its exponentials are taken again, from hidden scores
  separate_loop,      ///< the same as ahead, but rows of which it is only the first tile have a program without
};

/// What a program knows of its launches' sizes (Problem::sizes). What follows from them the compiler works out, and no
/// constant of a launch is waited for to know it.
enum class Specialize {
  none,    ///< nothing: the same program for all
  shape,  ///< lengths, heads, batch and how the mask is aligned
  whole_tiles,  ///< and that Q tiles are whole: nothing asks whether a row is past the last, or sees past the last key
};

/// What a program for fixed sizes holds.
enum class Prune {
  off,     ///< all that any launch may need, as programs for any sizes do
  on,  ///< what launches of these sizes do: a quarter to nine tenths of the instructions. ptxas places the rest
           ///< otherwise then, for better or worse
};

/// Where a program for fixed sizes finds the rows of the output.
enum class OutputLayout {
  strided,    ///< by the strides of a launch
  dense,  ///< one behind the other, in the order of the workload's layout: their addresses are constants
};

struct Config {
  int m_warpgroups = 2;
  int kv_groups = 1;
  int cluster = 1;  ///< blocks that share a Q tile, split its keys and merge
  int block_n = 64;
  int stages = 4;        ///< iterations whose keys and values a KV group keeps in shared memory
  int q_stages = 1;  ///< Q tiles of queries kept in shared memory
  Scheduler scheduler = Scheduler::single_tile;
  Grid grid = Grid::full;
  SoftmaxOverlap softmax_overlap = SoftmaxOverlap::none;
  GemmOrder gemm_order = GemmOrder::pv_first;
  RowMax row_max = RowMax::stale_tile;
  Pingpong pingpong = Pingpong::off;
  StaggerSplits stagger_splits = StaggerSplits::off;
  OverflowCheck overflow_check = OverflowCheck::inlined;
  MaskPath mask_path = MaskPath::branch;
  Producer producer = Producer::warp;
  Setmaxnreg setmaxnreg = Setmaxnreg::early;
  TileSetup tile_setup = TileSetup::lazy;
  PdlTrigger pdl_trigger = PdlTrigger::last_load;
  EpilogueStore epilogue = EpilogueStore::st_b128;
  TileOrder tile_order = TileOrder::row_major;
  ShareCausalTail share_causal_tail = ShareCausalTail::off;
  EvictFirst evict_first = EvictFirst::none;
  BarrierWait barrier_wait = BarrierWait::at_use;
  StageRelease stage_release = StageRelease::branch;
  RowsumReduce rowsum_reduce = RowsumReduce::at_end;
  ScalePlacement scale_placement = ScalePlacement::at_use;
  ConvertPlacement convert_placement = ConvertPlacement::at_once;
  RowsumPlacement rowsum_placement = RowsumPlacement::at_once;
  Specialize specialize = Specialize::none;
  Prune prune = Prune::off;
  OutputLayout o_layout = OutputLayout::strided;
  int virtual_ctas = 1;  ///< of a block that stays
  int min_blocks = 1;
  constexpr bool operator==(const Config&) const = default;
};

/// Consumers of a virtual CTA.
HEED_HOST_DEVICE constexpr int virtual_cta_threads(const Config& c) {
  return kWarpgroupThreads * c.m_warpgroups * c.kv_groups;
}
HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return c.virtual_ctas * virtual_cta_threads(c);
}
/// A block's: all consumers, virtual CTA by virtual CTA, then a producer warp for each virtual CTA.
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return consumer_threads(c) + (c.producer == Producer::warp ? 32 * c.virtual_ctas : kWarpgroupThreads);
}
HEED_HOST_DEVICE constexpr int block_rows(const Config& c) {
  return c.m_warpgroups * kWarpgroupRows;
}

/// Who shares the keys of a row: KV groups of one block, or blocks of a cluster.
HEED_HOST_DEVICE constexpr int num_splits(const Config& c) {
  return c.kv_groups * c.cluster;
}

/// Whether it is known that all Q tiles have all their rows, and that under a mask every row sees a key and none a
/// key past the last.
HEED_HOST_DEVICE constexpr bool has_whole_q_tiles(const Config& c) {
  return c.specialize == Specialize::whole_tiles;
}

using tile::padded_dim;

}  // namespace heed::sm90_persistent

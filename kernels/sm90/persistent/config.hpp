/// fwd_sm90_persistent: the knobs. Shared by the host, nvcc and NVRTC, as are the division of the keys (kv_tiles.hpp),
/// the shared memory (shared_plan.hpp), and legality (legality.hpp).
///
/// Words of this family:
///   consumer warpgroup   128 threads with 64 query rows of their own
///   KV group             the consumer warpgroups of one CTA that share a part of the keys; with 2, a CTA has each row
///                        twice
///   split                one of those that share the keys of a row: a KV group, or a CTA of a cluster
///   KV tile              block_n keys, the N of one QK GEMM
///   iteration            the GEMMs of a consumer warpgroup at a time: QK of a KV tile, and PV of one before it
///   stage                a slot of the K/V pipeline of a KV group: K and V of one iteration, which are not of the same
///                        KV tile
///   Q tile               the query rows of one CTA at a time: 64 a consumer warpgroup, neighbours unless paired
///   virtual CTA          one of several within a CTA, with Q tiles, pipelines and a producer warp of its own; all
///                        that is said here of a persistent CTA holds for a virtual one
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/named_barriers.hpp"
#include "kernels/attention/policies.hpp"
#include "kernels/attention/specialization.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/contract.hpp"
#include "kernels/sm90/warpgroup.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_persistent {

using attention::QTile;
using attention::TileOrder;
using sm90::kWarpgroupRows, sm90::kWarpgroupThreads, sm90::Pingpong;

inline constexpr int kMmaK = 16;  ///< keys of one PV wgmma

/// Which Q tiles a CTA works on.
enum class Scheduler {
  single_tile,         ///< one: as many CTAs as Q tiles
  static_persistent,   ///< every gridDim.x-th: no more CTAs than fit the device at once (Grid)
  dynamic_persistent,  ///< the next that no CTA has taken, drawn from a counter in global memory shortly before the
                       ///< loads of the last one end
  stream_k,            ///< dynamic_persistent, but where a list of blocks of keys is longer than half of what a CTA
                       ///< has to do, an equal part of all lists each (stream_k.hpp)
};

/// CTAs of Scheduler::static_persistent.
enum class Grid {
  full,      ///< as many as fit the device at once; of the last wave some may be idle
  balanced,  ///< as few as need no more waves: each has as many Q tiles as the others or one less, and the
             ///< multiprocessors that would idle in the last wave do so in all of them
};

/// GEMMs of the own warpgroup that run beside the softmax: intra-warpgroup overlap (FlashAttention-3, 3.2).
enum class SoftmaxOverlap {
  none,   ///< none: only GEMMs of other warpgroups do; one tile of S and P in registers
  pv,     ///< PV of the last tile: no more registers, as P takes the place of S
  qk_pv,  ///< QK of the next tile and PV of the last: two tiles of S and P
};

/// The order in which QK and PV of one iteration are issued.
enum class GemmOrder { pv_first, qk_first, interleaved };

/// What is subtracted from scores before the exponential. Softmax does not depend on the value; FlashAttention-4
/// rescales conditionally for the same reason.
enum class RowMax {
  online,      ///< the running maximum, with O rescaled where it grew
  stale_tile,  ///< the maximum of the first KV tiles. A warp with row sums outside the range of 16 bits takes the tile
               ///< again with its maximum
  stale_16,    ///< the same, of the first 16 keys of the first tile
};

/// When the KV groups of a CTA begin.
enum class StaggerSplits {
  off,  ///< as their keys arrive: they may stay in step, all at their softmax and then all waiting for GEMMs
  on,  ///< the first GEMMs of a KV group come after the first scores of the group before it, so that the softmax of one
       ///< runs beside what another waits for; of tiles that do not divide evenly the first group has more
};

/// The warps that issue TMA loads.
enum class Producer {
  warp,       ///< a warp that does nothing else
  warpgroup,  ///< a warpgroup, of which one thread issues loads, and which gives its registers to the consumers
};

/// When a producer warpgroup gives its registers (setmaxnreg) to the consumers, which wait for them.
enum class Setmaxnreg {
  early,        ///< before anything else
  after_loads,  ///< when the first loads are issued
};

/// When a consumer computes the rows and KV tiles of a Q tile; of a persistent CTA those of the first one.
enum class TileSetup {
  lazy,   ///< when Q has arrived
  early,  ///< while Q is on the way
};

/// When the next launch may begin (programmatic dependent launch, griddepcontrol.launch_dependents).
enum class PdlTrigger {
  none,       ///< never: no launch of this config can be a dependent one
  last_load,  ///< when the last loads of a CTA are issued
};

/// How finished rows of O are stored.
enum class EpilogueStore {
  st_b32,                  ///< 4 bytes a lane, as the accumulators lie
  st_b128,                 ///< 16 bytes a lane, after a transposition over four lanes: 64 bytes of a row at once
  smem_b128,               ///< whole lines of 128 bytes, by way of shared memory
  smem_b128_preaddressed,  ///< the same; addresses are computed beside the first loads, and kept in shared memory
  tma,                     ///< the same lines by TMA stores, which one lane of a warp issues
};

/// What becomes of KV tiles that only one of two paired consumer warpgroups sees (TileOrder::paired).
enum class ShareCausalTail {
  off,  ///< they are left to it: under a causal mask it works on long after the other is done
  on,   ///< both take them, every other tile each; the warpgroup with fewer keys takes them before its own, and sends
        ///< partial O of the other's rows through shared memory
};

/// What the L2 may give up before other lines. Where the next launch reads the same tensors and they do not all fit,
/// what is not marked is still there.
enum class EvictFirst {
  none,
  q,                   ///< queries: one block reads them, once
  q_o,                 ///< queries and outputs, which no one reads again
  q_kv,                ///< keys and values too: read once where one Q tile holds all rows of a head
  q_kv_o,              ///< outputs as well
  v_o,                 ///< values and outputs
  q_v_o,               ///< queries, values and outputs
  q_v_o_quarter_k,     ///< the same, and the keys of the last quarter of the heads
  half_heads,          ///< outputs, and all that is read of the second half of the heads
  all_but_first_q_2k,  ///< all but what each block begins with: the queries of its first Q tile, and two tiles of keys
  all_but_first_q_k,   ///< all but the queries and keys of each block's first Q tile
};

/// Where blocks stay (Scheduler::static_persistent, dynamic), the KV tiles of a block's first Q tile those names hold
/// for, with its queries; 0: they hold for all Q tiles alike. A launch begins with these, and everything waits for
/// them: what later iterations read comes from memory meanwhile, unnoticed.
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
  return k_evict_first(e) || e == EvictFirst::v_o || e == EvictFirst::q_v_o || e == EvictFirst::q_v_o_quarter_k ||
         resident_first_tiles(e) > 0;
}
HEED_HOST_DEVICE constexpr bool o_evict_first(EvictFirst e) {
  return e != EvictFirst::none && e != EvictFirst::q && e != EvictFirst::q_kv;
}

/// When a consumer asks the barrier of the stage that the next GEMMs read.
enum class BarrierWait {
  at_use,          ///< in front of those GEMMs
  try_wait_early,  ///< beside the softmax before them; in front of them only if the stage had not arrived then
};

/// How a consumer addresses a stage and releases it.
enum class StageRelease {
  branch,      ///< operands by their addresses, released by one lane in a branch
  predicated,  ///< descriptors counted on from the first stage, released under a predicate among the exponentials
};

/// When the four lanes of a row add up their row sums.
enum class RowsumReduce {
  at_end,     ///< behind all GEMMs
  beside_pv,  ///< beside the last PV
};

/// How far ahead of its exponentials, or how far behind, the other instructions of a tile stand in the source, in steps
/// of 16 keys. ptxas moves them again, and ends elsewhere: the same work takes up to 5% more or less.
enum class ScalePlacement {
  at_use,      ///< scores are scaled, and the row maximum is subtracted, where they are exponentiated
  step_ahead,  ///< a step earlier
  tile_ahead,  ///< in front of all exponentials of the tile
};
enum class ConvertPlacement {
  at_once,     ///< P is rounded to 16 bits as soon as it is there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};
enum class RowsumPlacement {
  at_once,     ///< P is summed as soon as it is there
  step_later,  ///< behind the exponentials of the next step
  at_end,      ///< behind those of the tile
};

/// When a warp votes whether a stale row maximum overflowed, which sends it into the online softmax
/// (SoftmaxOverlap::qk_pv).
enum class OverflowCheck {
  inlined,   ///< as soon as P is there
  deferred,  ///< after the GEMMs beside the softmax: the way to the next ones has the branch, but the wait for these
             ///< hides the vote
};

/// How a tile that some row does not see whole leaves the unmasked path (SoftmaxOverlap::qk_pv).
enum class MaskPath {
  branch,         ///< in front of its exponentials, by a branch that ptxas moves nothing across
  redo,           ///< as if P had overflowed: the exponentials are taken again, from masked scores
  separate_loop,  ///< the same as branch, but rows with only the first tile masked have a loop without
};

struct Config {
  int m_warpgroups = 2;
  int kv_groups = 1;
  int cluster = 1;  ///< CTAs that split the keys of a Q tile and merge
  int block_n = 64;
  int stages = 4;    ///< K/V pipeline stages of a KV group in shared memory
  int q_stages = 1;  ///< Q tiles in shared memory
  Scheduler scheduler = Scheduler::single_tile;
  Grid grid = Grid::full;
  SoftmaxOverlap softmax_overlap = SoftmaxOverlap::none;
  GemmOrder gemm_order = GemmOrder::pv_first;
  RowMax row_max = RowMax::stale_tile;
  attention::Rowsum rowsum{};  ///< fadd or fadd_rounded. A knob of accuracy: more exact below a stale row maximum
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
  int virtual_ctas = 1;  ///< of a persistent CTA
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
/// Whether lists of blocks may be divided among CTAs.
HEED_HOST_DEVICE constexpr bool streams(const Config& c) {
  return c.scheduler == Scheduler::stream_k;
}
HEED_HOST_DEVICE constexpr int block_rows(const Config& c) {
  return c.m_warpgroups * kWarpgroupRows;
}

/// Who shares the keys of a row: KV groups of one block, or blocks of a cluster.
HEED_HOST_DEVICE constexpr int num_splits(const Config& c) {
  return c.kv_groups * c.cluster;
}

/// Pairs of consumer warpgroups that share their KV tiles out among them.
HEED_HOST_DEVICE constexpr int pairs(const Config& c) {
  return c.share_causal_tail == ShareCausalTail::on ? c.m_warpgroups / 2 : 0;
}

/// Whether there are named barriers for consumer warpgroups to zero values with: four are left, and more consumer
/// warpgroups find no registers.
HEED_HOST_DEVICE constexpr bool can_clear_values(const Config& c) {
  return pairs(c) == 0 && consumer_threads(c) <= 4 * kWarpgroupThreads;
}

/// What named barriers are for.
enum class NamedBarrier {
  start,     ///< one a virtual CTA: its mbarriers exist
  merge,     ///< one a consumer warpgroup: its KV groups have put their slices of partial O, or have read them
  sent,      ///< one a KV group that merges by way of its own stages: all of its warps have read those
  pingpong,  ///< one a consumer warpgroup, which waits there for the one before it (Pingpong::on)
  stagger,   ///< one a KV group but the first, which waits there for the one before it (StaggerSplits::on)
  put,       ///< one a pair and KV group: partial O for the partner has been put (ShareCausalTail::on)
  taken,     ///< likewise: it has been read
  cleared,   ///< one a consumer warpgroup: all of its warps have zeroed values behind an entry's end
};

HEED_HOST_DEVICE constexpr attention::NamedBarriers<NamedBarrier, 8> named_barriers(const Config& c) {
  using enum NamedBarrier;
  attention::NamedBarriers<NamedBarrier, 8> b;
  b[start] = {1, c.virtual_ctas};
  if (c.kv_groups > 1) b[merge] = {2, c.m_warpgroups};
  if (c.kv_groups > 1 && c.m_warpgroups == 1) b[sent] = {3, c.kv_groups};
  if (c.pingpong == Pingpong::on) b[pingpong] = {8, c.virtual_ctas * c.kv_groups * c.m_warpgroups};
  if (c.stagger_splits == StaggerSplits::on) b[stagger] = {8, c.kv_groups - 1};
  b[put] = {8, pairs(c) * c.kv_groups};
  b[taken] = {12, pairs(c) * c.kv_groups};
  if (can_clear_values(c)) b[cleared] = {12, consumer_threads(c) / kWarpgroupThreads};
  return b;
}

using tile::padded_dim;

}  // namespace heed::sm90_persistent

/// fwd_sm90_split: the knobs, what is legal, the resources a config takes and the order in which it works. Shared by
/// the host, nvcc and NVRTC.
///
/// Words of this family:
///   consumer warpgroup   128 threads with 64 query rows of their own
///   KV group             the consumer warpgroups of one CTA that share a part of the keys; with 2, a CTA holds every
///   row
///                        twice
///   split                the keys of one KV group of one CTA: cluster x kv_groups splits share the keys of a Q tile
///                        evenly
///   n-block              block_n keys, the N of one QK GEMM
///   iteration            `n_blocks_per_stage` n-blocks, worked on in one unrolled pass; a split is one iteration or
///                        several
///   step                 16 keys: what one PV wgmma contracts
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_split {

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kMmaK = 16;

/// What is subtracted from scores before the exponential. Softmax does not depend on the value.
enum class RowMax {
  online,      ///< the maximum of every iteration, with O rescaled where it grew
  stale_tile,  ///< the maximum of the split's first n-block. Where a later score is so much larger that a row sum
               ///< overflows, the split is computed again, n-block by n-block
  stale_16,    ///< the same of the split's first 16 keys: found sooner, overflows more often
};

/// How row sums of P are computed.
enum class Rowsum {
  fadd,  ///< one addition an element
  mma,   ///< by the tensor cores: V gets columns of ones
};

/// When the threads of a split of one iteration tell each other that a stale row maximum overflowed.
enum class OverflowCheck {
  before_merge,  ///< before the split is merged with others
  after_store,   ///< once O is stored: infinite log-sum-exps have told the other splits, and all compute again
};

/// Where keys that a row does not see are masked, under a causal mask.
enum class MaskAt {
  scores,         ///< before the exponentials, in a branch around n-blocks that every row sees whole
  probabilities,  ///< in P, without a branch, where the edge of the mask runs through the corners of n-blocks of 64; a
                  ///< launch where it does not takes the other way
};

/// Whether query heads may share K/V heads (grouped-query attention).
enum class Gqa {
  on,   ///< the K/V head is found by a division, for which the first K load of a launch waits
  off,  ///< every query head has its own; for workloads without grouped heads
};

/// The CTAs that load Q of a Q tile.
enum class TmaMulticast {
  none,  ///< every CTA all of Q, before anything else
  q,     ///< every CTA a share of Q to all CTAs of the cluster, once these have initialised their barriers
};

/// What the producer thread has worked out before the first load. Parameters are constants that nobody has read yet:
/// the thread waits for each line of them.
enum class Prologue {
  lengths_first,  ///< which rows and keys are the CTA's; then where the tensor maps lie
  maps_first,     ///< the same, but where the maps lie is asked for beside the lengths
  q_first,        ///< where the maps lie, and the load of Q is issued; then which keys
};

/// Type in which partial O travels between the splits of a Q tile.
enum class MergeDtype {
  bits16,  ///< the type of O
  fp32,
};

/// Whether splits send their log-sum-exp ahead of partial O.
enum class LseFirst {
  off,  ///< both arrive at one barrier
  on,   ///< log2-sum-exps have a barrier of their own, and weights are ready when partial O arrives
};

/// When a split computes the columns of O that it keeps.
enum class PvSplitN {
  off,  ///< beside those that it sends
  on,   ///< after all of those, while they travel
};

/// Where exponentials and conversions may go.
enum class AsmOrder {
  fixed,  ///< where they stand in the source, as far as PTX can say so
  free,   ///< wherever the compiler likes
};

/// The threads that issue TMA loads.
enum class Producer {
  warp,           ///< a warp that does nothing else
  warpgroup,      ///< a warpgroup, of which one thread issues loads, and which gives its registers to the consumers
                  ///< (setmaxnreg)
  consumer_warp,  ///< a thread of each KV group's first warp, before its own work and between iterations
};

/// When the next launch may begin (programmatic dependent launch, griddepcontrol.launch_dependents).
enum class PdlTrigger {
  none,      ///< never: no launch of this config can be a dependent one
  first_qk,  ///< when the first keys have arrived
  last_pv,   ///< when all GEMMs are issued
};

/// How finished rows of O are stored.
enum class EpilogueStore {
  st_b32,   ///< 4 bytes a lane, as the accumulators lie
  st_b128,  ///< 16 bytes a lane, after a transposition over four lanes
  tma,      ///< the same to shared memory; from there a TMA store for every 16 rows of 32 columns
};

/// The order of Q tiles. Under a causal mask the last rows see most keys.
enum class TileOrder {
  ascending,     ///< head by head, first rows first
  descending,    ///< head by head, last rows first
  lpt_then_spt,  ///< the longer half of all heads' Q tiles, longest first, then the others, shortest first: where two
                 ///< CTAs share a multiprocessor, a long one meets a short one
};

/// What a program knows of the sizes of its launches (Problem::sizes).
enum class Specialize {
  none,   ///< nothing: the same program for all
  shape,  ///< lengths, heads, batch and the alignment of the mask: no constant of a launch is waited for
};

/// Whether a program for one shape leaves out the code that launches of the shape never reach.
enum class Prune {
  off,
  on,  ///< a quarter to nine tenths of the instructions are left. ptxas places them otherwise then, for better or worse
};

/// Where a program for one shape finds the rows of O.
enum class OutputLayout {
  strided,  ///< by the strides of a launch
  dense,    ///< one behind the other, in the order of the workload's layout: strides are constants
};

struct Config {
  int m_warpgroups = 1;
  int kv_groups = 1;
  int cluster = 2;  ///< CTAs that split the keys of a Q tile
  int block_n = 64;
  int n_blocks_per_stage = 4;
  int stages = 1;                 ///< K/V stages of a KV group in shared memory
  int qk_in_flight = 2;           ///< QK GEMMs issued before the first exponential
  int v_barriers = 2;             ///< barriers for the V of one stage
  int pv_ksteps_per_commit = 2;   ///< steps of PV in one commit group
  int pv_start_step = 8;          ///< step of exponentials before which no PV is issued
  bool late_convert = true;       ///< P is rounded to 16 bits one step after the exponentials
  bool prefetch_next_qk = false;  ///< the first QK of the next iteration is issued within this one
  RowMax row_max = RowMax::stale_tile;
  MaskAt mask_at = MaskAt::scores;
  Rowsum rowsum = Rowsum::mma;
  OverflowCheck overflow_check = OverflowCheck::after_store;
  MergeDtype merge_dtype = MergeDtype::bits16;
  LseFirst lse_first = LseFirst::off;
  PvSplitN pv_split_n = PvSplitN::off;
  AsmOrder asm_order = AsmOrder::fixed;
  Gqa gqa = Gqa::on;
  TmaMulticast tma_multicast = TmaMulticast::none;
  Prologue prologue = Prologue::lengths_first;
  Producer producer = Producer::consumer_warp;
  PdlTrigger pdl_trigger = PdlTrigger::first_qk;
  EpilogueStore epilogue = EpilogueStore::st_b128;
  TileOrder tile_order = TileOrder::descending;
  Specialize specialize = Specialize::none;
  Prune prune = Prune::off;
  OutputLayout o_layout = OutputLayout::strided;
  int min_blocks = 1;
  constexpr bool operator==(const Config&) const = default;
};

HEED_HOST_DEVICE constexpr int num_splits(const Config& c) {
  return c.cluster * c.kv_groups;
}
HEED_HOST_DEVICE constexpr int consumer_threads(const Config& c) {
  return kWarpgroupThreads * c.m_warpgroups * c.kv_groups;
}
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  const int producers = c.producer == Producer::warp ? 32 : c.producer == Producer::warpgroup ? kWarpgroupThreads : 0;
  return consumer_threads(c) + producers;
}
HEED_HOST_DEVICE constexpr int iteration_keys(const Config& c) {
  return c.block_n * c.n_blocks_per_stage;
}
HEED_HOST_DEVICE constexpr int iteration_steps(const Config& c) {
  return iteration_keys(c) / kMmaK;
}

using tile::launch_registers;
using tile::moves_registers;
using tile::padded_dim;
using tile::registers_allowed;

/// Rows of one copy of queries.
HEED_HOST_DEVICE constexpr int query_box_rows(const Config& c) {
  return c.tma_multicast == TmaMulticast::q ? kWarpgroupRows / c.cluster : kWarpgroupRows;
}

// ---------------------------------------------------------------------------------------------- who works on which
// keys

/// Whether the blocks of a grid go through the heads first: (heads of a cluster each, Q tiles, batch). Else it is
/// (Q tiles of a cluster each, heads, batch).
HEED_HOST_DEVICE constexpr bool heads_first(const Config& c) {
  return c.tile_order == TileOrder::lpt_then_spt;
}

/// Which Q tile of a head comes `index`-th of so many.
HEED_HOST_DEVICE constexpr int q_tile_at(const Config& c, int index, int q_tiles) {
  if (c.tile_order == TileOrder::ascending) return index;
  const int longer = (q_tiles + 1) / 2;
  return c.tile_order == TileOrder::descending || index < longer ? q_tiles - 1 - index : index - longer;
}

struct Range {
  int first;
  int end;
  constexpr bool operator==(const Range&) const = default;
};

/// N-blocks of part `split_idx`, of all the n-blocks that hold the first `keys` keys (at most 2^31 / 16): as even as
/// whole n-blocks allow. Unsigned: a launch's first copy waits for this, and divisions of signed numbers by powers of
/// two take three instructions more each.
HEED_HOST_DEVICE constexpr Range n_blocks_of_split(const Config& c, int keys, int split_idx) {
  const unsigned all = (static_cast<unsigned>(keys) + c.block_n - 1) / static_cast<unsigned>(c.block_n);
  const unsigned sharers = static_cast<unsigned>(num_splits(c));
  return {static_cast<int>(all * split_idx / sharers), static_cast<int>(all * (split_idx + 1) / sharers)};
}

HEED_HOST_DEVICE constexpr int iterations_of(const Config& c, Range n_blocks) {
  return static_cast<int>(static_cast<unsigned>(n_blocks.end - n_blocks.first + c.n_blocks_per_stage - 1) /
                          static_cast<unsigned>(c.n_blocks_per_stage));
}

// --------------------------------------------------------------------------------------------- the order within a
// iteration

HEED_HOST_DEVICE constexpr int products(const Config& c) {
  return iteration_steps(c) / c.pv_ksteps_per_commit;
}

/// The step of exponentials after which product group j goes to the tensor cores. Its probabilities are packed by then.
HEED_HOST_DEVICE constexpr int pv_commit_after_step(const Config& c, int j) {
  const int last = iteration_steps(c) - 1;
  int step = (j + 1) * c.pv_ksteps_per_commit - 1 + (c.late_convert ? 1 : 0);
  if (step < c.pv_start_step) step = c.pv_start_step;
  return step < last ? step : last;
}

/// The step of exponentials after which the scores that were not asked for at the start are.
HEED_HOST_DEVICE constexpr int late_scores_after_step(const Config&) {
  return 1;
}

// ------------------------------------------------------------------------------------------------------- shared memory

/// Room of what four lanes, two rows, send at once: 64 bytes and a gap.
inline constexpr int kQuadBytes = 80;
/// Room of 16 bytes of every thread of a consumer warpgroup.
HEED_HOST_DEVICE constexpr int piece_bytes() {
  return kWarpgroupThreads / 4 * kQuadBytes;
}

/// Columns of a row that a part keeps and writes.
HEED_HOST_DEVICE constexpr int slice_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) / num_splits(c);
}
/// EpilogueStore::tma: what one copy writes, the rows of a warp and the columns that four lanes have of a row.
inline constexpr int kStoredRows = 16;
inline constexpr int kStoredColumns = 32;
inline constexpr int kStoredBytes = kStoredRows * kStoredColumns * 2;

/// Dynamic shared memory, in bytes from its start (aligned to 1024).
///
///   | Q of every consumer warpgroup | KV group 0: iteration 0: K n-block 0, 1, .. V part 0, 1, .. | iteration 1 | .. |
///   KV group 1:
///   .. | | ones | rows on their way out | what other parts send, for every consumer warpgroup of every KV group |
///   barriers |
struct SharedPlan {
  int q;              ///< (m_warpgroups, boxes, 64 rows, 128 bytes)
  int ring;           ///< (kv_groups, stages, {K, V}, iteration)
  int key_box;        ///< bytes of one box of an n-block of K: (n-block, 128)
  int value_box;      ///< bytes of one box of the values behind one barrier: (iteration_keys / v_barriers, 128)
  int operand_bytes;  ///< K or V of one iteration
  int ones;           ///< (16 rows, 128 bytes) of ones; 0 bytes without ones columns
  int rows;   ///< (kv_groups, m_warpgroups, 4 warps, slice columns / 32, 16 rows, 64 bytes) with EpilogueStore::tma
  int inbox;  ///< (kv_groups, m_warpgroups, inbox_bytes)
  int inbox_bytes;  ///< of one consumer warpgroup: (parts - 1, slice of a partial output), (parts - 1, 64 log-sum-exps)
  int slice_bytes;  ///< place of one sender's 64 rows of head dim / parts columns
  int sent_bytes;   ///< what the other parts send to one inbox, counted on its barrier
  int sums_bytes;   ///< and on that of its log2-sum-exps
  int barriers;
  int total;
};

/// Barriers, 8 bytes each. Of every KV group: n-block k of stage s at s * n-blocks + k, and so on.
struct BarrierPlan {
  int q;
  int keys;  ///< (kv_groups, stages, n-blocks): an n-block of K has arrived (the first with Q, in the first iteration)
  int values;  ///< (kv_groups, stages, v_barriers)
  int freed;   ///< (kv_groups, stages): an iteration has been read; only a producer warp waits for it
  int again;   ///< (kv_groups): an n-block has arrived for the second computation
  int inbox;   ///< (kv_groups, m_warpgroups): every other split's share has arrived
  int sums;    ///< (kv_groups, m_warpgroups): with LseFirst::on, its log2-sum-exps
  int count;
};

HEED_HOST_DEVICE constexpr BarrierPlan barrier_plan(const Config& c) {
  BarrierPlan b{};
  b.q = 0;
  b.keys = b.q + 1;
  b.values = b.keys + c.kv_groups * c.stages * c.n_blocks_per_stage;
  b.freed = b.values + c.kv_groups * c.stages * c.v_barriers;
  b.again = b.freed + c.kv_groups * c.stages;
  b.inbox = b.again + c.kv_groups;
  b.sums = b.inbox + c.kv_groups * c.m_warpgroups;
  b.count = b.sums + (c.lse_first == LseFirst::on ? c.kv_groups * c.m_warpgroups : 0);
  return b;
}

HEED_HOST_DEVICE constexpr SharedPlan shared_plan(const Config& c, int head_dim) {
  const int boxes = padded_dim(head_dim) / tile::kBoxColumns;
  SharedPlan p{};
  p.q = 0;
  p.ring = c.m_warpgroups * boxes * kWarpgroupRows * tile::kBoxRowBytes;
  p.key_box = c.block_n * tile::kBoxRowBytes;
  p.value_box = iteration_keys(c) / c.v_barriers * tile::kBoxRowBytes;
  p.operand_bytes = boxes * iteration_keys(c) * tile::kBoxRowBytes;
  p.ones = p.ring + c.kv_groups * c.stages * 2 * p.operand_bytes;
  p.rows = p.ones + (c.rowsum == Rowsum::mma ? kMmaK * tile::kBoxRowBytes : 0);
  p.inbox = p.rows + (c.epilogue == EpilogueStore::tma
                          ? c.kv_groups * c.m_warpgroups * 2 * kWarpgroupRows * slice_columns(c, head_dim)
                          : 0);
  const int pieces = slice_columns(c, head_dim) / (c.merge_dtype == MergeDtype::bits16 ? 16 : 8);
  p.slice_bytes = pieces * piece_bytes();
  p.inbox_bytes = (num_splits(c) - 1) * (p.slice_bytes + kWarpgroupRows * 4);
  const int sums = (num_splits(c) - 1) * kWarpgroupRows * 4;
  p.sums_bytes = c.lse_first == LseFirst::on ? sums : 0;
  p.sent_bytes = (num_splits(c) - 1) * pieces * 16 * kWarpgroupThreads + sums - p.sums_bytes;
  p.barriers = p.inbox + c.kv_groups * c.m_warpgroups * p.inbox_bytes;
  p.total = p.barriers + 8 * barrier_plan(c).count;
  return p;
}

// ------------------------------------------------------------------------------------------------------------
// registers

/// Accumulator registers of the output, columns of ones included.
HEED_HOST_DEVICE constexpr int out_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) + (c.rowsum == Rowsum::mma ? 8 : 0);
}

/// Registers a thread needs at least: output, all scores of an iteration, prefetched ones, what is seen of the
/// diagonal, and 48 for probabilities on their way, descriptors and row state.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, int head_dim) {
  const int seen = c.mask_at == MaskAt::probabilities ? kWarpgroupRows / 8 + 1 : 0;
  return out_columns(c, head_dim) / 2 + iteration_keys(c) / 2 + (c.prefetch_next_qk ? c.block_n / 2 : 0) + seen + 48;
}

/// Registers that its widest product names.
HEED_HOST_DEVICE constexpr int registers_named(const Config& c, int head_dim) {
  const int columns = out_columns(c, head_dim);
  return tile::registers_named(columns > c.block_n ? columns : c.block_n);
}

// --------------------------------------------------------------------------------------------------------------
// legality

/// Whether probabilities can be taken out: sums then have to come from what the tensor cores see of them.
HEED_HOST_DEVICE constexpr bool can_mask_probabilities(const Config& c, const Problem& problem) {
  return problem.mask == MaskKind::causal && c.block_n == kWarpgroupRows && c.row_max != RowMax::online &&
         c.rowsum == Rowsum::mma;
}

/// Whether the columns that a part keeps are boxes of their own, and its values stay until they are multiplied.
HEED_HOST_DEVICE constexpr bool can_keep_for_later(const Config& c, int head_dim) {
  return c.cluster == 2 && c.kv_groups == 1 && c.stages == 1 && padded_dim(head_dim) % (2 * tile::kBoxColumns) == 0;
}

HEED_HOST_DEVICE constexpr bool can_store_boxes(const Config& c, int head_dim) {
  return slice_columns(c, head_dim) % kStoredColumns == 0;
}

/// The config that makes the same program as `c` where knobs have no effect, and the nearest that fits together where
/// they contradict each other: every program has one name, and a search that changes one knob is not turned away by
/// another. Says nothing about shared memory and registers.
HEED_HOST_DEVICE constexpr Config canonical(Config c, const Problem& problem) {
  const int dim = padded_dim(problem.head_dim);
  // The first keys of a split may be hidden from rows that see later ones: no stale maximum is to be had from them.
  if (has_left_bound(problem.mask)) c.row_max = RowMax::online;
  while (dim % (16 * num_splits(c)) != 0) (c.kv_groups > 1 ? c.kv_groups : c.cluster) /= 2;
  while (iteration_keys(c) > 256) --c.n_blocks_per_stage;
  while (c.n_blocks_per_stage % c.v_barriers != 0) --c.v_barriers;
  while (iteration_steps(c) / c.v_barriers % c.pv_ksteps_per_commit != 0) c.pv_ksteps_per_commit /= 2;
  if (c.qk_in_flight > c.n_blocks_per_stage || c.row_max == RowMax::online) c.qk_in_flight = c.n_blocks_per_stage;
  if (dim != 64) c.rowsum = Rowsum::fadd;
  if (c.n_blocks_per_stage < 2 || c.stages < 2) c.prefetch_next_qk = false;
  if (c.stages > 1 || c.row_max == RowMax::online) c.overflow_check = OverflowCheck::before_merge;
  if (num_splits(c) == 1) c.merge_dtype = MergeDtype::bits16;
  if (c.cluster == 1) c.lse_first = LseFirst::off;
  if (c.cluster == 1) c.tma_multicast = TmaMulticast::none;
  if (c.tma_multicast == TmaMulticast::q && c.prologue == Prologue::q_first) c.prologue = Prologue::maps_first;
  if (c.epilogue == EpilogueStore::tma && !can_store_boxes(c, problem.head_dim)) c.epilogue = EpilogueStore::st_b128;
  if (!can_keep_for_later(c, problem.head_dim)) c.pv_split_n = PvSplitN::off;
  if (!can_mask_probabilities(c, problem)) c.mask_at = MaskAt::scores;
  if (!has_right_bound(problem.mask) && c.tile_order == TileOrder::lpt_then_spt) c.tile_order = TileOrder::descending;
  if (c.producer == Producer::warpgroup && !moves_registers(c)) c.producer = Producer::warp;
  if (c.epilogue == EpilogueStore::tma || problem.sizes.len_q == 0)
    c.o_layout = OutputLayout::strided;  // boxes go where a map says
  if (c.o_layout == OutputLayout::dense) c.specialize = Specialize::shape;
  if (problem.sizes.len_q == 0) c.specialize = Specialize::none;
  if (c.specialize == Specialize::shape) c.gqa = Gqa::on;  // by how many is a constant
  if (c.specialize == Specialize::none) c.prune = Prune::off;
  Config eager = c;
  eager.pv_start_step = 0;
  if (c.pv_start_step <= pv_commit_after_step(eager, 0)) c.pv_start_step = 0;
  if (c.pv_start_step >= iteration_steps(c)) c.pv_start_step = 0;
  return c;
}

enum class Illegal {
  no,
  head_dim,
  threads,
  num_splits,
  cluster,
  iteration,
  v_barriers,
  pv_commits,
  qk_in_flight,
  rowsum_mma,
  prefetch_next_qk,
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
  if (c.cluster > 8) return Illegal::cluster;                       // the largest that every device schedules
  if (dim % (16 * num_splits(c)) != 0) return Illegal::num_splits;  // two accumulator tiles a part at least
  if (iteration_keys(c) > 256) return Illegal::iteration;           // 128 score registers
  if (c.n_blocks_per_stage % c.v_barriers != 0) return Illegal::v_barriers;
  if (iteration_steps(c) % c.pv_ksteps_per_commit != 0 ||
      iteration_steps(c) / c.v_barriers % c.pv_ksteps_per_commit != 0)
    return Illegal::pv_commits;
  if (c.qk_in_flight > c.n_blocks_per_stage) return Illegal::qk_in_flight;
  if (c.rowsum == Rowsum::mma && dim != 64) return Illegal::rowsum_mma;
  if (c.prefetch_next_qk && (c.n_blocks_per_stage < 2 || c.stages < 2)) return Illegal::prefetch_next_qk;
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

}  // namespace heed::sm90_split

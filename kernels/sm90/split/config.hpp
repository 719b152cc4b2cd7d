/// fwd_sm90_split: the knobs, what is legal, the resources a config takes and the order in which it works. Shared by
/// the host, nvcc and NVRTC.
///
/// Words of this family:
///   consumer warpgroup   128 threads with 64 query rows of their own
///   KV group             the consumer warpgroups of one CTA that share a part of the keys; with 2, a CTA has each row
///                        twice
///   split                keys of one KV group of one CTA: cluster x kv_groups splits share those of a Q tile evenly
///   n-block              block_n keys, the N of one QK GEMM
///   iteration            `n_blocks_per_stage` n-blocks in one unrolled pass; a split has one iteration or several
///   step                 16 keys: what one PV wgmma contracts
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/attention/named_barriers.hpp"
#include "kernels/attention/tile_scheduler.hpp"
#include "kernels/contract.hpp"
#include "kernels/sm90/warpgroup.hpp"
#include "kernels/tile/matrix_descriptor.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_split {

using attention::TileOrder;
using sm90::kWarpgroupRows, sm90::kWarpgroupThreads;

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
  bits16,   ///< the type of O, which rounds a part's rows once more
  fp32,     ///< twice the bytes
  fixed16,  ///< whole numbers of 16 bits, and an exponent for the columns of a row that a part sends
  bits24,   ///< fp32 without its last 8 bits
};

/// Whether a word holds two neighbouring columns of a row.
HEED_HOST_DEVICE constexpr bool is_pairs(MergeDtype sent) {
  return sent == MergeDtype::bits16 || sent == MergeDtype::fixed16;
}

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
/// What named barriers are for.
enum class NamedBarrier {
  kv_group,   ///< one a KV group: all of its threads
  consumers,  ///< the threads of all KV groups, where one CTA merges them
  cleared,    ///< one a consumer warpgroup: it has zeroed values past an entry's keys
};

HEED_HOST_DEVICE constexpr attention::NamedBarriers<NamedBarrier, 3> named_barriers(const Config& c) {
  attention::NamedBarriers<NamedBarrier, 3> b;
  b[NamedBarrier::kv_group] = {1, c.kv_groups};
  if (c.kv_groups > 1) b[NamedBarrier::consumers] = {1 + c.kv_groups, 1};
  b[NamedBarrier::cleared] = {2 + c.kv_groups, c.m_warpgroups * c.kv_groups};
  return b;
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

// ---------------------------------------------------------------------------------------------- division of the keys

/// (Q tiles, heads, batch), or heads first: where Q tiles of all heads come in one order.
HEED_HOST_DEVICE constexpr attention::GridAxes grid_axes(const Config& c) {
  return c.tile_order == TileOrder::lpt_then_spt ? attention::GridAxes::heads_tiles_batch
                                                 : attention::GridAxes::tiles_heads_batch;
}

/// attention::q_tile_at as one selection: with its branch NVRTC 13.0 makes other programs of b1h8l1024d64 causal.
HEED_HOST_DEVICE constexpr int q_tile_at(const Config& c, int index, int q_tiles) {
  if (c.tile_order == TileOrder::ascending) return index;
  const int longer = attention::longer_half(q_tiles);
  return c.tile_order == TileOrder::descending || index < longer ? q_tiles - 1 - index : index - longer;
}

/// The grid of a launch.
HEED_HOST_DEVICE constexpr attention::Grid3 launch_grid(const Config& c, long long len_q, long long heads,
                                                        long long batch) {
  const long long q_tiles = attention::q_tiles_of_head(len_q, c.m_warpgroups * kWarpgroupRows);
  return attention::grid_of(grid_axes(c), q_tiles, heads, batch, c.cluster);
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

// ---------------------------------------------------------------------------------------------- order in an iteration

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

/// Accumulator registers of the output, columns of ones included.
HEED_HOST_DEVICE constexpr int out_columns(const Config& c, int head_dim) {
  return padded_dim(head_dim) + (c.rowsum == Rowsum::mma ? 8 : 0);
}

}  // namespace heed::sm90_split

/// fwd_sm90_split: a config's one name, the registers it takes, and whether it can be built and launched. Shared by the
/// host, nvcc and NVRTC.
#pragma once

#include "kernels/attention/specialization.hpp"
#include "kernels/sm90/split/shared_plan.hpp"

namespace heed::sm90_split {

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

/// Whether probabilities can be taken out: sums then have to come from what the tensor cores see of them. The last key
/// of an entry with a length of its own may be any of an n-block.
HEED_HOST_DEVICE constexpr bool can_mask_probabilities(const Config& c, const Problem& problem) {
  return problem.mask == MaskKind::causal && c.block_n == kWarpgroupRows && c.row_max != RowMax::online &&
         c.rowsum == Rowsum::mma && !problem.features.lengths;
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
  if (c.merge_dtype == MergeDtype::bits24 && slice_columns(c, problem.head_dim) % 32 != 0)
    c.merge_dtype = MergeDtype::fp32;  // four tiles share a piece of last bytes
  if (c.cluster == 1) c.lse_first = LseFirst::off;
  if (c.cluster == 1) c.tma_multicast = TmaMulticast::none;
  if (problem.features.lengths) {
    // Lengths say where an entry's queries lie, and no box ends where an entry does.
    if (c.prologue == Prologue::q_first) c.prologue = Prologue::lengths_first;
    if (c.epilogue == EpilogueStore::tma) c.epilogue = EpilogueStore::st_b128;
  }
  if (c.tma_multicast == TmaMulticast::q && c.prologue == Prologue::q_first) c.prologue = Prologue::maps_first;
  if (c.epilogue == EpilogueStore::tma && !can_store_boxes(c, problem.head_dim)) c.epilogue = EpilogueStore::st_b128;
  if (!can_keep_for_later(c, problem.head_dim)) c.pv_split_n = PvSplitN::off;
  if (!can_mask_probabilities(c, problem)) c.mask_at = MaskAt::scores;
  if (!has_right_bound(problem.mask) && c.tile_order == TileOrder::lpt_then_spt) c.tile_order = TileOrder::descending;
  if (c.producer == Producer::warpgroup && !moves_registers(c)) c.producer = Producer::warp;
  if (problem.specialization.specialize != Specialize::none) c.gqa = Gqa::on;  // by how many is a constant
  Config eager = c;
  eager.pv_start_step = 0;
  if (c.pv_start_step <= pv_commit_after_step(eager, 0)) c.pv_start_step = 0;
  if (c.pv_start_step >= iteration_steps(c)) c.pv_start_step = 0;
  return c;
}

/// The specializations that the family has code for.
inline constexpr SpecializationSupport kSpecializations{
    .shape = true, .whole_tiles = false, .prune = true, .dense_output = true};

/// The specializations that there are of a canonical config.
HEED_HOST_DEVICE constexpr SpecializationSupport specializations_of(const Config& c, const Problem& problem) {
  SpecializationSupport has = kSpecializations;
  has.shape = problem.sizes.len_q > 0;
  if (c.epilogue == EpilogueStore::tma) has.dense_output = false;  // boxes go where a map says
  return has;
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

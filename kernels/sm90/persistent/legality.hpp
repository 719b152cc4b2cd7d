/// fwd_sm90_persistent: a config's one name, and whether it can be built and launched. Shared by the host, nvcc and
/// NVRTC.
#pragma once

#include "kernels/attention/specialization.hpp"
#include "kernels/sm90/persistent/entries.hpp"
#include "kernels/sm90/persistent/registers.hpp"
#include "kernels/sm90/persistent/shared_plan.hpp"

namespace heed::sm90_persistent {

inline constexpr int kMostBlock = 128;  ///< rows of a block of a list

/// Whether consumer warpgroups come in pairs whose keys differ, and KV groups can be cut for all of them alike. One
/// that takes every other tile holds two iterations at a time.
HEED_HOST_DEVICE constexpr bool can_pair(const Config& c) {
  return c.tile_order == TileOrder::paired && c.stages > 1 && c.m_warpgroups % 2 == 0 &&
         (c.kv_groups == 1 || c.m_warpgroups == 2) && c.cluster == 1 && c.virtual_ctas == 1 &&
         c.softmax_overlap != SoftmaxOverlap::qk_pv;
}

/// Whether Q tiles can be taken to be whole (Specialize::whole_tiles).
HEED_HOST_DEVICE constexpr bool can_be_whole(const Config& c, const Problem& problem) {
  const FixedSizes& s = problem.sizes;
  return !has_left_bound(problem.mask) && s.len_q % block_rows(c) == 0 &&
         (!has_right_bound(problem.mask) || (s.right_offset >= 0 && s.len_q + s.right_offset <= s.len_k));
}

/// The config that makes the same program as `c` where knobs have no effect, and the nearest that fits together where
/// they contradict each other. Says nothing about shared memory and registers.
/// @param problem with the sizes of the launches that there will be, or with none where these are not known
HEED_HOST_DEVICE constexpr Config canonical(Config c, const Problem& problem) {
  if (has_left_bound(problem.mask)) {
    // Q tiles are about equally long, and masked tiles lie at both ends of each.
    if (c.tile_order == TileOrder::paired || c.tile_order == TileOrder::lpt_then_spt)
      c.tile_order = TileOrder::row_major;
    if (c.mask_path == MaskPath::separate_loop) c.mask_path = MaskPath::branch;
  }
  // A row's squares are added up by the quad of lanes that holds it. Of four KV groups each keeps half of its columns.
  if (problem.features.out_norm && column_slices(c) > 1) c.kv_groups = 2;
  if (reads_past_keys(problem.features)) {
    // Consumer warpgroups of a pair hand tiles over that are not the first of their order, and the last rows of an
    // entry are followed by those of the next, which no store may touch that is not asked row by row.
    c.share_causal_tail = ShareCausalTail::off;
    if (problem.features.lengths) c.cluster = 1;
    if (problem.features.lengths &&
        (c.epilogue == EpilogueStore::tma || c.epilogue == EpilogueStore::smem_b128_preaddressed))
      c.epilogue = EpilogueStore::smem_b128;
    // The numbers of an entry may be the work of the launch before, which the producer waits for.
    if (entries_differ(problem.features)) c.tile_setup = TileSetup::lazy;
    // A Q tile lies in one block of rows, of 128 at most, and a KV tile in one of keys, any of which may be masked.
    if (problem.features.blocks) {
      if (block_rows(c) > kMostBlock) c.m_warpgroups = kMostBlock / kWarpgroupRows;
      if (c.tile_order == TileOrder::paired) c.tile_order = TileOrder::row_major;
      c.block_n = c.block_n < kLeastBlock ? kLeastBlock / 2 : kLeastBlock;
      if (c.mask_path == MaskPath::separate_loop) c.mask_path = MaskPath::branch;
    }
    // Boxes divide pages and tiles.
    if (problem.features.pages)
      while ((c.block_n & (c.block_n - 1)) != 0) c.block_n -= kMmaK;
  }
  if (c.tile_order == TileOrder::paired && (!has_right_bound(problem.mask) || c.m_warpgroups == 1))
    c.tile_order = TileOrder::row_major;
  if (streams(c)) {
    // Pieces are of lists, whose tiles one KV group takes; lengths of entries move their ends. The producer warp needs
    // registers for the division, and gives them away after it.
    if (!problem.features.blocks || problem.features.lengths || c.kv_groups > 1) {
      c.scheduler = Scheduler::static_persistent;
    } else {
      c.tile_order = TileOrder::row_major;
      c.grid = Grid::full;
      if (moves_registers(c)) c.setmaxnreg = Setmaxnreg::after_loads;
    }
  }
  if (c.scheduler != Scheduler::single_tile || c.kv_groups > 1) c.cluster = 1;
  if (c.tile_order == TileOrder::lpt_then_spt &&
      (!has_right_bound(problem.mask) || c.scheduler != Scheduler::single_tile))
    c.tile_order = TileOrder::row_major;
  if (c.scheduler == Scheduler::single_tile || c.kv_groups > 1) c.virtual_ctas = 1;
  // More than four virtual CTAs find no registers on a multiprocessor.
  if (c.virtual_ctas > 1 && c.virtual_ctas * c.min_blocks > 4) c.min_blocks = 4 / c.virtual_ctas;
  if (c.scheduler == Scheduler::single_tile) c.q_stages = 1;
  if (c.scheduler != Scheduler::static_persistent) c.grid = Grid::full;
  // A Q tile a block: all are first ones, and so are nearly all keys.
  if (c.scheduler == Scheduler::single_tile && resident_first_tiles(c.evict_first) > 0) c.evict_first = EvictFirst::v_o;
  if (c.row_max == RowMax::online) c.softmax_overlap = SoftmaxOverlap::none;
  if (problem.element == Element::bf16) c.rowsum = attention::Rowsum::fadd;  // which are rounded in any case
  if (!can_pair(c)) c.share_causal_tail = ShareCausalTail::off;
  if (c.m_warpgroups == 1 || c.share_causal_tail == ShareCausalTail::on) c.pingpong = Pingpong::off;
  // Where several consumer warpgroups share rings, one that waits frees no stage, and the one thread that loads for all
  // key groups would wait for it before it brings what the first KV group needs to get to its scores.
  if (c.kv_groups == 1 || c.m_warpgroups > 1 || c.scheduler != Scheduler::single_tile)
    c.stagger_splits = StaggerSplits::off;
  if (c.softmax_overlap != SoftmaxOverlap::qk_pv) c.overflow_check = OverflowCheck::inlined;
  if (c.softmax_overlap != SoftmaxOverlap::qk_pv || !has_right_bound(problem.mask)) c.mask_path = MaskPath::branch;
  if (c.epilogue == EpilogueStore::tma && c.kv_groups > 1 && c.scheduler != Scheduler::single_tile)
    c.epilogue = EpilogueStore::smem_b128;
  if ((c.epilogue == EpilogueStore::tma || stores_from_smem(c)) && !keeps_whole_boxes(c, problem.head_dim))
    c.epilogue = EpilogueStore::st_b128;
  if (c.epilogue == EpilogueStore::smem_b128_preaddressed && c.scheduler != Scheduler::single_tile)
    c.epilogue = EpilogueStore::smem_b128;
  if (c.softmax_overlap == SoftmaxOverlap::pv) {
    // Its exponentials take their scores' place, in an order of their own.
    c.scale_placement = ScalePlacement::at_use;
    c.convert_placement = ConvertPlacement::at_once;
    c.rowsum_placement = RowsumPlacement::at_once;
    c.gemm_order = GemmOrder::qk_first;
    c.barrier_wait =
        BarrierWait::at_use;  // it has no register left to keep an answer in, and waits for values behind scores
  }
  if (c.producer == Producer::warpgroup && !moves_registers(c)) c.producer = Producer::warp;
  if (!moves_registers(c)) c.setmaxnreg = Setmaxnreg::early;
  // Of several virtual CTAs some may have no Q tile, and hear of that with their queries' barrier.
  if (c.virtual_ctas > 1) c.tile_setup = TileSetup::lazy;
  return c;
}

/// The specializations that the family has code for.
inline constexpr SpecializationSupport kSpecializations{
    .shape = true, .whole_tiles = true, .prune = true, .dense_output = true};

/// The specializations that there are of a canonical config. Under a window nothing is known of KV tiles that would
/// leave code out.
HEED_HOST_DEVICE constexpr SpecializationSupport specializations_of(const Config& c, const Problem& problem) {
  SpecializationSupport has = kSpecializations;
  has.shape = problem.sizes.len_q > 0;
  has.whole_tiles = can_be_whole(c, problem);
  if (has_left_bound(problem.mask)) has.prune = false;
  if (c.epilogue == EpilogueStore::tma) has.dense_output = false;  // boxes go where a map says
  return has;
}

enum class Illegal {
  no,
  head_dim,
  threads,
  block_n,
  softmax_overlap,
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
  if (c.block_n % kMmaK != 0 || c.block_n < 32 || c.block_n > 128) return Illegal::block_n;
  if (c.softmax_overlap != SoftmaxOverlap::none && c.row_max == RowMax::online) return Illegal::softmax_overlap;
  const int total = shared_plan(c, problem).total;
  if (total > shared_bytes) return Illegal::shared_memory;
  // The runtime keeps 1 KiB of each block's shared memory to itself.
  if (static_cast<long long>(c.min_blocks) * (total + 1024) > shared_bytes_per_processor) return Illegal::occupancy;
  if (threads(c) * c.min_blocks > 2048) return Illegal::occupancy;
  if (registers_needed(c, problem) > registers_allowed(c)) return Illegal::registers;
  if (registers_named(c, problem.head_dim) > launch_registers(c)) return Illegal::operands;
  if (!(canonical(c, problem) == c)) return Illegal::same_program;
  return Illegal::no;
}

}  // namespace heed::sm90_persistent

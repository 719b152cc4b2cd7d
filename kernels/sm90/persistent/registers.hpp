/// fwd_sm90_persistent: the registers a config takes. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/attention/features.hpp"
#include "kernels/sm90/persistent/shared_plan.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm90_persistent {

using tile::launch_registers;
using tile::moves_registers;
using tile::registers_allowed;

/// Registers that changed scores take besides: little for what is computed of a score alone, or of biases in shared
/// memory (with four consumer warpgroups 64 bytes were spilled, which this keeps out); others are loaded many at a
/// time, each under a condition of its own, and a mask with a left bound has two of these. Dropout draws in the
/// registers of scores that are done with, and keeps four words of its head: nothing is spilled with these four.
HEED_HOST_DEVICE constexpr int registers_of_features(const Config& c, const Problem& problem) {
  const Features& f = problem.features;
  const int of_dropout = f.dropout ? 4 : 0;
  if (!changes_scores(f)) return of_dropout;
  const int of_bias = copies_biases(c, problem) ? 4 : padded_dim(problem.head_dim) > 128 ? 24 : 16;
  return of_dropout + 4 + (f.bias ? of_bias + (c.softmax_overlap == SoftmaxOverlap::pv ? 48 : 0) : 0) +
         (has_left_bound(problem.mask) ? 4 : 0);
}

/// Registers that lists of blocks take, and entries with lengths of their own, whose numbers are kept beside the loop.
/// Up to 44 bytes were spilled with tiles of 96 keys beside both products at head dim 128, and up to 40 of changed
/// scores and of windows with tiles of 64 keys from 192 on; these are left out.
HEED_HOST_DEVICE constexpr int registers_of_entries(const Config& c, const Problem& problem) {
  const int dim = padded_dim(problem.head_dim);
  const int of_list = problem.features.blocks ? 4 : 0;
  if (!problem.features.lengths || dim == tile::kBoxColumns) return of_list;
  const bool is_wide = dim > 128 && (has_left_bound(problem.mask) || changes_scores(problem.features));
  const int left_out = is_wide ? 32 - registers_of_features(c, problem) : 0;
  const int least = c.softmax_overlap == SoftmaxOverlap::qk_pv || dim > 128 ? 12 : 4;
  return of_list + (left_out > least ? left_out : least);
}

/// Registers a thread needs at least: output, scores, probabilities, and 28 for addresses and row state (36
/// beside the widest output). Where blocks stay and KV groups merge, ptxas keeps more of the merge beside the loop, up
/// to 3/8 of the head dim; little with one box of columns and one tile's scores, twice as much with pairs. A warp that
/// multiplies scores again (SoftmaxOverlap::pv) has operands of its own then, more where blocks stay with paired rows.
/// What was asked ahead is kept for two rings. Where KV groups meet beside several consumer warpgroups, instructions
/// far from their exponentials (Scaling, Packing, Adding) keep more alive.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, const Problem& problem) {
  const int dim = padded_dim(problem.head_dim);
  const int tiles = c.softmax_overlap == SoftmaxOverlap::qk_pv ? 2 : 1;
  const bool narrow = dim == tile::kBoxColumns && c.softmax_overlap == SoftmaxOverlap::none;
  const int merge = c.kv_groups == 1 || c.scheduler == Scheduler::single_tile ? 0
                    : narrow                                                  ? (pairs(c) > 0 ? 8 : 4)
                                                                              : dim * 3 / 8;
  const int counted = c.stage_release == StageRelease::branch ? 0 : dim > tile::kBoxColumns ? 8 : 4;
  const bool mirrored_stay = c.tile_order == TileOrder::paired && c.scheduler != Scheduler::single_tile;
  const int again = c.softmax_overlap != SoftmaxOverlap::pv ? 0
                                                            : counted + (mirrored_stay ? 4 : 0) +
                                                                  (dim > tile::kBoxColumns ? 16
                                                                   : c.block_n % 64 == 0   ? 4
                                                                                           : 8);
  const bool apart = c.scale_placement != ScalePlacement::at_use || c.convert_placement == ConvertPlacement::at_end ||
                     c.rowsum_placement != RowsumPlacement::at_once;
  const int orders = apart && c.kv_groups > 1 && c.m_warpgroups > 1 ? 8 : 0;
  const int ahead = c.barrier_wait != BarrierWait::try_wait_early ? 0 : c.block_n % 64 == 0 ? 2 : 8;
  return dim / 2 + tiles * (c.block_n / 2 + c.block_n / 4) + merge + again + ahead + orders +
         registers_of_features(c, problem) + registers_of_entries(c, problem) + (dim == 256 ? 36 : 28);
}

/// Registers that its widest product names.
HEED_HOST_DEVICE constexpr int registers_named(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  return tile::registers_named(dim > c.block_n ? dim : c.block_n);
}

}  // namespace heed::sm90_persistent

/// Configs of fwd_sm90_persistent drawn at random, for tests of what is worked out at compile time.
#pragma once

#include <vector>

#include "base/random.hpp"
#include "kernels/sm90/persistent/legality.hpp"

namespace heed::sm90_persistent {

inline constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};

inline Config random_config(Random& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random.below(values.size())]; };
  const TileOrder orders[] = {TileOrder::row_major, TileOrder::lpt_l2, TileOrder::paired, TileOrder::lpt_then_spt};
  Config c;
  c.m_warpgroups = one_of({1, 2, 3, 4});
  c.kv_groups = one_of({1, 2, 4});
  c.cluster = one_of({1, 2});
  c.block_n = one_of({32, 48, 64, 80, 96, 112, 128});
  c.stages = one_of({1, 2, 3, 5, 8, 16});
  c.q_stages = one_of({1, 2, 3, 4});
  c.scheduler = static_cast<Scheduler>(random.below(4));
  c.softmax_overlap = static_cast<SoftmaxOverlap>(random.below(3));
  c.gemm_order = static_cast<GemmOrder>(random.below(3));
  c.row_max = static_cast<RowMax>(random.below(3));
  c.pingpong = static_cast<Pingpong>(random.below(2));
  c.stagger_splits = static_cast<StaggerSplits>(random.below(2));
  c.producer = random.chance(0.5) ? Producer::warp : Producer::warpgroup;
  c.setmaxnreg = static_cast<Setmaxnreg>(random.below(2));
  c.tile_setup = static_cast<TileSetup>(random.below(2));
  c.mask_path = static_cast<MaskPath>(random.below(3));
  c.tile_order = orders[random.below(4)];
  c.share_causal_tail = static_cast<ShareCausalTail>(random.below(2));
  c.evict_first = static_cast<EvictFirst>(random.below(11));
  c.epilogue = static_cast<EpilogueStore>(random.below(5));
  c.scale_placement = static_cast<ScalePlacement>(random.below(3));
  c.convert_placement = static_cast<ConvertPlacement>(random.below(3));
  c.rowsum_placement = static_cast<RowsumPlacement>(random.below(3));
  c.rowsum_reduce = static_cast<RowsumReduce>(random.below(2));
  c.barrier_wait = static_cast<BarrierWait>(random.below(2));
  c.stage_release = static_cast<StageRelease>(random.below(2));
  c.virtual_ctas = one_of({1, 2, 3, 4});
  c.min_blocks = one_of({1, 2, 3, 4});
  return c;
}

}  // namespace heed::sm90_persistent

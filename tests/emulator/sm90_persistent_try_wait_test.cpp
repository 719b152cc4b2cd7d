// fwd_sm90_persistent on the emulated GPU: what a block does while its first loads are on their way.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

// Blocks that stay: only the first Q tile is known before its queries have come.
TEST(EmulatedPersistent, BlocksThatStayKnowTheirFirstShareAhead) {
  constexpr Config kSmall{.m_warpgroups = 1,
                          .stages = 2,
                          .q_stages = 2,
                          .scheduler = Scheduler::static_persistent,
                          .gemm_order = GemmOrder::interleaved,
                          .row_max = RowMax::stale_16,
                          .producer = Producer::warpgroup,
                          .setmaxnreg = Setmaxnreg::after_loads,
                          .tile_setup = TileSetup::early,
                          .epilogue = EpilogueStore::tma,
                          .rowsum_reduce = RowsumReduce::beside_pv,
                          .min_blocks = 3};
  run_case<kSmall, kHalf64>({.batch = 2, .heads = 5, .len_q = 128, .len_k = 128}, 401, {.blocks = 3});
  run_case<kSmall, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 100, .heads_inner = true}, 402);
  run_case<kSmall, kHalf64>({.len_q = 40, .len_k = 128}, 403, {.with_lse = false});
  run_case<kSmall, kHalf64Causal>({.heads = 4, .len_q = 190, .len_k = 150, .causal_offset = -40}, 404, {.blocks = 2});
  constexpr Config kDrawn{.m_warpgroups = 2,
                          .stages = 3,
                          .q_stages = 1,
                          .scheduler = Scheduler::dynamic_persistent,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .tile_setup = TileSetup::early,
                          .tile_order = TileOrder::lpt_l2};
  run_case<kDrawn, kHalf64Causal>({.heads = 4, .len_q = 300, .len_k = 300}, 405, {.blocks = 3});
  constexpr Config kPairs{.m_warpgroups = 2,
                          .stages = 3,
                          .q_stages = 2,
                          .scheduler = Scheduler::static_persistent,
                          .producer = Producer::warpgroup,
                          .setmaxnreg = Setmaxnreg::after_loads,
                          .tile_setup = TileSetup::early,
                          .tile_order = TileOrder::paired,
                          .share_causal_tail = ShareCausalTail::on};
  run_case<kPairs, kHalf64Causal>({.heads = 3, .len_q = 500, .len_k = 500}, 406, {.blocks = 2});
}

// A block of one Q tile, whose KV groups, pairs or cluster share its keys; rows without a key among them.
TEST(EmulatedPersistent, OneRowTileIsSharedOutAhead) {
  constexpr Config kPairs{.m_warpgroups = 2,
                          .kv_groups = 2,
                          .stages = 4,
                          .gemm_order = GemmOrder::qk_first,
                          .row_max = RowMax::stale_16,
                          .producer = Producer::warpgroup,
                          .tile_setup = TileSetup::early,
                          .epilogue = EpilogueStore::smem_b128,
                          .tile_order = TileOrder::paired,
                          .share_causal_tail = ShareCausalTail::on,
                          .barrier_wait = BarrierWait::try_wait_early,
                          .stage_release = StageRelease::predicated};
  run_case<kPairs, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 411);
  run_case<kPairs, kHalf64Causal>({.len_q = 450, .len_k = 300, .causal_offset = -150}, 412);
  constexpr Config kSplit{.m_warpgroups = 1,
                          .cluster = 2,
                          .stages = 3,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .overflow_check = OverflowCheck::deferred,
                          .mask_path = MaskPath::separate_loop,
                          .tile_setup = TileSetup::early,
                          .epilogue = EpilogueStore::smem_b128,
                          .tile_order = TileOrder::lpt_then_spt,
                          .min_blocks = 2};
  run_case<kSplit, kHalf64Causal>({.heads = 2, .len_q = 320, .len_k = 320}, 413);
  run_case<kSplit, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 200, .causal_offset = -120}, 414);
  constexpr Config kGroups{.m_warpgroups = 1,
                           .kv_groups = 2,
                           .stages = 2,
                           .softmax_overlap = SoftmaxOverlap::qk_pv,
                           .producer = Producer::warpgroup,
                           .setmaxnreg = Setmaxnreg::after_loads,
                           .tile_setup = TileSetup::early};
  run_case<kGroups, kBrain128Causal>({.heads = 2, .len_q = 100, .len_k = 400, .causal_offset = 300}, 415);
}

}  // namespace
}  // namespace heed::sm90_persistent

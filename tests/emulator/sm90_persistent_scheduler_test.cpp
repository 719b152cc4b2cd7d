// fwd_sm90_persistent on the emulated GPU: blocks that stay for several Q tiles.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

TEST(EmulatedPersistent, BlocksThatStay) {
  constexpr Config kPersistent{.m_warpgroups = 1,
                               .block_n = 48,
                               .stages = 3,
                               .q_stages = 2,
                               .scheduler = Scheduler::static_persistent,
                               .producer = Producer::warpgroup,
                               .min_blocks = 2};
  run_case<kPersistent, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 100}, 24, {.blocks = 3});
  run_case<kPersistent, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 120, .causal_offset = -80}, 25);
  constexpr Config kOneQueryStage{.m_warpgroups = 2,
                                  .block_n = 64,
                                  .stages = 2,
                                  .q_stages = 1,
                                  .scheduler = Scheduler::static_persistent,
                                  .softmax_overlap = SoftmaxOverlap::qk_pv,
                                  .tile_order = TileOrder::lpt_l2};
  run_case<kOneQueryStage, kHalf64Causal>({.heads = 4, .heads_kv = 2, .len_q = 260, .len_k = 260}, 26, {.blocks = 4});
  // Few rows of many heads: KV groups merge Q tile after Q tile.
  constexpr Config kFewRows{.m_warpgroups = 1,
                            .kv_groups = 2,
                            .stages = 3,
                            .q_stages = 2,
                            .scheduler = Scheduler::static_persistent,
                            .softmax_overlap = SoftmaxOverlap::qk_pv,
                            .gemm_order = GemmOrder::qk_first,
                            .overflow_check = OverflowCheck::deferred,
                            .producer = Producer::warpgroup,
                            .epilogue = EpilogueStore::smem_b128,
                            .barrier_wait = BarrierWait::try_wait_early,
                            .stage_release = StageRelease::predicated};
  run_case<kFewRows, kHalf64>({.batch = 2, .heads = 3, .len_q = 20, .len_k = 400}, 245);
  constexpr Config kTwiceAsMany{.m_warpgroups = 2,
                                .kv_groups = 2,
                                .stages = 2,
                                .q_stages = 2,
                                .scheduler = Scheduler::static_persistent,
                                .row_max = RowMax::stale_16,
                                .producer = Producer::warpgroup,
                                .epilogue = EpilogueStore::smem_b128};
  run_case<kTwiceAsMany, kHalf64Causal>({.heads = 3, .len_q = 100, .len_k = 400, .causal_offset = 300}, 246);
}

// Blocks of the emulated GPU run one after the other: the first takes every Q tile, the others none.
TEST(EmulatedPersistent, BlocksThatTakeWhatIsLeft) {
  constexpr Config kDynamic{.m_warpgroups = 2,
                            .block_n = 64,
                            .stages = 2,
                            .q_stages = 3,
                            .scheduler = Scheduler::dynamic_persistent,
                            .pdl_trigger = PdlTrigger::none,
                            .tile_order = TileOrder::lpt_l2};
  run_case<kDynamic, kHalf64Causal>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 150}, 27,
                                    {.blocks = 3});
  run_case<kDynamic, kHalf64Causal>({.heads = 3, .heads_kv = 3, .len_q = 140, .len_k = 60, .causal_offset = -80}, 28);
  run_case<kDynamic, kHalf64>({.len_q = 1, .len_k = 1}, 29, {.blocks = 1});
}

}  // namespace
}  // namespace heed::sm90_persistent

// fwd_sm90_persistent on the emulated GPU: consumer warpgroups with rows from both ends of a head.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

// Consumer warpgroups with rows from both ends of a head: an even and an odd number of 64s, fewer than consumer
// warpgroups, rows that end within the last, keys that begin or end before the rows do.
TEST(EmulatedPersistent, MirroredRows) {
  constexpr Config kTwo{
      .m_warpgroups = 2, .stages = 2, .producer = Producer::warpgroup, .tile_order = TileOrder::paired};
  run_case<kTwo, kHalf64Causal>({.heads = 2, .len_q = 256, .len_k = 256}, 40);
  run_case<kTwo, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 310, .causal_offset = 10}, 41);
  run_case<kTwo, kHalf64Causal>({.len_q = 40, .len_k = 70, .causal_offset = 30}, 42);
  run_case<kTwo, kHalf64Causal>({.len_q = 330, .len_k = 120, .causal_offset = -210}, 43);
  run_case<kTwo, kHalf64Causal>({.len_q = 330, .len_k = 120, .causal_offset = 0, .score_scale = 30}, 44);
  constexpr Config kKvGroups{.m_warpgroups = 2,
                             .kv_groups = 2,
                             .block_n = 48,
                             .stages = 3,
                             .producer = Producer::warpgroup,
                             .tile_order = TileOrder::paired};
  run_case<kKvGroups, kHalf64Causal>({.len_q = 450, .len_k = 450}, 45);
  run_case<kKvGroups, kHalf64Causal>({.len_q = 200, .len_k = 500, .causal_offset = 300}, 46);
  constexpr Config kFour{.m_warpgroups = 4,
                         .stages = 3,
                         .q_stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .producer = Producer::warpgroup,
                         .tile_order = TileOrder::paired};
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 520, .len_k = 520}, 47);
  constexpr Config kThree{.m_warpgroups = 3,
                          .block_n = 32,
                          .stages = 3,
                          .q_stages = 2,
                          .scheduler = Scheduler::dynamic_persistent,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .tile_order = TileOrder::paired};
  run_case<kThree, kHalf64Causal>({.heads = 2, .len_q = 270, .len_k = 250, .causal_offset = -20}, 48);
  run_case<kTwo, Problem{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal}>(
      {.len_q = 190, .len_k = 190}, 49);
}

// Both consumer warpgroups of a pair take the KV tiles that only one of them sees: few and many, an even and an odd
// number, in one KV group and in two, where the one has no keys of its own, where a head ends within a pair, and where
// one warp or many take a tile again.
TEST(EmulatedPersistent, PairsShareTheirTiles) {
  constexpr Config kTwo{.m_warpgroups = 2,
                        .stages = 3,
                        .producer = Producer::warpgroup,
                        .tile_order = TileOrder::paired,
                        .share_causal_tail = ShareCausalTail::on};
  for (const int rows : {128, 192, 256, 320, 448, 512})
    run_case<kTwo, kHalf64Causal>({.heads = 2, .len_q = rows, .len_k = rows}, 120);
  run_case<kTwo, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 310, .causal_offset = 10}, 121);
  run_case<kTwo, kHalf64Causal>({.len_q = 40, .len_k = 70, .causal_offset = 30}, 122);
  run_case<kTwo, kHalf64Causal>({.len_q = 330, .len_k = 120, .causal_offset = -210}, 123);
  run_case<kTwo, kHalf64Causal>({.len_q = 330, .len_k = 200, .causal_offset = 0, .score_scale = 30}, 124);
  constexpr Config kKvGroups{.m_warpgroups = 2,
                             .kv_groups = 2,
                             .block_n = 48,
                             .stages = 2,
                             .row_max = RowMax::stale_16,
                             .producer = Producer::warpgroup,
                             .tile_order = TileOrder::paired,
                             .share_causal_tail = ShareCausalTail::on,
                             .barrier_wait = BarrierWait::try_wait_early,
                             .stage_release = StageRelease::predicated};
  for (const int rows : {100, 256, 330, 450}) run_case<kKvGroups, kHalf64Causal>({.len_q = rows, .len_k = rows}, 125);
  run_case<kKvGroups, kHalf64Causal>({.len_q = 200, .len_k = 500, .causal_offset = 300}, 126);
  run_case<kKvGroups, kHalf64Causal>({.len_q = 300, .len_k = 100, .causal_offset = -200}, 127);
  run_case<kKvGroups, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 60}, 128);
  constexpr Config kBeside{.m_warpgroups = 2,
                           .kv_groups = 2,
                           .block_n = 32,
                           .stages = 3,
                           .softmax_overlap = SoftmaxOverlap::pv,
                           .gemm_order = GemmOrder::qk_first,
                           .producer = Producer::warpgroup,
                           .tile_order = TileOrder::paired,
                           .share_causal_tail = ShareCausalTail::on};
  for (const int rows : {100, 330, 512}) run_case<kBeside, kHalf64Causal>({.len_q = rows, .len_k = rows}, 133);
  run_case<kBeside, kHalf64Causal>({.len_q = 300, .len_k = 400, .causal_offset = 100, .score_scale = 60}, 134);
  constexpr Config kFour{.m_warpgroups = 4,
                         .stages = 3,
                         .q_stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .producer = Producer::warpgroup,
                         .tile_order = TileOrder::paired,
                         .share_causal_tail = ShareCausalTail::on};
  run_case<kFour, kHalf64Causal>({.heads = 3, .len_q = 520, .len_k = 520}, 129);
  run_case<kFour, kHalf64Causal>({.heads = 3, .len_q = 390, .len_k = 200, .causal_offset = -100}, 130);
  constexpr Config kResident{.m_warpgroups = 2,
                             .block_n = 32,
                             .stages = 2,
                             .q_stages = 2,
                             .scheduler = Scheduler::dynamic_persistent,
                             .tile_order = TileOrder::paired,
                             .share_causal_tail = ShareCausalTail::on};
  run_case<kResident, kHalf64Causal>({.heads = 3, .len_q = 270, .len_k = 250, .causal_offset = -20}, 131);
  run_case<kResident, kBrain128Causal>({.heads = 2, .len_q = 250, .len_k = 250, .score_scale = 100}, 132);
}

}  // namespace
}  // namespace heed::sm90_persistent

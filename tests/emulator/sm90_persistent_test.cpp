// fwd_sm90_persistent on the emulated GPU: how consumer warpgroups run through KV tiles, at small ragged shapes.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

// Four consumer warpgroups that take turns; some have no rows.
TEST(EmulatedPersistent, RowGroupsShareARing) {
  constexpr Config kConfig{.m_warpgroups = 4, .stages = 2, .producer = Producer::warpgroup};
  run_case<kConfig, kHalf64>({.len_q = 256, .len_k = 320}, 1);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 2);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, 3);
  run_case<kConfig, kHalf64>({.heads = 2, .heads_kv = 1, .len_q = 140, .len_k = 200, .heads_inner = true}, 4,
                             {.with_lse = false});
}

// However a tile that some row does not see whole is told from the others: with masks that run through two tiles of a
// consumer warpgroup, through one, and past the last key.
TEST(EmulatedPersistent, MaskedTilesLeaveTheUsualWay) {
  constexpr Config kVotes{.m_warpgroups = 2,
                          .stages = 2,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .row_max = RowMax::stale_16,
                          .mask_path = MaskPath::redo,
                          .producer = Producer::warpgroup};
  run_case<kVotes, kHalf64Causal>({.heads = 2, .len_q = 256, .len_k = 290, .causal_offset = 34}, 131);
  run_case<kVotes, kHalf64Causal>({.len_q = 256, .len_k = 256}, 132);
  constexpr Config kVotesLater{.m_warpgroups = 1,
                               .block_n = 32,
                               .stages = 2,
                               .softmax_overlap = SoftmaxOverlap::qk_pv,
                               .overflow_check = OverflowCheck::deferred,
                               .mask_path = MaskPath::redo};
  run_case<kVotesLater, kHalf64Causal>({.heads = 2, .len_q = 150, .len_k = 190, .causal_offset = 25}, 133);
  run_case<kVotesLater, kBrain128Causal>({.len_q = 200, .len_k = 150}, 134);
  constexpr Config kApart{.m_warpgroups = 2,
                          .stages = 2,
                          .scheduler = Scheduler::static_persistent,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .mask_path = MaskPath::separate_loop,
                          .producer = Producer::warpgroup};
  run_case<kApart, kHalf64Causal>({.heads = 2, .len_q = 256, .len_k = 290, .causal_offset = 34}, 135);
  run_case<kApart, kBrain128Causal>({.heads = 2, .len_q = 300, .len_k = 330, .causal_offset = 30}, 136);
}

// The order in which a tile's instructions are written changes nothing but their places.
TEST(EmulatedPersistent, OrdersOfExponentials) {
  constexpr Config kAhead{.m_warpgroups = 2,
                          .stages = 2,
                          .scale_placement = ScalePlacement::tile_ahead,
                          .convert_placement = ConvertPlacement::step_later};
  run_case<kAhead, kHalf64>({.len_q = 128, .len_k = 320}, 111);
  constexpr Config kBehind{.m_warpgroups = 1,
                           .kv_groups = 2,
                           .stages = 2,
                           .softmax_overlap = SoftmaxOverlap::qk_pv,
                           .scale_placement = ScalePlacement::step_ahead,
                           .convert_placement = ConvertPlacement::at_end,
                           .rowsum_placement = RowsumPlacement::step_later};
  run_case<kBehind, kHalf64>({.len_q = 64, .len_k = 500}, 112);
  // Sums of rounded probabilities wait until these are rounded.
  constexpr Config kRounded{.m_warpgroups = 1,
                            .block_n = 32,
                            .stages = 2,
                            .convert_placement = ConvertPlacement::at_end,
                            .rowsum_placement = RowsumPlacement::at_once};
  run_case<kRounded, kBrain128Causal>({.len_q = 130, .len_k = 130}, 113);
  constexpr Config kAdded{.m_warpgroups = 2, .block_n = 48, .stages = 2, .rowsum_placement = RowsumPlacement::at_end};
  run_case<kAdded, kHalf64Causal>({.len_q = 130, .len_k = 200, .causal_offset = 70}, 114);
}

TEST(EmulatedPersistent, CausalMasks) {
  constexpr Config kConfig{.m_warpgroups = 3, .block_n = 48, .stages = 3};
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 200}, 5);
  run_case<kConfig, kHalf64Causal>({.heads = 2, .len_q = 130, .len_k = 400, .causal_offset = 270}, 6);
  run_case<kConfig, kHalf64Causal>({.len_q = 250, .len_k = 90, .causal_offset = -160}, 7);
  run_case<kConfig, kHalf64Causal>({.len_q = 250, .len_k = 90, .causal_offset = 0}, 8);
  run_case<kConfig, kHalf64Causal>({.len_q = 10, .len_k = 20, .causal_offset = -30}, 9);
}

// Consumer warpgroups that multiply one after the other, whatever an iteration is: both products, one, or none where
// only others see the keys.
TEST(EmulatedPersistent, RowGroupsTakeTurns) {
  constexpr Config kTwo{.m_warpgroups = 2, .block_n = 32, .stages = 3, .pingpong = Pingpong::on};
  run_case<kTwo, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 100, .len_k = 330}, 110);
  run_case<kTwo, kHalf64Causal>({.heads = 2, .len_q = 300, .len_k = 300, .score_scale = 60}, 111);
  constexpr Config kThree{.m_warpgroups = 3,
                          .block_n = 32,
                          .stages = 2,
                          .q_stages = 2,
                          .scheduler = Scheduler::dynamic_persistent,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .row_max = RowMax::stale_16,
                          .pingpong = Pingpong::on,
                          .tile_order = TileOrder::paired};
  run_case<kThree, kHalf64Causal>({.heads = 2, .len_q = 270, .len_k = 250, .causal_offset = -20}, 112);
  constexpr Config kBoth{.m_warpgroups = 3,
                         .block_n = 32,
                         .stages = 2,
                         .softmax_overlap = SoftmaxOverlap::qk_pv,
                         .pingpong = Pingpong::on};
  run_case<kBoth, kHalf64>({.heads = 2, .len_q = 140, .len_k = 33}, 113);
  constexpr Config kGroups{.m_warpgroups = 2, .kv_groups = 2, .block_n = 32, .stages = 2, .pingpong = Pingpong::on};
  run_case<kGroups, kHalf64Causal>({.len_q = 200, .len_k = 120, .causal_offset = -80}, 114);
  run_case<kGroups, kHalf64>({.len_q = 140, .len_k = 161}, 115);
  constexpr Config kValues{.m_warpgroups = 2,
                           .block_n = 32,
                           .stages = 3,
                           .softmax_overlap = SoftmaxOverlap::pv,
                           .gemm_order = GemmOrder::qk_first,
                           .pingpong = Pingpong::on};
  run_case<kValues, kHalf64>({.len_q = 100, .len_k = 300, .score_scale = 30}, 116);
}

// Exponentials in the scores' registers: a warp that takes a tile again multiplies its scores again.
TEST(EmulatedPersistent, ExponentialsBesideValues) {
  constexpr Config kTurns{.m_warpgroups = 2,
                          .stages = 2,
                          .softmax_overlap = SoftmaxOverlap::pv,
                          .gemm_order = GemmOrder::qk_first,
                          .producer = Producer::warpgroup};
  run_case<kTurns, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 330}, 60);
  run_case<kTurns, kHalf64>({.len_q = 128, .len_k = 700, .score_scale = 30}, 61);
  run_case<kTurns, kHalf64Causal>({.heads = 2, .len_q = 300, .len_k = 300, .score_scale = 30}, 62);
  run_case<kTurns, kHalf64Causal>({.len_q = 250, .len_k = 400, .causal_offset = 150}, 63);
  run_case<kTurns, Problem{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none}>(
      {.len_q = 100, .len_k = 450, .score_scale = 40}, 64);
  constexpr Config kOneStage{.m_warpgroups = 1,
                             .kv_groups = 2,
                             .block_n = 48,
                             .stages = 1,
                             .q_stages = 2,
                             .scheduler = Scheduler::static_persistent,
                             .softmax_overlap = SoftmaxOverlap::pv,
                             .gemm_order = GemmOrder::qk_first};
  run_case<kOneStage, kHalf64>({.heads = 3, .len_q = 140, .len_k = 700, .score_scale = 30}, 65);
  constexpr Config kBrain{.m_warpgroups = 1,
                          .block_n = 80,
                          .stages = 2,
                          .softmax_overlap = SoftmaxOverlap::pv,
                          .gemm_order = GemmOrder::qk_first};
  run_case<kBrain, kBrain128Causal>({.len_q = 70, .len_k = 500, .causal_offset = 430, .score_scale = 300}, 66);
}

// An even and an odd number of tiles without a mask, none, and one: all ways into and out of the loop over two.
TEST(EmulatedPersistent, OverlapsItsOwnProducts) {
  constexpr Config kConfig{.m_warpgroups = 1,
                           .block_n = 32,
                           .stages = 2,
                           .softmax_overlap = SoftmaxOverlap::qk_pv,
                           .gemm_order = GemmOrder::qk_first};
  for (const int len_k : {20, 32, 40, 64, 96, 128, 160, 192})
    run_case<kConfig, kHalf64>({.len_q = 30, .len_k = len_k}, 16 + static_cast<std::uint64_t>(len_k));
  run_case<kConfig, kHalf64Causal>({.len_q = 64, .len_k = 250, .causal_offset = 186}, 17);
  constexpr Config kAlternating{.m_warpgroups = 2,
                                .block_n = 96,
                                .stages = 3,
                                .softmax_overlap = SoftmaxOverlap::qk_pv,
                                .gemm_order = GemmOrder::interleaved,
                                .producer = Producer::warpgroup};
  run_case<kAlternating, Problem{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::causal}>(
      {.len_q = 128, .len_k = 600, .causal_offset = 472}, 18);
}

// Answers asked for ahead are of the tile that comes next, in this Q tile and the one after it; where a KV group has
// no tiles or one, of none.
TEST(EmulatedPersistent, AsksAhead) {
  constexpr Config kNothing{.m_warpgroups = 2,
                            .kv_groups = 2,
                            .block_n = 32,
                            .stages = 2,
                            .q_stages = 2,
                            .scheduler = Scheduler::static_persistent,
                            .barrier_wait = BarrierWait::try_wait_early,
                            .stage_release = StageRelease::predicated};
  run_case<kNothing, kHalf64>({.heads = 2, .len_q = 200, .len_k = 150}, 90);
  run_case<kNothing, kHalf64>({.heads = 2, .len_q = 130, .len_k = 20}, 91);
  run_case<kNothing, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 200, .score_scale = 30}, 92);
  constexpr Config kProducts{.m_warpgroups = 1,
                             .block_n = 32,
                             .stages = 5,
                             .q_stages = 2,
                             .scheduler = Scheduler::dynamic_persistent,
                             .softmax_overlap = SoftmaxOverlap::qk_pv,
                             .gemm_order = GemmOrder::interleaved,
                             .barrier_wait = BarrierWait::try_wait_early,
                             .stage_release = StageRelease::predicated};
  run_case<kProducts, kHalf64>({.heads = 2, .len_q = 130, .len_k = 190}, 93);
  run_case<kProducts, kHalf64Causal>({.heads = 2, .len_q = 130, .len_k = 70, .causal_offset = -60}, 94);
  run_case<kProducts, kBrain128Causal>({.len_q = 100, .len_k = 140, .causal_offset = 40, .score_scale = 30}, 95);
  constexpr Config kValues{.m_warpgroups = 2,
                           .block_n = 32,
                           .stages = 1,
                           .softmax_overlap = SoftmaxOverlap::pv,
                           .gemm_order = GemmOrder::qk_first,
                           .stage_release = StageRelease::predicated};
  run_case<kValues, kHalf64>({.len_q = 100, .len_k = 150, .score_scale = 30}, 96);
}

TEST(EmulatedPersistent, PaddedAndWideHeadDims) {
  constexpr Config kConfig{.m_warpgroups = 2, .block_n = 112, .stages = 1, .producer = Producer::warpgroup};
  run_case<kConfig, Problem{.element = Element::fp16, .head_dim = 80, .mask = MaskKind::none}>(
      {.len_q = 100, .len_k = 300, .heads_inner = true}, 30);
  run_case<kConfig, Problem{.element = Element::bf16, .head_dim = 40, .mask = MaskKind::causal}>(
      {.len_q = 65, .len_k = 65}, 31);
  constexpr Config kWide{.m_warpgroups = 1, .block_n = 64, .stages = 2, .scheduler = Scheduler::static_persistent};
  run_case<kWide, Problem{.element = Element::fp16, .head_dim = 256, .mask = MaskKind::causal}>(
      {.heads = 2, .len_q = 30, .len_k = 170, .causal_offset = 140}, 32, {.blocks = 1});
  constexpr Config kSplit{
      .m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::st_b32};
  run_case<kSplit, Problem{.element = Element::bf16, .head_dim = 136, .mask = MaskKind::none}>(
      {.len_q = 20, .len_k = 150}, 33);
}

}  // namespace
}  // namespace heed::sm90_persistent

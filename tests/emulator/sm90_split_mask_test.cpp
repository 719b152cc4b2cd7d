// fwd_sm90_split on the emulated GPU: causal masks and windows.
#include "sm90_split_case.hpp"

namespace heed::sm90_split {
namespace {

// Probabilities of hidden keys are taken out where the mask's edge runs from corner to corner of an n-block; elsewhere,
// and where rows see past the last key, their scores are.
TEST(EmulatedSplit, MasksProbabilities) {
  constexpr Config kConfig{.mask_at = MaskAt::probabilities};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 80);
  run_case<kConfig, kHalf64Causal>({.len_q = 290, .len_k = 290, .score_scale = 30}, 81);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 322, .causal_offset = 192}, 82);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 180, .causal_offset = 50}, 83);
  run_case<kConfig, kHalf64Causal>({.len_q = 400, .len_k = 170}, 84);
  run_case<kConfig, kHalf64Causal>({.len_q = 170, .len_k = 400}, 85);
  run_case<kConfig, kHalf64Causal>({.len_q = 300, .len_k = 172, .causal_offset = -128}, 86);
  constexpr Config kOwn{.mask_at = MaskAt::probabilities, .gqa = Gqa::off};
  run_case<kOwn, kHalf64Causal>({.batch = 2, .heads = 3, .heads_kv = 3, .len_q = 130, .len_k = 130}, 88);
  constexpr Config kFirstKeys{.late_convert = false, .row_max = RowMax::stale_16, .mask_at = MaskAt::probabilities};
  run_case<kFirstKeys, Problem{.element = Element::bf16, .head_dim = 64, .mask = MaskKind::causal}>(
      {.len_q = 200, .len_k = 200, .score_scale = 10}, 87);
  // Iterations of two stages, whose consumer warpgroups end in different n-blocks; scores asked for ahead.
  constexpr Config kRing{.m_warpgroups = 2,
                         .n_blocks_per_stage = 2,
                         .stages = 2,
                         .qk_in_flight = 1,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .prefetch_next_qk = true,
                         .mask_at = MaskAt::probabilities,
                         .overflow_check = OverflowCheck::before_merge};
  run_case<kRing, kHalf64Causal>({.len_q = 700, .len_k = 700}, 90);
  run_case<kRing, kHalf64Causal>({.len_q = 200, .len_k = 840, .causal_offset = 640, .score_scale = 30}, 91);
}

// Consumer warpgroups that see none of a block's last keys.
TEST(EmulatedSplit, RowGroupsPastTheirLastKeyFreeSlotsInTurn) {
  constexpr Config kConfig{.m_warpgroups = 4,
                           .cluster = 1,
                           .block_n = 32,
                           .n_blocks_per_stage = 1,
                           .stages = 1,
                           .qk_in_flight = 1,
                           .v_barriers = 1,
                           .pv_ksteps_per_commit = 1,
                           .pv_start_step = 0,
                           .row_max = RowMax::online,
                           .rowsum = Rowsum::fadd,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warp};
  for (std::uint64_t seed = 40; seed < 44; ++seed) run_case<kConfig, kHalf64Causal>({.len_q = 256, .len_k = 256}, seed);
}

TEST(EmulatedSplit, CausalMasks) {
  constexpr Config kConfig{.n_blocks_per_stage = 2,
                           .stages = 2,
                           .qk_in_flight = 1,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .overflow_check = OverflowCheck::before_merge};
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 200}, 7);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 400, .causal_offset = 270}, 8);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 9);
  run_case<kConfig, kHalf64Causal>({.len_q = 10, .len_k = 20, .causal_offset = -30}, 10);
}

// Parts of one iteration, which end anywhere within it.
TEST(EmulatedSplit, CausalMasksOfOneSegment) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 18);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 400, .causal_offset = 250}, 19);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 20);
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 330, .score_scale = 30}, 21);
  run_case<kConfig, kHalf64Causal>({.len_q = 70, .len_k = 900, .causal_offset = 830}, 22);
  constexpr Config kFour{.cluster = 4,
                         .n_blocks_per_stage = 2,
                         .pv_start_step = 0,
                         .overflow_check = OverflowCheck::before_merge,
                         .min_blocks = 3};
  run_case<kFour, kHalf64Causal>({.len_q = 300, .len_k = 300}, 23);
  run_case<kFour, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 30}, 24);
  constexpr Config kPair{.m_warpgroups = 2,
                         .cluster = 2,
                         .block_n = 32,
                         .n_blocks_per_stage = 6,
                         .qk_in_flight = 3,
                         .v_barriers = 1,
                         .rowsum = Rowsum::fadd,
                         .overflow_check = OverflowCheck::before_merge};
  run_case<kPair, Problem{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal}>(
      {.len_q = 200, .len_k = 300, .causal_offset = 77, .score_scale = 30}, 25);
}

template <Config kConfig, Problem kProblem>
void run_windows() {
  // Rows with all of their window, at the edges of tiles and in between; rows that see nothing; a window to the right.
  run_case<kConfig, kProblem>({.len_q = 200, .len_k = 190, .left_offset = -50}, 1);
  run_case<kConfig, kProblem>(
      {.heads = 4, .heads_kv = 2, .len_q = 150, .len_k = 400, .causal_offset = 70, .left_offset = -64}, 2);
  run_case<kConfig, kProblem>({.len_q = 220, .len_k = 70, .left_offset = -30, .heads_inner = true}, 3);
  run_case<kConfig, kProblem>({.batch = 2, .len_q = 130, .len_k = 130, .left_offset = 0}, 4);
  run_case<kConfig, kProblem>({.len_q = 70, .len_k = 300, .causal_offset = 400, .left_offset = -3, .score_scale = 30},
                              5);
}

TEST(EmulatedSplit, Windows) {
  constexpr Problem kWindow{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::window};
  run_windows<canonical(Config{}, kWindow), kWindow>();
  run_windows<canonical(Config{.n_blocks_per_stage = 2, .stages = 2}, kWindow), kWindow>();
  run_windows<canonical(Config{.m_warpgroups = 1,
                               .kv_groups = 2,
                               .cluster = 1,
                               .n_blocks_per_stage = 1,
                               .stages = 2,
                               .producer = Producer::warp},
                        kWindow),
              kWindow>();
  constexpr Problem kBrain{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::window};
  run_windows<canonical(
                  Config{.n_blocks_per_stage = 1, .stages = 2, .rowsum = Rowsum::fadd, .epilogue = EpilogueStore::tma},
                  kBrain),
              kBrain>();
}

}  // namespace
}  // namespace heed::sm90_split

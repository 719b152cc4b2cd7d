// fwd_sm90_split on the emulated GPU: splits whose stale row maximum overflows are computed again, all of them or none.
#include "sm90_split_case.hpp"

namespace heed::sm90_split {
namespace {

// Only some consumer warpgroups of a block see past the last key: all take the program that knows of it, or they would
// vote at different places and wait for each other.
TEST(EmulatedSplit, RowGroupsOfABlockTakeOneProgram) {
  constexpr Problem kBrain64Causal{.element = Element::bf16, .head_dim = 64, .mask = MaskKind::causal};
  constexpr Config kThree{.m_warpgroups = 3,
                          .cluster = 4,
                          .n_blocks_per_stage = 1,
                          .qk_in_flight = 1,
                          .v_barriers = 1,
                          .pv_start_step = 0,
                          .late_convert = false,
                          .row_max = RowMax::stale_16,
                          .mask_at = MaskAt::probabilities,
                          .merge_dtype = MergeDtype::fp32,
                          .prologue = Prologue::maps_first,
                          .producer = Producer::warpgroup,
                          .pdl_trigger = PdlTrigger::none};
  for (const float scale : {1.0F, 4.0F, 30.0F})
    run_case<kThree, kBrain64Causal>({.len_q = 130, .len_k = 67, .score_scale = scale}, 308);
  run_case<kThree, kBrain64Causal>({.len_q = 190, .len_k = 130, .causal_offset = -64}, 309);
}

TEST(EmulatedSplit, ComputesAgainWhereTheFirstChunkMisleads) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 5);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 1100, .score_scale = 30}, 6);
  constexpr Config kEarly{.overflow_check = OverflowCheck::before_merge};
  run_case<kEarly, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 26);
  run_case<kConfig, Problem{.element = Element::bf16, .head_dim = 64, .mask = MaskKind::none}>(
      {.len_q = 40, .len_k = 512, .score_scale = 30}, 27);
  constexpr Config kFirstKeys{.row_max = RowMax::stale_16};
  run_case<kFirstKeys, kHalf64>({.len_q = 70, .len_k = 512}, 28);
  run_case<kFirstKeys, kHalf64Causal>({.len_q = 200, .len_k = 200, .score_scale = 10}, 29);
}

// One row misleads one part: every thread of every part hears of it, parts of several iterations and of none too.
TEST(EmulatedSplit, AllPartsComputeAgainWhereOneWasMisled) {
  constexpr Config kFour{.cluster = 4, .n_blocks_per_stage = 2, .pv_start_step = 0, .min_blocks = 3};
  constexpr Config kProducer{.kv_groups = 2,
                             .cluster = 2,
                             .block_n = 32,
                             .n_blocks_per_stage = 2,
                             .qk_in_flight = 2,
                             .v_barriers = 1,
                             .pv_start_step = 0,
                             .rowsum = Rowsum::fadd,
                             .merge_dtype = MergeDtype::fp32,
                             .producer = Producer::warp};
  const auto mislead = [](int row, int key) {
    return [=](AttentionCase& problem) {
      for (int c = 0; c < 64; ++c) {
        problem.set(AttentionCase::Tensor::q, 0, 0, row, c, 4);
        problem.set(AttentionCase::Tensor::k, 0, 0, key, c, 2);
      }
    };
  };
  for (const int key : {70, 300, 511}) {
    run_case<Config{}, kHalf64>({.len_q = 64, .len_k = 512}, 30, true, mislead(17, key));
    run_case<kFour, kHalf64>({.len_q = 64, .len_k = 512}, 31, true, mislead(63, key));
    run_case<kProducer, kHalf64>({.len_q = 64, .len_k = 512}, 32, true, mislead(40, key));
  }
  // 9 n-blocks of 64: one part has two iterations. 2 keys: one part has none.
  constexpr Config kTwo{.n_blocks_per_stage = 4};
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 570}, 33, true, mislead(5, 130));
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 570}, 34, true, mislead(5, 560));
  run_case<Config{.row_max = RowMax::stale_16}, kHalf64>({.len_q = 30, .len_k = 20}, 35, true, mislead(5, 18));
  constexpr Config kWeighs{.lse_first = LseFirst::on};
  run_case<kWeighs, kHalf64>({.len_q = 64, .len_k = 512}, 36, true, mislead(17, 300));
  constexpr Config kWeighsFour{.cluster = 4, .n_blocks_per_stage = 2, .pv_start_step = 0, .lse_first = LseFirst::on};
  run_case<kWeighsFour, kHalf64>({.heads = 2, .len_q = 70, .len_k = 300}, 37, true, mislead(63, 290));
}

// The exact maximum of a part that ends within its iteration is not that of another split's keys.
TEST(EmulatedSplit, ExactMaximaOfPartsThatEndEarly) {
  constexpr Config kConfig{.cluster = 4,
                           .block_n = 128,
                           .n_blocks_per_stage = 2,
                           .qk_in_flight = 2,
                           .pv_ksteps_per_commit = 1,
                           .pv_start_step = 3,
                           .row_max = RowMax::online,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warp};
  run_case<kConfig, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 30}, 39);
}

}  // namespace
}  // namespace heed::sm90_split

// fwd_sm90_persistent on the emulated GPU: the maximum that scores are taken relative to, and tiles that overflow it.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

// Scores far above those of the first tiles: the warp takes the tile again, once or several times.
TEST(EmulatedPersistent, TakesATileAgainWhereTheReferenceMisleads) {
  constexpr Config kTurns{.m_warpgroups = 1, .block_n = 32, .stages = 4};
  run_case<kTurns, kHalf64>({.len_q = 40, .len_k = 700, .score_scale = 30}, 10);
  run_case<kTurns, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 30}, 11);
  constexpr Config kBoth{.m_warpgroups = 1, .block_n = 32, .stages = 3, .softmax_overlap = SoftmaxOverlap::qk_pv};
  run_case<kBoth, kHalf64>({.len_q = 40, .len_k = 700, .score_scale = 30}, 12);
  run_case<kBoth, kBrain128Causal>({.len_q = 70, .len_k = 300, .causal_offset = 230, .score_scale = 300}, 13);
}

// Beside products, overflowed or not, with masks and without: asked about once the products are done.
TEST(EmulatedPersistent, VotesAfterProducts) {
  constexpr Config kOne{.m_warpgroups = 1,
                        .kv_groups = 2,
                        .block_n = 32,
                        .stages = 3,
                        .softmax_overlap = SoftmaxOverlap::qk_pv,
                        .row_max = RowMax::stale_16,
                        .overflow_check = OverflowCheck::deferred};
  run_case<kOne, kHalf64>({.len_q = 70, .len_k = 500}, 71);
  run_case<kOne, kHalf64>({.len_q = 70, .len_k = 500, .score_scale = 30}, 72);
  run_case<kOne, kHalf64>({.len_q = 20, .len_k = 70, .score_scale = 30}, 73);
  constexpr Config kTwo{.m_warpgroups = 2,
                        .block_n = 32,
                        .stages = 2,
                        .softmax_overlap = SoftmaxOverlap::qk_pv,
                        .overflow_check = OverflowCheck::deferred};
  run_case<kTwo, kHalf64Causal>({.len_q = 200, .len_k = 300, .causal_offset = 60, .score_scale = 30}, 74);
  run_case<kTwo, kBrain128Causal>({.heads = 2, .len_q = 150, .len_k = 330, .causal_offset = 180, .score_scale = 30},
                                  75);
}

// The first 16 keys stand for the first tile, of which rows may see none, and with them for all keys.
TEST(EmulatedPersistent, ReferencesOfTheFirstKeys) {
  constexpr Config kEach{.m_warpgroups = 1, .block_n = 64, .stages = 2, .row_max = RowMax::stale_16};
  run_case<kEach, kHalf64>({.len_q = 70, .len_k = 300, .score_scale = 30}, 120);
  run_case<kEach, kHalf64Causal>({.len_q = 200, .len_k = 120, .causal_offset = -80, .score_scale = 30}, 121);
  constexpr Config kLast{.m_warpgroups = 2,
                         .kv_groups = 2,
                         .block_n = 64,
                         .stages = 2,
                         .row_max = RowMax::stale_16,
                         .producer = Producer::warpgroup};
  run_case<kLast, kHalf64Causal>({.len_q = 200, .len_k = 120, .causal_offset = -80}, 122);
  run_case<kLast, kHalf64Causal>({.len_q = 128, .len_k = 300, .causal_offset = 172, .score_scale = 60}, 123);
  run_case<kLast, kHalf64Causal>({.heads = 2, .len_q = 260, .len_k = 260}, 124);
}

// Rows that see none of their consumer warpgroup's first tile, and scores so low that any reference but their own
// leaves nothing.
TEST(EmulatedPersistent, RowsThatSeeNothingOfTheFirstTile) {
  constexpr Config kNothing{.m_warpgroups = 1, .block_n = 32, .stages = 2, .row_max = RowMax::stale_16};
  constexpr Config kProducts{.m_warpgroups = 1,
                             .block_n = 32,
                             .stages = 2,
                             .softmax_overlap = SoftmaxOverlap::qk_pv,
                             .row_max = RowMax::stale_16};
  constexpr Config kFirstTile{.m_warpgroups = 1, .block_n = 64, .stages = 2};
  for (const int offset : {0, -1, 31, -33}) {
    const auto seed = static_cast<std::uint64_t>(130 + offset);
    const Shape shape{.heads = 4, .len_q = 128, .len_k = 128 + offset, .causal_offset = offset, .score_scale = 60};
    run_case<kNothing, kHalf64Causal>(shape, seed);
    run_case<kProducts, kHalf64Causal>(shape, seed + 100);
    run_case<kFirstTile, kHalf64Causal>(shape, seed + 200);
  }
}

// Sums of rounded probabilities of fp16, which those of bf16 are always, in every way to go through tiles.
TEST(EmulatedPersistent, SumsOfRoundedProbabilities) {
  constexpr auto kRounded = attention::Rowsum::fadd_rounded;
  constexpr Config kTurns{.m_warpgroups = 1, .block_n = 32, .stages = 4, .rowsum = kRounded};
  run_case<kTurns, kHalf64>({.len_q = 40, .len_k = 300, .score_scale = 30}, 131);
  constexpr Config kBoth{.m_warpgroups = 1,
                         .block_n = 32,
                         .stages = 3,
                         .softmax_overlap = SoftmaxOverlap::qk_pv,
                         .row_max = RowMax::stale_16,
                         .rowsum = kRounded,
                         .overflow_check = OverflowCheck::deferred};
  run_case<kBoth, kHalf64Causal>({.len_q = 70, .len_k = 200, .causal_offset = 130, .score_scale = 30}, 132);
  constexpr Config kValues = canonical(
      Config{.m_warpgroups = 1, .block_n = 32, .stages = 3, .softmax_overlap = SoftmaxOverlap::pv, .rowsum = kRounded},
      kHalf64);
  run_case<kValues, kHalf64>({.len_q = 40, .len_k = 300, .score_scale = 30}, 133);
}

// Sums near the end of their range: one key 88 nats above all others, and values of a half.
TEST(EmulatedPersistent, SumsNearTheEndOfTheirRange) {
  constexpr Config kConfig{.m_warpgroups = 1, .block_n = 32, .stages = 2};
  run_case<kConfig, Problem{.element = Element::bf16, .head_dim = 64, .mask = MaskKind::none}>(
      {.len_q = 1, .len_k = 100}, 141, {.change = [](const ForwardParams& params) {
        for (int i = 0; i < 64; ++i) row_of(params.q, params.q_strides, 0)[i] = 0x3f80;  // 1
        for (int key = 0; key < 100; ++key)
          for (int i = 0; i < 64; ++i) {
            row_of(params.k, params.k_strides, key)[i] = key == 3 ? 0x4130 : 0;  // 11: 64 x 11 / 8 = 88
            row_of(params.v, params.v_strides, key)[i] = 0x3f00;                 // 0.5
          }
      }});
}

TEST(EmulatedPersistent, ExactMaxima) {
  constexpr Config kConfig{
      .m_warpgroups = 2, .block_n = 80, .stages = 1, .row_max = RowMax::online, .epilogue = EpilogueStore::st_b32};
  run_case<kConfig, kHalf64>({.len_q = 100, .len_k = 500, .score_scale = 30}, 14);
  run_case<kConfig, kBrain128Causal>({.len_q = 150, .len_k = 150, .score_scale = 20}, 15);
}

}  // namespace
}  // namespace heed::sm90_persistent

// fwd_sm90_persistent on the emulated GPU: virtual CTAs, which are blocks of their own within a block.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr Config kFour{.m_warpgroups = 1,
                       .stages = 2,
                       .q_stages = 2,
                       .scheduler = Scheduler::static_persistent,
                       .gemm_order = GemmOrder::interleaved,
                       .row_max = RowMax::stale_16,
                       .producer = Producer::warpgroup,
                       .epilogue = EpilogueStore::tma,
                       .rowsum_reduce = RowsumReduce::beside_pv,
                       .virtual_ctas = 4};

// More Q tiles than virtual CTAs, as many, and so few that some virtual CTA, or every virtual CTA but one, has none.
TEST(EmulatedPersistent, TeamsHaveRowTilesOfTheirOwn) {
  run_case<kFour, kHalf64>({.batch = 2, .heads = 5, .len_q = 128, .len_k = 128}, 201);
  run_case<kFour, kHalf64>({.heads = 4, .len_q = 128, .len_k = 100}, 202);
  run_case<kFour, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 128, .heads_inner = true}, 203);
  run_case<kFour, kHalf64>({.len_q = 40, .len_k = 128}, 204, {.with_lse = false});
  run_case<kFour, kHalf64>({.batch = 3, .heads = 3, .len_q = 128, .len_k = 200, .padding_rows = 2}, 205, {.blocks = 3});
}

TEST(EmulatedPersistent, TeamsUnderAMask) {
  run_case<kFour, kHalf64Causal>({.heads = 9, .len_q = 128, .len_k = 128}, 206);
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 190, .len_k = 150, .causal_offset = -40}, 207);
  constexpr Config kPieces{.m_warpgroups = 1,
                           .block_n = 32,
                           .stages = 3,
                           .scheduler = Scheduler::dynamic_persistent,
                           .softmax_overlap = SoftmaxOverlap::pv,
                           .gemm_order = GemmOrder::qk_first,
                           .tile_order = TileOrder::lpt_l2,
                           .virtual_ctas = 3};
  // Warps that are overflowed, and a counter that is back at zero.
  run_case<kPieces, kHalf64Causal>({.heads = 4, .len_q = 200, .len_k = 260, .causal_offset = 60, .score_scale = 30},
                                   208);
  run_case<kPieces, kHalf64Causal>({.heads = 2, .len_q = 60, .len_k = 60}, 209);
}

// Consumer warpgroups of a virtual CTA share its ring and take turns among themselves.
TEST(EmulatedPersistent, TeamsOfSeveralRowGroups) {
  constexpr Config kTwo{.m_warpgroups = 2,
                        .stages = 3,
                        .q_stages = 2,
                        .scheduler = Scheduler::static_persistent,
                        .pingpong = Pingpong::on,
                        .producer = Producer::warpgroup,
                        .epilogue = EpilogueStore::smem_b128,
                        .virtual_ctas = 2};
  run_case<kTwo, kHalf64>({.heads = 5, .len_q = 128, .len_k = 300}, 210);
  run_case<kTwo, kHalf64Causal>({.heads = 3, .len_q = 300, .len_k = 300}, 211);
  constexpr Config kWide{.m_warpgroups = 1,
                         .block_n = 48,
                         .stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .softmax_overlap = SoftmaxOverlap::qk_pv,
                         .virtual_ctas = 2};
  run_case<kWide, kBrain128Causal>({.heads = 3, .len_q = 200, .len_k = 200}, 212);
}

}  // namespace
}  // namespace heed::sm90_persistent

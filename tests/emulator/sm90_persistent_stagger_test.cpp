// fwd_sm90_persistent on the emulated GPU: KV groups that start one after the other.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr Config kTwo{.m_warpgroups = 1,
                      .kv_groups = 2,
                      .stages = 2,
                      .softmax_overlap = SoftmaxOverlap::qk_pv,
                      .gemm_order = GemmOrder::interleaved,
                      .row_max = RowMax::stale_16,
                      .stagger_splits = StaggerSplits::on,
                      .overflow_check = OverflowCheck::deferred,
                      .epilogue = EpilogueStore::smem_b128,
                      .barrier_wait = BarrierWait::try_wait_early,
                      .stage_release = StageRelease::predicated,
                      .convert_placement = ConvertPlacement::at_end};

// As many tiles for both, one more for the first, and none for the second: it waits for a group that is soon done.
TEST(EmulatedPersistent, KeyGroupsStartInTurn) {
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 128, .len_k = 512}, 301);
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 100, .len_k = 300, .heads_inner = true}, 302);
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 64}, 303, {.with_lse = false});
  run_case<kTwo, kHalf64>({.heads = 4, .heads_kv = 2, .len_q = 90, .len_k = 1}, 304);
  // Warps that are overflowed while the next group waits to start.
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 640, .score_scale = 30}, 305);
}

// Rows that see no key of one group, or of none: who has nothing to multiply lets the next one start all the same.
TEST(EmulatedPersistent, KeyGroupsWithoutKeysLetOthersStart) {
  constexpr Config kMasked{.m_warpgroups = 1,
                           .kv_groups = 2,
                           .stages = 3,
                           .softmax_overlap = SoftmaxOverlap::qk_pv,
                           .stagger_splits = StaggerSplits::on};
  run_case<kMasked, kHalf64Causal>({.len_q = 256, .len_k = 256}, 306);
  run_case<kMasked, kHalf64Causal>({.heads = 2, .len_q = 300, .len_k = 200, .causal_offset = -120}, 307);
  constexpr Config kFour{.m_warpgroups = 1,
                         .kv_groups = 4,
                         .stages = 2,
                         .stagger_splits = StaggerSplits::on,
                         .producer = Producer::warpgroup};
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 200}, 308);
  run_case<kFour, kHalf64>({.len_q = 64, .len_k = 700}, 309);
}

// Rings of one stage, which nobody refills for who has not started; and bf16 at head dim 128.
TEST(EmulatedPersistent, KeyGroupsThatWaitKeepTheirStages) {
  constexpr Config kOne{.m_warpgroups = 1,
                        .kv_groups = 4,
                        .stages = 1,
                        .stagger_splits = StaggerSplits::on,
                        .producer = Producer::warpgroup};
  run_case<kOne, kHalf64>({.heads = 2, .len_q = 64, .len_k = 1100}, 310);
  constexpr Config kWide{.m_warpgroups = 1,
                         .kv_groups = 2,
                         .stages = 2,
                         .softmax_overlap = SoftmaxOverlap::qk_pv,
                         .stagger_splits = StaggerSplits::on,
                         .producer = Producer::warpgroup,
                         .epilogue = EpilogueStore::smem_b128_preaddressed};
  run_case<kWide, kBrain128Causal>({.heads = 2, .len_q = 100, .len_k = 400}, 312);
}

}  // namespace
}  // namespace heed::sm90_persistent

// Sliding windows in fwd_sm90_persistent: masked tiles at both ends of a row's keys, tiles that begin at a Q tile's
// first key, and warpgroups that are done before the last of its tiles.
#include "sm90_persistent_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr Problem kWindow{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::window};
constexpr Problem kBrainWindow{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::window};

template <Config kConfig, Problem kProblem>
void run_windows() {
  constexpr Config kCanonical = canonical(kConfig, kProblem);
  // Rows with all of their window, at the edges of tiles and in between; rows that see nothing; a window to the right.
  run_case<kCanonical, kProblem>({.len_q = 200, .len_k = 190, .left_offset = -50}, 1);
  run_case<kCanonical, kProblem>(
      {.heads = 4, .heads_kv = 2, .len_q = 150, .len_k = 400, .causal_offset = 70, .left_offset = -64}, 2);
  run_case<kCanonical, kProblem>({.len_q = 220, .len_k = 70, .left_offset = -30, .heads_inner = true}, 3);
  run_case<kCanonical, kProblem>({.batch = 2, .len_q = 130, .len_k = 130, .left_offset = 0}, 4);
  run_case<kCanonical, kProblem>(
      {.len_q = 70, .len_k = 300, .causal_offset = 400, .left_offset = -3, .score_scale = 30}, 5);
  run_case<kCanonical, kProblem>({.heads = 2, .len_q = 600, .len_k = 600, .left_offset = -100}, 6, {.blocks = 3});
}

TEST(EmulatedPersistentWindows, OneWarpgroup) {
  run_windows<Config{.m_warpgroups = 1, .stages = 2}, kWindow>();
  run_windows<Config{.m_warpgroups = 1, .kv_groups = 2, .stages = 2}, kWindow>();
  run_windows<Config{.m_warpgroups = 1, .cluster = 2, .stages = 2, .row_max = RowMax::stale_16}, kWindow>();
}

TEST(EmulatedPersistentWindows, WarpgroupsWithTilesOfTheirOwn) {
  run_windows<Config{.m_warpgroups = 2, .block_n = 48, .stages = 3}, kWindow>();
  run_windows<Config{.m_warpgroups = 3, .block_n = 32, .stages = 3, .pingpong = Pingpong::on}, kWindow>();
  run_windows<
      Config{
          .m_warpgroups = 2, .kv_groups = 2, .stages = 2, .row_max = RowMax::online, .producer = Producer::warpgroup},
      kWindow>();
}

TEST(EmulatedPersistentWindows, SoftmaxBesideGemms) {
  run_windows<Config{.m_warpgroups = 2,
                     .stages = 2,
                     .q_stages = 2,
                     .scheduler = Scheduler::static_persistent,
                     .softmax_overlap = SoftmaxOverlap::qk_pv,
                     .gemm_order = GemmOrder::interleaved,
                     .overflow_check = OverflowCheck::deferred,
                     .mask_path = MaskPath::redo},
              kWindow>();
  run_windows<Config{.m_warpgroups = 2,
                     .block_n = 32,
                     .stages = 3,
                     .scheduler = Scheduler::dynamic_persistent,
                     .softmax_overlap = SoftmaxOverlap::qk_pv,
                     .row_max = RowMax::stale_16,
                     .mask_path = MaskPath::separate_loop},
              kWindow>();
  run_windows<Config{.m_warpgroups = 2, .stages = 2, .softmax_overlap = SoftmaxOverlap::pv}, kBrainWindow>();
}

TEST(EmulatedPersistentWindows, KnobsThatDoNotSuitWindowsAreReconciled) {
  constexpr Config kPaired{
      .m_warpgroups = 2, .stages = 3, .tile_order = TileOrder::paired, .share_causal_tail = ShareCausalTail::on};
  constexpr Problem kWanted =
      emulator::pruned(emulator::whole(kWindow, {.len_q = 256, .len_k = 256, .left_offset = -100}));
  constexpr Specialization kThereIs = canonical(kWanted.specialization, specializations_of(kPaired, kWanted));
  EXPECT_EQ(kThereIs, Specialization{.specialize = Specialize::shape});
  constexpr Problem kSized = emulator::fixed(kWindow, {.len_q = 256, .len_k = 256, .left_offset = -100});
  constexpr Config kNow = canonical(kPaired, kSized);
  EXPECT_EQ(kNow.tile_order, TileOrder::row_major);
  EXPECT_EQ(kNow.share_causal_tail, ShareCausalTail::off);
  run_case<kNow, kSized>({.len_q = 256, .len_k = 256, .left_offset = -100}, 7, {.told = emulator::misinform_of_sizes});
}

}  // namespace
}  // namespace heed::sm90_persistent

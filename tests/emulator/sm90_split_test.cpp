// fwd_sm90_split on the emulated GPU: every path of the kernel at small ragged shapes.
#include "sm90_split_case.hpp"

namespace heed::sm90_split {
namespace {

// The default config of b1h8l512d64: two blocks share a tile, one iteration each.
TEST(EmulatedSplit, SplitsKeysOverACluster) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 1);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 2);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, 3);
  run_case<kConfig, kHalf64>({.len_q = 20, .len_k = 700, .heads_inner = true}, 4, false);
}

// Parts with keys and without, one iteration and more, overflowed ones too: whatever is asked for first.
template <Prologue kPrologue>
void open_launches(std::uint64_t seed) {
  constexpr Config kConfig{.prologue = kPrologue};
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, seed);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, seed + 1);
  run_case<kConfig, kHalf64>({.len_q = 20, .len_k = 700, .heads_inner = true}, seed + 2, false);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, seed + 3);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, seed + 4);
  constexpr Config kRing{.cluster = 1,
                         .n_blocks_per_stage = 2,
                         .stages = 2,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .overflow_check = OverflowCheck::before_merge,
                         .prologue = kPrologue,
                         .producer = Producer::warp};
  run_case<kRing, kHalf64>({.len_q = 70, .len_k = 600, .score_scale = 20}, seed + 5);
  run_case<kRing, kHalf64Causal>({.len_q = 150, .len_k = 90, .causal_offset = -70}, seed + 6);
}

TEST(EmulatedSplit, Openings) {
  open_launches<Prologue::lengths_first>(200);
  open_launches<Prologue::maps_first>(210);
  open_launches<Prologue::q_first>(220);
  constexpr Config kGroups{.kv_groups = 2,
                           .cluster = 1,
                           .n_blocks_per_stage = 2,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .prologue = Prologue::q_first};
  run_case<kGroups, kHalf64>({.len_q = 70, .len_k = 50}, 250);
  run_case<kGroups, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 251);
}

// Every block of a cluster loads a part of the queries to all; those without keys, too.
TEST(EmulatedSplit, SharesQueries) {
  constexpr Config kConfig{.tma_multicast = TmaMulticast::q};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 300);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 301);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, 302);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 303);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 304);
  constexpr Config kEight{.m_warpgroups = 2,
                          .cluster = 8,
                          .block_n = 32,
                          .n_blocks_per_stage = 1,
                          .stages = 2,
                          .qk_in_flight = 1,
                          .v_barriers = 1,
                          .pv_start_step = 0,
                          .rowsum = Rowsum::fadd,
                          .overflow_check = OverflowCheck::before_merge,
                          .tma_multicast = TmaMulticast::q,
                          .producer = Producer::warp};
  run_case<kEight, kBrain128Causal>({.len_q = 150, .len_k = 700, .causal_offset = 550}, 305);
  run_case<kEight, kBrain128Causal>({.len_q = 10, .len_k = 20, .causal_offset = -30}, 306);
  constexpr Config kGroups{.kv_groups = 2,
                           .cluster = 2,
                           .n_blocks_per_stage = 2,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .tma_multicast = TmaMulticast::q};
  run_case<kGroups, kHalf64>({.len_q = 70, .len_k = 50}, 307);
}

// Rows by way of shared memory, as boxes: of two parts, one and four, ragged rows, padded head dims, written
// again.
TEST(EmulatedSplit, WritesRowsAsBoxes) {
  constexpr Config kConfig{.epilogue = EpilogueStore::tma};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 310);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 311, false);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30, .heads_inner = true}, 312);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 313);
  constexpr Config kAlone{.m_warpgroups = 2,
                          .cluster = 1,
                          .n_blocks_per_stage = 2,
                          .v_barriers = 1,
                          .pv_start_step = 0,
                          .epilogue = EpilogueStore::tma};
  run_case<kAlone, kHalf64>({.len_q = 150, .len_k = 200}, 314);
  constexpr Config kFour{.kv_groups = 2,
                         .cluster = 2,
                         .block_n = 32,
                         .n_blocks_per_stage = 2,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .rowsum = Rowsum::fadd,
                         .merge_dtype = MergeDtype::fp32,
                         .epilogue = EpilogueStore::tma};
  run_case<kFour, kBrain128Causal>({.len_q = 150, .len_k = 300, .causal_offset = 150}, 315);
  constexpr Problem kHalf40{.element = Element::fp16, .head_dim = 40, .mask = MaskKind::none};
  run_case<kConfig, kHalf40>({.heads = 2, .len_q = 70, .len_k = 130}, 316);
}

// The columns that a block keeps are multiplied while the others travel; one without keys has none to multiply.
TEST(EmulatedSplit, KeepsColumnsForLater) {
  constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
  constexpr Problem kBrain256Causal{.element = Element::bf16, .head_dim = 256, .mask = MaskKind::causal};
  constexpr Config kLater{.n_blocks_per_stage = 2,
                          .qk_in_flight = 1,
                          .pv_start_step = 0,
                          .rowsum = Rowsum::fadd,
                          .pv_split_n = PvSplitN::on};
  run_case<kLater, kHalf128>({.heads = 2, .len_q = 130, .len_k = 256}, 92);
  run_case<kLater, kHalf128>({.len_q = 64, .len_k = 200, .score_scale = 30}, 93);
  run_case<kLater, kHalf128>({.len_q = 70, .len_k = 50, .padding_rows = 1}, 94);
  run_case<kLater, kHalf128>({.len_q = 70, .len_k = 700}, 95);
  constexpr Config kFree{.block_n = 32,
                         .n_blocks_per_stage = 1,
                         .qk_in_flight = 1,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .rowsum = Rowsum::fadd,
                         .overflow_check = OverflowCheck::before_merge,
                         .merge_dtype = MergeDtype::fp32,
                         .pv_split_n = PvSplitN::on,
                         .asm_order = AsmOrder::free};
  run_case<kFree, kBrain256Causal>({.len_q = 100, .len_k = 100}, 96);
}

// The longer Q tiles of all heads come first, then the shortest.
TEST(EmulatedSplit, FoldedRowTiles) {
  constexpr Config kConfig{.tile_order = TileOrder::lpt_then_spt};
  run_case<kConfig, kHalf64Causal>({.batch = 2, .heads = 3, .len_q = 290, .len_k = 290}, 74);
  run_case<kConfig, kHalf64Causal>({.len_q = 30, .len_k = 290}, 75);
}

// Two parts of one block, without a cluster.
TEST(EmulatedSplit, PartsOfOneBlock) {
  constexpr Config kConfig{.kv_groups = 2, .cluster = 1};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 36);
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512, .score_scale = 30}, 37);
  constexpr Config kRows{.m_warpgroups = 2,
                         .kv_groups = 2,
                         .cluster = 1,
                         .block_n = 32,
                         .n_blocks_per_stage = 1,
                         .stages = 3,
                         .qk_in_flight = 1,
                         .v_barriers = 1,
                         .pv_ksteps_per_commit = 1,
                         .pv_start_step = 0,
                         .rowsum = Rowsum::fadd,
                         .overflow_check = OverflowCheck::before_merge};
  run_case<kRows, Problem{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none}>({.len_q = 1, .len_k = 83},
                                                                                              38);
}

TEST(EmulatedSplit, RingWithAProducer) {
  constexpr Config kConfig{.m_warpgroups = 2,
                           .cluster = 1,
                           .n_blocks_per_stage = 2,
                           .stages = 3,
                           .qk_in_flight = 1,
                           .v_barriers = 2,
                           .pv_ksteps_per_commit = 4,
                           .pv_start_step = 0,
                           .late_convert = false,
                           .prefetch_next_qk = true,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warpgroup,
                           .pdl_trigger = PdlTrigger::last_pv,
                           .epilogue = EpilogueStore::st_b32,
                           .tile_order = TileOrder::ascending};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 1000, .causal_offset = 850}, 11);
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 600, .causal_offset = 0, .score_scale = 30}, 12);
}

TEST(EmulatedSplit, WideHeadsWithExactMaxima) {
  constexpr Config kConfig{.m_warpgroups = 1,
                           .kv_groups = 2,
                           .cluster = 2,
                           .block_n = 32,
                           .n_blocks_per_stage = 2,
                           .stages = 2,
                           .qk_in_flight = 2,
                           .v_barriers = 1,
                           .pv_ksteps_per_commit = 1,
                           .pv_start_step = 0,
                           .row_max = RowMax::online,
                           .rowsum = Rowsum::fadd,
                           .overflow_check = OverflowCheck::before_merge,
                           .merge_dtype = MergeDtype::fp32,
                           .pdl_trigger = PdlTrigger::none};
  run_case<kConfig, kBrain128Causal>({.heads = 2, .heads_kv = 2, .len_q = 90, .len_k = 500, .causal_offset = 410}, 13);
  run_case<kConfig, kBrain128Causal>({.len_q = 65, .len_k = 65, .score_scale = 20}, 14);
}

TEST(EmulatedSplit, PaddedHeadDims) {
  constexpr Config kConfig{.m_warpgroups = 2,
                           .cluster = 1,
                           .block_n = 128,
                           .n_blocks_per_stage = 1,
                           .stages = 1,
                           .qk_in_flight = 1,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .rowsum = Rowsum::fadd,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warpgroup};
  run_case<kConfig, Problem{.element = Element::fp16, .head_dim = 80, .mask = MaskKind::none}>(
      {.len_q = 100, .len_k = 300}, 15);
  constexpr Config kWide{.cluster = 4,
                         .block_n = 64,
                         .n_blocks_per_stage = 1,
                         .stages = 1,
                         .qk_in_flight = 1,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .rowsum = Rowsum::fadd,
                         .overflow_check = OverflowCheck::before_merge};
  run_case<kWide, Problem{.element = Element::fp16, .head_dim = 256, .mask = MaskKind::causal}>(
      {.len_q = 30, .len_k = 270, .causal_offset = 240}, 16);
  constexpr Config kNarrow{.cluster = 2};
  run_case<kNarrow, Problem{.element = Element::bf16, .head_dim = 40, .mask = MaskKind::none}>(
      {.len_q = 65, .len_k = 300}, 17);
}

}  // namespace
}  // namespace heed::sm90_split

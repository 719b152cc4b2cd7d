// fwd_sm90_persistent on the emulated GPU: how the parts of a Q tile become one, and how rows leave.
#include "sm90_persistent_case.hpp"
#include "variant/sm90_persistent_default.hpp"

namespace heed::sm90_persistent {
namespace {

// KV groups merge through shared memory; with one KV tile the first group has none.
TEST(EmulatedPersistent, KeyGroupsMerge) {
  constexpr Config kTwo{.m_warpgroups = 2, .kv_groups = 2, .stages = 2, .producer = Producer::warpgroup};
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 128, .len_k = 450}, 19);
  run_case<kTwo, kHalf64Causal>({.len_q = 128, .len_k = 40, .causal_offset = -88}, 20);
  run_case<kTwo, kHalf64Causal>({.len_q = 128, .len_k = 300, .causal_offset = 172, .score_scale = 30}, 21);
  constexpr Config kFour{.m_warpgroups = 1,
                         .kv_groups = 4,
                         .block_n = 32,
                         .stages = 2,
                         .q_stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .producer = Producer::warpgroup,
                         .epilogue = EpilogueStore::st_b32};
  run_case<kFour, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 400}, 22);
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 140, .len_k = 140}, 23);
  constexpr Config kBoth{.m_warpgroups = 1,
                         .kv_groups = 2,
                         .block_n = 32,
                         .stages = 3,
                         .q_stages = 2,
                         .scheduler = Scheduler::dynamic_persistent,
                         .softmax_overlap = SoftmaxOverlap::qk_pv};
  run_case<kBoth, kHalf64Causal>({.heads = 2, .len_q = 140, .len_k = 240, .causal_offset = 100, .score_scale = 30}, 34);
}

constexpr Config kFixed{.m_warpgroups = 2,
                        .kv_groups = 2,
                        .stages = 2,
                        .producer = Producer::warpgroup,
                        .epilogue = EpilogueStore::smem_b128};
constexpr Config kWhole{.m_warpgroups = 2,
                        .stages = 3,
                        .q_stages = 2,
                        .scheduler = Scheduler::static_persistent,
                        .softmax_overlap = SoftmaxOverlap::qk_pv,
                        .epilogue = EpilogueStore::smem_b128};

// Programs for one launch's sizes, which are not read from the parameters: those are wrong here.
TEST(EmulatedPersistent, SizesMayBeConstants) {
  const Options misinformed{.told = emulator::misinform_of_sizes};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 333};
  run_case<kFixed, fixed(kHalf64, kGrouped)>(kGrouped, 141, misinformed);
  // Its outputs may lie as they like.
  constexpr Shape kPadded{.heads = 2, .heads_kv = 2, .len_q = 70, .len_k = 90, .heads_inner = true, .padding_rows = 2};
  run_case<kFixed, fixed(kHalf64, kPadded)>(kPadded, 144, misinformed);
  constexpr Shape kLonger{.heads = 3, .heads_kv = 1, .len_q = 256, .len_k = 300, .causal_offset = 44};
  run_case<kWhole, whole(kHalf64Causal, kLonger)>(kLonger, 142, misinformed);
  constexpr Config kMirrored{.m_warpgroups = 4,
                             .stages = 4,
                             .producer = Producer::warpgroup,
                             .epilogue = EpilogueStore::st_b128,
                             .tile_order = TileOrder::paired};
  constexpr Shape kSquare{.heads = 2, .len_q = 512, .len_k = 512, .score_scale = 30};
  run_case<kMirrored, whole(kHalf64Causal, kSquare)>(kSquare, 143, misinformed);
}

// And that hold what those sizes need alone: with masked tiles and without, single tiles and more of them, rows and
// parts that have none.
TEST(EmulatedPersistent, ProgramsMayHoldWhatTheyNeed) {
  const Options misinformed{.told = emulator::misinform_of_sizes};
  constexpr Shape kRound{.heads = 2, .len_q = 128, .len_k = 512, .score_scale = 30};
  run_case<kFixed, emulator::pruned(fixed(kHalf64, kRound))>(kRound, 151, misinformed);
  constexpr Shape kSquare{.heads = 2, .len_q = 256, .len_k = 256};
  run_case<kFixed, emulator::pruned(fixed(kHalf64Causal, kSquare))>(kSquare, 152, misinformed);
  constexpr Shape kAskew{.heads = 2, .len_q = 200, .len_k = 150, .causal_offset = -70, .score_scale = 30};
  run_case<kFixed, emulator::pruned(fixed(kHalf64Causal, kAskew))>(kAskew, 153, misinformed);
  run_case<kWhole, emulator::pruned(whole(kHalf64Causal, kSquare))>(kSquare, 154, misinformed);
  constexpr Shape kOdd{.heads = 2, .len_q = 128, .len_k = 320};
  run_case<kWhole, emulator::pruned(whole(kHalf64, kOdd))>(kOdd, 155, misinformed);
  constexpr Shape kSingle{.heads = 3, .len_q = 128, .len_k = 40, .score_scale = 30};
  run_case<kWhole, emulator::pruned(whole(kHalf64, kSingle))>(kSingle, 156, misinformed);
  constexpr Config kApart{.m_warpgroups = 1,
                          .cluster = 2,
                          .stages = 3,
                          .softmax_overlap = SoftmaxOverlap::qk_pv,
                          .overflow_check = OverflowCheck::deferred,
                          .mask_path = MaskPath::separate_loop,
                          .epilogue = EpilogueStore::smem_b128,
                          .tile_order = TileOrder::lpt_then_spt,
                          .min_blocks = 2};
  constexpr Shape kLong{.heads = 2, .len_q = 320, .len_k = 320, .score_scale = 30};
  run_case<kApart, emulator::pruned(fixed(kHalf64Causal, kLong))>(kLong, 157, misinformed);
  constexpr Config kPairs{.m_warpgroups = 2,
                          .kv_groups = 2,
                          .stages = 4,
                          .producer = Producer::warpgroup,
                          .tile_order = TileOrder::paired,
                          .share_causal_tail = ShareCausalTail::on};
  constexpr Shape kEnds{.len_q = 640, .len_k = 640};
  run_case<kPairs, emulator::pruned(fixed(kHalf64Causal, kEnds))>(kEnds, 158, misinformed);
}

constexpr Problem dense_tiles(const Problem& problem, const Shape& s) {
  Problem known = dense(problem, s);
  known.specialization.specialize = Specialize::whole_tiles;
  return known;
}

// And for outputs that lie in one way: where O is told to lie is wrong here too, and Q, K and V lie otherwise.
TEST(EmulatedPersistent, OutputsMayBeDense) {
  const Options misinformed{.told = emulator::misinform_of_outputs};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 200, .padding_rows = 3};
  run_case<kFixed, dense(kHalf64, kGrouped)>(kGrouped, 145, misinformed);
  constexpr Shape kInner{.batch = 2,
                         .heads = 3,
                         .heads_kv = 1,
                         .len_q = 70,
                         .len_k = 90,
                         .causal_offset = 20,
                         .heads_inner = true,
                         .padding_rows = 2};
  constexpr Config kPieces{
      .m_warpgroups = 1, .stages = 2, .epilogue = EpilogueStore::st_b128, .tile_order = TileOrder::lpt_then_spt};
  run_case<kPieces, dense(kHalf64Causal, kInner)>(kInner, 146, misinformed);
  constexpr Shape kTiles{.heads = 3,
                         .heads_kv = 1,
                         .len_q = 256,
                         .len_k = 300,
                         .causal_offset = 44,
                         .heads_inner = true,
                         .padding_rows = 1};
  run_case<kWhole, dense_tiles(kHalf64Causal, kTiles)>(kTiles, 147, misinformed);
  // Blocks of a cluster aim at their halves of a row before there is anything to write.
  constexpr Config kAimed{
      .m_warpgroups = 2, .cluster = 2, .stages = 2, .epilogue = EpilogueStore::smem_b128_preaddressed};
  constexpr Shape kShort{.heads = 2, .len_q = 150, .len_k = 130, .padding_rows = 1};
  run_case<kAimed, dense(kHalf64, kShort)>(kShort, 148, misinformed);
}

// Two blocks of a cluster share a Q tile's keys; one of them may have none.
TEST(EmulatedPersistent, BlocksShareTheKeysOfRows) {
  constexpr Config kSplit{.m_warpgroups = 1, .cluster = 2, .stages = 3, .epilogue = EpilogueStore::smem_b128};
  run_case<kSplit, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 450}, 121);
  run_case<kSplit, kHalf64>({.heads = 2, .len_q = 70, .len_k = 40, .heads_inner = true, .padding_rows = 2}, 122);
  run_case<kSplitQTiles, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 123);
  run_case<kSplitQTiles, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 200, .len_k = 570, .causal_offset = 370},
                                        124);
  run_case<kSplitQTiles, kHalf64Causal>({.len_q = 300, .len_k = 100}, 125, {.with_lse = false});
  // Rows that see no key of either block, and of one.
  run_case<kSplitQTiles, kHalf64Causal>({.len_q = 300, .len_k = 260, .causal_offset = -40}, 126);
  constexpr Config kWide{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::tma};
  run_case<kWide, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 127);
  constexpr Config kPieces{.m_warpgroups = 2,
                           .cluster = 2,
                           .stages = 2,
                           .producer = Producer::warpgroup,
                           .epilogue = EpilogueStore::st_b128,
                           .tile_order = TileOrder::paired};
  run_case<kPieces, Problem{.element = Element::fp16, .head_dim = 80, .mask = MaskKind::causal}>(
      {.heads = 2, .len_q = 300, .len_k = 330, .heads_inner = true}, 128);
  // Warps that are overflowed multiply scores again, from their own block's shared memory.
  constexpr Config kBeside{.m_warpgroups = 1,
                           .cluster = 2,
                           .stages = 3,
                           .softmax_overlap = SoftmaxOverlap::pv,
                           .gemm_order = GemmOrder::qk_first,
                           .epilogue = EpilogueStore::smem_b128};
  run_case<kBeside, kHalf64>({.heads = 2, .len_q = 100, .len_k = 520, .score_scale = 30}, 130);
  run_case<kBeside, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 570, .causal_offset = 370, .score_scale = 30},
                                   131);
  // Four consumer warpgroups that multiply one after the other; some have no rows, one block no keys, and warps are
  // overflowed.
  run_case<kSplitKv, kHalf64>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 710}, 132);
  run_case<kSplitKv, kHalf64>({.heads = 2, .len_q = 256, .len_k = 50, .heads_inner = true, .padding_rows = 2}, 133);
  constexpr Config kFreedOnCondition = [] {
    Config c = kSplitKv;
    c.stage_release = StageRelease::predicated;
    return c;
  }();
  run_case<kFreedOnCondition, Problem{.element = Element::bf16, .head_dim = 40, .mask = MaskKind::none}>(
      {.heads = 2, .len_q = 180, .len_k = 520, .score_scale = 30}, 134, {.with_lse = false});
  constexpr Config kAimed{.m_warpgroups = 2,
                          .cluster = 2,
                          .stages = 2,
                          .epilogue = EpilogueStore::smem_b128_preaddressed,
                          .rowsum_reduce = RowsumReduce::beside_pv};
  run_case<kAimed, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .padding_rows = 1}, 129);
}

// Whole lines by way of a place of their own, or of what KV groups have received from each other.
TEST(EmulatedPersistent, RowsLeaveAsLines) {
  constexpr Config kTaken{
      .m_warpgroups = 4, .stages = 2, .producer = Producer::warpgroup, .epilogue = EpilogueStore::smem_b128};
  run_case<kTaken, kHalf64>({.heads = 2, .len_q = 270, .len_k = 320}, 81);
  run_case<kTaken, kHalf64>({.len_q = 3, .len_k = 1, .heads_inner = true, .padding_rows = 2}, 82);
  constexpr Config kSplit{
      .m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::smem_b128};
  run_case<kSplit, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 83);
  constexpr Config kResident{.m_warpgroups = 2,
                             .block_n = 32,
                             .stages = 2,
                             .q_stages = 2,
                             .scheduler = Scheduler::static_persistent,
                             .epilogue = EpilogueStore::smem_b128,
                             .evict_first = EvictFirst::q_kv_o};
  run_case<kResident, kHalf64>({.heads = 3, .len_q = 200, .len_k = 150}, 84);
  run_case<kResident, Problem{.element = Element::fp16, .head_dim = 80, .mask = MaskKind::none}>(
      {.heads = 2, .len_q = 140, .len_k = 90, .padding_rows = 1}, 85);
  run_case<kResident, Problem{.element = Element::bf16, .head_dim = 192, .mask = MaskKind::causal}>(
      {.heads = 2, .len_q = 140, .len_k = 140}, 86);
  constexpr Config kBoth{.m_warpgroups = 2,
                         .kv_groups = 2,
                         .stages = 2,
                         .producer = Producer::warpgroup,
                         .epilogue = EpilogueStore::smem_b128};
  run_case<kBoth, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .heads_inner = true, .padding_rows = 1}, 87);
  constexpr Config kAimed{.m_warpgroups = 2,
                          .kv_groups = 2,
                          .stages = 2,
                          .producer = Producer::warpgroup,
                          .epilogue = EpilogueStore::smem_b128_preaddressed,
                          .rowsum_reduce = RowsumReduce::beside_pv};
  run_case<kAimed, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .heads_inner = true, .padding_rows = 1}, 89);
  constexpr Config kAimedOne{.m_warpgroups = 4,
                             .stages = 2,
                             .producer = Producer::warpgroup,
                             .epilogue = EpilogueStore::smem_b128_preaddressed,
                             .tile_order = TileOrder::paired};
  run_case<kAimedOne, kHalf64Causal>({.heads = 2, .len_q = 270, .len_k = 320}, 90);
  constexpr Config kAimedPairs{.m_warpgroups = 2,
                               .stages = 3,
                               .producer = Producer::warpgroup,
                               .epilogue = EpilogueStore::smem_b128_preaddressed,
                               .tile_order = TileOrder::paired,
                               .share_causal_tail = ShareCausalTail::on,
                               .rowsum_reduce = RowsumReduce::beside_pv};
  run_case<kAimedPairs, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 91);
  constexpr Config kBothStay{.m_warpgroups = 1,
                             .kv_groups = 2,
                             .stages = 2,
                             .q_stages = 2,
                             .scheduler = Scheduler::static_persistent,
                             .epilogue = EpilogueStore::smem_b128};
  run_case<kBothStay, kHalf64Causal>({.heads = 3, .len_q = 150, .len_k = 150}, 88);
}

// By bulk loads, from where the queries were or from a place of their own that the next Q tile waits for.
TEST(EmulatedPersistent, RowsLeaveAsBoxes) {
  constexpr Config kTaken{
      .m_warpgroups = 4, .stages = 2, .producer = Producer::warpgroup, .epilogue = EpilogueStore::tma};
  run_case<kTaken, kHalf64>({.heads = 2, .len_q = 270, .len_k = 320}, 101);
  run_case<kTaken, kHalf64>({.len_q = 3, .len_k = 1, .heads_inner = true, .padding_rows = 2}, 102);
  constexpr Config kSplit{
      .m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::tma};
  run_case<kSplit, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 103);
  constexpr Config kResident{.m_warpgroups = 2,
                             .block_n = 32,
                             .stages = 2,
                             .q_stages = 2,
                             .scheduler = Scheduler::static_persistent,
                             .epilogue = EpilogueStore::tma,
                             .evict_first = EvictFirst::q_kv_o};
  run_case<kResident, kHalf64>({.heads = 3, .len_q = 200, .len_k = 150}, 105);
  run_case<kResident, Problem{.element = Element::fp16, .head_dim = 80, .mask = MaskKind::none}>(
      {.heads = 2, .len_q = 140, .len_k = 90, .padding_rows = 1}, 106);
  run_case<kResident, Problem{.element = Element::bf16, .head_dim = 192, .mask = MaskKind::causal}>(
      {.heads = 2, .len_q = 140, .len_k = 140}, 107);
  constexpr Config kPairs{.m_warpgroups = 2,
                          .stages = 3,
                          .producer = Producer::warpgroup,
                          .epilogue = EpilogueStore::tma,
                          .tile_order = TileOrder::paired,
                          .share_causal_tail = ShareCausalTail::on};
  run_case<kPairs, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 108);
}

// Hints change nothing but speed.
TEST(EmulatedPersistent, EvictsFirst) {
  constexpr Config kInputs{.m_warpgroups = 2, .stages = 2, .evict_first = EvictFirst::q_kv};
  run_case<kInputs, kHalf64>({.heads = 2, .len_q = 100, .len_k = 150}, 50);
  constexpr Config kAll{.m_warpgroups = 1, .kv_groups = 2, .stages = 2, .evict_first = EvictFirst::q_kv_o};
  run_case<kAll, kHalf64Causal>({.heads = 2, .len_q = 100, .len_k = 150, .causal_offset = 50}, 51);
  constexpr Config kPairs{
      .m_warpgroups = 1, .stages = 2, .epilogue = EpilogueStore::st_b32, .evict_first = EvictFirst::q_kv_o};
  run_case<kPairs, Problem{.element = Element::bf16, .head_dim = 40, .mask = MaskKind::causal}>(
      {.len_q = 65, .len_k = 65}, 52);
  constexpr Config kValues{.m_warpgroups = 2, .stages = 2, .evict_first = EvictFirst::v_o};
  run_case<kValues, kHalf64>({.heads = 2, .len_q = 100, .len_k = 150}, 53);
  constexpr Config kButKeys{
      .m_warpgroups = 1, .stages = 2, .epilogue = EpilogueStore::tma, .evict_first = EvictFirst::q_v_o};
  run_case<kButKeys, kHalf64Causal>({.heads = 2, .len_q = 100, .len_k = 100}, 54);
  // Heads on both sides of the one from which on everything leaves first.
  constexpr Config kMostKeys{.m_warpgroups = 1,
                             .stages = 2,
                             .q_stages = 2,
                             .scheduler = Scheduler::static_persistent,
                             .evict_first = EvictFirst::q_v_o_quarter_k};
  run_case<kMostKeys, kHalf64>({.heads = 4, .len_q = 100, .len_k = 150}, 55);
  // What a block begins with, and what comes after it.
  constexpr Config kOpening{.m_warpgroups = 1,
                            .stages = 2,
                            .q_stages = 2,
                            .scheduler = Scheduler::static_persistent,
                            .evict_first = EvictFirst::all_but_first_q_2k};
  run_case<kOpening, kHalf64>({.heads = 4, .len_q = 100, .len_k = 250}, 57);
  constexpr Config kFirstKeys{.m_warpgroups = 2,
                              .stages = 2,
                              .q_stages = 2,
                              .scheduler = Scheduler::dynamic_persistent,
                              .softmax_overlap = SoftmaxOverlap::qk_pv,
                              .evict_first = EvictFirst::all_but_first_q_k};
  run_case<kFirstKeys, kHalf64Causal>({.heads = 3, .len_q = 200, .len_k = 200}, 58);
  constexpr Config kHalf{.m_warpgroups = 2, .stages = 2, .evict_first = EvictFirst::half_heads};
  run_case<kHalf, kHalf64Causal>({.heads = 3, .len_q = 100, .len_k = 100}, 56);
}

}  // namespace
}  // namespace heed::sm90_persistent

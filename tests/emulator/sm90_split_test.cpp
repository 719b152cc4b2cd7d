// fwd_sm90_split on the emulated GPU: every path of the kernel at small ragged shapes.
#include "attention_case.hpp"
#include "kernels/sm90/split/forward.cuh"
#include "kernels/sm90/split/legality.hpp"

namespace heed::sm90_split {
namespace {

using emulator::AttentionCase;
using emulator::kConstant;
using emulator::Shape;

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, std::uint64_t seed, bool with_lse = true,
              const std::function<void(AttentionCase&)>& change = {},
              const std::function<void(ForwardParams&)>& told = {}) {  // to the program, and not to the check
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  static_assert(canonical(kProblem.specialization, specializations_of(kConfig, kProblem)) == kProblem.specialization);
  AttentionCase problem(kProblem, shape, seed);
  if (!with_lse) problem.params().lse = nullptr;
  if (change) change(problem);
  const TensorMaps maps =
      problem.maps(query_box_rows(kConfig), kConfig.block_n, iteration_keys(kConfig) / kConfig.v_barriers,
                   kConfig.epilogue == EpilogueStore::tma ? kStoredRows : 0, kStoredColumns);
  const int rows = kConfig.m_warpgroups * kWarpgroupRows;
  emulator::Launch launch;
  const auto heads = static_cast<unsigned>(shape.heads);
  const auto of_head = static_cast<unsigned>((shape.len_q + rows - 1) / rows);
  launch.grid = {(heads_first(kConfig) ? heads : of_head) * static_cast<unsigned>(kConfig.cluster),
                 heads_first(kConfig) ? of_head : heads, static_cast<unsigned>(shape.batch)};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.cluster = static_cast<unsigned>(kConfig.cluster);
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  ForwardParams params = problem.params();
  if (told) told(params);
  emulator::run(launch, [&](char* shared) {
    Forward<kConstant<kConfig>, kConstant<kProblem>>(known<kConstant<kProblem>>(params), maps, shared).run();
  });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k));
}

// The mission's config: two blocks share a tile, one iteration each.
TEST(EmulatedSm90, SplitsKeysOverACluster) {
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

TEST(EmulatedSm90, Openings) {
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

// Rows lie in heads, and some see nothing.
constexpr Shape kInner{.batch = 2,
                       .heads = 3,
                       .heads_kv = 1,
                       .len_q = 130,
                       .len_k = 90,
                       .causal_offset = -40,
                       .heads_inner = true,
                       .padding_rows = 2};

// A program for one launch's sizes: what the parameters say of them is wrong here. Whatever is asked for first.
template <Prologue kPrologue>
void open_launches_of_known_sizes(std::uint64_t seed) {
  constexpr Config kConfig{.prologue = kPrologue};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130};
  run_case<kConfig, fixed(kHalf64, kGrouped)>(kGrouped, seed, true, {}, emulator::misinform_of_sizes);
  // Outputs may lie as they like.
  run_case<kConfig, fixed(kHalf64Causal, kInner)>(kInner, seed + 1, true, {}, emulator::misinform_of_sizes);
}

TEST(EmulatedSm90, SizesMayBeConstants) {
  open_launches_of_known_sizes<Prologue::lengths_first>(400);
  open_launches_of_known_sizes<Prologue::maps_first>(410);
  open_launches_of_known_sizes<Prologue::q_first>(420);
  // More iterations than stay in shared memory, overflowed, a producer that asks for the key head again; heads come
  // first.
  constexpr Config kRing{.cluster = 1,
                         .n_blocks_per_stage = 2,
                         .stages = 2,
                         .v_barriers = 1,
                         .pv_start_step = 0,
                         .overflow_check = OverflowCheck::before_merge,
                         .producer = Producer::warp,
                         .tile_order = TileOrder::lpt_then_spt};
  constexpr Shape kLong{.heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 600, .causal_offset = 470, .score_scale = 20};
  run_case<kRing, fixed(kHalf64Causal, kLong)>(kLong, 430, false, {}, emulator::misinform_of_sizes);
  // Boxes go where the map of O says.
  constexpr Config kBoxes{.epilogue = EpilogueStore::tma};
  constexpr Shape kPadded{.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 130, .padding_rows = 1};
  run_case<kBoxes, fixed(kHalf64, kPadded)>(kPadded, 431, true, {}, emulator::misinform_of_sizes);
}

// And that hold what those sizes need alone: one program, or two where some part wants the other.
TEST(EmulatedSm90, ProgramsMayHoldWhatTheyNeed) {
  constexpr Config kNumSplits{.cluster = 2,
                              .block_n = 64,
                              .n_blocks_per_stage = 4,
                              .mask_at = MaskAt::probabilities,
                              .rowsum = Rowsum::mma,
                              .overflow_check = OverflowCheck::after_store};
  constexpr Shape kRound{.heads = 2, .len_q = 128, .len_k = 512, .score_scale = 20};
  constexpr Problem kUnmasked = emulator::pruned(fixed(kHalf64, kRound));
  run_case<canonical(kNumSplits, kUnmasked), kUnmasked>(kRound, 440, true, {}, emulator::misinform_of_sizes);
  constexpr Shape kSquare{.heads = 2, .len_q = 512, .len_k = 512};
  constexpr Problem kMasked = emulator::pruned(fixed(kHalf64Causal, kSquare));
  run_case<canonical(kNumSplits, kMasked), kMasked>(kSquare, 441, true, {}, emulator::misinform_of_sizes);
  constexpr Shape kAskew{.heads = 2, .len_q = 100, .len_k = 700, .causal_offset = 333, .score_scale = 20};
  constexpr Problem kOther = emulator::pruned(fixed(kHalf64Causal, kAskew));
  run_case<canonical(kNumSplits, kOther), kOther>(kAskew, 442, true, {}, emulator::misinform_of_sizes);
}

// And for outputs that lie in one way: where O is told to lie is wrong here too, and Q, K and V lie otherwise.
template <Prologue kPrologue, EpilogueStore kStore>
void write_dense_outputs(std::uint64_t seed) {
  constexpr Config kConfig{.prologue = kPrologue, .epilogue = kStore};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130, .padding_rows = 3};
  run_case<kConfig, dense(kHalf64, kGrouped)>(kGrouped, seed, true, {}, emulator::misinform_of_outputs);
  run_case<kConfig, dense(kHalf64Causal, kInner)>(kInner, seed + 1, true, {}, emulator::misinform_of_outputs);
}

TEST(EmulatedSm90, OutputsMayBeDense) {
  write_dense_outputs<Prologue::lengths_first, EpilogueStore::st_b128>(440);
  write_dense_outputs<Prologue::maps_first, EpilogueStore::st_b128>(450);
  write_dense_outputs<Prologue::q_first, EpilogueStore::st_b32>(460);
  // Four parts have 16 columns of a padded head dim each: one writes fewer, one none.
  constexpr Config kFour{.cluster = 4,
                         .n_blocks_per_stage = 2,
                         .pv_start_step = 0,
                         .overflow_check = OverflowCheck::before_merge,
                         .min_blocks = 3};
  constexpr Problem kHalf40{.element = Element::fp16, .head_dim = 40, .mask = MaskKind::causal};
  constexpr Shape kNarrow{.heads = 2, .len_q = 100, .len_k = 150, .causal_offset = 50, .padding_rows = 1};
  run_case<kFour, dense(kHalf40, kNarrow)>(kNarrow, 470, false, {}, emulator::misinform_of_outputs);
}

// Every block of a cluster loads a part of the queries to all; those without keys, too.
TEST(EmulatedSm90, SharesQueries) {
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

// Only some consumer warpgroups of a block see past the last key: all take the program that knows of it, or they would
// vote at different places and wait for each other.
TEST(EmulatedSm90, RowGroupsOfABlockTakeOneProgram) {
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

// Rows by way of shared memory, as boxes: of two parts, one and four, ragged rows, padded head dims, written
// again.
TEST(EmulatedSm90, WritesRowsAsBoxes) {
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

TEST(EmulatedSm90, ComputesAgainWhereTheFirstChunkMisleads) {
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
TEST(EmulatedSm90, AllPartsComputeAgainWhereOneWasMisled) {
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

// Probabilities of hidden keys are taken out where the mask's edge runs from corner to corner of an n-block; elsewhere,
// and where rows see past the last key, their scores are.
TEST(EmulatedSm90, MasksProbabilities) {
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

// The columns that a block keeps are multiplied while the others travel; one without keys has none to multiply.
TEST(EmulatedSm90, KeepsColumnsForLater) {
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
TEST(EmulatedSm90, FoldedRowTiles) {
  constexpr Config kConfig{.tile_order = TileOrder::lpt_then_spt};
  run_case<kConfig, kHalf64Causal>({.batch = 2, .heads = 3, .len_q = 290, .len_k = 290}, 74);
  run_case<kConfig, kHalf64Causal>({.len_q = 30, .len_k = 290}, 75);
}

// Two parts of one block, without a cluster.
TEST(EmulatedSm90, PartsOfOneBlock) {
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

// The exact maximum of a part that ends within its iteration is not that of another split's keys.
TEST(EmulatedSm90, ExactMaximaOfPartsThatEndEarly) {
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

// Consumer warpgroups that see none of a block's last keys.
TEST(EmulatedSm90, RowGroupsPastTheirLastKeyFreeSlotsInTurn) {
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

TEST(EmulatedSm90, CausalMasks) {
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
TEST(EmulatedSm90, CausalMasksOfOneSegment) {
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

TEST(EmulatedSm90, RingWithAProducer) {
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

TEST(EmulatedSm90, WideHeadsWithExactMaxima) {
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

TEST(EmulatedSm90, PaddedHeadDims) {
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

TEST(EmulatedSm90, Windows) {
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

// fwd_sm90_split on the emulated GPU: programs for the sizes of one launch, and for outputs that lie in one way.
#include "sm90_split_case.hpp"

namespace heed::sm90_split {
namespace {

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

TEST(EmulatedSplit, SizesMayBeConstants) {
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
TEST(EmulatedSplit, ProgramsMayHoldWhatTheyNeed) {
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

TEST(EmulatedSplit, OutputsMayBeDense) {
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

}  // namespace
}  // namespace heed::sm90_split

// fwd_sm90_stream on the emulated GPU: how the parts of a row tile become one, and how rows leave.
#include "stream_case.hpp"
#include "variant/stream_default.hpp"

namespace heed::stream {
namespace {

// Key groups merge through shared memory; with one key tile the first group has none.
TEST(EmulatedStream, KeyGroupsMerge) {
  constexpr Config kTwo{.row_groups = 2, .key_groups = 2, .stages = 2, .producer = Producer::own_group};
  run_case<kTwo, kHalf64>({.heads = 2, .len_q = 128, .len_k = 450}, 19);
  run_case<kTwo, kHalf64Causal>({.len_q = 128, .len_k = 40, .causal_offset = -88}, 20);
  run_case<kTwo, kHalf64Causal>({.len_q = 128, .len_k = 300, .causal_offset = 172, .score_scale = 30}, 21);
  constexpr Config kFour{.row_groups = 1,
                         .key_groups = 4,
                         .tile_keys = 32,
                         .stages = 2,
                         .query_stages = 2,
                         .schedule = Schedule::persistent,
                         .producer = Producer::own_group,
                         .store = Store::pairs};
  run_case<kFour, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 70, .len_k = 400}, 22);
  run_case<kFour, kHalf64Causal>({.heads = 2, .len_q = 140, .len_k = 140}, 23);
  constexpr Config kBoth{.row_groups = 1,
                         .key_groups = 2,
                         .tile_keys = 32,
                         .stages = 3,
                         .query_stages = 2,
                         .schedule = Schedule::dynamic,
                         .overlap = Overlap::products};
  run_case<kBoth, kHalf64Causal>({.heads = 2, .len_q = 140, .len_k = 240, .causal_offset = 100, .score_scale = 30}, 34);
}

constexpr Config kFixed{.row_groups = 2,
                        .key_groups = 2,
                        .stages = 2,
                        .producer = Producer::own_group,
                        .store = Store::rows,
                        .sizes = Sizes::fixed};
constexpr Config kWhole{.row_groups = 2,
                        .stages = 3,
                        .query_stages = 2,
                        .schedule = Schedule::persistent,
                        .overlap = Overlap::products,
                        .store = Store::rows,
                        .sizes = Sizes::whole};
constexpr Config dense_outputs(Config c) {
  c.outputs = Outputs::dense;
  return c;
}

// Programs for one launch's sizes, which are not read from the parameters: those are wrong here.
TEST(EmulatedStream, SizesMayBeConstants) {
  const Options misinformed{.told = emulator::misinform_of_sizes};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 333};
  run_case<kFixed, fixed(kHalf64, kGrouped)>(kGrouped, 141, misinformed);
  // Its outputs may lie as they like.
  constexpr Shape kPadded{.heads = 2, .heads_kv = 2, .len_q = 70, .len_k = 90, .heads_inner = true, .padding_rows = 2};
  run_case<kFixed, fixed(kHalf64, kPadded)>(kPadded, 144, misinformed);
  constexpr Shape kLonger{.heads = 3, .heads_kv = 1, .len_q = 256, .len_k = 300, .causal_offset = 44};
  run_case<kWhole, fixed(kHalf64Causal, kLonger)>(kLonger, 142, misinformed);
  constexpr Config kMirrored{.row_groups = 4,
                             .stages = 4,
                             .producer = Producer::own_group,
                             .store = Store::pieces,
                             .tile_order = TileOrder::mirrored,
                             .sizes = Sizes::whole};
  constexpr Shape kSquare{.heads = 2, .len_q = 512, .len_k = 512, .score_scale = 30};
  run_case<kMirrored, fixed(kHalf64Causal, kSquare)>(kSquare, 143, misinformed);
}

// And that hold what those sizes need alone: with masked tiles and without, single tiles and more of them, rows and
// parts that have none.
TEST(EmulatedStream, ProgramsMayHoldWhatTheyNeed) {
  const Options misinformed{.told = emulator::misinform_of_sizes};
  constexpr auto lean = [](Config c) {
    c.programs = Programs::needed;
    return c;
  };
  constexpr Shape kRound{.heads = 2, .len_q = 128, .len_k = 512, .score_scale = 30};
  run_case<lean(kFixed), fixed(kHalf64, kRound)>(kRound, 151, misinformed);
  constexpr Shape kSquare{.heads = 2, .len_q = 256, .len_k = 256};
  run_case<lean(kFixed), fixed(kHalf64Causal, kSquare)>(kSquare, 152, misinformed);
  constexpr Shape kAskew{.heads = 2, .len_q = 200, .len_k = 150, .causal_offset = -70, .score_scale = 30};
  run_case<lean(kFixed), fixed(kHalf64Causal, kAskew)>(kAskew, 153, misinformed);
  run_case<lean(kWhole), fixed(kHalf64Causal, kSquare)>(kSquare, 154, misinformed);
  constexpr Shape kOdd{.heads = 2, .len_q = 128, .len_k = 320};
  run_case<lean(kWhole), fixed(kHalf64, kOdd)>(kOdd, 155, misinformed);
  constexpr Shape kSingle{.heads = 3, .len_q = 128, .len_k = 40, .score_scale = 30};
  run_case<lean(kWhole), fixed(kHalf64, kSingle)>(kSingle, 156, misinformed);
  constexpr Config kApart{.row_groups = 1,
                          .cluster = 2,
                          .stages = 3,
                          .overlap = Overlap::products,
                          .vote = Vote::after_products,
                          .masking = Masking::apart,
                          .store = Store::rows,
                          .tile_order = TileOrder::folded,
                          .sizes = Sizes::fixed,
                          .programs = Programs::needed,
                          .min_blocks = 2};
  constexpr Shape kLong{.heads = 2, .len_q = 320, .len_k = 320, .score_scale = 30};
  run_case<kApart, fixed(kHalf64Causal, kLong)>(kLong, 157, misinformed);
  constexpr Config kPairs{.row_groups = 2,
                          .key_groups = 2,
                          .stages = 4,
                          .producer = Producer::own_group,
                          .tile_order = TileOrder::mirrored,
                          .pairs = Pairs::together,
                          .sizes = Sizes::fixed,
                          .programs = Programs::needed};
  constexpr Shape kEnds{.len_q = 640, .len_k = 640};
  run_case<kPairs, fixed(kHalf64Causal, kEnds)>(kEnds, 158, misinformed);
}

// And for outputs that lie in one way: where O is told to lie is wrong here too, and Q, K and V lie otherwise.
TEST(EmulatedStream, OutputsMayBeDense) {
  const Options misinformed{.told = emulator::misinform_of_outputs};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 200, .padding_rows = 3};
  run_case<dense_outputs(kFixed), dense(kHalf64, kGrouped)>(kGrouped, 145, misinformed);
  constexpr Shape kInner{.batch = 2,
                         .heads = 3,
                         .heads_kv = 1,
                         .len_q = 70,
                         .len_k = 90,
                         .causal_offset = 20,
                         .heads_inner = true,
                         .padding_rows = 2};
  constexpr Config kPieces{.row_groups = 1,
                           .stages = 2,
                           .store = Store::pieces,
                           .tile_order = TileOrder::folded,
                           .sizes = Sizes::fixed,
                           .outputs = Outputs::dense};
  run_case<kPieces, dense(kHalf64Causal, kInner)>(kInner, 146, misinformed);
  constexpr Shape kTiles{.heads = 3,
                         .heads_kv = 1,
                         .len_q = 256,
                         .len_k = 300,
                         .causal_offset = 44,
                         .heads_inner = true,
                         .padding_rows = 1};
  run_case<dense_outputs(kWhole), dense(kHalf64Causal, kTiles)>(kTiles, 147, misinformed);
  // Blocks of a cluster aim at their halves of a row before there is anything to write.
  constexpr Config kAimed{.row_groups = 2,
                          .cluster = 2,
                          .stages = 2,
                          .store = Store::aimed_rows,
                          .sizes = Sizes::fixed,
                          .outputs = Outputs::dense};
  constexpr Shape kShort{.heads = 2, .len_q = 150, .len_k = 130, .padding_rows = 1};
  run_case<kAimed, dense(kHalf64, kShort)>(kShort, 148, misinformed);
}

// Two blocks of a cluster share a row tile's keys; one of them may have none.
TEST(EmulatedStream, BlocksShareTheKeysOfRows) {
  constexpr Config kSplit{.row_groups = 1, .cluster = 2, .stages = 3, .store = Store::rows};
  run_case<kSplit, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 450}, 121);
  run_case<kSplit, kHalf64>({.heads = 2, .len_q = 70, .len_k = 40, .heads_inner = true, .padding_rows = 2}, 122);
  run_case<kSplitRows, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 123);
  run_case<kSplitRows, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 200, .len_k = 570, .causal_offset = 370},
                                      124);
  run_case<kSplitRows, kHalf64Causal>({.len_q = 300, .len_k = 100}, 125, {.with_lse = false});
  // Rows that see no key of either block, and of one.
  run_case<kSplitRows, kHalf64Causal>({.len_q = 300, .len_k = 260, .causal_offset = -40}, 126);
  constexpr Config kWide{.row_groups = 1, .cluster = 2, .tile_keys = 32, .stages = 2, .store = Store::boxes};
  run_case<kWide, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 127);
  constexpr Config kPieces{.row_groups = 2,
                           .cluster = 2,
                           .stages = 2,
                           .producer = Producer::own_group,
                           .store = Store::pieces,
                           .tile_order = TileOrder::mirrored};
  run_case<kPieces, Problem{.element = Element::fp16, .head_dim = 80, .causal = true}>(
      {.heads = 2, .len_q = 300, .len_k = 330, .heads_inner = true}, 128);
  // Warps that are misled multiply scores again, from their own block's shared memory.
  constexpr Config kBeside{.row_groups = 1,
                           .cluster = 2,
                           .stages = 3,
                           .overlap = Overlap::values,
                           .product_order = ProductOrder::scores_first,
                           .store = Store::rows};
  run_case<kBeside, kHalf64>({.heads = 2, .len_q = 100, .len_k = 520, .score_scale = 30}, 130);
  run_case<kBeside, kHalf64Causal>({.heads = 2, .len_q = 200, .len_k = 570, .causal_offset = 370, .score_scale = 30},
                                   131);
  // Four row groups that multiply one after the other; some have no rows, one block no keys, and warps are misled.
  run_case<kSplitKeys, kHalf64>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 710}, 132);
  run_case<kSplitKeys, kHalf64>({.heads = 2, .len_q = 256, .len_k = 50, .heads_inner = true, .padding_rows = 2}, 133);
  constexpr Config kFreedOnCondition = [] {
    Config c = kSplitKeys;
    c.upkeep = Upkeep::conditions;
    return c;
  }();
  run_case<kFreedOnCondition, Problem{.element = Element::bf16, .head_dim = 40, .causal = false}>(
      {.heads = 2, .len_q = 180, .len_k = 520, .score_scale = 30}, 134, {.with_lse = false});
  constexpr Config kAimed{
      .row_groups = 2, .cluster = 2, .stages = 2, .store = Store::aimed_rows, .sums = Sums::beside_values};
  run_case<kAimed, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .padding_rows = 1}, 129);
}

// Whole lines by way of a place of their own, or of what key groups have received from each other.
TEST(EmulatedStream, RowsLeaveAsLines) {
  constexpr Config kTaken{.row_groups = 4, .stages = 2, .producer = Producer::own_group, .store = Store::rows};
  run_case<kTaken, kHalf64>({.heads = 2, .len_q = 270, .len_k = 320}, 81);
  run_case<kTaken, kHalf64>({.len_q = 3, .len_k = 1, .heads_inner = true, .padding_rows = 2}, 82);
  constexpr Config kSplit{.row_groups = 1, .key_groups = 2, .tile_keys = 32, .stages = 2, .store = Store::rows};
  run_case<kSplit, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 83);
  constexpr Config kStays{.row_groups = 2,
                          .tile_keys = 32,
                          .stages = 2,
                          .query_stages = 2,
                          .schedule = Schedule::persistent,
                          .store = Store::rows,
                          .evict_first = EvictFirst::all};
  run_case<kStays, kHalf64>({.heads = 3, .len_q = 200, .len_k = 150}, 84);
  run_case<kStays, Problem{.element = Element::fp16, .head_dim = 80, .causal = false}>(
      {.heads = 2, .len_q = 140, .len_k = 90, .padding_rows = 1}, 85);
  run_case<kStays, Problem{.element = Element::bf16, .head_dim = 192, .causal = true}>(
      {.heads = 2, .len_q = 140, .len_k = 140}, 86);
  constexpr Config kBoth{
      .row_groups = 2, .key_groups = 2, .stages = 2, .producer = Producer::own_group, .store = Store::rows};
  run_case<kBoth, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .heads_inner = true, .padding_rows = 1}, 87);
  constexpr Config kAimed{.row_groups = 2,
                          .key_groups = 2,
                          .stages = 2,
                          .producer = Producer::own_group,
                          .store = Store::aimed_rows,
                          .sums = Sums::beside_values};
  run_case<kAimed, kHalf64>({.heads = 2, .len_q = 150, .len_k = 330, .heads_inner = true, .padding_rows = 1}, 89);
  constexpr Config kAimedOne{.row_groups = 4,
                             .stages = 2,
                             .producer = Producer::own_group,
                             .store = Store::aimed_rows,
                             .tile_order = TileOrder::mirrored};
  run_case<kAimedOne, kHalf64Causal>({.heads = 2, .len_q = 270, .len_k = 320}, 90);
  constexpr Config kAimedPairs{.row_groups = 2,
                               .stages = 3,
                               .producer = Producer::own_group,
                               .store = Store::aimed_rows,
                               .tile_order = TileOrder::mirrored,
                               .pairs = Pairs::together,
                               .sums = Sums::beside_values};
  run_case<kAimedPairs, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 91);
  constexpr Config kBothStay{.row_groups = 1,
                             .key_groups = 2,
                             .stages = 2,
                             .query_stages = 2,
                             .schedule = Schedule::persistent,
                             .store = Store::rows};
  run_case<kBothStay, kHalf64Causal>({.heads = 3, .len_q = 150, .len_k = 150}, 88);
}

// By bulk copies, from where the queries were or from a place of their own that the next row tile waits for.
TEST(EmulatedStream, RowsLeaveAsBoxes) {
  constexpr Config kTaken{.row_groups = 4, .stages = 2, .producer = Producer::own_group, .store = Store::boxes};
  run_case<kTaken, kHalf64>({.heads = 2, .len_q = 270, .len_k = 320}, 101);
  run_case<kTaken, kHalf64>({.len_q = 3, .len_k = 1, .heads_inner = true, .padding_rows = 2}, 102);
  constexpr Config kSplit{.row_groups = 1, .key_groups = 2, .tile_keys = 32, .stages = 2, .store = Store::boxes};
  run_case<kSplit, kBrain128Causal>({.heads = 2, .len_q = 130, .len_k = 200, .causal_offset = 70}, 103);
  constexpr Config kStays{.row_groups = 2,
                          .tile_keys = 32,
                          .stages = 2,
                          .query_stages = 2,
                          .schedule = Schedule::persistent,
                          .store = Store::boxes,
                          .evict_first = EvictFirst::all};
  run_case<kStays, kHalf64>({.heads = 3, .len_q = 200, .len_k = 150}, 105);
  run_case<kStays, Problem{.element = Element::fp16, .head_dim = 80, .causal = false}>(
      {.heads = 2, .len_q = 140, .len_k = 90, .padding_rows = 1}, 106);
  run_case<kStays, Problem{.element = Element::bf16, .head_dim = 192, .causal = true}>(
      {.heads = 2, .len_q = 140, .len_k = 140}, 107);
  constexpr Config kPairs{.row_groups = 2,
                          .stages = 3,
                          .producer = Producer::own_group,
                          .store = Store::boxes,
                          .tile_order = TileOrder::mirrored,
                          .pairs = Pairs::together};
  run_case<kPairs, kHalf64Causal>({.heads = 2, .len_q = 448, .len_k = 448}, 108);
}

// Hints change nothing but speed.
TEST(EmulatedStream, EvictsFirst) {
  constexpr Config kInputs{.row_groups = 2, .stages = 2, .evict_first = EvictFirst::inputs};
  run_case<kInputs, kHalf64>({.heads = 2, .len_q = 100, .len_k = 150}, 50);
  constexpr Config kAll{.row_groups = 1, .key_groups = 2, .stages = 2, .evict_first = EvictFirst::all};
  run_case<kAll, kHalf64Causal>({.heads = 2, .len_q = 100, .len_k = 150, .causal_offset = 50}, 51);
  constexpr Config kPairs{.row_groups = 1, .stages = 2, .store = Store::pairs, .evict_first = EvictFirst::all};
  run_case<kPairs, Problem{.element = Element::bf16, .head_dim = 40, .causal = true}>({.len_q = 65, .len_k = 65}, 52);
  constexpr Config kValues{.row_groups = 2, .stages = 2, .evict_first = EvictFirst::values};
  run_case<kValues, kHalf64>({.heads = 2, .len_q = 100, .len_k = 150}, 53);
  constexpr Config kButKeys{.row_groups = 1, .stages = 2, .store = Store::boxes, .evict_first = EvictFirst::but_keys};
  run_case<kButKeys, kHalf64Causal>({.heads = 2, .len_q = 100, .len_k = 100}, 54);
  // Heads on both sides of the one from which on everything leaves first.
  constexpr Config kMostKeys{.row_groups = 1,
                             .stages = 2,
                             .query_stages = 2,
                             .schedule = Schedule::persistent,
                             .evict_first = EvictFirst::but_most_keys};
  run_case<kMostKeys, kHalf64>({.heads = 4, .len_q = 100, .len_k = 150}, 55);
  // What a block begins with, and what comes after it.
  constexpr Config kOpening{.row_groups = 1,
                            .stages = 2,
                            .query_stages = 2,
                            .schedule = Schedule::persistent,
                            .evict_first = EvictFirst::but_opening};
  run_case<kOpening, kHalf64>({.heads = 4, .len_q = 100, .len_k = 250}, 57);
  constexpr Config kFirstKeys{.row_groups = 2,
                              .stages = 2,
                              .query_stages = 2,
                              .schedule = Schedule::dynamic,
                              .overlap = Overlap::products,
                              .evict_first = EvictFirst::but_first_keys};
  run_case<kFirstKeys, kHalf64Causal>({.heads = 3, .len_q = 200, .len_k = 200}, 58);
  constexpr Config kHalf{.row_groups = 2, .stages = 2, .evict_first = EvictFirst::half};
  run_case<kHalf, kHalf64Causal>({.heads = 3, .len_q = 100, .len_k = 100}, 56);
}

}  // namespace
}  // namespace heed::stream

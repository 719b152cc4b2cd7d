// fwd_sm90 on the emulated GPU: every path of the kernel at small ragged shapes.
#include "attention_case.hpp"
#include "kernels/sm90/forward.cuh"

namespace heed::sm90 {
namespace {

using emulator::AttentionCase;
using emulator::kConstant;
using emulator::Shape;

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .causal = false};
constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .causal = true};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .causal = true};

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, std::uint64_t seed, bool with_lse = true,
              const std::function<void(AttentionCase&)>& change = {},
              const std::function<void(ForwardParams&)>& told = {}) {  // to the program, and not to the check
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  AttentionCase problem(kProblem, shape, seed);
  if (!with_lse) problem.params().lse = nullptr;
  if (change) change(problem);
  const TensorMaps maps =
      problem.maps(query_box_rows(kConfig), kConfig.chunk, segment_keys(kConfig) / kConfig.value_waits,
                   kConfig.store == Store::boxes ? kStoredRows : 0, kStoredColumns);
  const int rows = kConfig.row_groups * kGroupRows;
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

// The mission's config: two blocks share a tile, one segment each.
TEST(EmulatedSm90, SplitsKeysOverACluster) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 1);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 2);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, 3);
  run_case<kConfig, kHalf64>({.len_q = 20, .len_k = 700, .heads_inner = true}, 4, false);
}

// Parts with keys and without, one segment and more, misled ones too: whatever is asked for first.
template <Opening kOpening>
void open_launches(std::uint64_t seed) {
  constexpr Config kConfig{.opening = kOpening};
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, seed);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, seed + 1);
  run_case<kConfig, kHalf64>({.len_q = 20, .len_k = 700, .heads_inner = true}, seed + 2, false);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, seed + 3);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, seed + 4);
  constexpr Config kRing{.cluster = 1,
                         .chunks = 2,
                         .stages = 2,
                         .value_waits = 1,
                         .product_start = 0,
                         .vote = Vote::before_sending,
                         .opening = kOpening,
                         .producer = Producer::own_warp};
  run_case<kRing, kHalf64>({.len_q = 70, .len_k = 600, .score_scale = 20}, seed + 5);
  run_case<kRing, kHalf64Causal>({.len_q = 150, .len_k = 90, .causal_offset = -70}, seed + 6);
}

TEST(EmulatedSm90, Openings) {
  open_launches<Opening::lengths_first>(200);
  open_launches<Opening::maps_first>(210);
  open_launches<Opening::queries_first>(220);
  constexpr Config kGroups{.key_groups = 2,
                           .cluster = 1,
                           .chunks = 2,
                           .value_waits = 1,
                           .product_start = 0,
                           .opening = Opening::queries_first};
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
template <Opening kOpening>
void open_launches_of_known_sizes(std::uint64_t seed) {
  constexpr Config kConfig{.opening = kOpening, .sizes = Sizes::fixed};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130};
  run_case<kConfig, fixed(kHalf64, kGrouped)>(kGrouped, seed, true, {}, emulator::misinform_of_sizes);
  // Outputs may lie as they like.
  run_case<kConfig, fixed(kHalf64Causal, kInner)>(kInner, seed + 1, true, {}, emulator::misinform_of_sizes);
}

TEST(EmulatedSm90, SizesMayBeConstants) {
  open_launches_of_known_sizes<Opening::lengths_first>(400);
  open_launches_of_known_sizes<Opening::maps_first>(410);
  open_launches_of_known_sizes<Opening::queries_first>(420);
  // More segments than stay in shared memory, misled, a producer that asks for the key head again; heads come first.
  constexpr Config kRing{.cluster = 1,
                         .chunks = 2,
                         .stages = 2,
                         .value_waits = 1,
                         .product_start = 0,
                         .vote = Vote::before_sending,
                         .producer = Producer::own_warp,
                         .tile_order = TileOrder::folded,
                         .sizes = Sizes::fixed};
  constexpr Shape kLong{.heads = 4, .heads_kv = 2, .len_q = 130, .len_k = 600, .causal_offset = 470, .score_scale = 20};
  run_case<kRing, fixed(kHalf64Causal, kLong)>(kLong, 430, false, {}, emulator::misinform_of_sizes);
  // Boxes go where the map of O says.
  constexpr Config kBoxes{.store = Store::boxes, .sizes = Sizes::fixed};
  constexpr Shape kPadded{.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 130, .padding_rows = 1};
  run_case<kBoxes, fixed(kHalf64, kPadded)>(kPadded, 431, true, {}, emulator::misinform_of_sizes);
}

// And that hold what those sizes need alone: one program, or two where some part wants the other.
TEST(EmulatedSm90, ProgramsMayHoldWhatTheyNeed) {
  constexpr Config kParts{.cluster = 2,
                          .chunk = 64,
                          .chunks = 4,
                          .mask = Mask::probabilities,
                          .row_sum = RowSum::ones_column,
                          .vote = Vote::after_writing,
                          .sizes = Sizes::fixed,
                          .programs = Programs::needed};
  constexpr Shape kRound{.heads = 2, .len_q = 128, .len_k = 512, .score_scale = 20};
  constexpr Problem kUnmasked = fixed(kHalf64, kRound);
  run_case<canonical(kParts, kUnmasked), kUnmasked>(kRound, 440, true, {}, emulator::misinform_of_sizes);
  constexpr Shape kSquare{.heads = 2, .len_q = 512, .len_k = 512};
  constexpr Problem kMasked = fixed(kHalf64Causal, kSquare);
  run_case<canonical(kParts, kMasked), kMasked>(kSquare, 441, true, {}, emulator::misinform_of_sizes);
  constexpr Shape kAskew{.heads = 2, .len_q = 100, .len_k = 700, .causal_offset = 333, .score_scale = 20};
  constexpr Problem kOther = fixed(kHalf64Causal, kAskew);
  run_case<canonical(kParts, kOther), kOther>(kAskew, 442, true, {}, emulator::misinform_of_sizes);
}

// And for outputs that lie in one way: where O is told to lie is wrong here too, and Q, K and V lie otherwise.
template <Opening kOpening, Store kStore>
void write_dense_outputs(std::uint64_t seed) {
  constexpr Config kConfig{.opening = kOpening, .store = kStore, .sizes = Sizes::fixed, .outputs = Outputs::dense};
  constexpr Shape kGrouped{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130, .padding_rows = 3};
  run_case<kConfig, dense(kHalf64, kGrouped)>(kGrouped, seed, true, {}, emulator::misinform_of_outputs);
  run_case<kConfig, dense(kHalf64Causal, kInner)>(kInner, seed + 1, true, {}, emulator::misinform_of_outputs);
}

TEST(EmulatedSm90, OutputsMayBeDense) {
  write_dense_outputs<Opening::lengths_first, Store::pieces>(440);
  write_dense_outputs<Opening::maps_first, Store::pieces>(450);
  write_dense_outputs<Opening::queries_first, Store::pairs>(460);
  // Four parts have 16 columns of a padded head dim each: one writes fewer, one none.
  constexpr Config kFour{.cluster = 4,
                         .chunks = 2,
                         .product_start = 0,
                         .vote = Vote::before_sending,
                         .sizes = Sizes::fixed,
                         .outputs = Outputs::dense,
                         .min_blocks = 3};
  constexpr Problem kHalf40{.element = Element::fp16, .head_dim = 40, .causal = true};
  constexpr Shape kNarrow{.heads = 2, .len_q = 100, .len_k = 150, .causal_offset = 50, .padding_rows = 1};
  run_case<kFour, dense(kHalf40, kNarrow)>(kNarrow, 470, false, {}, emulator::misinform_of_outputs);
}

// Every block of a cluster copies a part of the queries to all; those without keys, too.
TEST(EmulatedSm90, SharesQueries) {
  constexpr Config kConfig{.multicast = Multicast::queries};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 300);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 301);
  run_case<kConfig, kHalf64>({.len_q = 3, .len_k = 1}, 302);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 303);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 304);
  constexpr Config kEight{.row_groups = 2,
                          .cluster = 8,
                          .chunk = 32,
                          .chunks = 1,
                          .stages = 2,
                          .score_lead = 1,
                          .value_waits = 1,
                          .product_start = 0,
                          .row_sum = RowSum::adds,
                          .vote = Vote::before_sending,
                          .multicast = Multicast::queries,
                          .producer = Producer::own_warp};
  run_case<kEight, kBrain128Causal>({.len_q = 150, .len_k = 700, .causal_offset = 550}, 305);
  run_case<kEight, kBrain128Causal>({.len_q = 10, .len_k = 20, .causal_offset = -30}, 306);
  constexpr Config kGroups{.key_groups = 2,
                           .cluster = 2,
                           .chunks = 2,
                           .value_waits = 1,
                           .product_start = 0,
                           .multicast = Multicast::queries};
  run_case<kGroups, kHalf64>({.len_q = 70, .len_k = 50}, 307);
}

// Only some row groups of a block see past the last key: all take the program that knows of it, or they would vote at
// different places and wait for each other.
TEST(EmulatedSm90, RowGroupsOfABlockTakeOneProgram) {
  constexpr Problem kBrain64Causal{.element = Element::bf16, .head_dim = 64, .causal = true};
  constexpr Config kThree{.row_groups = 3,
                          .cluster = 4,
                          .chunks = 1,
                          .score_lead = 1,
                          .value_waits = 1,
                          .product_start = 0,
                          .late_packing = false,
                          .reference = Reference::first_keys,
                          .mask = Mask::probabilities,
                          .exchange = Exchange::single,
                          .opening = Opening::maps_first,
                          .producer = Producer::own_group,
                          .trigger = Trigger::none};
  for (const float scale : {1.0F, 4.0F, 30.0F})
    run_case<kThree, kBrain64Causal>({.len_q = 130, .len_k = 67, .score_scale = scale}, 308);
  run_case<kThree, kBrain64Causal>({.len_q = 190, .len_k = 130, .causal_offset = -64}, 309);
}

// Rows by way of shared memory, as boxes: of two parts, one and four, ragged rows, padded head dims, written
// again.
TEST(EmulatedSm90, WritesRowsAsBoxes) {
  constexpr Config kConfig{.store = Store::boxes};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 310);
  run_case<kConfig, kHalf64>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 130}, 311, false);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30, .heads_inner = true}, 312);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 313);
  constexpr Config kAlone{
      .row_groups = 2, .cluster = 1, .chunks = 2, .value_waits = 1, .product_start = 0, .store = Store::boxes};
  run_case<kAlone, kHalf64>({.len_q = 150, .len_k = 200}, 314);
  constexpr Config kFour{.key_groups = 2,
                         .cluster = 2,
                         .chunk = 32,
                         .chunks = 2,
                         .value_waits = 1,
                         .product_start = 0,
                         .row_sum = RowSum::adds,
                         .exchange = Exchange::single,
                         .store = Store::boxes};
  run_case<kFour, kBrain128Causal>({.len_q = 150, .len_k = 300, .causal_offset = 150}, 315);
  constexpr Problem kHalf40{.element = Element::fp16, .head_dim = 40, .causal = false};
  run_case<kConfig, kHalf40>({.heads = 2, .len_q = 70, .len_k = 130}, 316);
}

TEST(EmulatedSm90, ComputesAgainWhereTheFirstChunkMisleads) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 5);
  run_case<kConfig, kHalf64>({.len_q = 40, .len_k = 1100, .score_scale = 30}, 6);
  constexpr Config kEarly{.vote = Vote::before_sending};
  run_case<kEarly, kHalf64>({.len_q = 40, .len_k = 512, .score_scale = 30}, 26);
  run_case<kConfig, Problem{.element = Element::bf16, .head_dim = 64, .causal = false}>(
      {.len_q = 40, .len_k = 512, .score_scale = 30}, 27);
  constexpr Config kFirstKeys{.reference = Reference::first_keys};
  run_case<kFirstKeys, kHalf64>({.len_q = 70, .len_k = 512}, 28);
  run_case<kFirstKeys, kHalf64Causal>({.len_q = 200, .len_k = 200, .score_scale = 10}, 29);
}

// One row misleads one part: every thread of every part hears of it, parts of several segments and of none too.
TEST(EmulatedSm90, AllPartsComputeAgainWhereOneWasMisled) {
  constexpr Config kFour{.cluster = 4, .chunks = 2, .product_start = 0, .min_blocks = 3};
  constexpr Config kProducer{.key_groups = 2,
                             .cluster = 2,
                             .chunk = 32,
                             .chunks = 2,
                             .score_lead = 2,
                             .value_waits = 1,
                             .product_start = 0,
                             .row_sum = RowSum::adds,
                             .exchange = Exchange::single,
                             .producer = Producer::own_warp};
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
  // 9 chunks of 64: one part has two segments. 2 keys: one part has none.
  constexpr Config kTwo{.chunks = 4};
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 570}, 33, true, mislead(5, 130));
  run_case<kTwo, kHalf64>({.len_q = 64, .len_k = 570}, 34, true, mislead(5, 560));
  run_case<Config{.reference = Reference::first_keys}, kHalf64>({.len_q = 30, .len_k = 20}, 35, true, mislead(5, 18));
  constexpr Config kWeighs{.weights = Weights::first};
  run_case<kWeighs, kHalf64>({.len_q = 64, .len_k = 512}, 36, true, mislead(17, 300));
  constexpr Config kWeighsFour{.cluster = 4, .chunks = 2, .product_start = 0, .weights = Weights::first};
  run_case<kWeighsFour, kHalf64>({.heads = 2, .len_q = 70, .len_k = 300}, 37, true, mislead(63, 290));
}

// Probabilities of hidden keys are taken out where the mask's edge runs from corner to corner of a chunk; elsewhere,
// and where rows see past the last key, their scores are.
TEST(EmulatedSm90, MasksProbabilities) {
  constexpr Config kConfig{.mask = Mask::probabilities};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 80);
  run_case<kConfig, kHalf64Causal>({.len_q = 290, .len_k = 290, .score_scale = 30}, 81);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 322, .causal_offset = 192}, 82);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 180, .causal_offset = 50}, 83);
  run_case<kConfig, kHalf64Causal>({.len_q = 400, .len_k = 170}, 84);
  run_case<kConfig, kHalf64Causal>({.len_q = 170, .len_k = 400}, 85);
  run_case<kConfig, kHalf64Causal>({.len_q = 300, .len_k = 172, .causal_offset = -128}, 86);
  constexpr Config kOwn{.mask = Mask::probabilities, .key_heads = KeyHeads::own};
  run_case<kOwn, kHalf64Causal>({.batch = 2, .heads = 3, .heads_kv = 3, .len_q = 130, .len_k = 130}, 88);
  constexpr Config kFirstKeys{.late_packing = false, .reference = Reference::first_keys, .mask = Mask::probabilities};
  run_case<kFirstKeys, Problem{.element = Element::bf16, .head_dim = 64, .causal = true}>(
      {.len_q = 200, .len_k = 200, .score_scale = 10}, 87);
  // Segments of two stages, whose row groups end in different chunks; scores asked for ahead.
  constexpr Config kRing{.row_groups = 2,
                         .chunks = 2,
                         .stages = 2,
                         .score_lead = 1,
                         .value_waits = 1,
                         .product_start = 0,
                         .prefetch_scores = true,
                         .mask = Mask::probabilities,
                         .vote = Vote::before_sending};
  run_case<kRing, kHalf64Causal>({.len_q = 700, .len_k = 700}, 90);
  run_case<kRing, kHalf64Causal>({.len_q = 200, .len_k = 840, .causal_offset = 640, .score_scale = 30}, 91);
}

// The columns that a block keeps are multiplied while the others travel; one without keys has none to multiply.
TEST(EmulatedSm90, KeepsColumnsForLater) {
  constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .causal = false};
  constexpr Problem kBrain256Causal{.element = Element::bf16, .head_dim = 256, .causal = true};
  constexpr Config kLater{.chunks = 2,
                          .score_lead = 1,
                          .product_start = 0,
                          .row_sum = RowSum::adds,
                          .kept_columns = KeptColumns::while_sending};
  run_case<kLater, kHalf128>({.heads = 2, .len_q = 130, .len_k = 256}, 92);
  run_case<kLater, kHalf128>({.len_q = 64, .len_k = 200, .score_scale = 30}, 93);
  run_case<kLater, kHalf128>({.len_q = 70, .len_k = 50, .padding_rows = 1}, 94);
  run_case<kLater, kHalf128>({.len_q = 70, .len_k = 700}, 95);
  constexpr Config kFree{.chunk = 32,
                         .chunks = 1,
                         .score_lead = 1,
                         .value_waits = 1,
                         .product_start = 0,
                         .row_sum = RowSum::adds,
                         .vote = Vote::before_sending,
                         .exchange = Exchange::single,
                         .kept_columns = KeptColumns::while_sending,
                         .placing = Placing::free};
  run_case<kFree, kBrain256Causal>({.len_q = 100, .len_k = 100}, 96);
}

// The longer row tiles of all heads come first, then the shortest.
TEST(EmulatedSm90, FoldedRowTiles) {
  constexpr Config kConfig{.tile_order = TileOrder::folded};
  run_case<kConfig, kHalf64Causal>({.batch = 2, .heads = 3, .len_q = 290, .len_k = 290}, 74);
  run_case<kConfig, kHalf64Causal>({.len_q = 30, .len_k = 290}, 75);
}

// Two parts of one block, without a cluster.
TEST(EmulatedSm90, PartsOfOneBlock) {
  constexpr Config kConfig{.key_groups = 2, .cluster = 1};
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512}, 36);
  run_case<kConfig, kHalf64>({.len_q = 64, .len_k = 512, .score_scale = 30}, 37);
  constexpr Config kRows{.row_groups = 2,
                         .key_groups = 2,
                         .cluster = 1,
                         .chunk = 32,
                         .chunks = 1,
                         .stages = 3,
                         .score_lead = 1,
                         .value_waits = 1,
                         .product_steps = 1,
                         .product_start = 0,
                         .row_sum = RowSum::adds,
                         .vote = Vote::before_sending};
  run_case<kRows, Problem{.element = Element::fp16, .head_dim = 128, .causal = false}>({.len_q = 1, .len_k = 83}, 38);
}

// The exact maximum of a part that ends within its segment is not that of another part's keys.
TEST(EmulatedSm90, ExactMaximaOfPartsThatEndEarly) {
  constexpr Config kConfig{.cluster = 4,
                           .chunk = 128,
                           .chunks = 2,
                           .score_lead = 2,
                           .product_steps = 1,
                           .product_start = 3,
                           .reference = Reference::exact,
                           .vote = Vote::before_sending,
                           .producer = Producer::own_warp};
  run_case<kConfig, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 30}, 39);
}

// Row groups that see none of a block's last keys.
TEST(EmulatedSm90, RowGroupsPastTheirLastKeyFreeSlotsInTurn) {
  constexpr Config kConfig{.row_groups = 4,
                           .cluster = 1,
                           .chunk = 32,
                           .chunks = 1,
                           .stages = 1,
                           .score_lead = 1,
                           .value_waits = 1,
                           .product_steps = 1,
                           .product_start = 0,
                           .reference = Reference::exact,
                           .row_sum = RowSum::adds,
                           .vote = Vote::before_sending,
                           .producer = Producer::own_warp};
  for (std::uint64_t seed = 40; seed < 44; ++seed) run_case<kConfig, kHalf64Causal>({.len_q = 256, .len_k = 256}, seed);
}

TEST(EmulatedSm90, CausalMasks) {
  constexpr Config kConfig{
      .chunks = 2, .stages = 2, .score_lead = 1, .value_waits = 1, .product_start = 0, .vote = Vote::before_sending};
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 200}, 7);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 400, .causal_offset = 270}, 8);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 9);
  run_case<kConfig, kHalf64Causal>({.len_q = 10, .len_k = 20, .causal_offset = -30}, 10);
}

// Parts of one segment, which end anywhere within it.
TEST(EmulatedSm90, CausalMasksOfOneSegment) {
  constexpr Config kConfig{};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .len_q = 512, .len_k = 512}, 18);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 400, .causal_offset = 250}, 19);
  run_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40}, 20);
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 330, .score_scale = 30}, 21);
  run_case<kConfig, kHalf64Causal>({.len_q = 70, .len_k = 900, .causal_offset = 830}, 22);
  constexpr Config kFour{.cluster = 4, .chunks = 2, .product_start = 0, .vote = Vote::before_sending, .min_blocks = 3};
  run_case<kFour, kHalf64Causal>({.len_q = 300, .len_k = 300}, 23);
  run_case<kFour, kHalf64Causal>({.len_q = 300, .len_k = 300, .score_scale = 30}, 24);
  constexpr Config kPair{.row_groups = 2,
                         .cluster = 2,
                         .chunk = 32,
                         .chunks = 6,
                         .score_lead = 3,
                         .value_waits = 1,
                         .row_sum = RowSum::adds,
                         .vote = Vote::before_sending};
  run_case<kPair, Problem{.element = Element::bf16, .head_dim = 128, .causal = true}>(
      {.len_q = 200, .len_k = 300, .causal_offset = 77, .score_scale = 30}, 25);
}

TEST(EmulatedSm90, RingWithAProducer) {
  constexpr Config kConfig{.row_groups = 2,
                           .cluster = 1,
                           .chunks = 2,
                           .stages = 3,
                           .score_lead = 1,
                           .value_waits = 2,
                           .product_steps = 4,
                           .product_start = 0,
                           .late_packing = false,
                           .prefetch_scores = true,
                           .vote = Vote::before_sending,
                           .producer = Producer::own_group,
                           .trigger = Trigger::last_products,
                           .store = Store::pairs,
                           .tile_order = TileOrder::ascending};
  run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 1000, .causal_offset = 850}, 11);
  run_case<kConfig, kHalf64Causal>({.len_q = 200, .len_k = 600, .causal_offset = 0, .score_scale = 30}, 12);
}

TEST(EmulatedSm90, WideHeadsWithExactMaxima) {
  constexpr Config kConfig{.row_groups = 1,
                           .key_groups = 2,
                           .cluster = 2,
                           .chunk = 32,
                           .chunks = 2,
                           .stages = 2,
                           .score_lead = 2,
                           .value_waits = 1,
                           .product_steps = 1,
                           .product_start = 0,
                           .reference = Reference::exact,
                           .row_sum = RowSum::adds,
                           .vote = Vote::before_sending,
                           .exchange = Exchange::single,
                           .trigger = Trigger::none};
  run_case<kConfig, kBrain128Causal>({.heads = 2, .heads_kv = 2, .len_q = 90, .len_k = 500, .causal_offset = 410}, 13);
  run_case<kConfig, kBrain128Causal>({.len_q = 65, .len_k = 65, .score_scale = 20}, 14);
}

TEST(EmulatedSm90, PaddedHeadDims) {
  constexpr Config kConfig{.row_groups = 2,
                           .cluster = 1,
                           .chunk = 128,
                           .chunks = 1,
                           .stages = 1,
                           .score_lead = 1,
                           .value_waits = 1,
                           .product_start = 0,
                           .row_sum = RowSum::adds,
                           .vote = Vote::before_sending,
                           .producer = Producer::own_group};
  run_case<kConfig, Problem{.element = Element::fp16, .head_dim = 80, .causal = false}>({.len_q = 100, .len_k = 300},
                                                                                        15);
  constexpr Config kWide{.cluster = 4,
                         .chunk = 64,
                         .chunks = 1,
                         .stages = 1,
                         .score_lead = 1,
                         .value_waits = 1,
                         .product_start = 0,
                         .row_sum = RowSum::adds,
                         .vote = Vote::before_sending};
  run_case<kWide, Problem{.element = Element::fp16, .head_dim = 256, .causal = true}>(
      {.len_q = 30, .len_k = 270, .causal_offset = 240}, 16);
  constexpr Config kNarrow{.cluster = 2};
  run_case<kNarrow, Problem{.element = Element::bf16, .head_dim = 40, .causal = false}>({.len_q = 65, .len_k = 300},
                                                                                        17);
}

}  // namespace
}  // namespace heed::sm90

// fwd_sm90_split where entries of a batch have lengths of their own, on the emulated GPU. Rows and keys that no one
// should look at are NaN (features_case.hpp).
#include "sm90_split_features_case.hpp"

namespace heed::sm90_split {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Features kLengths{.lengths = true};

constexpr Config kOneIteration{};
constexpr Config kWarp{.cluster = 4,
                       .block_n = 32,
                       .n_blocks_per_stage = 2,
                       .stages = 2,
                       .v_barriers = 1,
                       .pv_start_step = 0,
                       .row_max = RowMax::stale_16,
                       .overflow_check = OverflowCheck::before_merge,
                       .merge_dtype = MergeDtype::fp32,
                       .lse_first = LseFirst::on,
                       .prologue = Prologue::maps_first,
                       .producer = Producer::warp};
constexpr Config kWarpgroup{.m_warpgroups = 2,
                            .cluster = 1,
                            .n_blocks_per_stage = 2,
                            .stages = 2,
                            .v_barriers = 2,
                            .pv_start_step = 0,
                            .prefetch_next_qk = true,
                            .overflow_check = OverflowCheck::before_merge,
                            .producer = Producer::warpgroup};
constexpr Config kShared{.m_warpgroups = 2,
                         .kv_groups = 2,
                         .cluster = 2,
                         .block_n = 32,
                         .n_blocks_per_stage = 2,
                         .v_barriers = 2,
                         .pv_ksteps_per_commit = 1,
                         .pv_start_step = 0,
                         .row_max = RowMax::online,
                         .rowsum = Rowsum::fadd,
                         .overflow_check = OverflowCheck::before_merge,
                         .tma_multicast = TmaMulticast::q};
constexpr Config kKept{.n_blocks_per_stage = 2,
                       .qk_in_flight = 1,
                       .pv_start_step = 0,
                       .row_max = RowMax::stale_16,
                       .rowsum = Rowsum::fadd,
                       .lse_first = LseFirst::on,
                       .pv_split_n = PvSplitN::on};

template <Config kConfig, Problem kProblem>
void run_lengths(int heads = 2) {
  // Longer than a block and shorter, none, one; more keys than queries and fewer, and none.
  FeatureShape shape{.batch = 6, .heads = heads, .len_q = 130, .len_k = 300, .right_offset = 170};
  shape.left_offset = 120;
  shape.to_the_end = true;
  shape.cu_q = {0, 130, 130, 131, 200, 230, 240};
  shape.cu_k = {0, 300, 350, 420, 570, 570, 600};
  run_case<canonical(kConfig, kProblem), kProblem>(shape, 1);
  // More keys than there are, fewer than none, and some; keys of a tensor with a batch stride.
  shape.used_k = {1000, -5, 30, 257, 64, 1};
  shape.cu_k = {};
  shape.to_the_end = false;
  shape.right_offset = 0;
  shape.left_offset = -30;
  run_case<canonical(kConfig, kProblem), kProblem>(shape, 2);
  shape.cu_q = {};
  shape.len_q = 20;
  shape.right_offset = 280;
  shape.left_offset = 100;
  shape.to_the_end = true;
  run_case<canonical(kConfig, kProblem), kProblem>(shape, 3);
  // Entries that end before they begin have no rows; those beyond the longest have as many as the longest.
  shape.batch = 3;
  shape.used_k = {};
  shape.cu_q = {10, 0, 60, 70};
  shape.cu_k = {320, 0, 320, 200};
  run_case<canonical(kConfig, kProblem), kProblem>(shape, 4);
  // A launch without any.
  run_case<canonical(kConfig, kProblem), kProblem>(
      {.heads = 2, .len_q = 70, .len_k = 90, .right_offset = 20, .left_offset = -30}, 5);
}

TEST(EmulatedSplitEntries, Lengths) {
  run_lengths<kOneIteration, featured_problem(Element::fp16, 64, kNone, kLengths)>();
}
TEST(EmulatedSplitEntries, LengthsUnderACausalMask) {
  run_lengths<kOneIteration, featured_problem(Element::bf16, 64, kCausal, kLengths)>();
}
TEST(EmulatedSplitEntries, LengthsUnderAWindow) {
  run_lengths<kOneIteration, featured_problem(Element::fp16, 64, kWindow, kLengths)>();
}
TEST(EmulatedSplitEntries, LengthsInFourParts) {
  run_lengths<kWarp, featured_problem(Element::bf16, 64, kCausal, kLengths)>(1);
}
TEST(EmulatedSplitEntries, LengthsOfTwoConsumerWarpgroups) {
  run_lengths<kWarpgroup, featured_problem(Element::fp16, 64, kNone, kLengths)>();
}
TEST(EmulatedSplitEntries, LengthsOfTwoKvGroups) {
  run_lengths<kShared, featured_problem(Element::fp16, 64, kCausal, kLengths)>(1);
}
TEST(EmulatedSplitEntries, LengthsOfColumnsThatAreKept) {
  run_lengths<kKept, featured_problem(Element::fp16, 128, kNone, kLengths)>();
}

// Every remainder of a length by a box of values, and of queries by a warp's rows: two entries each, so that one has
// NaN and then the next one's rows behind it.
TEST(EmulatedSplitEntries, AllRemaindersOfLengths) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kLengths);
  constexpr Config kShort{.block_n = 32, .n_blocks_per_stage = 2, .v_barriers = 2, .pv_start_step = 0};
  for (int rest = 1; rest <= 32; ++rest) {
    FeatureShape shape{.batch = 2, .len_q = 16 + rest, .len_k = 48 + rest};
    shape.cu_q = {0, 16 + rest, 16 + rest + 3};
    shape.cu_k = {0, 48 + rest, 48 + 2 * rest};
    shape.used_k = {32 + rest, rest / 2};
    run_case<kShort, kProblem>(shape, static_cast<std::uint64_t>(rest));
  }
}

// Stale row maxima that overflow: parts are computed again, values of some from shared memory, where they were zeroed
// before, and of others loaded anew.
TEST(EmulatedSplitEntries, LengthsComputedAgain) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kLengths);
  constexpr Config kEarly{.n_blocks_per_stage = 2, .pv_start_step = 0, .overflow_check = OverflowCheck::before_merge};
  FeatureShape shape{.batch = 4, .len_q = 40, .len_k = 700, .score_scale = 30, .used_k = {700, 450, 300, 0}};
  run_case<kOneIteration, kProblem>(shape, 1);
  run_case<kEarly, kProblem>(shape, 2);
}

// With all that the family has, each launch with some of it. An entry without keys has the sink alone.
TEST(EmulatedSplitEntries, LengthsSinksAndSoftcap) {
  constexpr Features kAll{.softcap = true, .sinks = true, .lengths = true};
  FeatureShape shape{.batch = 4, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 200, .right_offset = 130};
  shape.left_offset = 60;
  shape.to_the_end = true;
  shape.used_k = {200, 0, 77, 129};
  shape.softcap = 5;
  shape.sinks = {1.5F, -2};
  constexpr Problem kUnderAWindow = featured_problem(Element::bf16, 64, kWindow, kAll);
  const auto run = [&](std::uint64_t seed) {
    run_case<kOneIteration, featured_problem(Element::fp16, 64, kCausal, kAll)>(shape, seed);
    run_case<canonical(kOneIteration, kUnderAWindow), kUnderAWindow>(shape, seed);
  };
  run(1);
  shape.sinks = {};
  run(2);
  shape.used_k = {};
  shape.softcap = 0;
  run(3);
}

// The check notices other lengths: a program that is told of one key more multiplies NaN, and one that is told of one
// less leaves a key out.
TEST(EmulatedSplitEntries, OtherLengthsAreNoticed) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kLengths);
  const FeatureShape shape{.batch = 2, .len_q = 10, .len_k = 130, .used_k = {100, 40}};
  for (const int keys : {39, 41}) {
    FeatureCase problem(kProblem, shape, 1);
    const int told[] = {100, keys};
    problem.params().seqused_k = told;
    launch_case<kOneIteration, kProblem>(problem, shape, 1);
    EXPECT_EQ(problem.difference().substr(0, 15), "batch 1 head 0 ") << keys;
  }
}

TEST(EmulatedSplitEntries, ConfigsThatLengthsTakeBack) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal, kLengths);
  const auto taken_back = [&](const Config& c) {
    return is_legal(c, kProblem, 227 << 10, 228 << 10) == Illegal::same_program &&
           is_legal(canonical(c, kProblem), kProblem, 227 << 10, 228 << 10) == Illegal::no;
  };
  EXPECT_FALSE(taken_back({}));
  EXPECT_TRUE(taken_back({.epilogue = EpilogueStore::tma}));
  EXPECT_TRUE(taken_back({.mask_at = MaskAt::probabilities}));
  EXPECT_TRUE(taken_back({.prologue = Prologue::q_first}));
  EXPECT_EQ(canonical({.prologue = Prologue::q_first}, kProblem).prologue, Prologue::lengths_first);
  EXPECT_EQ(canonical({.mask_at = MaskAt::probabilities}, kProblem).mask_at, MaskAt::scores);
}

}  // namespace
}  // namespace heed::sm90_split

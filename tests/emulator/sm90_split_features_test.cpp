// fwd_sm90_split with sinks and softcaps on the emulated GPU.
#include <cmath>

#include "sm90_split_features_case.hpp"

namespace heed::sm90_split {
namespace {

constexpr Problem kSinks = featured_problem(Element::fp16, 64, MaskKind::none, {.sinks = true});
constexpr Problem kCausalSinks = featured_problem(Element::bf16, 128, MaskKind::causal, {.sinks = true});

// Of sinks far above the scores nothing is left, of those far below nothing is seen; of splits of one iteration, of
// several, and of such without keys, where the first has the sink alone. Overflowed ones are summed twice.
TEST(EmulatedSplitFeatures, SinksJoinTheFirstSplit) {
  constexpr Config kConfig{};
  FeatureShape shape{
      .heads = 6, .heads_kv = 2, .len_q = 20, .len_k = 70, .sinks = {0.5F, 4, -3, 300, -300, -kInfinite}};
  run_case<kConfig, kSinks>(shape, 1);
  shape.len_k = 700;
  run_case<kConfig, kSinks>(shape, 2);
  run_case<kConfig, kSinks>({.heads = 2, .heads_kv = 2, .len_q = 5, .len_k = 300, .score_scale = 30, .sinks = {50, 0}},
                            3);
  run_case<kConfig, kSinks>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 9, .len_k = 130}, 4);  // none
}

// The first rows see no key; columns that a split keeps are multiplied at the end.
TEST(EmulatedSplitFeatures, SinksOfRowsWithoutKeys) {
  constexpr Config kConfig{.n_blocks_per_stage = 2,
                           .qk_in_flight = 1,
                           .pv_start_step = 0,
                           .row_max = RowMax::stale_16,
                           .rowsum = Rowsum::fadd,
                           .pv_split_n = PvSplitN::on};
  run_case<kConfig, kCausalSinks>(
      {.heads = 2, .heads_kv = 2, .len_q = 100, .len_k = 60, .right_offset = -40, .sinks = {1, -2}}, 5);
}

TEST(EmulatedSplitFeatures, SinksWithoutSplits) {
  constexpr Config kConfig{.cluster = 1,
                           .n_blocks_per_stage = 2,
                           .stages = 2,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warp};
  FeatureShape shape{.heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 200, .sinks = {0.5F, 300, -300, -kInfinite}};
  run_case<kConfig, kSinks>(shape, 6);
}

// A sink that is NaN makes its head's rows NaN, and no others.
TEST(EmulatedSplitFeatures, SinkThatIsNan) {
  FeatureShape shape{.heads = 1, .len_q = 8, .len_k = 100, .sinks = {0}};
  FeatureCase problem(kSinks, shape, 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  problem.params().sinks = &nan;
  launch_case<Config{}, kSinks>(problem, shape, 7);
  EXPECT_NE(problem.difference().find("is nan"), std::string::npos) << problem.difference();
}

// --------------------------------------------------------------------------------------------------------- softcaps

constexpr Features kSoftcap{.softcap = true};
constexpr Problem kCapped = featured_problem(Element::fp16, 64, MaskKind::none, kSoftcap);
constexpr Problem kCausalCapped = featured_problem(Element::fp16, 64, MaskKind::causal, kSoftcap);
constexpr Problem kWideCausalCapped = featured_problem(Element::bf16, 128, MaskKind::causal, kSoftcap);
constexpr Problem kWindowCapped = featured_problem(Element::bf16, 64, MaskKind::window, kSoftcap);

// Splits of one iteration, of several and of none. Scores of up to a thousand, at either side of a cap of 30, lie where
// tanh is flat. A launch without a cap.
template <Config kConfig, Problem kProblem>
void run_softcaps(int right_offset, int left_offset = 0) {
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 600, .right_offset = right_offset, .softcap = 2};
  shape.left_offset = left_offset;
  run_case<kConfig, kProblem>(shape, 1);
  shape.softcap = 30;
  shape.score_scale = 300;
  run_case<kConfig, kProblem>(shape, 2);
  shape.len_k = 90;
  shape.right_offset = right_offset - 510;
  shape.left_offset = left_offset - 510;
  run_case<kConfig, kProblem>(shape, 3);
  shape.score_scale = 1;
  shape.softcap = 0;
  run_case<kConfig, kProblem>(shape, 4);
}

TEST(EmulatedSplitFeatures, Softcap) {
  run_softcaps<Config{}, kCapped>(0);
}
// The first n-block of each split has scores of 0, and later keys some up to the cap: probabilities of 2^43
// overflow, and rows are computed again below the largest of capped scores.
template <Config kConfig, Problem kProblem>
void run_overflown(int len_k) {
  const FeatureShape shape{.len_q = 20, .len_k = len_k, .right_offset = len_k, .score_scale = 300, .softcap = 30};
  FeatureCase problem(kProblem, shape, 5);
  auto* k = static_cast<std::uint16_t*>(const_cast<void*>(problem.params().k));
  for (int split = 0; split < 2; ++split) {
    const int first = n_blocks_of_split(kConfig, len_k, split).first * kConfig.block_n;
    std::fill_n(k + first * kProblem.head_dim, kConfig.block_n * kProblem.head_dim, std::uint16_t{0});
  }
  launch_case<kConfig, kProblem>(problem, shape, 5);
  EXPECT_EQ(problem.difference(), "") << len_k << " keys";
}

TEST(EmulatedSplitFeatures, SoftcapComputedAgain) {
  constexpr Config kKept{.n_blocks_per_stage = 2,
                         .qk_in_flight = 1,
                         .pv_start_step = 0,
                         .row_max = RowMax::stale_16,
                         .rowsum = Rowsum::fadd,
                         .pv_split_n = PvSplitN::on};
  for (const int len_k : {500, 700}) {  // splits of one iteration, and of two
    run_overflown<Config{}, kCapped>(len_k);
    run_overflown<Config{.overflow_check = OverflowCheck::before_merge}, kCapped>(len_k);
    run_overflown<Config{.row_max = RowMax::stale_16, .mask_at = MaskAt::probabilities}, kCausalCapped>(len_k);
  }
  run_overflown<kKept, kWideCausalCapped>(250);
}
TEST(EmulatedSplitFeatures, SoftcapWithExactRowMaxima) {
  run_softcaps<Config{.cluster = 1,
                      .n_blocks_per_stage = 2,
                      .stages = 2,
                      .v_barriers = 1,
                      .pv_start_step = 0,
                      .prefetch_next_qk = true,
                      .row_max = RowMax::online,
                      .overflow_check = OverflowCheck::before_merge,
                      .producer = Producer::warp},
               kCausalCapped>(530);
}
// Probabilities of keys that a row does not see are taken out, of capped scores too.
TEST(EmulatedSplitFeatures, SoftcapUnderMaskedProbabilities) {
  constexpr Config kConfig{.row_max = RowMax::stale_16, .mask_at = MaskAt::probabilities};
  run_softcaps<kConfig, kCausalCapped>(530);
  run_case<kConfig, kCausalCapped>({.heads = 2, .heads_kv = 2, .len_q = 128, .len_k = 128, .softcap = 3}, 5);
  run_case<kConfig, kCausalCapped>(
      {.heads = 2, .heads_kv = 2, .len_q = 128, .len_k = 128, .score_scale = 300, .softcap = 30}, 6);
}
TEST(EmulatedSplitFeatures, SoftcapOfColumnsThatAreKept) {
  run_softcaps<Config{.n_blocks_per_stage = 2,
                      .qk_in_flight = 1,
                      .pv_start_step = 0,
                      .row_max = RowMax::stale_16,
                      .rowsum = Rowsum::fadd,
                      .pv_split_n = PvSplitN::on},
               kWideCausalCapped>(530);
}
TEST(EmulatedSplitFeatures, SoftcapUnderAWindow) {
  constexpr Config kConfig = canonical(Config{}, kWindowCapped);
  run_softcaps<kConfig, kWindowCapped>(530, 400);
}

// Infinite scores are the cap and its negative; one that is NaN spoils its row, which is computed again to no avail.
TEST(EmulatedSplitFeatures, SoftcapOfScoresThatAreNotFinite) {
  const FeatureShape shape{.len_q = 9, .len_k = 100, .softcap = 30};
  FeatureCase problem(kCapped, shape, 7);
  auto* q = static_cast<std::uint16_t*>(const_cast<void*>(problem.params().q));
  q[5 * 64] = 0x7C00;  // infinity
  launch_case<Config{}, kCapped>(problem, shape, 7);
  EXPECT_EQ(problem.difference(), "");
  q[3 * 64] = 0x7E00;  // NaN
  launch_case<Config{}, kCapped>(problem, shape, 8);
  for (int row = 0; row < 9; ++row) EXPECT_EQ(std::isnan(problem.params().lse[row]), row == 3) << row;
}

}  // namespace
}  // namespace heed::sm90_split

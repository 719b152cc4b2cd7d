// fwd_sm80 in fp32 on the emulated GPU, whose tf32 products cut operands and sums off as tensor cores do. The bounds of
// elements.hpp are a hundredth of what one product in tf32 is off by.
#include "sm80_case.hpp"
#include "sm80_features_case.hpp"
#include "workload/features.hpp"

namespace heed::sm80 {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;

constexpr Problem fp32(int head_dim, MaskKind mask, const Features& features = {}) {
  Problem p{.element = Element::fp32, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

constexpr Config kSmall{.block_n = 32, .q_in_registers = false};

// ------------------------------------------------------------------------------------------------ without features

TEST(EmulatedSm80Fp32, Default) {
  run_dense_case<kSmall, fp32(64, kNone)>({.batch = 1, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 200}, 1);
  run_dense_case<kSmall, fp32(64, kCausal)>({.len_q = 130, .len_k = 90, .causal_offset = -40, .heads_inner = true}, 2);
  run_dense_case<kSmall, fp32(64, kNone)>({.len_q = 40, .len_k = 170, .score_scale = 30, .padding_rows = 3}, 3);
}

TEST(EmulatedSm80Fp32, HeadDims) {
  constexpr Config kWide{.block_m = 32, .block_n = 16, .warp_rows = 32, .q_in_registers = false};
  run_dense_case<kSmall, fp32(128, kCausal)>({.len_q = 50, .len_k = 100, .causal_offset = 50}, 4);
  run_dense_case<kWide, fp32(128, kNone)>({.heads = 2, .heads_kv = 1, .len_q = 50, .len_k = 70}, 5);
}

TEST(EmulatedSm80Fp32, LayoutsAndEpilogues) {
  constexpr Config kPadded{.block_m = 32, .block_n = 16, .smem_layout = tile::SharedLayout::padded};
  run_dense_case<kPadded, fp32(64, kCausal)>({.len_q = 50, .len_k = 70, .causal_offset = 20}, 7);
  constexpr Config kLinear{.block_m = 32,
                           .block_n = 16,
                           .stages = 1,
                           .smem_layout = tile::SharedLayout::linear,
                           .epilogue = Epilogue::direct};
  run_dense_case<kLinear, fp32(64, kNone)>({.len_q = 50, .len_k = 70, .heads_inner = true, .padding_rows = 1}, 8);
  constexpr Config kDirect{.block_m = 32, .block_n = 32, .warp_rows = 32, .epilogue = Epilogue::direct};
  run_dense_case<kDirect, fp32(64, kNone)>({.heads = 2, .len_q = 40, .len_k = 33}, 9);
}

TEST(EmulatedSm80Fp32, SplitKeysAndStages) {
  constexpr Config kGroups{
      .block_m = 32, .block_n = 32, .kv_groups = 4, .stages = 2, .q_in_registers = false, .split_wait = true};
  run_dense_case<kGroups, fp32(64, kCausal)>({.len_q = 50, .len_k = 400, .causal_offset = 350}, 10);
  constexpr Config kTwo{.block_m = 32, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 1};
  run_dense_case<kTwo, fp32(64, kNone)>({.len_q = 50, .len_k = 50, .score_scale = 30}, 11);
}

// Scores of later tiles far above the first one's: the warp takes the tile again.
TEST(EmulatedSm80Fp32, StaleRowMaximum) {
  constexpr Config kTurn{
      .block_n = 32, .q_in_registers = false, .pipeline_sync = PipelineSync::stage, .rescale = kStaleTile};
  run_dense_case<kTurn, fp32(64, kCausal)>({.len_q = 130, .len_k = 90, .causal_offset = -40, .score_scale = 30}, 12);
  constexpr Config kBeside{
      .block_n = 16, .stages = 3, .q_in_registers = false, .overlap = true, .late_loads = true, .rescale = kStaleTile};
  run_dense_case<kBeside, fp32(64, kNone)>({.len_q = 70, .len_k = 200, .score_scale = 30}, 13);
  run_dense_case<kBeside, fp32(128, kCausal)>({.len_q = 40, .len_k = 100, .causal_offset = 60}, 14);
}

TEST(EmulatedSm80Fp32, Windows) {
  run_dense_case<kSmall, fp32(64, kWindow)>({.len_q = 200, .len_k = 190, .left_offset = -50}, 15);
  run_dense_case<Config{.block_m = 32, .block_n = 16, .overlap = true}, fp32(64, kWindow)>(
      {.heads = 4, .heads_kv = 2, .len_q = 150, .len_k = 300, .causal_offset = 70, .left_offset = -64}, 16);
}

// Thousands of positive summands: tensor cores that summed all of them would lose 1e-4, for they round towards zero.
TEST(EmulatedSm80Fp32, SumsOfManyKeysKeepTheirDigits) {
  const Shape shape{.len_q = 16, .len_k = 4000};
  AttentionCase problem(fp32(64, kNone), shape, 17);
  for (int key = 0; key < shape.len_k; ++key)
    for (int column = 0; column < 64; ++column) problem.set(AttentionCase::Tensor::v, 0, 0, key, column, 1.0F);
  constexpr Config kOne{.block_m = 16, .block_n = 32};
  launch_dense_case<kOne, fp32(64, kNone)>(problem, shape, 17);
  const auto* out = static_cast<const float*>(problem.params().o);
  for (int i = 0; i < 16 * 64; ++i) ASSERT_NEAR(out[i], 1, 2e-6) << i;
}

// NaN and infinity show in the columns they are in, and in no others.
TEST(EmulatedSm80Fp32, ValuesThatAreNotFinite) {
  const Shape shape{.len_q = 20, .len_k = 50};
  AttentionCase problem(fp32(64, kNone), shape, 18);
  const float values[] = {std::nanf(""), INFINITY, -INFINITY};
  for (int i = 0; i < 3; ++i) problem.set(AttentionCase::Tensor::v, 0, 0, 7 + 13 * i, 5 + 20 * i, values[i]);
  launch_dense_case<kSmall, fp32(64, kNone)>(problem, shape, 18);
  const auto* out = static_cast<const float*>(problem.params().o);
  for (int i = 0; i < 20 * 64; ++i) {
    const int column = i % 64;
    EXPECT_EQ(std::isfinite(out[i]), column != 5 && column != 25 && column != 45) << i;
  }
}

// Products far below -infinity's bound: both parts of an operand have its sign, so that no NaN comes of them.
TEST(EmulatedSm80Fp32, ScoresBelowFp32HideTheirKeys) {
  const Shape shape{.len_q = 20, .len_k = 50};
  AttentionCase problem(fp32(64, kNone), shape, 19);
  for (int row = 0; row < shape.len_q; ++row)
    for (int column = 0; column < 64; ++column)
      problem.set(AttentionCase::Tensor::q, 0, 0, row, column, 1.1F + 0.01F * static_cast<float>(column));
  for (int column = 0; column < 64; ++column)
    problem.set(AttentionCase::Tensor::k, 0, 0, 9, column, -3.3e38F + 1e35F * static_cast<float>(column));
  launch_dense_case<kSmall, fp32(64, kNone)>(problem, shape, 19);
  problem.check("one key below fp32");
}

// -------------------------------------------------------------------------------------------------------- features

using emulator::BiasTensor;
using emulator::ListsOfBlocks;

TEST(EmulatedSm80Fp32, ChangedScores) {
  run_case<kSmall, fp32(64, kCausal, {.softcap = true})>(
      {.heads = 2, .len_q = 70, .len_k = 90, .right_offset = 20, .softcap = 2}, 1);
  run_case<kSmall, fp32(64, kNone, {.alibi = true})>(
      {.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 90, .slopes = 1}, 2);
  FeatureShape shape{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 50, .len_k = 77, .right_offset = 27};
  for (const BiasElement element : {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32}) {
    shape.bias = BiasTensor{.element = element, .hides_rows = true};
    run_case<kSmall, fp32(64, kCausal, {.bias = true})>(shape, 3);
    run_case<Config{.block_n = 16, .overlap = true, .rescale = kStaleTile}, fp32(64, kCausal, {.bias = true})>(shape,
                                                                                                               4);
  }
}

TEST(EmulatedSm80Fp32, Sinks) {
  const FeatureShape shape{.batch = 2,
                           .heads = 4,
                           .heads_kv = 2,
                           .len_q = 70,
                           .len_k = 60,
                           .right_offset = -10,
                           .sinks = {0.5F, 4.0F, 300.0F, -INFINITY}};
  constexpr Problem kSinks = fp32(64, kCausal, {.sinks = true});
  run_case<kSmall, kSinks>(shape, 5);
  run_case<Config{.block_m = 32, .block_n = 16, .kv_groups = 4}, kSinks>(shape, 6);
}

TEST(EmulatedSm80Fp32, LengthsAndPages) {
  FeatureShape shape{.batch = 6, .heads = 2, .heads_kv = 1, .len_q = 130, .len_k = 150, .right_offset = 20};
  shape.left_offset = -30;
  shape.to_the_end = true;
  shape.cu_q = {0, 130, 130, 131, 200, 230, 240};
  shape.cu_k = {0, 100, 150, 220, 370, 370, 400};
  run_case<kSmall, fp32(64, kCausal, {.lengths = true})>(shape, 7);
  shape.used_k = {1000, -5, 30, 77, 10, 1};
  run_case<kSmall, fp32(64, kWindow, {.lengths = true})>(shape, 8);
  for (const int size : {16, 24}) {
    FeatureShape paged{.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 40, .len_k = 150, .right_offset = 110};
    paged.left_offset = -20;
    paged.page_size = size;
    paged.to_the_end = true;
    paged.used_k = {150, 7, 90};
    run_case<kSmall, fp32(128, kWindow, {.lengths = true, .pages = true})>(paged, static_cast<std::uint64_t>(size));
  }
}

TEST(EmulatedSm80Fp32, BlocksAndPrefixes) {
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 130, .len_k = 300, .right_offset = 170};
  shape.blocks = ListsOfBlocks{};
  run_case<kSmall, fp32(64, kCausal, {.blocks = true})>(shape, 9);
  FeatureShape prefixed{.batch = 3, .heads = 2, .heads_kv = 1, .len_q = 100, .len_k = 150, .right_offset = 20};
  prefixed.prefixes = {0, 64, 149};
  run_case<kSmall, fp32(64, kCausal, {.prefix = true})>(prefixed, 10);
}

TEST(EmulatedSm80Fp32, Dropout) {
  FeatureShape shape{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 110, .right_offset = 40};
  shape.dropout = 0.3;
  run_case<kSmall, fp32(64, kCausal, {.dropout = true})>(shape, 11);
  run_case<Config{.block_n = 16, .rescale = kStaleTile}, fp32(64, kNone, {.dropout = true})>(shape, 12);
}

TEST(EmulatedSm80Fp32, AllFeatures) {
  FeatureShape shape{.batch = 3, .heads = 4, .heads_kv = 2, .len_q = 75, .len_k = 140, .right_offset = 65};
  shape.left_offset = -20;
  shape.to_the_end = true;
  shape.softcap = 5;
  shape.slopes = 1;
  shape.sinks = {0.5F, 4.0F, -3.0F, 2.0F};
  shape.used_k = {140, 30, 77};
  shape.dropout = 0.1;
  shape.bias = BiasTensor{.element = BiasElement::fp32};
  run_case<kSmall, fp32(64, kWindow, kAllFeatures)>(shape, 13);
  run_case<Config{.block_m = 32, .block_n = 16, .kv_groups = 2}, fp32(64, kWindow, kAllFeatures)>(shape, 14);
}

}  // namespace
}  // namespace heed::sm80

// fwd_sm80 with lists of blocks of keys, on the emulated GPU: keys that no list has are NaN, so that one that is read
// shows.
#include "sm80_features_case.hpp"

namespace heed::sm80 {
namespace {

using emulator::BiasTensor;
using emulator::ListsOfBlocks;

constexpr Problem problem_of(Element element, int head_dim, MaskKind mask, const Features& others = {}) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = others;
  p.features.blocks = true;
  return p;
}

template <Config kConfig, Problem kProblem>
void run_blocks() {
  FeatureShape shape{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 150, .len_k = 270, .right_offset = 120};
  shape.left_offset = -20;
  shape.blocks = ListsOfBlocks{};
  run_case<kConfig, kProblem>(shape, 1);
  shape.blocks = ListsOfBlocks{.rows = 128, .keys = 128, .density = 0.7, .per_batch = false, .per_head = false};
  run_case<kConfig, kProblem>(shape, 2);
  shape.blocks = ListsOfBlocks{.rows = 64, .keys = 128, .density = 0.3, .per_head = false};
  run_case<kConfig, kProblem>(shape, 3);
  shape.blocks->density = 0;  // numbers alone that stand for no block
  run_case<kConfig, kProblem>(shape, 4);
  shape.blocks = ListsOfBlocks{.rows = 128, .keys = 64, .density = 1, .per_batch = false};
  run_case<kConfig, kProblem>(shape, 5);
  shape.blocks = {};  // a launch without lists
  run_case<kConfig, kProblem>(shape, 6);
}

TEST(EmulatedSm80Blocks, WithoutAMask) {
  run_blocks<Config{.block_n = 32}, problem_of(Element::fp16, 64, MaskKind::none)>();
}
TEST(EmulatedSm80Blocks, UnderACausalMask) {
  run_blocks<Config{.overlap = true, .rescale = kStaleTile, .tile_order = TileOrder::lpt},
             problem_of(Element::bf16, 64, MaskKind::causal)>();
}
TEST(EmulatedSm80Blocks, UnderAWindow) {
  run_blocks<Config{.block_m = 32, .block_n = 16, .kv_groups = 2, .stages = 3},
             problem_of(Element::fp16, 128, MaskKind::window)>();
}
TEST(EmulatedSm80Blocks, WithBarriersOfStages) {
  run_blocks<Config{.block_n = 32, .pipeline_sync = PipelineSync::stage, .rescale = kStaleTile},
             problem_of(Element::fp16, 64, MaskKind::causal)>();
}

TEST(EmulatedSm80Blocks, BesideOtherFeatures) {
  constexpr Config kConfig{.block_n = 32};
  constexpr Problem kProblem =
      problem_of(Element::fp16, 64, MaskKind::window, {.bias = true, .alibi = true, .sinks = true, .lengths = true});
  FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 200, .right_offset = 50};
  shape.left_offset = -60;
  shape.to_the_end = true;
  shape.blocks = ListsOfBlocks{};
  shape.cu_q = {0, 150, 160, 300};
  shape.cu_k = {0, 120, 320, 321};
  shape.sinks = {0.5F, -2.0F};
  shape.slopes = 1;
  shape.bias = BiasTensor{.element = BiasElement::boolean, .hides_rows = true};
  run_case<kConfig, kProblem>(shape, 1);
  shape.cu_k = {};
  shape.used_k = {200, 63, 0};
  run_case<kConfig, kProblem>(shape, 2);
}

// A bias that is read in a full block shows: what it holds there is not what the reference computes with.
TEST(EmulatedSm80Blocks, TheBiasOfFullBlocksIsNotRead) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, MaskKind::causal, {.bias = true});
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 270, .right_offset = 120};
  shape.blocks = ListsOfBlocks{.density = 0.8, .full = 0.6};
  constexpr Config kGroups{
      .block_m = 32, .block_n = 16, .kv_groups = 2, .stages = 3, .overlap = true, .rescale = kStaleTile};
  shape.bias = BiasTensor{.element = BiasElement::boolean, .per_head = false, .hides_rows = true};
  run_case<Config{.block_n = 32}, kProblem>(shape, 1);
  shape.bias->element = BiasElement::fp16;
  run_case<kGroups, kProblem>(shape, 2);
  shape.bias->element = BiasElement::fp32;
  shape.blocks = ListsOfBlocks{.rows = 128, .keys = 128, .density = 0.6, .per_batch = false, .full = 1};
  run_case<Config{.block_n = 32}, kProblem>(shape, 3);
}

TEST(EmulatedSm80Blocks, ComparisonFindsABiasThatFullBlocksRead) {
  constexpr Config kConfig{.block_n = 32};
  constexpr Problem kProblem = problem_of(Element::fp16, 64, MaskKind::none, {.bias = true});
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 130, .len_k = 400};
  shape.bias = BiasTensor{};
  shape.blocks = ListsOfBlocks{.density = 1, .full = 0.3};
  FeatureCase problem(kProblem, shape, 3);
  problem.params().block_counts = nullptr;
  launch_case<kConfig, kProblem>(problem, shape, 3);
  EXPECT_NE(problem.difference(), "");
}

TEST(EmulatedSm80Blocks, InPages) {
  constexpr Config kConfig{.block_m = 32, .block_n = 64};
  constexpr Problem kProblem = problem_of(Element::fp16, 64, MaskKind::causal, {.lengths = true, .pages = true});
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 2, .len_q = 100, .len_k = 200, .right_offset = 100};
  shape.to_the_end = true;
  shape.page_size = 16;
  shape.used_k = {200, 100};
  shape.blocks = ListsOfBlocks{};
  run_case<kConfig, kProblem>(shape, 1);
}

TEST(EmulatedSm80Blocks, TilesOfMoreThanABlockAreIllegal) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, MaskKind::none);
  EXPECT_EQ(is_legal({.block_m = 128, .warp_rows = 32}, kProblem, 227 << 10, 228 << 10), Illegal::listed_blocks);
  EXPECT_EQ(is_legal({.block_n = 128}, kProblem, 227 << 10, 228 << 10), Illegal::listed_blocks);
}

TEST(EmulatedSm80Blocks, ComparisonFindsWrongLists) {
  constexpr Config kConfig{.block_n = 32};
  constexpr Problem kProblem = problem_of(Element::fp16, 64, MaskKind::none);
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 130, .len_k = 400};
  shape.blocks = ListsOfBlocks{};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 3);
    change(problem.params());
    launch_case<kConfig, kProblem>(problem, shape, 3);
    return problem.difference();
  };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.block_counts = nullptr; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.block_index_strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.block_index_strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.block_most = 3; }), "");
}

}  // namespace
}  // namespace heed::sm80

// fwd_sm80 with Q, K and V in e4m3 on the emulated GPU: granularities of scale factors, head dims, masks, grouped
// heads, pages, lengths of entries, knobs that change where values are multiplied and rows are written.
#include "sm80_quantised_case.hpp"

namespace heed::sm80 {
namespace {

constexpr Problem e4m3_problem(Element element, int dim, MaskKind mask, Features features = {}) {
  return quantised_problem(element, dim, mask, Element::e4m3, Element::e4m3, features);
}
constexpr Problem kHalf64 = e4m3_problem(Element::fp16, 64, MaskKind::none);
constexpr Problem kCausal128 = e4m3_problem(Element::bf16, 128, MaskKind::causal);

TEST(EmulatedSm80E4m3, EveryGranularity) {
  for (const auto& [qk, v] : {std::pair{By::tensor, By::tensor}, {By::head, By::head}, {By::token, By::channel}})
    run_quantised<Config{}, kHalf64>({.batch = 2, .by_q = qk, .by_k = qk, .by_v = v}, 1);
  for (const int rows : {64, 48, 7})
    run_quantised<Config{.block_n = 32}, kHalf64>(
        {.len_k = 230, .by_q = By::block, .by_k = By::block, .rows_q = rows, .rows_k = rows, .by_v = By::channel}, 2);
}

TEST(EmulatedSm80E4m3, MasksHeadDimsAndConfigs) {
  run_quantised<Config{}, kCausal128>({.heads = 4,
                                       .heads_kv = 2,
                                       .len_q = 90,
                                       .len_k = 130,
                                       .right_offset = 10,
                                       .by_q = By::token,
                                       .by_k = By::token,
                                       .by_v = By::channel},
                                      4);
  constexpr Config kSplit{.block_m = 32,
                          .block_n = 32,
                          .warp_rows = 32,
                          .kv_groups = 2,
                          .stages = 3,
                          .q_in_registers = false,
                          .split_wait = true};
  run_quantised<kSplit, kCausal128>({.len_q = 50, .len_k = 300, .right_offset = 250, .by_v = By::channel}, 5);
  constexpr Config kStale{.overlap = true, .rescale = attention::Rescale::stale_tile};
  run_quantised<kStale, kHalf64>({.len_q = 130, .len_k = 300, .by_q = By::block, .by_k = By::token, .rows_q = 32}, 6);
  constexpr Config kStages{.stages = 3,
                           .smem_layout = tile::SharedLayout::padded,
                           .late_loads = true,
                           .pipeline_sync = PipelineSync::stage,
                           .epilogue = Epilogue::direct};
  run_quantised<kStages, e4m3_problem(Element::bf16, 64, MaskKind::window)>(
      {.len_q = 90, .len_k = 200, .right_offset = 110, .left_offset = 60, .by_k = By::token, .by_v = By::channel}, 7);
  constexpr Config kWide{.block_n = 32, .q_in_registers = false, .rescale = attention::Rescale::when_grown};
  run_quantised<kWide, e4m3_problem(Element::fp16, 256, MaskKind::none)>(
      {.by_q = By::token, .by_k = By::block, .rows_k = 32, .by_v = By::channel}, 8);
  constexpr Config kOneStage{.block_m = 128, .warp_rows = 32, .stages = 1, .smem_layout = tile::SharedLayout::linear};
  run_quantised<kOneStage, kHalf64>({.len_q = 150, .len_k = 90}, 9);
}

TEST(EmulatedSm80E4m3, Pages) {
  constexpr Problem kPaged = e4m3_problem(Element::fp16, 64, MaskKind::causal, {.pages = true});
  for (const auto& [by, rows] : {std::pair{By::tensor, 1}, {By::token, 1}, {By::block, 8}})
    run_quantised<Config{}, kPaged>({.batch = 2,
                                     .len_q = 40,
                                     .len_k = 150,
                                     .right_offset = 110,
                                     .by_k = by,
                                     .rows_k = rows,
                                     .by_v = By::channel,
                                     .page_size = 16},
                                    10);
}

// Columns of a row lie in registers as those of no other problem do.
TEST(EmulatedSm80E4m3, NormsOfRows) {
  constexpr Problem kNorm = e4m3_problem(Element::fp16, 128, MaskKind::none, {.out_norm = true});
  run_quantised<Config{.block_n = 32}, kNorm>({.len_q = 50, .len_k = 70, .by_v = By::channel}, 15);
}

// Either tensor may be of 8 bits without the other: Q and K beside V in 16 bits, and int8 beside V in e4m3, which sm_80
// computes too (int8_fp8_smooth).
TEST(EmulatedSm80E4m3, BesideOtherTypes) {
  run_quantised<Config{}, quantised_problem(Element::bf16, 64, MaskKind::none, Element::e4m3, Element::bf16)>(
      {.by_k = By::token}, 11);
  run_quantised<Config{}, quantised_problem(Element::bf16, 64, MaskKind::causal, Element::int8, Element::e4m3)>(
      {.right_offset = 30, .by_q = By::block, .by_k = By::block, .rows_q = 32, .rows_k = 64, .by_v = By::channel}, 12);
}

// NaN of e4m3 stays NaN in the rows that see it, and in those alone.
TEST(EmulatedSm80E4m3, NanShows) {
  constexpr Problem kCausal = e4m3_problem(Element::fp16, 64, MaskKind::causal);
  constexpr QuantisedShape kShape{.heads = 1, .len_q = 64, .len_k = 64};
  constexpr int kRow = 40;
  for (const bool of_values : {false, true}) {
    QuantisedCase problem(kCausal, kShape, 13);
    (of_values ? problem.values() : problem.keys()).set_byte(std::size_t{kRow} * 64 + 3, 0x7f);
    launch_quantised<Config{.block_n = 16}, kCausal>(problem, kShape, 13);
    EXPECT_FALSE(std::isnan(problem.output(15 * 64 + 3))) << of_values;
    EXPECT_TRUE(std::isnan(problem.output(std::size_t{kRow} * 64 + 3))) << of_values;
    EXPECT_EQ(std::isnan(problem.output(std::size_t{kRow} * 64 + 4)), !of_values) << of_values;
  }
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm80E4m3, WrongFactorsShow) {
  constexpr QuantisedShape kShape{.len_k = 130, .by_k = By::block, .rows_k = 64, .by_v = By::channel};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of<Config{}, kHalf64>(kShape, 14, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.v_scales.channel = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80

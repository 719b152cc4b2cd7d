// fwd_sm80 with Q and K in int8 on the emulated GPU: every granularity of scale factors, masks, grouped heads, pages.
#include "sm80_quantised_case.hpp"

namespace heed::sm80 {
namespace {

constexpr Problem int8_problem(Element element, int dim, MaskKind mask, Features features = {}) {
  return quantised_problem(element, dim, mask, Element::int8, element, features);
}

constexpr Problem kInt8Half64 = int8_problem(Element::fp16, 64, MaskKind::none);
constexpr Problem kInt8Causal128 = int8_problem(Element::bf16, 128, MaskKind::causal);

TEST(EmulatedSm80Int8, EveryGranularity) {
  for (const By q : {By::tensor, By::head, By::token})
    run_quantised<Config{}, kInt8Half64>({.batch = 2, .by_q = q, .by_k = q}, 1);
  // Tiles of one block, of two, and blocks smaller than a tile; those that begin before the launch's first key.
  for (const int rows : {128, 64, 48, 16, 7})
    run_quantised<Config{.block_n = 32}, kInt8Half64>(
        {.len_k = 230, .by_q = By::block, .by_k = By::block, .rows_q = rows, .rows_k = rows}, 2);
  run_quantised<Config{.block_n = 32}, kInt8Half64>(
      {.len_k = 230, .by_q = By::token, .by_k = By::block, .rows_k = 64, .first_key = 41}, 3);
}

TEST(EmulatedSm80Int8, MasksHeadDimsAndConfigs) {
  run_quantised<Config{}, kInt8Causal128>(
      {.heads = 4, .heads_kv = 2, .len_q = 90, .len_k = 130, .right_offset = 10, .by_q = By::token, .by_k = By::token},
      4);
  constexpr Config kSplit{.block_m = 32,
                          .block_n = 32,
                          .warp_rows = 32,
                          .kv_groups = 2,
                          .stages = 3,
                          .q_in_registers = false,
                          .split_wait = true};
  run_quantised<kSplit, kInt8Causal128>({.len_q = 50,
                                         .len_k = 300,
                                         .right_offset = 250,
                                         .by_q = By::block,
                                         .by_k = By::block,
                                         .rows_q = 16,
                                         .rows_k = 64},
                                        5);
  constexpr Config kStale{.overlap = true, .rescale = attention::Rescale::stale_tile};
  run_quantised<kStale, kInt8Half64>({.len_q = 130, .len_k = 300, .by_q = By::block, .by_k = By::token, .rows_q = 32},
                                     6);
  constexpr Config kStages{.stages = 3,
                           .smem_layout = tile::SharedLayout::padded,
                           .late_loads = true,
                           .pipeline_sync = PipelineSync::stage,
                           .epilogue = Epilogue::direct};
  run_quantised<kStages, int8_problem(Element::bf16, 64, MaskKind::window)>(
      {.len_q = 90, .len_k = 200, .right_offset = 110, .left_offset = 60, .by_q = By::head, .by_k = By::token}, 7);
  constexpr Config kWide{.block_n = 32, .q_in_registers = false, .rescale = attention::Rescale::when_grown};
  run_quantised<kWide, int8_problem(Element::fp16, 256, MaskKind::none)>(
      {.by_q = By::token, .by_k = By::block, .rows_k = 32}, 8);
  constexpr Config kOneStage{.block_m = 128, .warp_rows = 32, .stages = 1};
  run_quantised<kOneStage, kInt8Half64>({.len_q = 150, .len_k = 90}, 9);
}

TEST(EmulatedSm80Int8, PagesHaveFactorsOfTheirOwn) {
  constexpr Problem kPaged = int8_problem(Element::fp16, 64, MaskKind::causal, {.pages = true});
  for (const auto& [by, rows] : {std::pair{By::head, 1}, {By::token, 1}, {By::block, 8}, {By::block, 64}})
    run_quantised<Config{}, kPaged>({.batch = 2,
                                     .len_q = 40,
                                     .len_k = 150,
                                     .right_offset = 110,
                                     .by_k = by == By::head ? By::tensor : by,
                                     .rows_k = rows,
                                     .page_size = 16},
                                    10);
}

// The largest sum, 256 * 128 * 128 = 2^22, is exact, which the log-sum-exp shows: 2^22 * 2^-14 * 2^-4 = 16. Zeros stay
// zeros beside factors whose product is beyond fp32, and beside those that only 1.5 * 2^23 times it is.
TEST(EmulatedSm80Int8, LargestSumsAndFactors) {
  constexpr Config kWide{.block_n = 32, .q_in_registers = false};
  constexpr Problem kWidest = int8_problem(Element::fp16, 256, MaskKind::none);
  run_quantised<kWide, kWidest>({.len_q = 20, .len_k = 40, .fill = 0x80, .factor = 0x1p-7F}, 12);
  for (const float factor : {1e30F, 1e17F}) {
    run_quantised<Config{}, kInt8Half64>({.len_q = 20, .fill = 0, .factor = factor}, 13);
    run_quantised<Config{}, kInt8Half64>({.len_q = 20, .by_k = By::token, .fill = 0, .factor = factor}, 14);
  }
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm80Int8, WrongFactorsShow) {
  constexpr QuantisedShape kShape{.len_k = 230, .by_q = By::block, .by_k = By::block, .rows_q = 32, .rows_k = 64};
  const auto said = [&](void (*change)(FeatureParams&)) { return said_of<Config{}, kInt8Half64>(kShape, 11, change); };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.rows = 32; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.first_row = 64; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.q_scales.strides.row = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80

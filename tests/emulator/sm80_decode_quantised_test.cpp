// fwd_sm80_decode with K and V in 8 bits on the emulated GPU: element types, granularities of factors, head dims,
// masks, pages of any size, lengths of entries, shared memory layouts, keys in one part and in several.
#include <cmath>
#include <limits>
#include <vector>

#include "cache_case.hpp"
#include "device.hpp"
#include "kernels/sm80/decode/forward.cuh"
#include "testing.hpp"

namespace heed::sm80_decode {
namespace {

using emulator::By;
using emulator::cache_problem;
using emulator::CacheCase;
using emulator::CacheShape;
using emulator::kConstant;
using tile::SharedLayout;
using enum attention::Rescale;

template <Config kConfig, Problem kProblem>
std::string said_of(CacheCase& problem, const CacheShape& shape, int splits, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const int tiles = shape.heads_kv * row_tiles(kConfig, shape.heads / shape.heads_kv, shape.len_q);
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>(splits), static_cast<unsigned>(tiles), static_cast<unsigned>(shape.batch)};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim, 1).total);
  launch.seed = seed;
  launch.early = seed % 2 == 0;
  const long long all = static_cast<long long>(tiles) * shape.batch;
  std::vector<float> workspace(static_cast<std::size_t>(workspace_bytes(kConfig, all, splits, kProblem.head_dim) / 4),
                               std::numeric_limits<float>::quiet_NaN());
  std::vector<unsigned> semaphores(splits > 1 ? static_cast<std::size_t>(all) : 0);
  problem.params().workspace = workspace.data();
  problem.params().semaphores = semaphores.data();
  emulator::run(
      launch, [&](char* shared) { Forward<kConstant<kConfig>, kConstant<kProblem>>(problem.params(), shared).run(); });
  for (const unsigned counter : semaphores)
    if (counter != 0) return "a counter is not back at zero";
  return {};
}

template <Config kConfig, Problem kProblem>
std::string difference_of(const CacheShape& shape, int splits, std::uint64_t seed,
                          void (*change)(FeatureParams&) = nullptr) {
  CacheCase problem(kProblem, shape, seed);
  const FeatureParams right = problem.params();
  if (change != nullptr) change(problem.params());
  if (std::string said = said_of<kConfig, kProblem>(problem, shape, splits, seed); !said.empty()) return said;
  problem.params() = right;
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_cache(const CacheShape& shape, std::uint64_t seed) {
  for (const int splits : {1, 3})
    EXPECT_EQ((difference_of<kConfig, kProblem>(shape, splits, seed + static_cast<std::uint64_t>(splits))), "")
        << "seed " << seed << ", " << splits << " splits, lengths " << shape.len_q << " x " << shape.len_k << ", rows "
        << shape.rows_k << ", pages of " << shape.page_size;
}

constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Element kE4m3 = Element::e4m3, kE5m2 = Element::e5m2, kInt8 = Element::int8;
constexpr Config kSmall{.block_n = 32, .kv_groups = 2, .stages = 2};
constexpr Config kSwizzled{
    .block_n = 16, .kv_groups = 4, .stages = 3, .smem_layout = SharedLayout::swizzled, .rescale = conditional};
constexpr Config kWide{.block_m = 32, .block_n = 32, .warp_rows = 32, .kv_groups = 2, .stages = 2, .min_blocks = 1};
constexpr Config kTwoWarps{
    .block_m = 32, .block_n = 64, .kv_groups = 2, .stages = 2, .min_blocks = 1, .smem_layout = SharedLayout::swizzled};

template <Element kOut, Element kKey, Element kValue>
void run_all_ways(std::uint64_t seed) {
  run_cache<kSmall, cache_problem(kOut, kKey, kValue, 64)>({}, seed);
  run_cache<kSwizzled, cache_problem(kOut, kKey, kValue, 64)>({.len_k = 333}, seed + 10);
  run_cache<kSwizzled, cache_problem(kOut, kKey, kValue, 128)>({}, seed + 20);
  run_cache<kWide, cache_problem(kOut, kKey, kValue, 64)>({.heads = 6, .heads_kv = 2, .len_q = 9}, seed + 30);
  run_cache<kTwoWarps, cache_problem(kOut, kKey, kValue, 128)>({.heads = 6, .heads_kv = 2, .len_q = 9}, seed + 40);
}

TEST(EmulatedSm80DecodeQuantised, E4m3) {
  run_all_ways<Element::fp16, kE4m3, kE4m3>(1);
  run_all_ways<Element::bf16, kE4m3, kE4m3>(2);
}
TEST(EmulatedSm80DecodeQuantised, Int8E5m2AndMixedTypes) {
  run_all_ways<Element::bf16, kInt8, kInt8>(3);
  run_all_ways<Element::fp16, kInt8, kE5m2>(4);
}

TEST(EmulatedSm80DecodeQuantised, HeadDim256) {
  constexpr Config kConfig{.block_n = 16, .kv_groups = 2, .stages = 2, .min_blocks = 1};
  run_cache<kConfig, cache_problem(Element::bf16, kE4m3, kE4m3, 256)>({.by_v = By::channel}, 60);
}

TEST(EmulatedSm80DecodeQuantised, QueriesInSharedMemory) {
  constexpr Config kPadded{.block_n = 32, .kv_groups = 2, .stages = 2, .q_in_registers = false};
  constexpr Config kTwoOfTwo{.block_m = 64,
                             .block_n = 32,
                             .warp_rows = 32,
                             .kv_groups = 2,
                             .stages = 2,
                             .min_blocks = 1,
                             .smem_layout = SharedLayout::swizzled,
                             .q_in_registers = false};
  run_cache<kPadded, cache_problem(Element::bf16, kE4m3, kInt8, 256)>({.query_scale = 0.01F}, 61);
  run_cache<kTwoOfTwo, cache_problem(Element::bf16, kInt8, kE4m3, 64)>({.heads = 6, .heads_kv = 1, .len_q = 9}, 62);
  run_cache<kTwoOfTwo, cache_problem(Element::fp16, kE5m2, kE4m3, 128)>({.heads = 6, .heads_kv = 1, .len_q = 9}, 63);
}

TEST(EmulatedSm80DecodeQuantised, Granularities) {
  constexpr Problem kProblem = cache_problem(Element::fp16, kInt8, kE4m3, 64);
  std::uint64_t seed = 70;
  for (const By v : {By::tensor, By::head, By::channel})
    run_cache<kSmall, kProblem>({.by_k = By::tensor, .by_v = v}, ++seed);
  run_cache<kSmall, kProblem>({.by_k = By::token, .with_lse = false}, ++seed);
  for (const int rows : {128, 48, 7}) run_cache<kSmall, kProblem>({.by_k = By::block, .rows_k = rows}, ++seed);
  run_cache<kSmall, kProblem>({.by_k = By::block, .rows_k = 32, .first_key = 41}, ++seed);
}

TEST(EmulatedSm80DecodeQuantised, Masks) {
  constexpr CacheShape kSeesPart{.len_q = 7, .len_k = 100, .right_offset = 80, .by_k = By::token};
  run_cache<kSmall, cache_problem(Element::bf16, kE4m3, kE4m3, 64, kCausal)>(kSeesPart, 90);
  constexpr CacheShape kBand{
      .len_q = 5, .len_k = 200, .right_offset = 150, .left_offset = 0, .by_k = By::block, .rows_k = 16};
  run_cache<kSmall, cache_problem(Element::fp16, kInt8, kInt8, 64, kWindow)>(kBand, 91);
  run_cache<kSmall, cache_problem(Element::bf16, kE4m3, kE4m3, 64, kCausal)>(
      {.len_q = 3, .len_k = 40, .right_offset = -20}, 92);  // nobody sees anything
}

TEST(EmulatedSm80DecodeQuantised, PagesOfAnySizeAndLengths) {
  constexpr Problem kPaged = cache_problem(Element::fp16, kE4m3, kE4m3, 64, kCausal, {.lengths = true, .pages = true});
  constexpr Problem kWindowed =
      cache_problem(Element::bf16, kInt8, kInt8, 128, kWindow, {.lengths = true, .pages = true});
  std::uint64_t seed = 100;
  for (const int page : {1, 16, 20})
    for (const auto& [by, rows] : {std::pair{By::tensor, 1}, {By::token, 1}, {By::block, 8}})
      run_cache<kSmall, kPaged>({.batch = 3,
                                 .len_q = 2,
                                 .right_offset = 148,
                                 .by_k = by,
                                 .rows_k = rows,
                                 .page_size = page,
                                 .with_lengths = true},
                                seed++);
  run_cache<kSwizzled, kWindowed>(
      {.len_q = 2, .right_offset = 148, .left_offset = 90, .by_k = By::token, .by_v = By::tensor, .page_size = 7},
      seed++);
  run_cache<kSmall, kPaged>({.len_q = 2, .right_offset = 148, .by_k = By::token, .with_lengths = true}, seed++);
}

TEST(EmulatedSm80DecodeQuantised, SoftcapsAndSinks) {
  constexpr Problem kProblem =
      cache_problem(Element::bf16, kE4m3, kInt8, 64, MaskKind::none, {.softcap = true, .sinks = true});
  run_cache<kSmall, kProblem>({.len_q = 3, .by_k = By::token, .by_v = By::channel, .with_sinks = true, .softcap = 2},
                              115);
}

TEST(EmulatedSm80DecodeQuantised, QueriesOfAnySize) {
  constexpr CacheShape kShape{.batch = 1, .heads = 8, .heads_kv = 1, .query_scale = 0.01F};
  run_cache<kSmall, cache_problem(Element::bf16, kE4m3, kE4m3, 64)>(kShape, 120);
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm80DecodeQuantised, WrongFactorsShow) {
  constexpr Problem kProblem = cache_problem(Element::fp16, kE4m3, kE4m3, 64);
  constexpr CacheShape kShape{.by_k = By::block, .by_v = By::channel, .rows_k = 32};
  const auto said = [&](void (*change)(FeatureParams&)) {
    return difference_of<kSmall, kProblem>(kShape, 3, 140, change);
  };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.v_scales.channel = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80_decode

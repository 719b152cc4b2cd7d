// fwd_sm90_decode with K and V in 8 bits on the emulated GPU: element types, granularities of factors, head dims,
// masks, pages, lengths of entries, by columns and by tiles, with jobs cut in many ways.
#include <cmath>
#include <cstring>
#include <vector>

#include "cache_case.hpp"
#include "device.hpp"
#include "kernels/sm90/decode/forward.cuh"
#include "kernels/sm90/decode/legality.hpp"
#include "testing.hpp"

namespace heed::sm90_decode {
namespace {

using emulator::kConstant;
using enum attention::Rescale;

using emulator::By;
using emulator::cache_problem;
using emulator::CacheCase;
using emulator::CacheShape;

// As the launcher encodes them: lib/launch/tensor_map.cpp.
TensorMaps maps_of(CacheCase& problem, const Config& config) {
  TensorMaps maps{};
  const FeatureParams& p = problem.params();
  const bool paged = p.page_table != nullptr;
  const int seen = visible_keys(problem.problem().mask, p.len_q - 1, p.right_offset, p.len_k);
  const int rows = paged ? p.page_size : std::max(1, p.seqused_k != nullptr ? p.len_k : seen);
  const auto encode = [&](TensorMap& map, const void* from) {
    const emulator::EmulatedMap m{static_cast<const std::byte*>(from),
                                  {problem.problem().head_dim, rows, p.heads_kv, paged ? p.pages : p.batch},
                                  {1, p.k_strides.row, p.k_strides.head, p.k_strides.batch},
                                  rows_of_box(config, paged ? p.page_size : 0),
                                  box_columns(padded_dim(problem.problem()), 1),
                                  1};
    std::memcpy(map.opaque, &m, sizeof(m));
  };
  encode(maps.k, p.k);
  encode(maps.v, p.v);
  return maps;
}

template <Config kConfig, Problem kProblem>
std::string said_of(CacheCase& problem, const CacheShape& shape, int blocks, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  FeatureParams& params = problem.params();
  const int heads = shape.heads_kv * row_tiles(kConfig, params.group_size, shape.len_q);
  const int tiles =
      shape.batch * heads * tiles_of_job(kConfig, kProblem.mask, shape.len_q, shape.right_offset, shape.len_k);
  blocks = least(blocks, tiles);
  const attention::Grid3 grid = grid_of(kConfig, shape.batch, heads, blocks);
  const int dim = padded_dim(kProblem);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, dim, 1).total);
  launch.seed = seed;
  launch.early = seed % 2 == 0;
  launch.resident = seed % 3 == 0 ? static_cast<unsigned>(blocks) : 1;
  const Words plan = words_of(kConfig, dim, blocks, least(kConfig.block_m, params.group_size * shape.len_q));
  std::vector<unsigned> words(static_cast<std::size_t>(plan.total()) + 4, 0);
  params.semaphores = words.data() + (16 - reinterpret_cast<std::uintptr_t>(words.data()) % 16) % 16 / 4;
  const TensorMaps maps = maps_of(problem, kConfig);
  emulator::run(launch,
                [&](char* shared) { Forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared).run(); });
  for (const unsigned word : words)
    if (word != 0) return "a word is not back at zero";
  return {};
}

template <Config kConfig, Problem kProblem>
std::string difference_of(const CacheShape& shape, int blocks, std::uint64_t seed,
                          void (*change)(FeatureParams&) = nullptr) {
  CacheCase problem(kProblem, shape, seed);
  const FeatureParams right = problem.params();
  if (change != nullptr) change(problem.params());
  if (std::string said = said_of<kConfig, kProblem>(problem, shape, blocks, seed); !said.empty()) return said;
  problem.params() = right;
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_cache(const CacheShape& shape, std::uint64_t seed) {
  for (const int blocks : {1, 5, 8})
    EXPECT_EQ((difference_of<kConfig, kProblem>(shape, blocks, seed + static_cast<std::uint64_t>(blocks))), "")
        << "seed " << seed << ", " << blocks << " blocks, lengths " << shape.len_q << " x " << shape.len_k << ", rows "
        << shape.rows_k << ", pages of " << shape.page_size;
}

constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Element kE4m3 = Element::e4m3, kE5m2 = Element::e5m2, kInt8 = Element::int8;
constexpr Config kColumns{.block_n = 64,
                          .kv_groups = 4,
                          .stages = 2,
                          .merge_warps = 1,
                          .group_split = GroupSplit::columns,
                          .rescale = conditional};
constexpr Config kWideColumns{.block_m = 16,
                              .block_n = 128,
                              .kv_groups = 4,
                              .stages = 3,
                              .merge_warps = 1,
                              .group_split = GroupSplit::columns,
                              .split_points = SplitPoints::anywhere,
                              .rescale = when_grown};
constexpr Config kTiles{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
constexpr Config kTallTiles{.block_m = 32, .block_n = 32, .kv_groups = 2, .stages = 2, .rescale = when_grown};
constexpr Config kOwnCopies{
    .block_m = 16, .block_n = 16, .kv_groups = 4, .stages = 8, .merge_warps = 4, .producer_warp = false};

// By columns and by tiles, in every element type: a register of each holds every value somewhere.
template <Element kOut, Element kKey, Element kValue>
void run_both_ways(std::uint64_t seed) {
  run_cache<kColumns, cache_problem(kOut, kKey, kValue, 64)>({}, seed);
  run_cache<kWideColumns, cache_problem(kOut, kKey, kValue, 128)>({.heads = 6, .heads_kv = 2, .len_q = 4}, seed + 10);
  run_cache<kTiles, cache_problem(kOut, kKey, kValue, 128)>({}, seed + 20);
  run_cache<kTallTiles, cache_problem(kOut, kKey, kValue, 64)>({.heads = 6, .heads_kv = 2, .len_q = 9}, seed + 30);
}

TEST(EmulatedSm90DecodeQuantised, E4m3) {
  run_both_ways<Element::fp16, kE4m3, kE4m3>(1);
  run_both_ways<Element::bf16, kE4m3, kE4m3>(2);
}
TEST(EmulatedSm90DecodeQuantised, E5m2) {
  run_both_ways<Element::fp16, kE5m2, kE5m2>(3);
}
TEST(EmulatedSm90DecodeQuantised, Int8AndMixedTypes) {
  run_both_ways<Element::bf16, kInt8, kInt8>(4);
  run_both_ways<Element::fp16, kInt8, kE4m3>(5);
}

TEST(EmulatedSm90DecodeQuantised, HeadDims) {
  run_cache<kColumns, cache_problem(Element::fp16, kE4m3, kE4m3, 256)>({}, 40);
  run_cache<kColumns, cache_problem(Element::bf16, kInt8, kE4m3, 80)>({.by_v = By::channel}, 41);
  run_cache<kTiles, cache_problem(Element::bf16, kE4m3, kInt8, 96)>({.by_v = By::channel}, 42);
  run_cache<kColumns, cache_problem(Element::fp16, kE4m3, kE4m3, 192)>({.by_v = By::channel}, 43);
  run_cache<kTiles, cache_problem(Element::fp16, kE5m2, kE4m3, 16)>({.by_v = By::channel}, 44);
  run_cache<kOwnCopies, cache_problem(Element::fp16, kE4m3, kE4m3, 128)>({.len_k = 300}, 45);
}

template <Config kConfig, Problem kProblem>
void run_granularities(std::uint64_t seed) {
  for (const By v : {By::tensor, By::head, By::channel})
    run_cache<kConfig, kProblem>({.by_k = By::tensor, .by_v = v}, ++seed);
  run_cache<kConfig, kProblem>({.by_k = By::token, .with_lse = false}, ++seed);
  for (const int rows : {128, 48, 7}) run_cache<kConfig, kProblem>({.by_k = By::block, .rows_k = rows}, ++seed);
  run_cache<kConfig, kProblem>({.by_k = By::block, .rows_k = 32, .first_key = 41}, ++seed);
}
TEST(EmulatedSm90DecodeQuantised, Granularities) {
  run_granularities<kColumns, cache_problem(Element::fp16, kE4m3, kE4m3, 64)>(50);
  run_granularities<kTiles, cache_problem(Element::bf16, kInt8, kInt8, 128)>(70);
}

TEST(EmulatedSm90DecodeQuantised, Masks) {
  constexpr CacheShape kSeesPart{.len_q = 7, .len_k = 100, .right_offset = 80, .by_k = By::token};
  run_cache<kColumns, cache_problem(Element::bf16, kE4m3, kE4m3, 64, kCausal)>(kSeesPart, 90);
  run_cache<kTiles, cache_problem(Element::fp16, kInt8, kInt8, 64, kCausal)>(kSeesPart, 91);
  constexpr CacheShape kBand{
      .len_q = 5, .len_k = 200, .right_offset = 150, .left_offset = 0, .by_k = By::block, .rows_k = 16};
  run_cache<kColumns, cache_problem(Element::fp16, kE4m3, kE4m3, 64, kWindow)>(kBand, 92);
  run_cache<kTiles, cache_problem(Element::bf16, kE4m3, kE4m3, 64, kWindow)>(kBand, 93);
  run_cache<kColumns, cache_problem(Element::bf16, kE4m3, kE4m3, 64, kCausal)>(
      {.len_q = 3, .len_k = 40, .right_offset = -20}, 94);  // nobody sees anything
}

template <Config kConfig, Element kOut, Element kKey>
void run_paged(std::uint64_t seed) {
  constexpr Problem kPaged = cache_problem(kOut, kKey, kKey, 64, kCausal, {.lengths = true, .pages = true});
  constexpr Problem kWindowed = cache_problem(kOut, kKey, kKey, 128, kWindow, {.lengths = true, .pages = true});
  for (const auto& [by, rows] : {std::pair{By::head, 1}, {By::token, 1}, {By::block, 8}, {By::block, 64}})
    run_cache<kConfig, kPaged>({.batch = 3,
                                .len_q = 2,
                                .right_offset = 148,
                                .by_k = by == By::head ? By::tensor : by,
                                .rows_k = rows,
                                .page_size = 16,
                                .with_lengths = true},
                               seed++);
  run_cache<kConfig, kWindowed>(
      {.len_q = 2, .right_offset = 148, .left_offset = 90, .by_k = By::token, .by_v = By::tensor, .page_size = 64},
      seed++);
  run_cache<kConfig, kPaged>({.len_q = 2, .right_offset = 148, .by_k = By::token, .with_lengths = true}, seed++);
}
TEST(EmulatedSm90DecodeQuantised, PagesAndLengths) {
  run_paged<kColumns, Element::fp16, kE4m3>(100);
  run_paged<kTiles, Element::bf16, kInt8>(110);
}

// What changes scores sees them with their factors, and a sink counts beside them.
TEST(EmulatedSm90DecodeQuantised, SoftcapsAndSinks) {
  constexpr Features kFeatures = {.softcap = true, .sinks = true};
  constexpr CacheShape kShape{.len_q = 3, .by_k = By::token, .by_v = By::channel, .with_sinks = true, .softcap = 2};
  run_cache<kColumns, cache_problem(Element::bf16, kE4m3, kE4m3, 64, MaskKind::none, kFeatures)>(kShape, 115);
  run_cache<kTiles, cache_problem(Element::fp16, kInt8, kE4m3, 128, MaskKind::none, kFeatures)>(kShape, 116);
}

// Rows of Q in bf16 go to fp16 each by a factor of its own.
TEST(EmulatedSm90DecodeQuantised, QueriesOfAnySize) {
  constexpr CacheShape kShape{.batch = 1, .heads = 8, .heads_kv = 1, .query_scale = 0.01F};
  run_cache<kColumns, cache_problem(Element::bf16, kE4m3, kE4m3, 64)>(kShape, 120);
  constexpr CacheShape kLarge{.batch = 1, .heads = 8, .heads_kv = 1, .len_k = 60, .query_scale = 12.0F};
  run_cache<kTiles, cache_problem(Element::bf16, kE4m3, kE4m3, 64)>(kLarge, 121);
}

// NaN of Q, of K and of a factor shows, in the rows that see it and in no other.
TEST(EmulatedSm90DecodeQuantised, NanShows) {
  constexpr Problem kProblem = cache_problem(Element::bf16, kE4m3, kE4m3, 64);
  constexpr CacheShape kShape{.batch = 1, .heads = 2, .heads_kv = 2};
  const auto nan_in_heads = [&](const auto& change) {
    CacheCase problem(kProblem, kShape, 130);
    change(problem);
    EXPECT_EQ((said_of<kColumns, kProblem>(problem, kShape, 3, 1)), "");
    return std::pair{std::isnan(problem.out(5)), std::isnan(problem.out(64 + 5))};
  };
  EXPECT_EQ(nan_in_heads([](CacheCase&) {}), (std::pair{false, false}));
  EXPECT_EQ(nan_in_heads([](CacheCase& c) { c.set_query(3, NAN); }), (std::pair{true, false}));
  EXPECT_EQ(nan_in_heads([](CacheCase& c) { c.set_key(0, 1, 77, 9, 0xff); }), (std::pair{false, true}));
  EXPECT_EQ(nan_in_heads([](CacheCase& c) { const_cast<float*>(c.params().v_scales.at)[1] = NAN; }),
            (std::pair{false, true}));
}

// The case tells factors that are not those of the launch.
TEST(EmulatedSm90DecodeQuantised, WrongFactorsShow) {
  constexpr Problem kProblem = cache_problem(Element::fp16, kE4m3, kE4m3, 64);
  constexpr CacheShape kShape{.by_k = By::block, .by_v = By::channel, .rows_k = 32};
  const auto said = [&](void (*change)(FeatureParams&)) {
    return difference_of<kColumns, kProblem>(kShape, 3, 140, change);
  };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.rows = 16; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.k_scales.strides.head = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.v_scales.channel = 0; }), "");
}

// All values of each type, in each place of a register.
template <Element kElement, bool kConverts = true>
void widen_all() {
  const auto pair = [](unsigned low, unsigned high) {
    return ptx::cvt_rn_x2<Element::fp16>(emulator::widened(kElement, static_cast<unsigned char>(low)),
                                         emulator::widened(kElement, static_cast<unsigned char>(high)));
  };
  const auto equal = [](unsigned a, unsigned b) {  // NaN is any NaN
    for (int half = 0; half < 2; ++half) {
      const unsigned x = a >> 16 * half & 0xffffU, y = b >> 16 * half & 0xffffU;
      const bool is_nan = (x & 0x7fffU) > 0x7c00U && (y & 0x7fffU) > 0x7c00U;
      if (x != y && !is_nan) return false;
    }
    return true;
  };
  for (unsigned i = 0; i < 256; ++i) {
    const unsigned at[4] = {i, (i + 85) % 256, 255 - i, i ^ 0x80U};
    const unsigned bytes = at[0] | at[1] << 8 | at[2] << 16 | at[3] << 24;
    unsigned first = 0, second = 0;
    tile::widen<kElement, kConverts>(first, second, bytes);
    EXPECT_TRUE(equal(first, pair(at[0], at[1])) && equal(second, pair(at[2], at[3]))) << i;
    tile::widen_alternate<kElement, kConverts>(first, second, bytes);
    EXPECT_TRUE(equal(first, pair(at[0], at[2])) && equal(second, pair(at[1], at[3]))) << i;
  }
}
TEST(EmulatedSm90DecodeQuantised, EveryValueIsOneOfFp16) {
  widen_all<kE4m3>();
  widen_all<kE4m3, false>();
  widen_all<kE5m2>();
  widen_all<kInt8>();
}

}  // namespace
}  // namespace heed::sm90_decode

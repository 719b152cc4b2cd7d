// fwd_sm90_decode on the emulated GPU: right results, words back at zero, whatever the order of threads and blocks,
// however many blocks run at a time, and whenever copies and words land.
#include "attention_case.hpp"
#include "base/random.hpp"
#include "kernels/sm90/decode/forward.cuh"
#include "kernels/sm90/decode/legality.hpp"

namespace heed::sm90_decode {
namespace {

using emulator::AttentionCase;
using emulator::kConstant;
using emulator::Shape;
using enum attention::Rescale;

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};

struct Order {
  int blocks;        // at most: no block is without a tile
  int resident = 1;  // that run at a time
  std::uint64_t seed = 1;
  bool with_lse = true;
};

/// Runs a launch with its words at `words`, all zero, and compares.
template <Config kConfig, Problem kProblem>
void run_in(AttentionCase& problem, const Shape& shape, const Order& order, std::vector<unsigned>& words) {
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  ForwardParams& params = problem.params();
  if (!order.with_lse) params.lse = nullptr;
  const TensorMaps maps = problem.maps(0, kConfig.block_n, kConfig.block_n);
  const int jobs = shape.batch * shape.heads_kv * row_tiles(kConfig, params.group_size, shape.len_q);
  const int tiles = jobs * tiles_of_job(kConfig, kProblem.mask, shape.len_q, shape.causal_offset, shape.len_k);
  emulator::Launch launch;
  const int heads = shape.heads_kv * row_tiles(kConfig, params.group_size, shape.len_q);
  const attention::Grid3 grid = grid_of(kConfig, shape.batch, heads, least(order.blocks, tiles));
  launch.grid = {grid.x, grid.y, grid.z};
  const Words plan = words_of(kConfig, padded_dim(kProblem.head_dim), least(order.blocks, tiles),
                              least(kConfig.block_m, params.group_size * shape.len_q));
  words.resize(std::max(words.size(), static_cast<std::size_t>(plan.total()) + 4), 0);
  params.semaphores = words.data() + (16 - reinterpret_cast<std::uintptr_t>(words.data()) % 16) % 16 / 4;
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, padded_dim(kProblem.head_dim)).total);
  launch.seed = order.seed;
  launch.early = order.seed % 2 == 0;
  launch.resident = static_cast<unsigned>(order.resident);
  emulator::run(launch,
                [&](char* shared) { Forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared).run(); });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k) + ", " +
                std::to_string(shape.batch) + " x " + std::to_string(shape.heads) + "/" +
                std::to_string(shape.heads_kv) + " heads, " + std::to_string(order.blocks) + " blocks, " +
                std::to_string(order.resident) + " at a time, seed " + std::to_string(order.seed));
  for (const unsigned word : words) ASSERT_EQ(word, 0U) << "a word is not back at zero";
}

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, int blocks, std::uint64_t seed, bool with_lse = true) {
  std::vector<unsigned> words;
  for (const int resident : {1, seed % 2 == 0 ? blocks : 1 + static_cast<int>(seed % 4)}) {
    AttentionCase problem(kProblem, shape, seed);
    run_in<kConfig, kProblem>(problem, shape, {blocks, resident, seed, with_lse}, words);
    seed += 1000;
  }
}

// One job a block, several, parts of one, parts of several: the cuts fall anywhere.
TEST(EmulatedSm90Decode, CutsTheLineOfTilesAnywhere) {
  constexpr Config kConfig{
      .block_n = 16, .kv_groups = 2, .stages = 4, .split_points = SplitPoints::anywhere, .rescale = when_grown};
  std::uint64_t seed = 1;
  for (const int blocks : {1, 2, 3, 4, 5, 7, 9, 40}) {
    run_case<kConfig, kHalf128>({.batch = 2, .heads = 8, .heads_kv = 2, .len_q = 1, .len_k = 150}, blocks, seed++);
    run_case<kConfig, kHalf128>({.heads = 3, .heads_kv = 1, .len_q = 2, .len_k = 100, .heads_inner = true}, blocks,
                                seed++, false);
  }
}

// Blocks that are a multiple of jobs cut every job alike; jobs that are a multiple of blocks are whole; others go
// anywhere.
TEST(EmulatedSm90Decode, CutsJobsAlike) {
  constexpr Config kConfig{
      .block_n = 16, .kv_groups = 2, .stages = 4, .split_points = SplitPoints::at_work_tiles, .rescale = when_grown};
  std::uint64_t seed = 200;
  for (const int blocks : {2, 4, 6, 8, 12, 5})
    run_case<kConfig, kHalf128>({.batch = 2, .heads = 8, .heads_kv = 2, .len_q = 1, .len_k = 150}, blocks, seed++);
}

TEST(EmulatedSm90Decode, ManyPartialsMeet) {
  constexpr Config kConfig{
      .block_m = 16, .block_n = 16, .kv_groups = 4, .stages = 8, .merge_warps = 4, .producer_warp = false};
  run_case<kConfig, kHalf64>({.heads = 4, .len_q = 1, .len_k = 700}, 44, 30);
  run_case<kConfig, kHalf64>({.heads = 1, .len_q = 1, .len_k = 700}, 44, 31);
  run_case<kConfig, kHalf64>({.heads = 4, .len_q = 4, .len_k = 700, .score_scale = 20}, 44, 32);
  run_case<kConfig, kHalf64>({.heads = 1, .len_q = 1, .len_k = 1}, 44, 33);
  run_case<kConfig, kHalf64>({.heads = 16, .heads_kv = 16, .len_q = 1, .len_k = 10}, 5, 34);
}

TEST(EmulatedSm90Decode, CausalMasks) {
  constexpr Config kConfig{
      .block_m = 8, .block_n = 32, .kv_groups = 4, .stages = 4, .merge_warps = 1, .rescale = conditional};
  std::uint64_t seed = 50;
  for (const int blocks : {1, 3, 8}) {
    run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 16, .len_k = 5, .causal_offset = -11}, blocks,
                                     seed++);
    run_case<kConfig, kHalf64Causal>({.heads = 4, .heads_kv = 2, .len_q = 7, .len_k = 300}, blocks, seed++);
    run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 2, .len_q = 3, .len_k = 40, .causal_offset = -20}, blocks,
                                     seed++);  // nobody sees anything
    run_case<kConfig, kBrain128Causal>(
        {.batch = 2, .heads = 3, .heads_kv = 1, .len_q = 13, .len_k = 129, .causal_offset = 116}, blocks, seed++);
  }
}

// Groups of several warps share a stage.
TEST(EmulatedSm90Decode, TallTilesOfRows) {
  constexpr Config kConfig{.block_m = 64, .block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  run_case<kConfig, kHalf64Causal>({.heads = 8, .heads_kv = 1, .len_q = 16, .len_k = 333, .causal_offset = 317}, 3, 70);
  run_case<kConfig, kHalf64Causal>({.heads = 5, .heads_kv = 1, .len_q = 15, .len_k = 200, .causal_offset = 100}, 7, 71);
  constexpr Config kMiddle{.block_m = 32, .block_n = 32, .kv_groups = 2, .stages = 2, .rescale = when_grown};
  run_case<kMiddle, kBrain128Causal>({.heads = 8, .heads_kv = 1, .len_q = 9, .len_k = 100, .causal_offset = 91}, 4, 72);
}

template <Config kConfig>
void expect_same_whoever_merges(const Shape& shape, int blocks) {
  std::vector<std::uint16_t> outs;
  std::vector<float> lses;
  for (const int resident : {1, blocks}) {
    AttentionCase problem(kHalf64, shape, 7);
    std::vector<unsigned> words;
    run_in<kConfig, kHalf64>(problem, shape, {blocks, resident, 20}, words);
    const auto* out = static_cast<const std::uint16_t*>(problem.params().o);
    const std::vector<std::uint16_t> these(out, out + shape.batch * shape.heads * 64);
    const std::vector<float> those(problem.params().lse, problem.params().lse + shape.batch * shape.heads);
    if (resident > 1) {
      EXPECT_EQ(these, outs) << shape.heads << " heads";
      EXPECT_EQ(those, lses) << shape.heads << " heads";
    }
    outs = these;
    lses = those;
  }
}

// Whichever block merges adds up in the same order: a job's first block where all run at a time, its last block where
// they run one after the other. Log-sum-exps are compared too: they are not rounded to 16 bits.
TEST(EmulatedSm90Decode, ResultsDoNotDependOnWhoMerges) {
  constexpr Config kConfig{.block_n = 16, .kv_groups = 2, .stages = 4, .merge_warps = 4, .rescale = when_grown};
  for (const int heads : {8, 5, 1})  // two rows a thread where blocks are few, one, and several threads a row
    expect_same_whoever_merges<kConfig>({.batch = 20, .heads = heads, .heads_kv = 1, .len_q = 1, .len_k = 100}, 60);
  constexpr Config kColumns{.block_n = 32,
                            .kv_groups = 2,
                            .stages = 4,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .rescale = conditional};
  expect_same_whoever_merges<kColumns>({.batch = 2, .heads = 5, .heads_kv = 1, .len_q = 1, .len_k = 1000}, 40);
}

// All warps take every tile: scores by keys, output by columns.
TEST(EmulatedSm90Decode, DividesTilesByColumns) {
  constexpr Config kEight{.block_n = 64,
                          .kv_groups = 4,
                          .stages = 2,
                          .merge_warps = 1,
                          .group_split = GroupSplit::columns,
                          .rescale = conditional};
  constexpr Config kSixteen{.block_m = 16,
                            .block_n = 64,
                            .kv_groups = 2,
                            .stages = 3,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .split_points = SplitPoints::anywhere,
                            .rescale = when_grown};
  std::uint64_t seed = 300;
  for (const int blocks : {1, 2, 3, 4, 7, 8, 24, 60}) {
    run_case<kEight, kHalf128>({.batch = 2, .heads = 10, .heads_kv = 2, .len_q = 1, .len_k = 700}, blocks, seed++);
    run_case<kEight, kHalf64>({.heads = 3, .heads_kv = 1, .len_q = 1, .len_k = 1500, .score_scale = 20}, blocks,
                              seed++);
    run_case<kEight, kHalf64Causal>({.heads = 6, .heads_kv = 3, .len_q = 7, .len_k = 300, .causal_offset = 100}, blocks,
                                    seed++);
    run_case<kSixteen, kHalf64>({.batch = 3, .heads = 8, .heads_kv = 2, .len_q = 3, .len_k = 333}, blocks, seed++);
    run_case<kSixteen, kBrain128Causal>(
        {.batch = 2, .heads = 3, .heads_kv = 1, .len_q = 13, .len_k = 129, .causal_offset = 116}, blocks, seed++,
        false);
  }
}

// Eight warps, whose tiles are wider; and four groups of eight rows, which are merged one after the other.
TEST(EmulatedSm90Decode, DividesWideAndTallTilesByColumns) {
  constexpr Config kEightWarps{.block_n = 128,
                               .kv_groups = 8,
                               .stages = 2,
                               .merge_warps = 1,
                               .group_split = GroupSplit::columns,
                               .rescale = conditional};
  constexpr Config kThirtyTwo{.block_m = 32,
                              .block_n = 64,
                              .kv_groups = 4,
                              .stages = 2,
                              .l2_prefetch_kib = 0,
                              .merge_warps = 1,
                              .group_split = GroupSplit::columns,
                              .rescale = conditional};
  std::uint64_t seed = 400;
  for (const int blocks : {1, 3, 6, 14}) {
    run_case<kEightWarps, kHalf128>({.batch = 2, .heads = 4, .heads_kv = 1, .len_q = 1, .len_k = 1000}, blocks, seed++);
    run_case<kEightWarps, kBrain128Causal>(
        {.heads = 7, .heads_kv = 1, .len_q = 1, .len_k = 1700, .causal_offset = 1650, .padding_rows = 2}, blocks,
        seed++);
    run_case<kThirtyTwo, kHalf64Causal>(
        {.batch = 2, .heads = 4, .heads_kv = 1, .len_q = 7, .len_k = 400, .causal_offset = 393}, blocks, seed++);
    run_case<kThirtyTwo, kHalf128>({.heads = 5, .heads_kv = 1, .len_q = 9, .len_k = 300, .heads_inner = true}, blocks,
                                   seed++, false);
  }
}

// Columns that fill the last box of a head dim are zeros in shared memory, and neither read from Q nor written to O.
TEST(EmulatedSm90Decode, HeadDimsBetweenBoxes) {
  constexpr Config kColumns{.block_n = 64,
                            .kv_groups = 4,
                            .stages = 2,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .rescale = conditional};
  constexpr Config kTiles{.block_m = 16, .block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  constexpr auto of_dim = [](int dim) {
    return Problem{.element = Element::fp16, .head_dim = dim, .mask = MaskKind::causal};
  };
  const Shape shape{.heads = 6, .heads_kv = 2, .len_q = 2, .len_k = 170, .causal_offset = 168};
  run_case<kColumns, of_dim(40)>(shape, 5, 400);
  run_case<kColumns, of_dim(80)>(shape, 4, 401);
  run_case<kColumns, of_dim(192)>(shape, 3, 402);
  run_case<kColumns, of_dim(256)>(shape, 6, 403);
  run_case<kTiles, of_dim(8)>(shape, 5, 404);
  run_case<kTiles, of_dim(88)>(shape, 7, 405);
}

// Partial results that are zero in every bit: no weight, no value, a reference of zero.
TEST(EmulatedSm90Decode, ZerosArriveToo) {
  constexpr Config kConfig{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  constexpr Config kColumns{
      .block_n = 32, .kv_groups = 2, .stages = 4, .merge_warps = 1, .group_split = GroupSplit::columns};
  const Shape zero_values{.heads = 4, .len_q = 1, .len_k = 150, .value_scale = 0};
  const Shape zero_scores{.heads = 4, .len_q = 1, .len_k = 150, .score_scale = 0};
  run_case<kConfig, kHalf64>(zero_values, 5, 80);
  run_case<kConfig, kHalf64>(zero_scores, 5, 81);
  run_case<kColumns, kHalf64>(zero_values, 5, 82);
  run_case<kColumns, kHalf64>(zero_scores, 5, 83);
}

// What is not finite comes out as the reference has it, and no block waits for it for ever.
TEST(EmulatedSm90Decode, InfinityAndNanPass) {
  constexpr Config kConfig{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  constexpr Config kColumns{.block_n = 32,
                            .kv_groups = 2,
                            .stages = 4,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .rescale = conditional};
  // A polynomial has to pass NaN on by itself.
  constexpr Config kPolynomial{
      .block_n = 16, .kv_groups = 2, .stages = 4, .exp2 = attention::Exp2::poly_half, .rescale = when_grown};
  using enum AttentionCase::Tensor;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Shape shape{.batch = 2, .heads = 6, .heads_kv = 2, .len_q = 2, .len_k = 120};
  std::vector<unsigned> words;
  std::uint64_t seed = 90;
  for (const float x : {kInfinity, -kInfinity, std::nanf("")})
    for (const AttentionCase::Tensor tensor : {q, k, v})
      for (const int resident : {1, 5}) {
        AttentionCase problem(kHalf64, shape, seed);
        problem.set(tensor, 1, 1, tensor == q ? 1 : 70, 5, x);
        run_in<kConfig, kHalf64>(problem, shape, {5, resident, seed}, words);
        AttentionCase same(kHalf64, shape, seed);
        same.set(tensor, 1, 1, tensor == q ? 1 : 70, 5, x);
        run_in<kColumns, kHalf64>(same, shape, {5, resident, seed}, words);
        AttentionCase again(kHalf64, shape, seed);
        again.set(tensor, 1, 1, tensor == q ? 1 : 70, 5, x);
        run_in<kPolynomial, kHalf64>(again, shape, {5, resident, seed++}, words);
      }
}

// Launches of other shapes find the words of the one before at zero, wherever its own lie.
TEST(EmulatedSm90Decode, LaunchesOfAllShapesShareTheirWords) {
  constexpr Config kConfig{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  std::vector<unsigned> words(100000, 0);
  std::uint64_t seed = 110;
  for (const Shape& shape : {Shape{.heads = 5, .len_q = 3, .len_k = 130}, Shape{.heads = 2, .len_q = 1, .len_k = 400},
                             Shape{.batch = 3, .heads = 4, .heads_kv = 4, .len_q = 1, .len_k = 90}})
    for (const int blocks : {3, 7}) {
      AttentionCase problem(kHalf128, shape, seed);
      run_in<kConfig, kHalf128>(problem, shape, {blocks, 3, seed++}, words);
    }
}

using Runner = void (*)(const Shape&, const Order&, std::vector<unsigned>&);
template <Config kConfig, Problem kProblem>
void run_shape(const Shape& shape, const Order& order, std::vector<unsigned>& words) {
  AttentionCase problem(kProblem, shape, order.seed);
  run_in<kConfig, kProblem>(problem, shape, order, words);
}

// Random shapes, cuts and orders of blocks.
class EmulatedSm90DecodeFuzz : public ::testing::TestWithParam<int> {};

TEST_P(EmulatedSm90DecodeFuzz, IsRightWhateverTheOrder) {
  constexpr Config kSmall{
      .block_n = 16, .kv_groups = 2, .stages = 2, .merge_warps = 1, .producer_warp = false, .rescale = when_grown};
  constexpr Config kWide{
      .block_n = 32, .kv_groups = 4, .stages = 8, .merge_warps = 4, .producer_warp = false, .rescale = when_grown};
  constexpr Config kSixteen{
      .block_m = 16, .block_n = 16, .kv_groups = 6, .stages = 6, .merge_warps = 4, .evict_first = false};
  constexpr Config kColumns{.block_m = 16,
                            .block_n = 64,
                            .kv_groups = 4,
                            .stages = 3,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .rescale = conditional};
  constexpr Config kTall{
      .block_m = 32, .block_n = 16, .kv_groups = 2, .stages = 4, .merge_warps = 3, .rescale = conditional};
  struct Kernel {
    Runner run;
    bool causal;
  };
  static const Kernel kernels[] = {
      {run_shape<kSmall, kHalf64>, false},          {run_shape<kSmall, kHalf64Causal>, true},
      {run_shape<kWide, kHalf128>, false},          {run_shape<kWide, kBrain128Causal>, true},
      {run_shape<kColumns, kBrain128Causal>, true}, {run_shape<kColumns, kHalf64>, false},
      {run_shape<kSixteen, kHalf64Causal>, true},   {run_shape<kTall, kBrain128Causal>, true},
      {run_shape<kTall, kHalf128>, false}};
  Random random(static_cast<std::uint64_t>(GetParam()));
  std::vector<unsigned> words;
  const auto up_to = [&](int most) { return 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(most))); };
  for (const Kernel& kernel : kernels)
    for (int n = 0; n < 2; ++n) {
      Shape shape;
      shape.batch = up_to(3);
      shape.heads_kv = up_to(3);
      shape.heads = shape.heads_kv * up_to(9);  // most groups are no power of two
      shape.len_q = random.chance(0.5) ? 1 : up_to(16);
      shape.len_k = random.chance(0.3) ? up_to(20) : up_to(300);
      if (kernel.causal) shape.causal_offset = random.chance(0.5) ? 0 : shape.len_k - shape.len_q;
      shape.heads_inner = random.chance(0.5);
      shape.padding_rows = random.chance(0.5) ? 0 : up_to(3);
      shape.score_scale = random.chance(0.3) ? 15 : 1;
      const int blocks = up_to(12);
      kernel.run(shape, {blocks, random.chance(0.3) ? blocks : up_to(blocks), random.next() >> 1, random.chance(0.8)},
                 words);
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EmulatedSm90DecodeFuzz, ::testing::Values(1, 2, 3));

// Packed rows that see windows of their own: the first keys of later rows are hidden.
TEST(EmulatedSm90Decode, Windows) {
  constexpr Problem kWindow{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::window};
  constexpr Config kTiles{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
  constexpr Config kColumns{.block_n = 32,
                            .kv_groups = 2,
                            .stages = 4,
                            .merge_warps = 1,
                            .group_split = GroupSplit::columns,
                            .rescale = conditional};
  std::uint64_t seed = 1;
  for (const int blocks : {1, 3, 8}) {
    for (const Shape& shape :
         {Shape{.heads = 4, .heads_kv = 1, .len_q = 9, .len_k = 100, .causal_offset = 91, .left_offset = 0},
          Shape{.heads = 2, .heads_kv = 2, .len_q = 40, .len_k = 60, .causal_offset = 9, .left_offset = -5},
          Shape{.batch = 2,
                .heads = 8,
                .heads_kv = 2,
                .len_q = 30,
                .len_k = 12,
                .causal_offset = 0,
                .left_offset = -6}}) {
      run_case<kTiles, kWindow>(shape, blocks, seed++);
      run_case<kColumns, kWindow>(shape, blocks, seed++);
    }
  }
}

}  // namespace
}  // namespace heed::sm90_decode

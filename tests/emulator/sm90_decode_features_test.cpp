// fwd_sm90_decode with features, on the emulated GPU: each alone and all together, by columns and by tiles, with jobs
// cut in many ways.
#include "decode_feature_shapes.hpp"
#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm90/decode/forward.cuh"
#include "kernels/sm90/decode/legality.hpp"
#include "tensor_map.hpp"
#include "testing.hpp"

namespace heed::sm90_decode {
namespace {

using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;
using emulator::problem_with;
using enum attention::Rescale;

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Features kScores = {.softcap = true, .bias = true, .alibi = true, .sinks = true, .relative = true};
constexpr Features kAll = {
    .softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true, .relative = true};

/// As the launcher encodes it: lib/launch/tensor_map.cpp.
template <Config kConfig, Problem kProblem>
TensorMap map_of(const FeatureParams& p, const void* tensor, const TensorStrides& s) {
  int rows = std::max(1, visible_keys(kProblem.mask, p.len_q - 1, p.right_offset, p.len_k));
  int batch = p.batch;
  if (p.seqused_k != nullptr || p.cu_seqlens_q != nullptr) rows = p.len_k;
  if (p.cu_seqlens_k != nullptr) {
    rows = *std::max_element(p.cu_seqlens_k, p.cu_seqlens_k + p.batch + 1);
    batch = 1;
  }
  if (p.page_table != nullptr) {
    rows = p.page_size;
    batch = p.pages;
  }
  return emulator::map_of(tensor, s, kProblem.head_dim, rows, p.heads_kv, batch,
                          rows_of_box(kConfig, p.page_table == nullptr ? 0 : p.page_size));
}

/// Empty, or the first thing that is wrong.
template <Config kConfig, Problem kProblem>
std::string launch_case(FeatureCase& problem, const FeatureShape& shape, int blocks, int resident, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  FeatureParams& params = problem.params();
  const int heads = shape.heads_kv * row_tiles(kConfig, params.group_size, shape.len_q);
  const int tiles =
      shape.batch * heads * tiles_of_job(kConfig, kProblem.mask, shape.len_q, shape.right_offset, shape.len_k);
  blocks = least(blocks, tiles);
  const attention::Grid3 grid = grid_of(kConfig, shape.batch, heads, blocks);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  launch.early = seed % 2 == 0;
  launch.resident = static_cast<unsigned>(least(resident, blocks));
  const Words plan =
      words_of(kConfig, kProblem.head_dim, blocks, least(kConfig.block_m, params.group_size * shape.len_q));
  std::vector<unsigned> words(static_cast<std::size_t>(plan.total()) + 4, 0);
  params.semaphores = words.data() + (16 - reinterpret_cast<std::uintptr_t>(words.data()) % 16) % 16 / 4;
  TensorMaps maps{};
  maps.k = map_of<kConfig, kProblem>(params, params.k, params.k_strides);
  maps.v = map_of<kConfig, kProblem>(params, params.v, params.v_strides);
  try {
    emulator::run(launch,
                  [&](char* shared) { Forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared).run(); });
  } catch (const std::logic_error& error) {
    return error.what();
  }
  for (const unsigned word : words)
    if (word != 0) return "a word is not back at zero";
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_case(const FeatureShape& shape, std::uint64_t seed = 1) {
  for (const int blocks : {1, 5, 12}) {
    const int resident = seed % 2 == 0 ? blocks : 1 + static_cast<int>(seed % 3);
    FeatureCase problem(kProblem, shape, seed);
    EXPECT_EQ((launch_case<kConfig, kProblem>(problem, shape, blocks, resident, seed + 1)), "")
        << "seed " << seed << ", " << blocks << " blocks, lengths " << shape.len_q << " x " << shape.len_k;
  }
}

template <Config kConfig, Problem kProblem>
void run_cases(const emulator::FeatureShapes& shapes) {
  std::uint64_t seed = 0;
  for (const FeatureShape& shape : shapes) run_case<kConfig, kProblem>(shape, ++seed);
}

constexpr Config kColumns{.block_n = 64,
                          .kv_groups = 4,
                          .stages = 2,
                          .merge_warps = 1,
                          .group_split = GroupSplit::columns,
                          .rescale = conditional};
constexpr Config kWideColumns{.block_m = 16,
                              .block_n = 32,
                              .kv_groups = 2,
                              .stages = 3,
                              .merge_warps = 1,
                              .group_split = GroupSplit::columns,
                              .split_points = SplitPoints::anywhere,
                              .rescale = when_grown};
constexpr Config kTiles{.block_n = 16, .kv_groups = 2, .stages = 4, .rescale = when_grown};
constexpr Config kTallTiles{.block_m = 32, .block_n = 32, .kv_groups = 2, .stages = 2, .rescale = when_grown};
constexpr Config kOwnCopies{
    .block_m = 16, .block_n = 16, .kv_groups = 4, .stages = 8, .merge_warps = 4, .producer_warp = false};

template <Features kFeatures, MaskKind kMask>
void run_all_kinds(const emulator::FeatureShapes& shapes) {
  run_cases<kColumns, problem_with(kFeatures, Element::fp16, 64, kMask)>(shapes);
  run_cases<kWideColumns, problem_with(kFeatures, Element::bf16, 128, kMask)>(shapes);
  run_cases<kTiles, problem_with(kFeatures, Element::bf16, 64, kMask)>(shapes);
  run_cases<kTallTiles, problem_with(kFeatures, Element::fp16, 128, kMask)>(shapes);
}

// ------------------------------------------------------------------------------------------------- each one alone

TEST(EmulatedSm90DecodeFeatures, Softcap) {
  run_all_kinds<Features{.softcap = true}, kCausal>(emulator::softcap_shapes());
}
TEST(EmulatedSm90DecodeFeatures, Alibi) {
  run_all_kinds<Features{.alibi = true}, kNone>(emulator::alibi_shapes());
  run_cases<kOwnCopies, problem_with({.alibi = true}, Element::fp16, 64, kNone)>(emulator::alibi_shapes());
}
TEST(EmulatedSm90DecodeFeatures, Bias) {
  run_cases<kColumns, problem_with({.bias = true}, Element::fp16, 64, kCausal)>(emulator::bias_shapes());
  run_cases<kTiles, problem_with({.bias = true}, Element::bf16, 64, kWindow)>(emulator::bias_shapes());
}
TEST(EmulatedSm90DecodeFeatures, Sinks) {
  run_all_kinds<Features{.sinks = true}, kCausal>(emulator::sink_shapes());
}

TEST(EmulatedSm90DecodeFeatures, SinkThatIsNanSpoilsARow) {
  const auto spoils = [](auto launch) {
    for (const int blocks : {1, 2}) {
      const FeatureShape shape{.heads = 1, .len_q = 2, .len_k = 160, .right_offset = 160, .sinks = {0}};
      FeatureCase problem(problem_with({.sinks = true}, Element::fp16, 64, kCausal), shape, 1);
      const float sink = std::nanf("");
      problem.params().sinks = &sink;
      EXPECT_NE(launch(problem, shape, blocks), "");
      EXPECT_TRUE(std::isnan(problem.params().lse[0]));
      EXPECT_EQ(static_cast<std::uint16_t*>(problem.params().o)[0] & 0x7c00, 0x7c00);
    }
  };
  static constexpr Problem kProblem = problem_with({.sinks = true}, Element::fp16, 64, kCausal);
  spoils([](auto& p, const auto& s, int blocks) { return launch_case<kColumns, kProblem>(p, s, blocks, 1, 1); });
  spoils([](auto& p, const auto& s, int blocks) { return launch_case<kTiles, kProblem>(p, s, blocks, 1, 1); });
}

TEST(EmulatedSm90DecodeFeatures, LengthsByColumns) {
  run_cases<kColumns, problem_with({.lengths = true}, Element::fp16, 64, kCausal)>(emulator::length_shapes());
  run_cases<kWideColumns, problem_with({.lengths = true}, Element::bf16, 128, kWindow)>(emulator::length_shapes());
}
TEST(EmulatedSm90DecodeFeatures, LengthsByTiles) {
  run_cases<kTiles, problem_with({.lengths = true}, Element::bf16, 64, kWindow)>(emulator::length_shapes());
  run_cases<kTallTiles, problem_with({.lengths = true}, Element::fp16, 128, kCausal)>(emulator::length_shapes());
}

TEST(EmulatedSm90DecodeFeatures, LengthsOfAllRemainders) {
  run_case<kColumns, problem_with({.lengths = true}, Element::fp16, 64, kNone)>(emulator::all_remainders());
  run_case<kColumns, problem_with({.lengths = true}, Element::fp16, 64, kWindow)>(emulator::all_remainders());
  run_case<kTiles, problem_with({.lengths = true}, Element::fp16, 64, kNone)>(emulator::all_remainders());
  run_case<kTiles, problem_with({.lengths = true}, Element::bf16, 64, kWindow)>(emulator::all_remainders());
}

TEST(EmulatedSm90DecodeFeatures, NoKeysAtAll) {
  run_cases<kColumns, problem_with({.sinks = true, .lengths = true}, Element::fp16, 64, kNone)>(
      emulator::empty_shapes());
  run_cases<kTiles, problem_with({.sinks = true, .lengths = true}, Element::fp16, 64, kNone)>(emulator::empty_shapes());
}

TEST(EmulatedSm90DecodeFeatures, Pages) {
  const std::vector<int> sizes = {8, 16, 24, 64, 256};
  run_cases<kColumns, problem_with({.pages = true}, Element::fp16, 64, kCausal)>(emulator::page_shapes(sizes, false));
  run_cases<kWideColumns, problem_with({.lengths = true, .pages = true}, Element::bf16, 128, kWindow)>(
      emulator::page_shapes(sizes, true));
  run_cases<kTiles, problem_with({.pages = true}, Element::bf16, 64, kWindow)>(emulator::page_shapes(sizes, false));
  run_cases<kTallTiles, problem_with({.lengths = true, .pages = true}, Element::fp16, 128, kCausal)>(
      emulator::page_shapes(sizes, true));
}

// ---------------------------------------------------------------------------------------------------- all together

TEST(EmulatedSm90DecodeFeatures, AllChangesOfScores) {
  emulator::FeatureShapes shapes = emulator::shapes_with_all();
  for (FeatureShape& shape : shapes) {
    shape.cu_q = shape.cu_k = shape.used_k = {};
    shape.page_size = 0;
  }
  run_cases<kColumns, problem_with(kScores, Element::fp16, 64, kCausal)>(shapes);
  run_cases<kTiles, problem_with(kScores, Element::bf16, 128, kNone)>(shapes);
}

TEST(EmulatedSm90DecodeFeatures, AllByColumns) {
  run_cases<kColumns, problem_with(kAll, Element::fp16, 64, kCausal)>(emulator::shapes_with_all());
  run_cases<kWideColumns, problem_with(kAll, Element::bf16, 128, kNone)>(emulator::shapes_with_all());
}
TEST(EmulatedSm90DecodeFeatures, AllByTiles) {
  run_cases<kTiles, problem_with(kAll, Element::bf16, 64, kCausal)>(emulator::shapes_with_all());
  run_cases<kTallTiles, problem_with(kAll, Element::fp16, 128, kWindow)>(emulator::shapes_with_all());
}

// A program of a file serves calls that have less than it was built with.
TEST(EmulatedSm90DecodeFeatures, AllOfThemBuiltAndNoneGiven) {
  constexpr Config kDeep{.block_m = 8,
                         .block_n = 128,
                         .kv_groups = 4,
                         .stages = 4,
                         .merge_warps = 1,
                         .group_split = GroupSplit::columns,
                         .rescale = conditional};
  const emulator::FeatureShapes shapes = {{.len_q = 1, .len_k = 1},
                                          {.batch = 2, .heads = 4, .heads_kv = 4, .len_q = 33, .len_k = 33},
                                          {.len_q = 3, .len_k = 300}};
  run_cases<kDeep, problem_with(kAll, Element::bf16, 64, kNone)>(shapes);
  run_cases<kColumns, problem_with(kAll, Element::bf16, 64, kNone)>(shapes);
  run_cases<kTiles, problem_with(kAll, Element::fp16, 64, kCausal)>(shapes);
}

TEST(EmulatedSm90DecodeFeatures, AllOfHeadDim256) {
  run_cases<kColumns, problem_with(kAll, Element::bf16, 256, kWindow)>(emulator::shapes_with_all());
}

TEST(EmulatedSm90DecodeFeatures, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = problem_with(kAll, Element::fp16, 64, kCausal);
  const FeatureShape shape = emulator::shape_of_wrong_numbers();
  emulator::expect_wrong_numbers_found(
      [&](const auto& change) {
        FeatureCase problem(kProblem, shape, 1);
        change(problem.params());
        return launch_case<kColumns, kProblem>(problem, shape, 2, 2, 1);
      },
      [](const std::string& said, bool is_wrong, const char* what) { EXPECT_EQ(!said.empty(), is_wrong) << what; });
}

}  // namespace
}  // namespace heed::sm90_decode

// fwd_sm80_decode with features, on the emulated GPU: each alone and all together, keys in one part and in several, and
// splits that have no tile of an entry.
#include "decode_feature_shapes.hpp"
#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm80/decode/forward.cuh"
#include "testing.hpp"

namespace heed::sm80_decode {
namespace {

using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;
using emulator::problem_with;

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Features kAll = {
    .softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true, .relative = true};

/// Empty, or the first thing that is wrong.
template <Config kConfig, Problem kProblem>
std::string launch_case(FeatureCase& problem, const FeatureShape& shape, int splits, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const int tiles = shape.heads_kv * row_tiles(kConfig, shape.heads / shape.heads_kv, shape.len_q);
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>(splits), static_cast<unsigned>(tiles), static_cast<unsigned>(shape.batch)};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  launch.early = seed % 2 == 0;
  launch.readable = problem.readable();
  const long long all = static_cast<long long>(tiles) * shape.batch;
  std::vector<float> workspace(static_cast<std::size_t>(workspace_bytes(kConfig, all, splits, kProblem.head_dim) / 4),
                               std::numeric_limits<float>::quiet_NaN());
  std::vector<unsigned> semaphores(splits > 1 ? static_cast<std::size_t>(all) : 0);
  problem.params().workspace = workspace.data();
  problem.params().semaphores = semaphores.data();
  try {
    emulator::run(launch, [&](char* shared) {
      Forward<kConstant<kConfig>, kConstant<kProblem>>(problem.params(), shared).run();
    });
  } catch (const std::logic_error& error) {
    return error.what();
  }
  for (const unsigned counter : semaphores)
    if (counter != 0) return "a counter is not back at zero";
  return problem.difference();
}

template <Config kConfig, Problem kProblem>
void run_case(const FeatureShape& shape, std::uint64_t seed = 1) {
  for (const int splits : {1, 3}) {
    FeatureCase problem(kProblem, shape, seed);
    EXPECT_EQ((launch_case<kConfig, kProblem>(problem, shape, splits, seed)), "")
        << "seed " << seed << ", " << splits << " splits, lengths " << shape.len_q << " x " << shape.len_k;
  }
}

template <Config kConfig, Problem kProblem>
void run_cases(const emulator::FeatureShapes& shapes) {
  std::uint64_t seed = 0;
  for (const FeatureShape& shape : shapes) run_case<kConfig, kProblem>(shape, ++seed);
}

// ------------------------------------------------------------------------------------------------- each one alone

constexpr Config kSmall{.block_n = 32, .kv_groups = 2, .stages = 2};
constexpr Config kWide{.block_m = 32, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 2, .min_blocks = 1};
constexpr Config kWideWithoutQ{.block_m = 32,
                               .block_n = 16,
                               .warp_rows = 32,
                               .kv_groups = 2,
                               .stages = 2,
                               .min_blocks = 1,
                               .q_in_registers = false};

TEST(EmulatedSm80DecodeFeatures, Softcap) {
  run_cases<kSmall, problem_with({.softcap = true}, Element::fp16, 64, kCausal)>(emulator::softcap_shapes());
}

TEST(EmulatedSm80DecodeFeatures, Alibi) {
  run_cases<kSmall, problem_with({.alibi = true}, Element::bf16, 64, kNone)>(emulator::alibi_shapes());
  run_cases<kWide, problem_with({.alibi = true}, Element::fp16, 64, kNone)>(emulator::alibi_shapes());
}

TEST(EmulatedSm80DecodeFeatures, Bias) {
  run_cases<kSmall, problem_with({.bias = true}, Element::fp16, 64, kCausal)>(emulator::bias_shapes());
  run_cases<kWideWithoutQ, problem_with({.bias = true}, Element::bf16, 128, kWindow)>(emulator::bias_shapes());
}

constexpr Problem kSinks = problem_with({.sinks = true}, Element::fp16, 64, kCausal);

TEST(EmulatedSm80DecodeFeatures, Sinks) {
  run_cases<kSmall, kSinks>(emulator::sink_shapes());
  run_cases<kWide, kSinks>(emulator::sink_shapes());
}

TEST(EmulatedSm80DecodeFeatures, SinkThatIsNanSpoilsARow) {
  for (const int splits : {1, 2}) {
    const FeatureShape shape{.heads = 1, .len_q = 2, .len_k = 160, .right_offset = 160, .sinks = {0}};
    FeatureCase problem(kSinks, shape, 1);
    const float sink = std::nanf("");
    problem.params().sinks = &sink;
    EXPECT_NE((launch_case<kSmall, kSinks>(problem, shape, splits, 1)), "");
    EXPECT_TRUE(std::isnan(problem.params().lse[0]));
    EXPECT_EQ(static_cast<std::uint16_t*>(problem.params().o)[0] & 0x7c00, 0x7c00);
  }
}

TEST(EmulatedSm80DecodeFeatures, Lengths) {
  run_cases<kSmall, problem_with({.lengths = true}, Element::fp16, 64, kCausal)>(emulator::length_shapes());
  run_cases<kWide, problem_with({.lengths = true}, Element::bf16, 64, kWindow)>(emulator::length_shapes());
}

TEST(EmulatedSm80DecodeFeatures, LengthsOfAllRemainders) {
  run_case<kSmall, problem_with({.lengths = true}, Element::fp16, 64, kNone)>(emulator::all_remainders());
}

TEST(EmulatedSm80DecodeFeatures, NoKeysAtAll) {
  run_cases<kSmall, problem_with({.sinks = true, .lengths = true}, Element::fp16, 64, kNone)>(emulator::empty_shapes());
}

TEST(EmulatedSm80DecodeFeatures, Pages) {
  const std::vector<int> sizes = {1, 16, 24, 64, 256};
  run_cases<kSmall, problem_with({.pages = true}, Element::fp16, 64, kCausal)>(emulator::page_shapes(sizes, false));
  run_cases<Config{.block_n = 64, .kv_groups = 2, .stages = 3, .min_blocks = 1},
            problem_with({.pages = true}, Element::bf16, 64, kNone)>(emulator::page_shapes(sizes, false));
  run_cases<Config{.block_m = 32, .block_n = 32, .warp_rows = 16, .kv_groups = 2, .stages = 1, .min_blocks = 1},
            problem_with({.lengths = true, .pages = true}, Element::fp16, 128, kWindow)>(
      emulator::page_shapes(sizes, true));
}

// ---------------------------------------------------------------------------------------------------- all together

TEST(EmulatedSm80DecodeFeatures, AllOfSixteenRows) {
  run_cases<kSmall, problem_with(kAll, Element::fp16, 64, kCausal)>(emulator::shapes_with_all());
}
TEST(EmulatedSm80DecodeFeatures, AllOfThirtyTwoRowsAWarp) {
  run_cases<kWideWithoutQ, problem_with(kAll, Element::bf16, 128, kNone)>(emulator::shapes_with_all());
}
TEST(EmulatedSm80DecodeFeatures, AllWithOneStage) {
  run_cases<Config{.block_n = 16,
                   .kv_groups = 4,
                   .stages = 1,
                   .min_blocks = 1,
                   .smem_layout = tile::SharedLayout::swizzled,
                   .q_in_registers = false,
                   .rescale = attention::Rescale::conditional},
            problem_with(kAll, Element::fp16, 64, kWindow)>(emulator::shapes_with_all());
}

TEST(EmulatedSm80DecodeFeatures, AllOfHeadDim256) {
  run_cases<Config{.block_n = 16, .kv_groups = 2, .stages = 2, .min_blocks = 1, .q_in_registers = false},
            problem_with(kAll, Element::bf16, 256, kWindow)>(emulator::shapes_with_all());
  run_cases<Config{.block_m = 32, .block_n = 16, .kv_groups = 2, .stages = 2, .min_blocks = 1},
            problem_with({.softcap = true}, Element::fp16, 256, kCausal)>(
      {{.heads = 5, .len_q = 7, .len_k = 90, .right_offset = 83}});
}

TEST(EmulatedSm80DecodeFeatures, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = problem_with(kAll, Element::fp16, 64, kCausal);
  const FeatureShape shape = emulator::shape_of_wrong_numbers();
  emulator::expect_wrong_numbers_found(
      [&](const auto& change) {
        FeatureCase problem(kProblem, shape, 1);
        change(problem.params());
        return launch_case<kSmall, kProblem>(problem, shape, 2, 1);
      },
      [](const std::string& said, bool is_wrong, const char* what) { EXPECT_EQ(!said.empty(), is_wrong) << what; });
}

}  // namespace
}  // namespace heed::sm80_decode

// fwd_sm80_decode with features, on the emulated GPU: each alone and all together, keys in one part and in several, and
// splits that have no tile of an entry.
#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm80/decode/forward.cuh"
#include "testing.hpp"

namespace heed::sm80_decode {
namespace {

using emulator::BiasTensor;
using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr Features kAll = {.softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true};

constexpr Problem problem_of(Element element, int head_dim, MaskKind mask, const Features& features) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

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
void run_case(const FeatureShape& shape, std::uint64_t seed) {
  for (const int splits : {1, 3}) {
    FeatureCase problem(kProblem, shape, seed);
    EXPECT_EQ((launch_case<kConfig, kProblem>(problem, shape, splits, seed)), "")
        << "seed " << seed << ", " << splits << " splits, lengths " << shape.len_q << " x " << shape.len_k;
  }
}

// ------------------------------------------------------------------------------------------------- each one alone

constexpr Config kSmall{.block_n = 32, .kv_groups = 2, .stages = 2};
constexpr Config kWide{.block_m = 32, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 2, .min_blocks = 1};

TEST(EmulatedSm80DecodeFeatures, Softcap) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kCausal, {.softcap = true});
  run_case<kSmall, kProblem>({.heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 190, .right_offset = 183, .softcap = 2},
                             1);
  run_case<kSmall, kProblem>({.len_q = 3, .len_k = 90, .right_offset = 20, .score_scale = 300, .softcap = 30}, 2);
  run_case<kSmall, kProblem>({.len_q = 20, .len_k = 50, .right_offset = -10}, 3);
}

TEST(EmulatedSm80DecodeFeatures, Alibi) {
  constexpr Problem kProblem = problem_of(Element::bf16, 64, kNone, {.alibi = true});
  run_case<kSmall, kProblem>({.batch = 2, .heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 190, .slopes = 1}, 1);
  run_case<kWide, kProblem>({.batch = 2, .heads = 5, .heads_kv = 1, .len_q = 9, .len_k = 170, .slopes = 2}, 2);
  run_case<kSmall, kProblem>({.len_q = 1, .len_k = 140}, 3);
}

template <Config kConfig, Problem kProblem>
void run_biases() {
  const FeatureShape base{.batch = 2, .heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 177, .right_offset = 170};
  std::uint64_t seed = 10;
  const auto with = [&](const BiasTensor& bias) {
    FeatureShape shape = base;
    shape.left_offset = -20;
    shape.bias = bias;
    run_case<kConfig, kProblem>(shape, ++seed);
  };
  for (const BiasElement element : {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32}) {
    with({.element = element, .hides_rows = true});
    with({.element = element, .per_batch = false, .per_head = false, .key_stride = 3, .row_padding = 5});
    with({.element = element, .per_head = false, .per_row = false});
  }
  with({.per_key = false});
  with({.per_batch = false, .per_head = false, .per_row = false, .per_key = false});
}

TEST(EmulatedSm80DecodeFeatures, Bias) {
  run_biases<kSmall, problem_of(Element::fp16, 64, kCausal, {.bias = true})>();
  run_biases<kWide, problem_of(Element::bf16, 128, kWindow, {.bias = true})>();
}

constexpr Problem kSinks = problem_of(Element::fp16, 64, kCausal, {.sinks = true});

// Of sinks far above the scores nothing is left, of those far below nothing is seen; the first rows see no key. A sink
// counts once, however many parts a row has.
TEST(EmulatedSm80DecodeFeatures, Sinks) {
  const FeatureShape shape{.batch = 2,
                           .heads = 6,
                           .heads_kv = 2,
                           .len_q = 12,
                           .len_k = 160,
                           .right_offset = -4,
                           .sinks = {0.5F, 4.0F, -3.0F, 300.0F, -300.0F, -kInfinite}};
  run_case<kSmall, kSinks>(shape, 1);
  run_case<kWide, kSinks>(shape, 2);
  FeatureShape none = shape;
  none.sinks = {};
  run_case<kSmall, kSinks>(none, 3);
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

template <Config kConfig, Problem kProblem>
void run_lengths() {
  // Entries of the longest length, of none and of one; more keys than queries, fewer, and none; each third of the
  // entries gives splits without a tile.
  FeatureShape shape{.batch = 6, .heads = 6, .heads_kv = 2, .len_q = 9, .len_k = 150, .right_offset = 141};
  shape.left_offset = -30;
  shape.to_the_end = true;
  shape.cu_q = {0, 9, 9, 10, 17, 20, 24};
  shape.cu_k = {0, 100, 150, 220, 370, 370, 400};
  run_case<kConfig, kProblem>(shape, 1);
  shape.to_the_end = false;
  shape.right_offset = 0;
  run_case<kConfig, kProblem>(shape, 2);
  // More keys than there are, fewer than none, and some.
  shape.used_k = {1000, -5, 30, 77, 10, 1};
  run_case<kConfig, kProblem>(shape, 3);
  shape.to_the_end = true;
  shape.right_offset = 141;
  run_case<kConfig, kProblem>(shape, 4);
  shape.cu_k = {};  // of a tensor with a batch stride
  run_case<kConfig, kProblem>(shape, 5);
  shape.cu_q = {};
  run_case<kConfig, kProblem>(shape, 6);
  // Entries that end before they begin have no rows; those beyond the longest have as many as the longest.
  shape.batch = 3;
  shape.used_k = {};
  shape.cu_q = {10, 0, 30, 35};
  shape.cu_k = {160, 0, 160, 100};
  run_case<kConfig, kProblem>(shape, 7);
  // A launch without any.
  run_case<kConfig, kProblem>({.heads = 3, .len_q = 5, .len_k = 70, .right_offset = 65}, 8);
}

TEST(EmulatedSm80DecodeFeatures, Lengths) {
  run_lengths<kSmall, problem_of(Element::fp16, 64, kCausal, {.lengths = true})>();
  run_lengths<kWide, problem_of(Element::bf16, 64, kWindow, {.lengths = true})>();
}

// Of every remainder that an entry's keys leave of a tile; keys behind the end are NaN.
TEST(EmulatedSm80DecodeFeatures, LengthsOfAllRemainders) {
  FeatureShape shape{.batch = 35, .heads = 2, .heads_kv = 1, .len_q = 1, .len_k = 100};
  for (int b = 0; b < shape.batch; ++b) shape.used_k.push_back(b + 32);
  run_case<kSmall, problem_of(Element::fp16, 64, kNone, {.lengths = true})>(shape, 1);
}

// No entry has a key: rows are zeros, and log-sum-exps those of sinks alone.
TEST(EmulatedSm80DecodeFeatures, NoKeysAtAll) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kNone, {.sinks = true, .lengths = true});
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 2, .len_k = 200, .used_k = {0, -1}};
  run_case<kSmall, kProblem>(shape, 1);
  shape.sinks = {1.5F, -kInfinite};
  run_case<kSmall, kProblem>(shape, 2);
}

template <Config kConfig, Problem kProblem>
void run_pages() {
  for (const int size : {1, 16, 24, 64, 256}) {
    FeatureShape shape{.batch = 3, .heads = 4, .heads_kv = 2, .len_q = 4, .len_k = 350, .right_offset = 346};
    shape.left_offset = 200;
    shape.page_size = size;
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
    if (!kProblem.features.lengths) continue;
    shape.to_the_end = true;
    shape.used_k = {350, 7, 190};
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size) + 1);
  }
  run_case<kConfig, kProblem>({.batch = 2, .heads = 2, .len_q = 4, .len_k = 170, .right_offset = 30}, 2);
}

TEST(EmulatedSm80DecodeFeatures, Pages) {
  run_pages<kSmall, problem_of(Element::fp16, 64, kCausal, {.pages = true})>();
  run_pages<Config{.block_n = 64, .kv_groups = 2, .stages = 3, .min_blocks = 1},
            problem_of(Element::bf16, 64, kNone, {.pages = true})>();
  run_pages<Config{.block_m = 32, .block_n = 32, .warp_rows = 16, .kv_groups = 2, .stages = 1, .min_blocks = 1},
            problem_of(Element::fp16, 128, kWindow, {.lengths = true, .pages = true})>();
}

// ---------------------------------------------------------------------------------------------------- all together

template <Config kConfig, Problem kProblem>
void run_all() {
  FeatureShape shape{.batch = 3, .heads = 8, .heads_kv = 2, .len_q = 5, .len_k = 140, .right_offset = 135};
  shape.left_offset = 60;
  run_case<kConfig, kProblem>(shape, 1);  // a launch that has none of them
  shape.to_the_end = true;
  shape.softcap = 5;
  shape.slopes = 2;
  shape.sinks = {0.5F, -kInfinite, 30.0F, -2.0F, 0, 1, 2, 3};
  shape.bias = {.element = BiasElement::bf16, .per_head = false, .row_padding = 1, .hides_rows = true};
  shape.used_k = {140, 60, 0};
  shape.page_size = 16;
  run_case<kConfig, kProblem>(shape, 2);
  shape.page_size = 0;
  shape.bias = {.element = BiasElement::boolean, .per_batch = false, .hides_rows = true};
  shape.cu_q = {0, 5, 6, 9};
  shape.cu_k = {0, 140, 190, 290};
  shape.used_k = {};
  run_case<kConfig, kProblem>(shape, 3);
  shape.sinks = {};
  shape.score_scale = 30;
  shape.softcap = 0;
  shape.slopes = 0;
  run_case<kConfig, kProblem>(shape, 4);
}

TEST(EmulatedSm80DecodeFeatures, AllOfSixteenRows) {
  run_all<kSmall, problem_of(Element::fp16, 64, kCausal, kAll)>();
}
TEST(EmulatedSm80DecodeFeatures, AllOfThirtyTwoRowsAWarp) {
  run_all<kWide, problem_of(Element::bf16, 128, kNone, kAll)>();
}
TEST(EmulatedSm80DecodeFeatures, AllWithOneStage) {
  run_all<Config{.block_n = 16,
                 .kv_groups = 4,
                 .stages = 1,
                 .min_blocks = 1,
                 .smem_layout = tile::SharedLayout::swizzled,
                 .q_in_registers = false,
                 .rescale = attention::Rescale::conditional},
          problem_of(Element::fp16, 64, kWindow, kAll)>();
}

// ------------------------------------------------------------------------------------- the comparison itself can fail

TEST(EmulatedSm80DecodeFeatures, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kCausal, kAll);
  const FeatureShape shape{.heads = 2,
                           .len_q = 4,
                           .len_k = 160,
                           .right_offset = 156,
                           .to_the_end = true,
                           .softcap = 3,
                           .bias = BiasTensor{.element = BiasElement::fp16},
                           .slopes = 1,
                           .sinks = {0, 0},
                           .used_k = {155},
                           .page_size = 16};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    return launch_case<kSmall, kProblem>(problem, shape, 2, 1);
  };
  const float slopes[2] = {0.45F, 0.35F};  // instead of 0.5 and 0.354
  const float sinks[2] = {0.0F, 0.1F};
  const int used[1] = {154};
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.alibi_slopes = slopes; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.sinks = sinks; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.seqused_k = used; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.softcap = 3.2F; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias = nullptr; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias_row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.pages = 1; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.aligned_to_the_end = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80_decode

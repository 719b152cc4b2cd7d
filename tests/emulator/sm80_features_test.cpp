// fwd_sm80 with features, on the emulated GPU: each alone, and programs with all of them on launches that have some.
#include "sm80_features_case.hpp"
#include "workload/features.hpp"

namespace heed::sm80 {
namespace {

using emulator::BiasTensor;

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr float kInfinite = std::numeric_limits<float>::infinity();

constexpr Problem problem_of(Element element, int head_dim, MaskKind mask, const Features& features) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

// ------------------------------------------------------------------------------------------------- each one alone

constexpr Config kSmall{.block_n = 32};

TEST(EmulatedSm80Features, Softcap) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kCausal, {.softcap = true});
  run_case<kSmall, kProblem>({.heads = 2, .len_q = 70, .len_k = 90, .right_offset = 20, .softcap = 2}, 1);
  // Scores of up to a thousand, at either side of a cap of 30: rows end where tanh is flat.
  run_case<kSmall, kProblem>({.len_q = 70, .len_k = 90, .right_offset = 20, .score_scale = 300, .softcap = 30}, 2);
  run_case<kSmall, kProblem>({.len_q = 40, .len_k = 50, .right_offset = -10}, 3);
}

TEST(Sm80Features, CapIsWithinRoundingOfTanh) {
  for (const float cap : {0.5F, 20.0F, 50.0F})
    for (float s = -400; s <= 400; s += 0.37F) {
      const float got = attention::capped(s, 2 * attention::kLog2e / cap, cap);
      ASSERT_NEAR(got, cap * std::tanh(static_cast<double>(s) / cap), 1e-6 * cap) << s << " of " << cap;
    }
  for (const float s : {1e4F, 1e30F, kInfinite}) {
    EXPECT_EQ(attention::capped(s, 1, 20), 20);
    EXPECT_EQ(attention::capped(-s, 1, 20), -20);
  }
  EXPECT_TRUE(std::isnan(attention::capped(std::nanf(""), 1, 20)));
}
template <bool kPrecise, bool kInTerms>
void expect_small_cap(double error) {
  for (const float cap : {0.5F, 20.0F, 50.0F})
    for (const float scale : {1.0F, 0.088F}) {
      const attention::SmallCap<kPrecise, kInTerms> small(scale / cap, cap);
      for (float y = -attention::kSmallTanh; y <= attention::kSmallTanh; y += 0.0003F)
        ASSERT_NEAR(small(y * cap / scale), cap * std::tanh(static_cast<double>(y)), error * cap) << y << " of " << cap;
      EXPECT_TRUE(std::isnan(small(std::nanf(""))));
    }
}
TEST(Sm80Features, CapOfSmallScoresIsWithinRoundingOfTanh) {
  expect_small_cap<true, true>(4e-7);
  expect_small_cap<true, false>(4e-7);
  expect_small_cap<false, true>(4e-6);
  expect_small_cap<false, false>(4e-6);
}

template <Config kConfig, Problem kProblem>
void run_biases() {
  const FeatureShape base{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 50, .len_k = 77, .right_offset = 27};
  std::uint64_t seed = 10;
  const auto with = [&](const BiasTensor& bias) {
    FeatureShape shape = base;
    shape.bias = bias;
    run_case<kConfig, kProblem>(shape, ++seed);
  };
  for (const BiasElement element : {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32}) {
    with({.element = element, .hides_rows = true});
    with({.element = element, .per_batch = false, .per_head = false, .key_stride = 3, .row_padding = 5});
    with({.element = element, .per_head = false, .per_row = false});
    // Rows at multiples of 16 elements: read four columns at a time, in all tiles but the last.
    with({.element = element, .per_head = false, .row_padding = 3, .hides_rows = true});
  }
  with({.per_key = false});
  with({.per_batch = false, .per_head = false, .per_row = false, .per_key = false});
}

TEST(EmulatedSm80Features, Bias) {
  run_biases<kSmall, problem_of(Element::fp16, 64, kCausal, {.bias = true})>();
}
// A first tile that is wholly hidden leaves no row maximum to be stale about, and one far below later tiles a bad one.
TEST(EmulatedSm80Features, BiasBelowAStaleRowMaximum) {
  run_biases<Config{.block_n = 16, .overlap = true, .rescale = kStaleTile},
             problem_of(Element::fp16, 64, kCausal, {.bias = true})>();
}

TEST(EmulatedSm80Features, Alibi) {
  constexpr Problem kProblem = problem_of(Element::bf16, 64, kNone, {.alibi = true});
  run_case<kSmall, kProblem>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 90, .slopes = 1}, 1);
  run_case<kSmall, kProblem>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 90, .len_k = 70, .slopes = 2}, 2);
  run_case<kSmall, kProblem>({.len_q = 30, .len_k = 40}, 3);
}

constexpr Problem kSinks = problem_of(Element::fp16, 64, kCausal, {.sinks = true});

// Of sinks far above the scores nothing is left, of those far below nothing is seen; the first rows see no key.
TEST(EmulatedSm80Features, Sinks) {
  const FeatureShape shape{.batch = 2,
                           .heads = 6,
                           .heads_kv = 2,
                           .len_q = 70,
                           .len_k = 60,
                           .right_offset = -10,
                           .sinks = {0.5F, 4.0F, -3.0F, 300.0F, -300.0F, -kInfinite}};
  run_case<kSmall, kSinks>(shape, 1);
  run_case<Config{.block_n = 16, .epilogue = Epilogue::direct}, kSinks>(shape, 2);
  run_case<Config{.block_m = 32, .block_n = 16, .kv_groups = 4}, kSinks>(shape, 3);
  run_case<Config{.block_n = 16, .overlap = true, .rescale = kStaleTile}, kSinks>(shape, 4);
  FeatureShape none = shape;
  none.sinks = {};
  run_case<kSmall, kSinks>(none, 5);
}

TEST(EmulatedSm80Features, SinkThatIsNanSpoilsARow) {
  FeatureShape shape{.heads = 1, .len_q = 8, .len_k = 60, .right_offset = 60, .sinks = {0}};
  FeatureCase problem(kSinks, shape, 1);
  const float sink = std::nanf("");
  problem.params().sinks = &sink;
  launch_case<kSmall, kSinks>(problem, shape, 1);
  EXPECT_TRUE(std::isnan(problem.params().lse[0]));
  EXPECT_EQ(static_cast<std::uint16_t*>(problem.params().o)[0] & 0x7c00, 0x7c00);
}

template <Config kConfig, Problem kProblem>
void run_lengths() {
  // Longer than a block and shorter, none, one; more keys than queries and fewer, and none.
  FeatureShape shape{.batch = 6, .heads = 2, .heads_kv = 1, .len_q = 130, .len_k = 150, .right_offset = 20};
  shape.left_offset = -30;
  shape.to_the_end = true;
  shape.cu_q = {0, 130, 130, 131, 200, 230, 240};
  shape.cu_k = {0, 100, 150, 220, 370, 370, 400};
  run_case<kConfig, kProblem>(shape, 1);
  shape.to_the_end = false;
  shape.right_offset = 0;
  run_case<kConfig, kProblem>(shape, 2);
  // More keys than there are, fewer than none, and some.
  shape.used_k = {1000, -5, 30, 77, 10, 1};
  run_case<kConfig, kProblem>(shape, 3);
  shape.to_the_end = true;
  shape.right_offset = 20;
  run_case<kConfig, kProblem>(shape, 4);
  shape.cu_k = {};  // of a tensor with a batch stride
  run_case<kConfig, kProblem>(shape, 5);
  shape.cu_q = {};
  shape.len_q = 20;
  shape.right_offset = 130;
  run_case<kConfig, kProblem>(shape, 6);
  // Entries that end before they begin have no rows; those beyond the longest have as many as the longest.
  shape.batch = 3;
  shape.used_k = {};
  shape.cu_q = {10, 0, 60, 70};
  shape.cu_k = {160, 0, 160, 100};
  run_case<kConfig, kProblem>(shape, 7);
}

TEST(EmulatedSm80Features, Lengths) {
  run_lengths<kSmall, problem_of(Element::fp16, 64, kCausal, {.lengths = true})>();
  run_lengths<Config{.block_m = 32, .block_n = 16, .kv_groups = 2, .tile_order = TileOrder::lpt},
              problem_of(Element::bf16, 64, kWindow, {.lengths = true})>();
  // Warps of a group that see fewer tiles than others meet them at one barrier of the program.
  run_lengths<Config{.kv_groups = 2, .overlap = true, .rescale = kStaleTile},
              problem_of(Element::bf16, 64, kCausal, {.lengths = true})>();
  run_lengths<Config{.block_n = 32, .overlap = true, .late_loads = true},
              problem_of(Element::fp16, 64, kWindow, {.lengths = true})>();
}

template <Config kConfig, Problem kProblem>
void run_pages() {
  for (const int size : {1, 16, 24, 64}) {
    FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 40, .len_k = 150, .right_offset = 110};
    shape.left_offset = -20;
    shape.page_size = size;
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
    if (!kProblem.features.lengths) continue;
    shape.to_the_end = true;
    shape.used_k = {150, 7, 90};
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
  }
  run_case<kConfig, kProblem>({.len_q = 40, .len_k = 70, .right_offset = 30}, 2);
}

TEST(EmulatedSm80Features, Pages) {
  run_pages<kSmall, problem_of(Element::fp16, 64, kCausal, {.pages = true})>();
  run_pages<Config{.block_n = 32, .stages = 3, .overlap = true, .rescale = kStaleTile},
            problem_of(Element::fp16, 128, kWindow, {.lengths = true, .pages = true})>();
}

template <Config kConfig, Problem kProblem>
void run_prefixes() {
  FeatureShape shape{.batch = 5, .heads = 2, .heads_kv = 1, .len_q = 100, .len_k = 150, .right_offset = 20};
  shape.left_offset = -40;
  shape.prefixes = {0, 1, 64, 149, 1000};
  run_case<kConfig, kProblem>(shape, 1);
  shape.prefixes = {-5, 30, 70, 100, 130};
  run_case<kConfig, kProblem>(shape, 2);
  shape.prefixes = {};
  run_case<kConfig, kProblem>(shape, 3);
}

TEST(EmulatedSm80Features, Prefixes) {
  run_prefixes<kSmall, problem_of(Element::fp16, 64, kCausal, {.prefix = true})>();
  run_prefixes<Config{.overlap = true, .rescale = kStaleTile, .tile_order = TileOrder::lpt},
               problem_of(Element::bf16, 64, kCausal, {.prefix = true})>();
  run_prefixes<Config{.block_m = 32, .block_n = 16, .kv_groups = 2},
               problem_of(Element::fp16, 64, kWindow, {.prefix = true})>();
  run_prefixes<kSmall, problem_of(Element::fp16, 64, kNone, {.prefix = true})>();
}

// Biases are read of the prefix's keys too.
TEST(EmulatedSm80Features, PrefixesOfBiasedEntries) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kCausal, {.bias = true, .lengths = true, .prefix = true});
  FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 70, .len_k = 110, .right_offset = 0};
  shape.to_the_end = true;
  shape.used_k = {110, 40, 60};
  shape.prefixes = {50, 70, 20};
  shape.bias = BiasTensor{.element = BiasElement::fp16, .hides_rows = true};
  run_case<kSmall, kProblem>(shape, 1);
}

template <Config kConfig, Problem kProblem>
void run_relative_biases() {
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 170, .len_k = 260, .right_offset = 90};
  shape.left_offset = -40;
  shape.relative = emulator::kT5Buckets;
  run_case<kConfig, kProblem>(shape, 1);
  shape.relative = emulator::kT5PastBuckets;
  run_case<kConfig, kProblem>(shape, 2);
  shape.len_q = 260;
  shape.len_k = 170;
  run_case<kConfig, kProblem>(shape, 3);
  shape.relative = {};
  run_case<kConfig, kProblem>(shape, 4);
}

TEST(EmulatedSm80Features, RelativeBiases) {
  run_relative_biases<kSmall, problem_of(Element::fp16, 64, kNone, {.relative = true})>();
  run_relative_biases<Config{.overlap = true, .rescale = kStaleTile},
                      problem_of(Element::bf16, 64, kCausal, {.alibi = true, .relative = true})>();
  run_relative_biases<Config{.block_m = 32, .block_n = 16, .kv_groups = 2},
                      problem_of(Element::fp16, 128, kWindow, {.relative = true})>();
}

template <Config kConfig, Problem kProblem>
void run_dropout() {
  FeatureShape shape{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 110, .right_offset = 40};
  shape.left_offset = -15;  // tiles of some blocks begin at odd keys
  shape.dropout = 0.3;
  run_case<kConfig, kProblem>(shape, 1);
  shape.cut_keys = has_left_bound(kProblem.mask) ? 3 : 0;  // no others have keys cut off
  run_case<kConfig, kProblem>(shape, 2);
  shape.score_scale = 30;  // of every tile, probabilities that a stale row maximum has no room for
  run_case<kConfig, kProblem>(shape, 3);
  shape.dropout = 1;
  run_case<kConfig, kProblem>(shape, 4);
  shape.dropout = 0;
  run_case<kConfig, kProblem>(shape, 5);
}

TEST(EmulatedSm80Features, Dropout) {
  run_dropout<kSmall, problem_of(Element::fp16, 64, kCausal, {.dropout = true})>();
  run_dropout<Config{.block_n = 16, .rescale = kStaleTile}, problem_of(Element::fp16, 64, kNone, {.dropout = true})>();
  run_dropout<Config{.block_n = 32, .overlap = true, .rescale = kStaleTile},
              problem_of(Element::bf16, 64, kWindow, {.dropout = true})>();
  run_dropout<Config{.block_m = 32, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 3},
              problem_of(Element::fp16, 128, kWindow, {.dropout = true})>();
}

// NaN in a query is NaN in its row though every probability is dropped.
TEST(EmulatedSm80Features, DropoutHidesNoNan) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kCausal, {.dropout = true});
  const FeatureShape shape{.len_q = 8, .len_k = 60, .right_offset = 60, .dropout = 0.999};
  const auto run = [&](auto launch) {
    FeatureCase problem(kProblem, shape, 1);
    const_cast<std::uint16_t*>(static_cast<const std::uint16_t*>(problem.params().q))[0] = 0x7fff;
    launch(problem);
    for (int c = 0; c < 64; ++c) EXPECT_GT(static_cast<std::uint16_t*>(problem.params().o)[c] & 0x7fff, 0x7c00);
  };
  run([&](FeatureCase& problem) { launch_case<kSmall, kProblem>(problem, shape, 1); });
  run([&](FeatureCase& problem) {
    launch_case<Config{.block_m = 32, .block_n = 16, .kv_groups = 2}, kProblem>(problem, shape, 1);
  });
}

// ---------------------------------------------------------------------------------------------------- all together

template <Config kConfig, Problem kProblem>
void run_all() {
  FeatureShape shape{.batch = 3, .heads = 4, .heads_kv = 2, .len_q = 75, .len_k = 140, .right_offset = 65};
  shape.left_offset = -20;
  run_case<kConfig, kProblem>(shape, 1);  // a launch that has none of them
  shape.to_the_end = true;
  shape.softcap = 5;
  shape.slopes = 2;
  shape.sinks = {0.5F, -kInfinite, 30.0F, -2.0F};
  shape.bias = {.element = BiasElement::bf16, .per_head = false, .row_padding = 1, .hides_rows = true};
  shape.used_k = {140, 60, 0};
  shape.page_size = 16;
  run_case<kConfig, kProblem>(shape, 2);
  shape.page_size = 0;
  shape.bias = {.element = BiasElement::boolean, .per_batch = false, .hides_rows = true};
  shape.cu_q = {0, 75, 80, 110};
  shape.cu_k = {0, 140, 190, 290};
  shape.used_k = {};
  run_case<kConfig, kProblem>(shape, 3);
  shape.dropout = 0.2;
  shape.relative = emulator::kT5Buckets;
  shape.blocks = emulator::ListsOfBlocks{.rows = 64, .keys = 64, .per_batch = false};
  shape.prefixes = {30, 100, 5};
  run_case<kConfig, kProblem>(shape, 5);
  shape.sinks = {};
  shape.score_scale = 30;
  shape.softcap = 0;
  shape.slopes = 0;
  run_case<kConfig, kProblem>(shape, 4);
}

TEST(EmulatedSm80Features, AllOfTheDefault) {
  run_all<Config{}, problem_of(Element::fp16, 64, kCausal, kAllFeatures)>();
}
TEST(EmulatedSm80Features, AllWithSplitKeys) {
  run_all<Config{.block_m = 32, .block_n = 16, .warp_rows = 32, .kv_groups = 2, .stages = 3, .split_wait = true},
          problem_of(Element::bf16, 128, kNone, kAllFeatures)>();
}
TEST(EmulatedSm80Features, AllWithValuesBesideExponentials) {
  run_all<Config{.block_n = 32, .overlap = true, .late_loads = true, .rescale = kStaleTile},
          problem_of(Element::fp16, 64, kWindow, kAllFeatures)>();
}
TEST(EmulatedSm80Features, AllWithBarriersOfStages) {
  run_all<Config{.block_n = 32, .pipeline_sync = PipelineSync::stage, .rescale = kStaleTile},
          problem_of(Element::bf16, 64, kCausal, kAllFeatures)>();
}
TEST(EmulatedSm80Features, AllWithADirectEpilogue) {
  run_all<Config{.block_m = 32,
                 .block_n = 16,
                 .stages = 1,
                 .smem_layout = tile::SharedLayout::padded,
                 .rescale = attention::Rescale::conditional,
                 .epilogue = Epilogue::direct},
          problem_of(Element::fp16, 128, kCausal, kAllFeatures)>();
}
TEST(EmulatedSm80Features, AllOfHeadDim256) {
  run_all<Config{.block_m = 32, .block_n = 16, .q_in_registers = false, .rescale = attention::Rescale::when_grown},
          problem_of(Element::bf16, 256, kWindow, kAllFeatures)>();
}

// ------------------------------------------------------------------------------------- the comparison itself can fail

TEST(EmulatedSm80Features, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kWindow, kAllFeatures);
  const FeatureShape shape{.heads = 2,
                           .len_q = 40,
                           .len_k = 60,
                           .right_offset = 20,
                           .to_the_end = true,
                           .softcap = 3,
                           .bias = BiasTensor{.element = BiasElement::fp16},
                           .slopes = 1,
                           .sinks = {0, 0},
                           .used_k = {55},
                           .page_size = 16,
                           .dropout = 0.2,
                           .relative = emulator::kT5Buckets};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kSmall, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  const float slopes[2] = {0.45F, 0.35F};  // instead of 0.5 and 0.354
  const float sinks[2] = {0.0F, 0.1F};
  const int used[1] = {54};
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.alibi_slopes = slopes; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.sinks = sinks; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.seqused_k = used; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.softcap = 3.2F; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias = nullptr; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias_row = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.pages = 1; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.aligned_to_the_end = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_seed; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.relative_bias; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_first_entry; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_first_key; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.dropout_threshold = 0; }), "");
}

}  // namespace
}  // namespace heed::sm80

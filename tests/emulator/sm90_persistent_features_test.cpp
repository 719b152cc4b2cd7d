// fwd_sm90_persistent with features, on the emulated GPU: each alone, and programs with all of them on launches that
// have some.
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr Features kAll{.softcap = true, .bias = true, .alibi = true, .sinks = true, .relative = true};
constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr float kInfinite = std::numeric_limits<float>::infinity();

// ------------------------------------------------------------------------------------------------- each one alone

constexpr Config kOne{.m_warpgroups = 1, .block_n = 32, .stages = 2};
constexpr Config kTwo{.m_warpgroups = 2,
                      .block_n = 32,
                      .stages = 2,
                      .softmax_overlap = SoftmaxOverlap::qk_pv,
                      .producer = Producer::warpgroup};

TEST(EmulatedPersistentFeatures, Softcap) {
  static constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal, {.softcap = true});
  const auto run = [](auto run_one) {
    run_one(FeatureShape{.heads = 2, .len_q = 150, .len_k = 170, .right_offset = 20, .softcap = 2}, 1);
    // Scores of up to a thousand, at either side of a cap of 30: rows end where tanh is flat.
    run_one(FeatureShape{.len_q = 70, .len_k = 90, .right_offset = 20, .score_scale = 300, .softcap = 30}, 2);
    run_one(FeatureShape{.len_q = 40, .len_k = 50, .right_offset = -10}, 3);
  };
  run([](const FeatureShape& shape, std::uint64_t seed) { run_case<kOne, kProblem>(shape, seed); });
  run([](const FeatureShape& shape, std::uint64_t seed) { run_case<kTwo, kProblem>(shape, seed); });
}

template <Config kConfig, Problem kProblem>
void run_biases() {
  const FeatureShape base{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 80, .len_k = 107, .right_offset = 27};
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
    with({.element = element, .per_head = false, .row_padding = 5, .hides_rows = true});
  }
  with({.per_key = false});
  with({.per_batch = false, .per_head = false, .per_row = false, .per_key = false});
}

// First tiles that are wholly hidden leave no row maximum to be stale about: in every way there is to go through tiles.
constexpr Problem kBiased = featured_problem(Element::fp16, 64, kCausal, {.bias = true});
TEST(EmulatedPersistentFeatures, Bias) {
  run_biases<kOne, kBiased>();
}
TEST(EmulatedPersistentFeatures, BiasWithExactRowMaxima) {
  run_biases<Config{.m_warpgroups = 2, .block_n = 48, .stages = 2, .row_max = RowMax::online}, kBiased>();
}
TEST(EmulatedPersistentFeatures, BiasBesideBothProducts) {
  run_biases<kTwo, kBiased>();
}
TEST(EmulatedPersistentFeatures, BiasBesideValues) {
  run_biases<canonical(Config{.m_warpgroups = 1, .block_n = 32, .stages = 2, .softmax_overlap = SoftmaxOverlap::pv},
                       kBiased),
             kBiased>();
}
TEST(EmulatedPersistentFeatures, BiasOfTheFirstKeys) {
  run_biases<Config{.m_warpgroups = 1,
                    .block_n = 32,
                    .stages = 3,
                    .softmax_overlap = SoftmaxOverlap::qk_pv,
                    .row_max = RowMax::stale_16,
                    .overflow_check = OverflowCheck::deferred,
                    .mask_path = MaskPath::redo},
             kBiased>();
}

TEST(EmulatedPersistentFeatures, Alibi) {
  constexpr Problem kProblem = featured_problem(Element::bf16, 64, kNone, {.alibi = true});
  run_case<kOne, kProblem>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 90, .slopes = 1}, 1);
  // Of this one a log-sum-exp is off by 2.8e-3: a row sum of bf16 is of rounded probabilities.
  run_case<kOne, kProblem>({.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 90, .slopes = 1}, 23);
  run_case<kTwo, kProblem>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 190, .len_k = 170, .slopes = 2}, 2);
  run_case<kOne, kProblem>({.len_q = 30, .len_k = 40}, 3);
  // A slope of 8 over 400 keys: every tile overflows the row maxima of the one before it.
  FeatureShape steep{.len_q = 90, .len_k = 400, .slopes = 1};
  for (const bool two : {false, true}) {
    FeatureCase problem(kProblem, steep, 4);
    const_cast<float*>(problem.params().alibi_slopes)[0] = 8;
    two ? launch_case<kTwo, kProblem>(problem, steep, 4) : launch_case<kOne, kProblem>(problem, steep, 4);
    FeatureCase same(kProblem, steep, 4);
    const_cast<float*>(same.params().alibi_slopes)[0] = 8;
    launch_case<Config{.m_warpgroups = 1, .block_n = 64, .stages = 2, .row_max = RowMax::online}, kProblem>(same, steep,
                                                                                                            4);
    for (int i = 0; i < 90; ++i) EXPECT_NEAR(problem.params().lse[i], same.params().lse[i], 1e-3) << "row " << i;
  }
}

constexpr Problem kSinks = featured_problem(Element::fp16, 64, kCausal, {.sinks = true});

// Of sinks far above the scores nothing is left, of those far below nothing is seen; the first rows see no key. Added
// once, whoever shares the keys of a row.
TEST(EmulatedPersistentFeatures, Sinks) {
  const FeatureShape shape{.batch = 2,
                           .heads = 6,
                           .heads_kv = 2,
                           .len_q = 170,
                           .len_k = 160,
                           .right_offset = -10,
                           .sinks = {0.5F, 4.0F, -3.0F, 300.0F, -300.0F, -kInfinite}};
  run_case<kOne, kSinks>(shape, 1);
  run_case<kTwo, kSinks>(shape, 2);
  run_case<Config{.m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2}, kSinks>(shape, 3);
  run_case<Config{.m_warpgroups = 1, .kv_groups = 4, .block_n = 32, .stages = 1}, kSinks>(shape, 4);
  run_case<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2}, kSinks>(shape, 5);
  run_case<Config{.m_warpgroups = 2,
                  .block_n = 32,
                  .stages = 2,
                  .tile_order = TileOrder::paired,
                  .share_causal_tail = ShareCausalTail::on,
                  .rowsum_reduce = RowsumReduce::beside_pv},
           kSinks>(shape, 6);
  run_case<Config{.m_warpgroups = 1,
                  .block_n = 32,
                  .stages = 2,
                  .scheduler = Scheduler::static_persistent,
                  .epilogue = EpilogueStore::tma,
                  .virtual_ctas = 2},
           kSinks>(shape, 7);
  FeatureShape none = shape;
  none.sinks = {};
  run_case<kOne, kSinks>(none, 8);
}

TEST(EmulatedPersistentFeatures, SinkThatIsNanSpoilsARow) {
  FeatureShape shape{.heads = 1, .len_q = 8, .len_k = 60, .right_offset = 60, .sinks = {0}};
  FeatureCase problem(kSinks, shape, 1);
  const float sink = std::nanf("");
  problem.params().sinks = &sink;
  launch_case<kOne, kSinks>(problem, shape, 1);
  EXPECT_TRUE(std::isnan(problem.params().lse[0]));
  EXPECT_EQ(static_cast<std::uint16_t*>(problem.params().o)[0] & 0x7c00, 0x7c00);
}

// ---------------------------------------------------------------------------------------------------- all together

template <Config kConfig, Problem kProblem>
void run_all() {
  constexpr Config kCanonical = canonical(kConfig, kProblem);
  FeatureShape shape{.batch = 2, .heads = 4, .heads_kv = 2, .len_q = 75, .len_k = 140, .right_offset = 65};
  shape.left_offset = -20;
  run_case<kCanonical, kProblem>(shape, 1);  // a launch that has none of them
  shape.len_q = 210;
  shape.len_k = 230;
  shape.right_offset = 20;
  shape.softcap = 5;
  shape.slopes = 2;
  shape.sinks = {0.5F, -kInfinite, 30.0F, -2.0F};
  shape.bias = {.element = BiasElement::bf16, .per_head = false, .row_padding = 1, .hides_rows = true};
  run_case<kCanonical, kProblem>(shape, 2);
  shape.bias = {.element = BiasElement::boolean, .per_batch = false, .hides_rows = true};
  shape.softcap = 0;
  shape.slopes = 1;
  shape.relative = emulator::kT5Buckets;
  run_case<kCanonical, kProblem>(shape, 3);
  shape.sinks = {};
  shape.score_scale = 30;
  shape.slopes = 0;
  run_case<kCanonical, kProblem>(shape, 4);
}

TEST(EmulatedPersistentFeatures, AllOfOneWarpgroup) {
  run_all<Config{.m_warpgroups = 1, .stages = 2, .tile_setup = TileSetup::early},
          featured_problem(Element::fp16, 64, kCausal, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllOfWarpgroupsInTurn) {
  run_all<Config{.m_warpgroups = 2,
                 .stages = 2,
                 .q_stages = 2,
                 .scheduler = Scheduler::dynamic_persistent,
                 .pingpong = Pingpong::on,
                 .producer = Producer::warpgroup,
                 .tile_order = TileOrder::lpt_l2},
          featured_problem(Element::bf16, 128, kNone, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllBesideBothProducts) {
  run_all<Config{.m_warpgroups = 2,
                 .block_n = 48,
                 .stages = 2,
                 .scheduler = Scheduler::static_persistent,
                 .softmax_overlap = SoftmaxOverlap::qk_pv,
                 .gemm_order = GemmOrder::interleaved,
                 .mask_path = MaskPath::separate_loop,
                 .producer = Producer::warpgroup,
                 .stage_release = StageRelease::predicated},
          featured_problem(Element::fp16, 64, kCausal, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllOfWindows) {
  run_all<Config{.m_warpgroups = 2, .block_n = 32, .stages = 2}, featured_problem(Element::fp16, 64, kWindow, kAll)>();
  run_all<Config{.m_warpgroups = 1,
                 .block_n = 32,
                 .stages = 2,
                 .softmax_overlap = SoftmaxOverlap::qk_pv,
                 .row_max = RowMax::stale_16,
                 .overflow_check = OverflowCheck::deferred},
          featured_problem(Element::bf16, 128, kWindow, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllOfPairs) {
  run_all<Config{.m_warpgroups = 2,
                 .kv_groups = 2,
                 .block_n = 32,
                 .stages = 2,
                 .producer = Producer::warpgroup,
                 .tile_order = TileOrder::paired,
                 .share_causal_tail = ShareCausalTail::on},
          featured_problem(Element::fp16, 64, kCausal, kAll)>();
  run_all<Config{.m_warpgroups = 2,
                 .block_n = 32,
                 .stages = 2,
                 .softmax_overlap = SoftmaxOverlap::pv,
                 .tile_order = TileOrder::paired,
                 .share_causal_tail = ShareCausalTail::on},
          featured_problem(Element::fp16, 64, kCausal, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllOfACluster) {
  run_all<Config{.m_warpgroups = 2,
                 .cluster = 2,
                 .block_n = 32,
                 .stages = 2,
                 .epilogue = EpilogueStore::smem_b128_preaddressed},
          featured_problem(Element::fp16, 64, kNone, kAll)>();
}
TEST(EmulatedPersistentFeatures, AllOfHeadDim96) {
  run_all<Config{.m_warpgroups = 1, .block_n = 32, .stages = 2}, featured_problem(Element::bf16, 96, kCausal, kAll)>();
}

// ------------------------------------------------------------------------------------- the comparison itself can fail

TEST(EmulatedPersistentFeatures, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal, kAll);
  const FeatureShape shape{.heads = 2,
                           .len_q = 40,
                           .len_k = 60,
                           .right_offset = 20,
                           .softcap = 3,
                           .bias = BiasTensor{.element = BiasElement::fp16},
                           .slopes = 1,
                           .sinks = {0, 0}};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kOne, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  const float slopes[2] = {0.45F, 0.35F};  // instead of 0.5 and 0.354
  const float sinks[2] = {0.0F, 0.1F};
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.alibi_slopes = slopes; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.sinks = sinks; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.softcap = 3.2F; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias = nullptr; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.bias_row = 0; }), "");
}

}  // namespace
}  // namespace heed::sm90_persistent

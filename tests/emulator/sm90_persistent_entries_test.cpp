// fwd_sm90_persistent where entries of a batch differ, on the emulated GPU: lengths of their own, keys in pages,
// prefixes. Rows and keys that no one should look at are NaN (features_case.hpp).
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;

constexpr Config kOne{.m_warpgroups = 1, .block_n = 32, .stages = 2};
constexpr Config kOverlapped{.m_warpgroups = 2,
                             .block_n = 32,
                             .stages = 2,
                             .softmax_overlap = SoftmaxOverlap::qk_pv,
                             .producer = Producer::warpgroup};
constexpr Config kBesideValues{.m_warpgroups = 2,
                               .block_n = 48,
                               .stages = 3,
                               .softmax_overlap = SoftmaxOverlap::pv,
                               .gemm_order = GemmOrder::qk_first,
                               .pingpong = Pingpong::on,
                               .epilogue = EpilogueStore::smem_b128};
constexpr Config kStatic{.m_warpgroups = 1,
                         .block_n = 32,
                         .stages = 2,
                         .q_stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .barrier_wait = BarrierWait::try_wait_early,
                         .virtual_ctas = 2};
constexpr Config kDynamic{.m_warpgroups = 2,
                          .block_n = 32,
                          .stages = 2,
                          .q_stages = 2,
                          .scheduler = Scheduler::dynamic_persistent,
                          .producer = Producer::warpgroup,
                          .tile_order = TileOrder::lpt_l2};
constexpr Config kSplit{.m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2};
constexpr Config kPaired{.m_warpgroups = 2, .block_n = 32, .stages = 2, .tile_order = TileOrder::paired};

// --------------------------------------------------------------------------------------------------------- lengths

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
  // A launch without any.
  run_case<kConfig, kProblem>({.heads = 2, .len_q = 70, .len_k = 90, .right_offset = 20, .left_offset = -30}, 8);
}

constexpr Features kLengths{.lengths = true};

TEST(EmulatedPersistentEntries, Lengths) {
  run_lengths<kOne, featured_problem(Element::fp16, 64, kCausal, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsBesideBothProducts) {
  run_lengths<kOverlapped, featured_problem(Element::bf16, 64, kNone, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsBesideValues) {
  run_lengths<kBesideValues, featured_problem(Element::fp16, 64, kCausal, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsOfAStaticScheduler) {
  run_lengths<kStatic, featured_problem(Element::fp16, 64, kCausal, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsOfADynamicScheduler) {
  run_lengths<kDynamic, featured_problem(Element::bf16, 128, kNone, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsOfSplitKeys) {
  run_lengths<kSplit, featured_problem(Element::fp16, 64, kNone, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsOfPairedRows) {
  run_lengths<kPaired, featured_problem(Element::fp16, 64, kCausal, kLengths)>();
}
TEST(EmulatedPersistentEntries, LengthsUnderAWindow) {
  run_lengths<kOverlapped, featured_problem(Element::fp16, 64, kWindow, kLengths)>();
}

// Every remainder of a length by a KV tile, and of queries by a warp's rows: two entries each, so that one has the next
// one's rows behind it.
TEST(EmulatedPersistentEntries, AllRemaindersOfLengths) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kLengths);
  for (int rest = 1; rest <= 32; ++rest) {
    FeatureShape shape{.batch = 2, .len_q = 64 + rest, .len_k = 32 + rest};
    shape.cu_q = {0, 64 + rest, 64 + rest + 3};
    shape.cu_k = {0, 32 + rest, 32 + 2 * rest};
    run_case<kOne, kProblem>(shape, static_cast<std::uint64_t>(rest));
    run_case<kOverlapped, kProblem>(shape, static_cast<std::uint64_t>(rest));
  }
}

TEST(EmulatedPersistentEntries, ConfigsThatLengthsTakeBack) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal, kLengths);
  const auto taken_back = [&](const Config& c, const Problem& problem) {
    return is_legal(c, problem, 227 << 10, 228 << 10) == Illegal::same_program &&
           is_legal(canonical(c, problem), problem, 227 << 10, 228 << 10) == Illegal::no;
  };
  Config c = kOne;
  EXPECT_FALSE(taken_back(c, kProblem));
  c.epilogue = EpilogueStore::tma;
  EXPECT_TRUE(taken_back(c, kProblem));
  EXPECT_EQ(canonical(c, kProblem).epilogue, EpilogueStore::smem_b128);
  c = kOne;
  c.cluster = 2;
  EXPECT_TRUE(taken_back(c, kProblem));
  c = kOne;
  c.tile_setup = TileSetup::early;
  EXPECT_TRUE(taken_back(c, kProblem));
  c = kPaired;
  c.share_causal_tail = ShareCausalTail::on;
  EXPECT_TRUE(taken_back(c, kProblem));
  // More consumer warpgroups than there are named barriers for find no registers.
  c = {.m_warpgroups = 3, .kv_groups = 2, .block_n = 32, .stages = 1};
  EXPECT_FALSE(can_clear_values(c));
  EXPECT_EQ(is_legal(c, kProblem, 227 << 10, 228 << 10), Illegal::registers);
  c.m_warpgroups = 2;
  EXPECT_EQ(is_legal(c, kProblem, 227 << 10, 228 << 10), Illegal::no);
}

// ---------------------------------------------------------------------------------------------------------- pages

template <Config kConfig, Problem kProblem>
void run_pages() {
  for (const int size : {8, 16, 24, 64, 256}) {
    FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 70, .len_k = 150, .right_offset = 80};
    shape.left_offset = 57;
    shape.page_size = size;
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
    if (!kProblem.features.lengths) continue;
    shape.to_the_end = true;
    shape.used_k = {150, 7, 90};
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
    shape.cu_q = {0, 20, 20, 90};
    run_case<kConfig, kProblem>(shape, static_cast<std::uint64_t>(size));
  }
  run_case<kConfig, kProblem>({.len_q = 40, .len_k = 70, .right_offset = 30, .left_offset = -7}, 2);
}

TEST(EmulatedPersistentEntries, Pages) {
  run_pages<kOne, featured_problem(Element::fp16, 64, kCausal, {.pages = true})>();
}
TEST(EmulatedPersistentEntries, PagesOfEntriesWithLengths) {
  run_pages<kOverlapped, featured_problem(Element::fp16, 128, kNone, {.lengths = true, .pages = true})>();
}
TEST(EmulatedPersistentEntries, PagesOfADynamicScheduler) {
  run_pages<Config{.m_warpgroups = 1,
                   .block_n = 128,
                   .stages = 2,
                   .scheduler = Scheduler::dynamic_persistent,
                   .softmax_overlap = SoftmaxOverlap::pv,
                   .gemm_order = GemmOrder::qk_first},
            featured_problem(Element::bf16, 64, kCausal, {.lengths = true, .pages = true})>();
}
TEST(EmulatedPersistentEntries, PagesOfACluster) {
  run_pages<Config{.m_warpgroups = 2, .cluster = 2, .block_n = 64, .stages = 2, .epilogue = EpilogueStore::tma},
            featured_problem(Element::fp16, 64, kNone, {.pages = true})>();
}

// KV tiles begin where a box of a page does, in front of the first key that a row sees.
TEST(EmulatedPersistentEntries, PagesUnderAWindow) {
  run_pages<kOne, featured_problem(Element::fp16, 64, kWindow, {.pages = true})>();
  run_pages<kOverlapped, featured_problem(Element::fp16, 64, kWindow, {.lengths = true, .pages = true})>();
  run_pages<kSplit, featured_problem(Element::bf16, 64, kWindow, {.lengths = true, .pages = true, .prefix = true})>();
}

TEST(EmulatedPersistentEntries, TilesOfPagesAreAPowerOfTwo) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, {.pages = true});
  for (const auto& [given, taken] : {std::pair{96, 64}, {48, 32}, {112, 64}, {128, 128}, {32, 32}}) {
    Config c = kOne;
    c.block_n = given;
    EXPECT_EQ(canonical(c, kProblem).block_n, taken);
  }
  EXPECT_EQ(rows_of_page_box(Config{.block_n = 64}, 16), 16);
  EXPECT_EQ(rows_of_page_box(Config{.block_n = 64}, 24), 8);
  EXPECT_EQ(rows_of_page_box(Config{.block_n = 64}, 256), 64);
}

// ------------------------------------------------------------------------------------------------------- prefixes

template <Config kConfig, Problem kProblem>
void run_prefixes() {
  FeatureShape shape{.batch = 5, .heads = 2, .heads_kv = 1, .len_q = 140, .len_k = 170, .right_offset = 20};
  shape.left_offset = -40;
  shape.prefixes = {0, 1, 64, 169, 1000};
  run_case<kConfig, kProblem>(shape, 1);
  shape.prefixes = {-5, 30, 70, 100, 130};
  run_case<kConfig, kProblem>(shape, 2);
  shape.prefixes = {};
  run_case<kConfig, kProblem>(shape, 3);
}

constexpr Features kPrefix{.prefix = true};

TEST(EmulatedPersistentEntries, Prefixes) {
  run_prefixes<kOne, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
  run_prefixes<kOne, featured_problem(Element::fp16, 64, kNone, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesBesideBothProducts) {
  run_prefixes<kOverlapped, featured_problem(Element::bf16, 64, kCausal, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesBesideValues) {
  run_prefixes<kBesideValues, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesOfPersistentCtas) {
  run_prefixes<kStatic, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
  run_prefixes<kDynamic, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesOfSplitKeys) {
  run_prefixes<kSplit, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
  run_prefixes<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2},
               featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesOfPairedRows) {
  run_prefixes<kPaired, featured_problem(Element::fp16, 64, kCausal, kPrefix)>();
}
TEST(EmulatedPersistentEntries, PrefixesUnderAWindow) {
  run_prefixes<kOverlapped, featured_problem(Element::fp16, 64, kWindow, kPrefix)>();
}

// Biases are read of the prefix's keys too.
TEST(EmulatedPersistentEntries, PrefixesOfBiasedEntries) {
  constexpr Problem kProblem =
      featured_problem(Element::fp16, 64, kCausal, {.bias = true, .lengths = true, .prefix = true});
  FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 2, .len_q = 70, .len_k = 110, .right_offset = 0};
  shape.to_the_end = true;
  shape.used_k = {110, 40, 60};
  shape.prefixes = {50, 70, 20};
  shape.bias = BiasTensor{.element = BiasElement::fp16, .hides_rows = true};
  run_case<kOne, kProblem>(shape, 1);
}

// ---------------------------------------------------------------------------------------------------- all together

template <Config kConfig, Problem kProblem>
void run_all() {
  constexpr Config kCanonical = canonical(kConfig, kProblem);
  FeatureShape shape{.batch = 3, .heads = 4, .heads_kv = 2, .len_q = 75, .len_k = 140, .right_offset = 65};
  run_case<kCanonical, kProblem>(shape, 1);  // a launch that has none of them
  shape.to_the_end = true;
  shape.softcap = 5;
  shape.slopes = 2;
  shape.sinks = {0.5F, -std::numeric_limits<float>::infinity(), 30.0F, -2.0F};
  shape.bias = {.element = BiasElement::bf16, .per_head = false, .row_padding = 1, .hides_rows = true};
  shape.used_k = {140, 60, 0};
  shape.page_size = 16;
  run_case<kCanonical, kProblem>(shape, 2);
  shape.page_size = 0;
  shape.bias = {.element = BiasElement::boolean, .per_batch = false, .hides_rows = true};
  shape.cu_q = {0, 75, 80, 110};
  shape.cu_k = {0, 140, 190, 290};
  shape.used_k = {};
  run_case<kCanonical, kProblem>(shape, 3);
  shape.prefixes = {30, 100, 5};
  run_case<kCanonical, kProblem>(shape, 5);
  if (!kProblem.features.blocks) return;
  shape.blocks = emulator::ListsOfBlocks{.rows = 64, .keys = 64, .per_batch = false};
  run_case<kCanonical, kProblem>(shape, 6);
}

constexpr Features kAll{
    .softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true, .prefix = true};

TEST(EmulatedPersistentEntries, AllOfOneWarpgroup) {
  run_all<Config{.m_warpgroups = 1, .stages = 2}, featured_problem(Element::fp16, 64, kCausal, kAll)>();
}
TEST(EmulatedPersistentEntries, AllOfADynamicScheduler) {
  run_all<kDynamic, featured_problem(Element::bf16, 128, kCausal, kAll)>();
}
TEST(EmulatedPersistentEntries, AllWithBlocks) {
  constexpr Features kEvery{true, true, true, true, true, true, true, true};
  run_all<Config{.m_warpgroups = 1, .stages = 2}, featured_problem(Element::fp16, 64, kCausal, kEvery)>();
  run_all<kStatic, featured_problem(Element::bf16, 128, kNone, kEvery)>();
}
TEST(EmulatedPersistentEntries, AllBesideBothProducts) {
  run_all<kOverlapped, featured_problem(Element::fp16, 64, kNone, kAll)>();
}

// ------------------------------------------------------------------------------------- the comparison itself can fail

TEST(EmulatedPersistentEntries, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem =
      featured_problem(Element::fp16, 64, kCausal, {.lengths = true, .pages = true, .prefix = true});
  const FeatureShape shape{.heads = 2,
                           .len_q = 40,
                           .len_k = 60,
                           .right_offset = 20,
                           .to_the_end = true,
                           .used_k = {55},
                           .page_size = 16,
                           .prefixes = {30}};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kOne, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  const int used[1] = {54};
  const int prefix[1] = {29};
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.seqused_k = used; }), "");
  EXPECT_NE(said([&](FeatureParams& p) { p.prefix_lengths = prefix; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.pages = 1; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.aligned_to_the_end = 0; }), "");
}

}  // namespace
}  // namespace heed::sm90_persistent

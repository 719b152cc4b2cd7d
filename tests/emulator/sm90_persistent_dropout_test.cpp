// fwd_sm90_persistent with dropout, on the emulated GPU: in every way there is to go through tiles and to merge parts.
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;
constexpr Features kDropout = {.dropout = true};

constexpr Config kOne{.m_warpgroups = 1, .block_n = 32, .stages = 2};

template <Config kConfig, Problem kProblem>
void run_dropout() {
  constexpr Config kCanonical = canonical(kConfig, kProblem);
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 110, .right_offset = 40};
  shape.left_offset = -15;  // tiles of some Q tiles begin at odd keys
  shape.dropout = 0.3;
  run_case<kCanonical, kProblem>(shape, 1);
  shape.cut_keys = has_left_bound(kProblem.mask) ? 3 : 0;  // no others have keys cut off
  shape.score_scale = 30;  // of every tile, probabilities that a stale row maximum has no room for
  run_case<kCanonical, kProblem>(shape, 2);
}

TEST(EmulatedPersistentDropoutFeatures, OfTilesInTurn) {
  run_dropout<kOne, featured_problem(Element::fp16, 64, kCausal, kDropout)>();
  run_dropout<Config{.m_warpgroups = 1, .block_n = 48, .stages = 2},
              featured_problem(Element::fp16, 64, kCausal, kDropout)>();
  run_dropout<Config{.m_warpgroups = 2, .block_n = 48, .stages = 2, .row_max = RowMax::online},
              featured_problem(Element::bf16, 128, kWindow, kDropout)>();
}
// 96 keys have calls of their own, three; of 48 (above) every second tile begins in the middle of a call's numbers.
TEST(EmulatedPersistentDropoutFeatures, OfLargeTiles) {
  run_dropout<Config{.m_warpgroups = 1, .block_n = 96, .stages = 2, .row_max = RowMax::stale_16},
              featured_problem(Element::fp16, 64, kNone, kDropout)>();
}
TEST(EmulatedPersistentDropoutFeatures, BesideProducts) {
  run_dropout<Config{.m_warpgroups = 1, .block_n = 32, .stages = 2, .softmax_overlap = SoftmaxOverlap::qk_pv},
              featured_problem(Element::fp16, 64, kWindow, kDropout)>();
  run_dropout<Config{.m_warpgroups = 1,
                     .block_n = 32,
                     .stages = 2,
                     .softmax_overlap = SoftmaxOverlap::qk_pv,
                     .row_max = RowMax::stale_16,
                     .overflow_check = OverflowCheck::deferred,
                     .mask_path = MaskPath::redo},
              featured_problem(Element::fp16, 64, kCausal, kDropout)>();
  run_dropout<Config{.m_warpgroups = 1, .block_n = 32, .stages = 2, .softmax_overlap = SoftmaxOverlap::pv},
              featured_problem(Element::bf16, 64, kCausal, kDropout)>();
}
// Each part's rows are dropped by their place among all keys, and scaled once.
TEST(EmulatedPersistentDropoutFeatures, OfParts) {
  run_dropout<Config{.m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2},
              featured_problem(Element::fp16, 64, kCausal, kDropout)>();
  run_dropout<Config{.m_warpgroups = 1, .kv_groups = 4, .block_n = 32, .stages = 1},
              featured_problem(Element::fp16, 64, kNone, kDropout)>();
  run_dropout<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2},
              featured_problem(Element::fp16, 64, kNone, kDropout)>();
  run_dropout<Config{.m_warpgroups = 2,
                     .block_n = 32,
                     .stages = 2,
                     .tile_order = TileOrder::paired,
                     .share_causal_tail = ShareCausalTail::on},
              featured_problem(Element::fp16, 64, kCausal, kDropout)>();
}

TEST(EmulatedPersistentDropoutFeatures, OfAllAndOfNone) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal, kDropout);
  FeatureShape shape{.len_q = 40, .len_k = 70, .right_offset = 30, .dropout = 1};
  run_case<kOne, kProblem>(shape, 4);
  shape.dropout = 0;
  run_case<kOne, kProblem>(shape, 5);
}

// Rows of entries, keys in pages and in listed blocks count from their entry's first.
TEST(EmulatedPersistentDropoutFeatures, BesideOtherFeatures) {
  static constexpr Problem kProblem = featured_problem(
      Element::fp16, 64, kWindow, {.softcap = true, .sinks = true, .lengths = true, .pages = true, .dropout = true});
  FeatureShape shape{.batch = 3, .heads = 2, .heads_kv = 1, .len_q = 75, .len_k = 140, .right_offset = 65};
  shape.left_offset = -21;
  shape.to_the_end = true;
  shape.dropout = 0.2;
  shape.softcap = 5;
  shape.sinks = {0.5F, -2};
  shape.cu_q = {0, 75, 80, 110};
  shape.used_k = {140, 60, 0};
  shape.page_size = 16;
  run_case<canonical(kOne, kProblem), kProblem>(shape, 6);
  static constexpr Problem kLists =
      featured_problem(Element::bf16, 64, kCausal, {.blocks = true, .prefix = true, .dropout = true, .out_gate = true});
  FeatureShape lists{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 150, .len_k = 200, .right_offset = 50};
  lists.blocks = emulator::ListsOfBlocks{.rows = 64, .keys = 64};
  lists.prefixes = {30, 100};
  lists.dropout = 0.5;
  lists.gate = 1;
  run_case<canonical(kOne, kLists), kLists>(lists, 7);
}

// NaN in a query is NaN in its row though every probability is dropped.
TEST(EmulatedPersistentDropoutFeatures, HidesNoNan) {
  static constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kDropout);
  const FeatureShape shape{.len_q = 8, .len_k = 90, .dropout = 0.999};
  const auto run = [&](auto launch) {
    FeatureCase problem(kProblem, shape, 1);
    const_cast<std::uint16_t*>(static_cast<const std::uint16_t*>(problem.params().q))[0] = 0x7fff;
    launch(problem);
    for (int c = 0; c < 64; ++c) EXPECT_GT(static_cast<std::uint16_t*>(problem.params().o)[c] & 0x7fff, 0x7c00);
  };
  run([&](FeatureCase& problem) { launch_case<kOne, kProblem>(problem, shape, 1); });
  run([&](FeatureCase& problem) {
    launch_case<Config{.m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2}, kProblem>(problem, shape, 1);
  });
  run([&](FeatureCase& problem) {
    launch_case<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2}, kProblem>(problem, shape, 1);
  });
}

TEST(EmulatedPersistentDropoutFeatures, ComparisonFindsWrongNumbers) {
  static constexpr Problem kProblem = featured_problem(Element::fp16, 64, kWindow, kDropout);
  const FeatureShape shape{
      .heads = 2, .len_q = 40, .len_k = 60, .right_offset = 20, .left_offset = -10, .dropout = 0.2};
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kOne, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  EXPECT_EQ(said([](FeatureParams&) {}), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_seed; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_offset; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_first_entry; }), "");
  EXPECT_NE(said([](FeatureParams& p) { ++p.dropout_first_key; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.dropout_threshold = 0; }), "");
  EXPECT_NE(said([](FeatureParams& p) { p.dropout_scale *= 1.1F; }), "");
}

}  // namespace
}  // namespace heed::sm90_persistent

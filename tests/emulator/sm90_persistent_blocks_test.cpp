// fwd_sm90_persistent with lists of blocks of keys, on the emulated GPU.
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr auto kWindow = MaskKind::window;

constexpr Config kOne{.m_warpgroups = 1, .block_n = 32, .stages = 2};
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

// Lists of blocks of both sizes, shared and not, by masks, prefixes, lengths and pages. What no list has is NaN.
template <Config kConfig, Problem kProblem>
void run_blocks() {
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 200, .len_k = 310, .right_offset = 110};
  shape.left_offset = -90;
  std::uint64_t seed = 0;
  for (const int rows : {64, 128}) {
    if (rows < block_rows(kConfig)) continue;
    for (const int keys : {64, 128}) {
      shape.blocks =
          emulator::ListsOfBlocks{.rows = rows, .keys = keys, .per_batch = rows == 64, .per_head = keys == 64};
      run_case<kConfig, kProblem>(shape, ++seed);
    }
  }
  if (kConfig.m_warpgroups > 1) {  // the last Q tile has rows for one consumer warpgroup
    shape.len_q = 150;
    run_case<kConfig, kProblem>(shape, ++seed);
    shape.len_q = 200;
  }
  shape.blocks->density = 0.1;  // lists without a block
  run_case<kConfig, kProblem>(shape, ++seed);
  shape.blocks->density = 0.7;
  if (kProblem.features.prefix) {
    shape.prefixes = {30, 250};
    run_case<kConfig, kProblem>(shape, ++seed);
  }
  shape.to_the_end = true;
  if (kProblem.features.lengths) {
    shape.used_k = {300, 130};
    run_case<kConfig, kProblem>(shape, ++seed);
  }
  if (kProblem.features.pages) {
    shape.page_size = 16;
    run_case<kConfig, kProblem>(shape, ++seed);
    shape.page_size = 0;
  }
  if (kProblem.features.lengths) {
    shape.used_k = {};
    shape.cu_q = {0, 200, 271};
    shape.cu_k = {0, 200, 433};
    run_case<kConfig, kProblem>(shape, ++seed);
    shape.cu_q = shape.cu_k = {};
  }
  shape.blocks = {};
  run_case<kConfig, kProblem>(shape, ++seed);  // a launch without lists
}

TEST(EmulatedPersistentEntries, Blocks) {
  run_blocks<kOne, featured_problem(Element::fp16, 64, kCausal, {.blocks = true})>();
  run_blocks<kOne, featured_problem(Element::fp16, 64, kNone, {.blocks = true})>();
}
// A bias that is read in a full block shows: what it holds there is not what the reference computes with.
TEST(EmulatedPersistentEntries, TheBiasOfFullBlocksIsNotRead) {
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 200, .len_k = 310, .right_offset = 110};
  shape.blocks = emulator::ListsOfBlocks{.density = 0.8, .full = 0.6};
  std::uint64_t seed = 0;
  for (const BiasElement element : {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32}) {
    shape.bias = emulator::BiasTensor{.element = element, .per_head = false, .hides_rows = true};
    run_case<kOne, featured_problem(Element::fp16, 64, kCausal, {.bias = true, .blocks = true})>(shape, ++seed);
  }
  shape.blocks->keys = 128;
  run_case<kSplit, featured_problem(Element::fp16, 64, kCausal, {.bias = true, .blocks = true})>(shape, ++seed);
  constexpr auto kBeside = featured_problem(Element::fp16, 64, kCausal, {.bias = true, .blocks = true});
  run_case<canonical(Config{.m_warpgroups = 1, .block_n = 64, .stages = 3, .softmax_overlap = SoftmaxOverlap::pv},
                     kBeside),
           kBeside>(shape, ++seed);
}
TEST(EmulatedPersistentEntries, BlocksUnderAWindow) {
  run_blocks<kOne, featured_problem(Element::bf16, 64, kWindow, {.blocks = true})>();
  run_blocks<kSplit, featured_problem(Element::fp16, 64, kWindow, {.lengths = true, .pages = true, .blocks = true})>();
}
TEST(EmulatedPersistentEntries, BlocksBesideValues) {
  run_blocks<canonical(Config{.m_warpgroups = 1, .block_n = 64, .stages = 3, .softmax_overlap = SoftmaxOverlap::pv},
                       featured_problem(Element::fp16, 64, kCausal, {.blocks = true})),
             featured_problem(Element::fp16, 64, kCausal, {.lengths = true, .blocks = true, .prefix = true})>();
}
// Exponentials beside the values of the tile before and the scores of the next, which are of other places of the list.
TEST(EmulatedPersistentEntries, BlocksBesideBothProducts) {
  constexpr Config kBoth{.m_warpgroups = 2,
                         .block_n = 32,
                         .stages = 3,
                         .q_stages = 2,
                         .scheduler = Scheduler::static_persistent,
                         .softmax_overlap = SoftmaxOverlap::qk_pv,
                         .gemm_order = GemmOrder::interleaved};
  constexpr Problem kWindows =
      featured_problem(Element::fp16, 64, kWindow, {.lengths = true, .pages = true, .blocks = true});
  static_assert(canonical(kBoth, kWindows).softmax_overlap == SoftmaxOverlap::qk_pv);
  run_blocks<canonical(kBoth, kWindows), kWindows>();
  constexpr Config kDeferred{.m_warpgroups = 1,
                             .kv_groups = 2,
                             .block_n = 32,
                             .stages = 3,
                             .softmax_overlap = SoftmaxOverlap::qk_pv,
                             .gemm_order = GemmOrder::qk_first,
                             .row_max = RowMax::stale_16,
                             .overflow_check = OverflowCheck::deferred,
                             .mask_path = MaskPath::redo,
                             .barrier_wait = BarrierWait::try_wait_early};
  constexpr Problem kCausals =
      featured_problem(Element::bf16, 64, kCausal, {.softcap = true, .blocks = true, .prefix = true});
  run_blocks<canonical(kDeferred, kCausals), kCausals>();
}
// Consumer warpgroups share a list, and tiles of which only one of them sees keys.
TEST(EmulatedPersistentEntries, BlocksOfTwoConsumerWarpgroups) {
  run_blocks<Config{.m_warpgroups = 2, .block_n = 32, .stages = 2, .pingpong = Pingpong::on},
             featured_problem(Element::fp16, 64, kCausal, {.blocks = true})>();
  constexpr Problem kWindows = featured_problem(Element::bf16, 64, kWindow, {.lengths = true, .blocks = true});
  run_blocks<canonical(kDynamic, kWindows), kWindows>();
  constexpr Problem kPrefixes = featured_problem(Element::fp16, 64, kCausal, {.blocks = true, .prefix = true});
  run_blocks<
      canonical(
          Config{.m_warpgroups = 2, .kv_groups = 2, .block_n = 32, .stages = 2, .softmax_overlap = SoftmaxOverlap::pv},
          kPrefixes),
      kPrefixes>();
}
TEST(EmulatedPersistentEntries, BlocksOfVirtualCtas) {
  run_blocks<kStatic, featured_problem(Element::fp16, 64, kCausal, {.lengths = true, .pages = true, .blocks = true})>();
}
TEST(EmulatedPersistentEntries, BlocksOfADynamicScheduler) {
  constexpr Problem kProblem = featured_problem(Element::bf16, 128, kNone, {.pages = true, .blocks = true});
  run_blocks<canonical(kDynamic, kProblem), kProblem>();
}
TEST(EmulatedPersistentEntries, BlocksOfACluster) {
  run_blocks<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::tma},
             featured_problem(Element::fp16, 64, kCausal, {.blocks = true})>();
}

}  // namespace
}  // namespace heed::sm90_persistent

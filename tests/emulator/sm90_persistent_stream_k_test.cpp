// Scheduler::stream_k of fwd_sm90_persistent on the emulated GPU: lists of blocks that several CTAs share.
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;

constexpr Config stream(int m_warpgroups) {
  return {.m_warpgroups = m_warpgroups, .block_n = 64, .stages = 2, .q_stages = 2, .scheduler = Scheduler::stream_k};
}

// A few rows that see all keys beside others that see a few, as global tokens do; and lists that are about as long.
template <Config kConfig, Problem kProblem>
void run_lists() {
  constexpr Config kFits = canonical(kConfig, kProblem);
  static_assert(kFits.scheduler == Scheduler::stream_k);
  FeatureShape shape{.heads = 2, .heads_kv = 1, .len_q = 300, .len_k = 1300, .right_offset = 1000};
  std::uint64_t seed = 40;
  for (const int keys : {64, 128}) {
    shape.blocks = emulator::ListsOfBlocks{.rows = block_rows(kConfig),
                                           .keys = keys,
                                           .density = 0.1,
                                           .per_batch = keys == 64,
                                           .per_head = keys == 64,
                                           .whole = 1};
    run_case<kFits, kProblem>(shape, ++seed);
  }
  shape.batch = 2;
  shape.blocks->density = 0;  // rows that see nothing, but for a list that all CTAs share
  run_case<kFits, kProblem>(shape, ++seed);
  shape.blocks->whole = 0;
  shape.blocks->density = 0.4;
  run_case<kFits, kProblem>(shape, ++seed);
  shape.len_q = 40;  // fewer Q tiles than CTAs
  run_case<kFits, kProblem>(shape, ++seed);
  shape.blocks = {};
  shape.len_k = 200;
  run_case<kFits, kProblem>(shape, ++seed);  // a launch without lists
}

TEST(EmulatedPersistentBlocks, StreamK) {
  run_lists<stream(1), featured_problem(Element::fp16, 64, kNone, {.blocks = true})>();
}
TEST(EmulatedPersistentBlocks, StreamKOfTwoConsumerWarpgroups) {
  constexpr Problem kProblem = featured_problem(Element::bf16, 128, kCausal, {.sinks = true, .blocks = true});
  run_lists<stream(2), kProblem>();
}
TEST(EmulatedPersistentBlocks, StreamKBesideBothProducts) {
  run_lists<[] {
    Config c = stream(2);
    c.stages = 3;
    c.producer = Producer::warpgroup;
    c.softmax_overlap = SoftmaxOverlap::qk_pv;
    return c;
  }(),
            featured_problem(Element::fp16, 128, kNone, {.blocks = true})>();
}
TEST(EmulatedPersistentBlocks, StreamKOfVirtualCtas) {
  constexpr Config kVirtual{.m_warpgroups = 2,
                            .block_n = 64,
                            .stages = 2,
                            .scheduler = Scheduler::stream_k,
                            .row_max = RowMax::stale_16,
                            .producer = Producer::warpgroup,
                            .epilogue = EpilogueStore::smem_b128,
                            .virtual_ctas = 2};
  run_lists<kVirtual, featured_problem(Element::fp16, 64, kNone, {.blocks = true, .out_norm = true})>();
}

}  // namespace
}  // namespace heed::sm90_persistent

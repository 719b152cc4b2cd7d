// fwd_sm90_persistent with norms of output rows and gates, on the emulated GPU: in every way there is to write a row.
#include "output_shapes.hpp"
#include "sm90_persistent_features_case.hpp"

namespace heed::sm90_persistent {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;
constexpr Features kBoth = {.out_norm = true, .out_gate = true};

template <Config kConfig, Problem kProblem>
void run_outputs(const FeatureShape& shape) {
  emulator::for_each_output(
      shape, kProblem.features.out_norm, kProblem.features.out_gate,
      [](const FeatureShape& one, std::uint64_t seed) { run_case<kConfig, kProblem>(one, seed); });
}

// The first ten rows see nothing.
const FeatureShape kHidden{.heads = 2, .heads_kv = 1, .len_q = 90, .len_k = 70, .right_offset = -10};

constexpr Config kOne{.m_warpgroups = 1, .block_n = 32, .stages = 2};

TEST(EmulatedPersistentOutput, InRegisters) {
  run_outputs<kOne, featured_problem(Element::fp16, 64, kCausal, kBoth)>(kHidden);
  run_outputs<kOne, featured_problem(Element::bf16, 128, kNone, {.out_norm = true})>(kHidden);
  run_outputs<Config{.m_warpgroups = 1, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::st_b32},
              featured_problem(Element::fp16, 96, kNone, {.out_gate = true})>(kHidden);
}

TEST(EmulatedPersistentOutput, ByWayOfSharedMemory) {
  run_outputs<Config{.m_warpgroups = 1, .block_n = 32, .stages = 2, .epilogue = EpilogueStore::tma},
              featured_problem(Element::fp16, 64, kCausal, kBoth)>(kHidden);
  run_outputs<Config{.m_warpgroups = 2,
                     .block_n = 32,
                     .stages = 2,
                     .softmax_overlap = SoftmaxOverlap::qk_pv,
                     .producer = Producer::warpgroup,
                     .epilogue = EpilogueStore::smem_b128},
              featured_problem(Element::fp16, 128, kNone, kBoth)>(kHidden);
}

TEST(EmulatedPersistentOutput, OfTwoGroupsAndBlocks) {
  run_outputs<Config{.m_warpgroups = 1, .kv_groups = 2, .block_n = 32, .stages = 2},
              featured_problem(Element::fp16, 64, kCausal, kBoth)>(kHidden);
  run_outputs<Config{.m_warpgroups = 1, .cluster = 2, .block_n = 32, .stages = 2},
              featured_problem(Element::bf16, 64, kNone, kBoth)>(kHidden);
}

// Four groups keep half of a row's columns each: they have gates, and no norm.
constexpr Config kFour{.m_warpgroups = 1, .kv_groups = 4, .block_n = 32, .stages = 1};
TEST(EmulatedPersistentOutput, OfFourGroups) {
  constexpr Problem kGated = featured_problem(Element::fp16, 64, kNone, {.out_gate = true});
  run_outputs<canonical(kFour, kGated), kGated>(kHidden);
  EXPECT_EQ(canonical(kFour, kGated).kv_groups, 4);
  EXPECT_EQ(canonical(kFour, featured_problem(Element::fp16, 64, kNone, kBoth)).kv_groups, 2);
  EXPECT_NE(is_legal(kFour, featured_problem(Element::fp16, 64, kNone, {.out_norm = true}), 227 << 10, 228 << 10),
            Illegal::no);
}

TEST(EmulatedPersistentOutput, OfEntries) {
  constexpr Problem kProblem = featured_problem(Element::fp16, 64, kCausal,
                                                {.sinks = true, .lengths = true, .out_norm = true, .out_gate = true});
  FeatureShape shape{.batch = 4, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 90, .right_offset = 20};
  shape.to_the_end = true;
  shape.cu_q = {0, 70, 70, 71, 120};
  shape.cu_k = {0, 90, 100, 110, 130};
  shape.sinks = {0.5F, 2};
  run_outputs<kOne, kProblem>(shape);
  constexpr Config kStatic{.m_warpgroups = 1,
                           .block_n = 32,
                           .stages = 2,
                           .q_stages = 2,
                           .scheduler = Scheduler::static_persistent,
                           .virtual_ctas = 2};
  run_outputs<kStatic, kProblem>(shape);
}

TEST(EmulatedPersistentOutput, ComparisonFindsWrongNumbers) {
  static constexpr Problem kProblem = featured_problem(Element::fp16, 64, kNone, kBoth);
  const FeatureShape shape = emulator::shape_of_output();
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kOne, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  emulator::expect_wrong_output_found(said, [](const std::string& found, bool is_wrong, const char* name) {
    EXPECT_EQ(!found.empty(), is_wrong) << name;
  });
}

}  // namespace
}  // namespace heed::sm90_persistent

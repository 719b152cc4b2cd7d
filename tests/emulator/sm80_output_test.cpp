// fwd_sm80 with norms of output rows and gates, on the emulated GPU: in every way there is to write a row.
#include "output_shapes.hpp"
#include "sm80_features_case.hpp"

namespace heed::sm80 {
namespace {

constexpr auto kNone = MaskKind::none;
constexpr auto kCausal = MaskKind::causal;

constexpr Problem problem_of(Element element, int head_dim, MaskKind mask, const Features& features) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

template <Config kConfig, Problem kProblem>
void run_outputs(const FeatureShape& shape) {
  emulator::for_each_output(
      shape, kProblem.features.out_norm, kProblem.features.out_gate,
      [](const FeatureShape& one, std::uint64_t seed) { run_case<kConfig, kProblem>(one, seed); });
}

// The first ten rows see nothing.
const FeatureShape kHidden{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 50, .len_k = 40, .right_offset = -10};

constexpr Features kBoth = {.out_norm = true, .out_gate = true};
constexpr Config kSmall{.block_n = 32};

TEST(EmulatedSm80Output, ByWayOfSharedMemory) {
  run_outputs<kSmall, problem_of(Element::fp16, 64, kCausal, kBoth)>(kHidden);
  run_outputs<kSmall, problem_of(Element::fp16, 64, kNone, {.out_norm = true})>(kHidden);
  run_outputs<kSmall, problem_of(Element::bf16, 64, kNone, {.out_gate = true})>(kHidden);
}

TEST(EmulatedSm80Output, Direct) {
  run_outputs<Config{.block_m = 32, .block_n = 32, .warp_rows = 32, .epilogue = Epilogue::direct},
              problem_of(Element::bf16, 128, kCausal, kBoth)>(kHidden);
}

TEST(EmulatedSm80Output, OfSeveralGroups) {
  constexpr Config kGroups{.block_m = 32, .block_n = 16, .kv_groups = 2};
  run_outputs<kGroups, problem_of(Element::fp16, 64, kCausal, kBoth)>(kHidden);
  run_outputs<kGroups, problem_of(Element::fp16, 128, kNone, kBoth)>(kHidden);
  run_outputs<kGroups, problem_of(Element::bf16, 256, kNone, kBoth)>(kHidden);
}

TEST(EmulatedSm80Output, InFp32) {
  run_outputs<Config{.block_n = 32, .q_in_registers = false}, problem_of(Element::fp32, 64, kCausal, kBoth)>(kHidden);
  run_outputs<Config{.block_m = 32, .block_n = 32, .warp_rows = 32, .epilogue = Epilogue::direct},
              problem_of(Element::fp32, 64, kNone, kBoth)>(kHidden);
  run_outputs<Config{.block_m = 32, .block_n = 16, .kv_groups = 2}, problem_of(Element::fp32, 64, kNone, kBoth)>(
      kHidden);
}

TEST(EmulatedSm80Output, OfEntries) {
  constexpr Problem kProblem =
      problem_of(Element::fp16, 64, kCausal,
                 {.sinks = true, .lengths = true, .dropout = true, .out_norm = true, .out_gate = true});
  FeatureShape shape{.batch = 4, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 90, .right_offset = 20};
  shape.to_the_end = true;
  shape.cu_q = {0, 70, 70, 71, 120};
  shape.cu_k = {0, 90, 100, 110, 130};
  shape.sinks = {0.5F, 2};
  run_outputs<kSmall, kProblem>(shape);
  shape.cu_q = shape.cu_k = {};
  shape.used_k = {90, 0, 3, 40};
  shape.dropout = 0.3;
  run_outputs<kSmall, kProblem>(shape);
}

TEST(EmulatedSm80Output, ComparisonFindsWrongNumbers) {
  constexpr Problem kProblem = problem_of(Element::fp16, 64, kNone, kBoth);
  const FeatureShape shape = emulator::shape_of_output();
  const auto said = [&](const auto& change) {
    FeatureCase problem(kProblem, shape, 1);
    change(problem.params());
    launch_case<kSmall, kProblem>(problem, shape, 1);
    return problem.difference();
  };
  emulator::expect_wrong_output_found(said, [](const std::string& found, bool is_wrong, const char* name) {
    EXPECT_EQ(!found.empty(), is_wrong) << name;
  });
}

}  // namespace
}  // namespace heed::sm80

// fwd_sm80 on the emulated GPU with Q, K and V of a trained model (tests/cases/minilm): within the gate's limits, and
// as exact as the unfused computation on the same inputs.
#include <algorithm>

#include "kernels/sm80/forward/forward.cuh"
#include "simt.hpp"
#include "tensors/tensor_file.hpp"
#include "testing.hpp"
#include "verify/against_unfused.hpp"
#include "verify/scenario.hpp"
#include "worker/protocol.hpp"

namespace heed::sm80 {
namespace {

// Two of the heads of a layer, whole.
verify::InputValues heads_of(const QkvTensors& tensors, const std::vector<std::int64_t>& heads) {
  const verify::InputValues all = verify::values_of(tensors);
  const std::int64_t size = tensors.workload.len_q * tensors.workload.dim;
  verify::InputValues some;
  for (const auto tensor : {&verify::InputValues::q, &verify::InputValues::k, &verify::InputValues::v})
    for (const std::int64_t head : heads)
      (some.*tensor)
          .insert((some.*tensor).end(), (all.*tensor).begin() + head * size, (all.*tensor).begin() + (head + 1) * size);
  return some;
}

template <Config kConfig, Problem kProblem>
void run_layer(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& heads) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const QkvTensors tensors = read_qkv_safetensors(
      std::string(testing_support::kSourceFolder) + "/tests/cases/minilm/" + name + ".safetensors", Layout::bhld);
  Workload w = tensors.workload;
  w.dtype = dtype;
  w.heads = w.heads_kv = static_cast<std::int64_t>(heads.size());
  verify::Scenario scenario(w, heads_of(tensors, heads));
  std::vector<std::byte> image(scenario.scene.image().size() + 256);
  std::byte* const base = image.data() + (256 - reinterpret_cast<std::uintptr_t>(image.data()) % 256);
  std::copy(scenario.scene.image().begin(), scenario.scene.image().end(), base);
  const ForwardParams params = worker::resolve(scenario.scene.launch(), reinterpret_cast<std::uintptr_t>(base));
  const attention::Grid3 grid = launch_grid(kConfig, params.len_q, params.heads, params.batch);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  emulator::run(launch, [&](char* shared) {
    Forward<emulator::kConstant<kConfig>, emulator::kConstant<kProblem>>(params, shared).run();
  });
  std::copy(base, base + scenario.after.size(), scenario.after.begin());
  scenario.hard_limit = false;
  const verify::Comparison comparison = scenario.compare();
  EXPECT_EQ(comparison.finding, Finding::none) << name << ": " << comparison.text;
  verify::CheckResult check;
  check.name = verify::kGivenTensors;
  check.has_errors = true;
  check.error = comparison.error;
  check.unfused = scenario.reference.unfused;
  const auto times = verify::against_unfused(w, check);
  ASSERT_TRUE(times);
  EXPECT_TRUE(times->is_within()) << name << ": max|error| " << times->max_abs << ", relative RMS " << times->rel_rms
                                  << " times those of the unfused computation";
}

constexpr Problem kHalf32{.element = Element::fp16, .head_dim = 32, .mask = MaskKind::none};
constexpr Problem kBrain32{.element = Element::bf16, .head_dim = 32, .mask = MaskKind::none};

// Heads 2 and 5 of layer 0 have the scores that are furthest apart.
TEST(EmulatedMinilm, AsExactAsTheUnfusedComputation) {
  run_layer<Config{}, kHalf32>("layer0", Dtype::fp16, {2, 5});
  run_layer<Config{}, kHalf32>("layer3", Dtype::fp16, {0, 11});
  run_layer<Config{}, kBrain32>("layer0", Dtype::bf16, {2, 5});
}

// A reference that is not the maximum, and keys split over groups whose sums meet in fp32.
TEST(EmulatedMinilm, AStaleMaximumAndSplitKeysCostNothing) {
  constexpr Config kSplit{.block_n = 32, .kv_groups = 2, .rescale = attention::Rescale::stale_tile};
  run_layer<kSplit, kHalf32>("layer0", Dtype::fp16, {2, 5});
  run_layer<kSplit, kBrain32>("layer1", Dtype::bf16, {4, 7});
}

}  // namespace
}  // namespace heed::sm80

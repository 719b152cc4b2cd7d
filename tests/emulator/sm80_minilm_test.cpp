// fwd_sm80 on the emulated GPU with Q, K and V of a trained model (tests/cases/minilm): within the gate's limits, and
// as exact as the unfused computation on the same inputs.
#include <algorithm>
#include <cmath>

#include "kernels/sm80/forward/forward.cuh"
#include "simt.hpp"
#include "tensors/tensor_file.hpp"
#include "testing.hpp"
#include "verify/against_unfused.hpp"
#include "verify/scenario.hpp"
#include "worker/protocol.hpp"

namespace heed::sm80 {
namespace {

// fwd_sm80 has no head dim of 32: rows with as many zeros behind them, as the library copies them.
constexpr std::int64_t kDim = 64;

verify::Values heads_of(const verify::Values& all, const Workload& w, const std::vector<std::int64_t>& heads) {
  verify::Values some(heads.size() * static_cast<std::size_t>(w.len_q * kDim));
  std::fill(some.begin(), some.end(), 0.0F);
  auto to = some.begin();
  for (const std::int64_t head : heads)
    for (std::int64_t row = 0; row < w.len_q; ++row, to += kDim)
      std::copy_n(all.begin() + (head * w.len_q + row) * w.dim, w.dim, to);
  return some;
}

enum class Held { to_the_gate, to_the_bar };

template <Config kConfig, Problem kProblem, Held kHeld = Held::to_the_bar>
void run_layer(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& heads) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const QkvTensors tensors = read_qkv_safetensors(
      std::string(testing_support::kSourceFolder) + "/tests/cases/minilm/" + name + ".safetensors", Layout::bhld);
  const verify::InputValues all = verify::values_of(tensors);
  verify::InputValues values = all;
  for (const auto tensor : {&verify::InputValues::q, &verify::InputValues::k, &verify::InputValues::v})
    values.*tensor = heads_of(all.*tensor, tensors.workload, heads);
  Workload w = tensors.workload;
  w.dtype = dtype;
  w.heads = w.heads_kv = static_cast<std::int64_t>(heads.size());
  w.scale = 1 / std::sqrt(static_cast<double>(w.dim));
  w.dim = w.dim_v = kDim;
  verify::Scenario scenario(w, values);
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
  EXPECT_TRUE(times->is_within() || kHeld == Held::to_the_gate)
      << name << ": max|error| " << times->max_abs << ", relative RMS " << times->rel_rms
      << " times those of the unfused computation";
}

constexpr Problem kHalf{.element = Element::fp16, .head_dim = kDim, .mask = MaskKind::none};
constexpr Problem kBrain{.element = Element::bf16, .head_dim = kDim, .mask = MaskKind::none};

// Heads 2 and 5 of layer 0 have the scores that are furthest apart.
TEST(EmulatedMinilm, AsExactAsTheUnfusedComputation) {
  run_layer<Config{}, kHalf>("layer0", Dtype::fp16, {2, 5});
  run_layer<Config{}, kHalf>("layer3", Dtype::fp16, {0, 11});
  run_layer<Config{}, kBrain>("layer0", Dtype::bf16, {2, 5});
}

// Keys split over groups whose sums meet in fp32.
TEST(EmulatedMinilm, SplitKeysCostNothing) {
  constexpr Config kSplit{.block_n = 32, .kv_groups = 2};
  run_layer<kSplit, kHalf>("layer0", Dtype::fp16, {2, 5});
  run_layer<kSplit, kBrain>("layer1", Dtype::bf16, {4, 7});
}

// Where the reference is the maximum, the largest probability of a row is 1 and rounds to itself; where it is stale,
// that one is rounded like the others, and the row sum is not: 1.6 times the largest error of the unfused computation
// here.
TEST(EmulatedMinilm, AStaleMaximumKeepsToTheGate) {
  constexpr Config kStale{.block_n = 32, .rescale = attention::Rescale::stale_tile};
  run_layer<kStale, kHalf, Held::to_the_gate>("layer0", Dtype::fp16, {2, 5});
  run_layer<kStale, kBrain, Held::to_the_gate>("layer1", Dtype::bf16, {4, 7});
}

}  // namespace
}  // namespace heed::sm80

// fwd_sm80, which passes its gate on real GPUs, on the emulated one: what it says of other kernels can be believed.
#include "attention_case.hpp"
#include "kernels/sm80/forward.cuh"

namespace heed::sm80 {
namespace {

using emulator::AttentionCase;
using emulator::Shape;

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, std::uint64_t seed) {
  AttentionCase problem(kProblem, shape, seed);
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>((shape.len_q + kConfig.block_m - 1) / kConfig.block_m),
                 static_cast<unsigned>(shape.heads), static_cast<unsigned>(shape.batch)};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  emulator::run(launch, [&](char* shared) { Forward<kConfig, kProblem>(problem.params(), shared).run(); });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k));
}

TEST(EmulatedSm80, Default) {
  constexpr Config kConfig{};
  constexpr Problem kFull{.element = Element::fp16, .head_dim = 64, .causal = false};
  constexpr Problem kCausal{.element = Element::bf16, .head_dim = 64, .causal = true};
  run_case<kConfig, kFull>({.batch = 1, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 200}, 1);
  run_case<kConfig, kCausal>({.len_q = 130, .len_k = 90, .causal_offset = -40, .heads_inner = true}, 2);
}

TEST(EmulatedSm80, SplitKeysAndStages) {
  constexpr Config kConfig{.block_m = 32,
                           .block_n = 32,
                           .warp_rows = 32,
                           .key_splits = 4,
                           .stages = 3,
                           .q_in_registers = false,
                           .split_wait = true};
  constexpr Problem kCausal{.element = Element::fp16, .head_dim = 128, .causal = true};
  run_case<kConfig, kCausal>({.len_q = 50, .len_k = 400, .causal_offset = 350}, 3);
}

}  // namespace
}  // namespace heed::sm80

/// One launch of fwd_sm80 without features on the emulated GPU, checked against a computation in double precision.
#pragma once

#include "attention_case.hpp"
#include "kernels/sm80/forward/forward.cuh"

namespace heed::sm80 {

using emulator::AttentionCase;
using emulator::Shape;

template <Config kConfig, Problem kProblem>
void launch_dense_case(AttentionCase& problem, const Shape& shape, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  emulator::Launch launch;
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  emulator::run(launch, [&](char* shared) {
    Forward<emulator::kConstant<kConfig>, emulator::kConstant<kProblem>>(problem.params(), shared).run();
  });
}

template <Config kConfig, Problem kProblem>
void run_dense_case(const Shape& shape, std::uint64_t seed) {
  AttentionCase problem(kProblem, shape, seed);
  launch_dense_case<kConfig, kProblem>(problem, shape, seed);
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k));
}

}  // namespace heed::sm80

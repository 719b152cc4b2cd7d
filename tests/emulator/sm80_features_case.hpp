/// One launch of fwd_sm80 with features on the emulated GPU, checked against a computation in double precision.
#pragma once

#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm80/forward/forward.cuh"
#include "testing.hpp"

namespace heed::sm80 {

using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;

inline constexpr auto kStaleTile = attention::Rescale::stale_tile;

template <Config kConfig, Problem kProblem>
void launch_case(FeatureCase& problem, const FeatureShape& shape, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  emulator::Launch launch;
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  launch.one_place = kProblem.features.lengths;  // else warps may have loops of their own (Forward::kOneBarrier)
  launch.readable = problem.readable();
  emulator::run(
      launch, [&](char* shared) { Forward<kConstant<kConfig>, kConstant<kProblem>>(problem.params(), shared).run(); });
}

template <Config kConfig, Problem kProblem>
void run_case(const FeatureShape& shape, std::uint64_t seed) {
  FeatureCase problem(kProblem, shape, seed);
  launch_case<kConfig, kProblem>(problem, shape, seed);
  EXPECT_EQ(problem.difference(), "") << "seed " << seed << ", lengths " << shape.len_q << " x " << shape.len_k;
}

}  // namespace heed::sm80

/// One launch of fwd_sm90_persistent on the emulated GPU, checked against the oracle.
#pragma once

#include <functional>

#include "attention_case.hpp"
#include "kernels/sm90/persistent/forward.cuh"
#include "kernels/sm90/persistent/legality.hpp"

namespace heed::sm90_persistent {

using emulator::AttentionCase;
using emulator::kConstant;
using emulator::Shape;

inline constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
inline constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
inline constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};

struct Options {
  bool with_lse = true;
  int blocks = 2;                                        ///< persistent CTAs that run at once
  std::function<void(ForwardParams&)> change = nullptr;  ///< of the inputs
  std::function<void(ForwardParams&)> told = nullptr;    ///< to the program, and not to the check
};

// Row `row` of K or V, of the only head.
inline unsigned short* row_of(const void* tensor, const TensorStrides& strides, int row) {
  return const_cast<unsigned short*>(static_cast<const unsigned short*>(tensor)) + row * strides.row;
}

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, std::uint64_t seed, const Options& options = {}) {
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  static_assert(canonical(kProblem.specialization, specializations_of(kConfig, kProblem)) == kProblem.specialization);
  AttentionCase problem(kProblem, shape, seed);
  unsigned counter = 0;
  problem.params().semaphores = &counter;
  if (!options.with_lse) problem.params().lse = nullptr;
  if (options.change) options.change(problem.params());
  const TensorMaps maps = problem.maps(kWarpgroupRows, kConfig.block_n, kConfig.block_n,
                                       kConfig.epilogue == EpilogueStore::tma ? box_rows(kConfig) : 0);
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch, options.blocks);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.cluster = static_cast<unsigned>(kConfig.cluster);
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  ForwardParams params = problem.params();
  if (options.told) options.told(params);
  emulator::run(launch, [&](char* shared) { forward<kConstant<kConfig>, kConstant<kProblem>>(params, maps, shared); });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k));
  EXPECT_EQ(counter, 0U) << "the next launch counts from zero";
}

}  // namespace heed::sm90_persistent

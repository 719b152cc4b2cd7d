/// One launch of fwd_sm90_split on the emulated GPU, checked against the oracle.
#pragma once

#include "attention_case.hpp"
#include "kernels/sm90/split/forward.cuh"
#include "kernels/sm90/split/legality.hpp"

namespace heed::sm90_split {

using emulator::AttentionCase;
using emulator::kConstant;
using emulator::Shape;

inline constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
inline constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
inline constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, std::uint64_t seed, bool with_lse = true,
              const std::function<void(AttentionCase&)>& change = {},
              const std::function<void(ForwardParams&)>& told = {}) {  // to the program, and not to the check
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  static_assert(canonical(kProblem.specialization, specializations_of(kConfig, kProblem)) == kProblem.specialization);
  AttentionCase problem(kProblem, shape, seed);
  if (!with_lse) problem.params().lse = nullptr;
  if (change) change(problem);
  const TensorMaps maps =
      problem.maps(query_box_rows(kConfig), kConfig.block_n, iteration_keys(kConfig) / kConfig.v_barriers,
                   kConfig.epilogue == EpilogueStore::tma ? kStoredRows : 0, kStoredColumns);
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.cluster = static_cast<unsigned>(kConfig.cluster);
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  ForwardParams params = problem.params();
  if (told) told(params);
  emulator::run(launch, [&](char* shared) {
    Forward<kConstant<kConfig>, kConstant<kProblem>>(known<kConstant<kProblem>>(params), maps, shared).run();
  });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k));
}

}  // namespace heed::sm90_split

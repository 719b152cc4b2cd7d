/// One launch of fwd_sm90_split with features on the emulated GPU, checked against a computation in double precision.
#pragma once

#include <limits>

#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm90/split/forward.cuh"
#include "kernels/sm90/split/legality.hpp"
#include "tensor_map.hpp"
#include "testing.hpp"

namespace heed::sm90_split {

using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;
using emulator::map_of;

inline constexpr float kInfinite = std::numeric_limits<float>::infinity();

template <Config kConfig, Problem kProblem>
TensorMaps maps_of(const FeatureParams& p) {
  const int d = kProblem.head_dim;
  const bool entries_differ = p.cu_seqlens_q != nullptr || p.seqused_k != nullptr;
  int rows = entries_differ ? p.len_k : std::max(1, visible_keys(kProblem.mask, p.len_q - 1, p.right_offset, p.len_k));
  int batch = p.batch;
  if (p.cu_seqlens_k != nullptr) {
    rows = p.total_k;
    batch = 1;
  }
  const int q_rows = p.cu_seqlens_q != nullptr ? p.total_q : p.len_q;
  const int q_batch = p.cu_seqlens_q != nullptr ? 1 : p.batch;
  TensorMaps maps{};
  maps.q = map_of(p.q, p.q_strides, d, q_rows, p.heads, q_batch, query_box_rows(kConfig));
  maps.k = map_of(p.k, p.k_strides, d, rows, p.heads_kv, batch, kConfig.block_n);
  maps.v = map_of(p.v, p.v_strides, d, rows, p.heads_kv, batch, iteration_keys(kConfig) / kConfig.v_barriers);
  return maps;
}

template <Config kConfig, Problem kProblem>
void launch_case(FeatureCase& problem, const FeatureShape& shape, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const FeatureParams& p = problem.params();
  const TensorMaps maps = maps_of<kConfig, kProblem>(p);
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.cluster = static_cast<unsigned>(kConfig.cluster);
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  emulator::run(launch, [&](char* shared) {
    Forward<kConstant<kConfig>, kConstant<kProblem>>(known<kConstant<kProblem>>(p), maps, shared).run();
  });
}

template <Config kConfig, Problem kProblem>
void run_case(const FeatureShape& shape, std::uint64_t seed) {
  FeatureCase problem(kProblem, shape, seed);
  launch_case<kConfig, kProblem>(problem, shape, seed);
  EXPECT_EQ(problem.difference(), "") << "seed " << seed << ", lengths " << shape.len_q << " x " << shape.len_k;
}

constexpr Problem featured_problem(Element element, int head_dim, MaskKind mask, const Features& features) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

}  // namespace heed::sm90_split

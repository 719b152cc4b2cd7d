/// One launch of fwd_sm90_persistent with features on the emulated GPU, checked against a computation in double
/// precision.
#pragma once

#include <gmock/gmock.h>

#include <limits>
#include <vector>

#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm90/persistent/forward.cuh"
#include "kernels/sm90/persistent/legality.hpp"
#include "kernels/sm90/persistent/stream_k.hpp"
#include "tensor_map.hpp"
#include "testing.hpp"

namespace heed::sm90_persistent {

using emulator::BiasTensor;
using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;
using emulator::map_of;

template <Config kConfig, Problem kProblem>
TensorMaps maps_of(const FeatureParams& p) {
  const int d = kProblem.head_dim;
  const bool entries_differ = p.cu_seqlens_q != nullptr || p.seqused_k != nullptr || p.prefix_lengths != nullptr;
  int rows = entries_differ ? p.len_k : std::max(1, visible_keys(kProblem.mask, p.len_q - 1, p.right_offset, p.len_k));
  int batch = p.batch;
  int box = kConfig.block_n;
  if (p.page_table != nullptr) {
    rows = p.page_size;
    batch = p.pages;
    box = rows_of_page_box(kConfig, p.page_size);
  } else if (p.cu_seqlens_k != nullptr) {
    rows = p.total_k;
    batch = 1;
  }
  const int q_rows = p.cu_seqlens_q != nullptr ? p.total_q : p.len_q;
  const int q_batch = p.cu_seqlens_q != nullptr ? 1 : p.batch;
  TensorMaps maps{};
  maps.q = map_of(p.q, p.q_strides, d, q_rows, p.heads, q_batch, kWarpgroupRows);
  maps.k = map_of(p.k, p.k_strides, d, rows, p.heads_kv, batch, box);
  maps.v = map_of(p.v, p.v_strides, d, rows, p.heads_kv, batch, box);
  if (kConfig.epilogue == EpilogueStore::tma)
    maps.o = map_of(p.o, p.o_strides, d, q_rows, p.heads, q_batch, box_rows(kConfig));
  return maps;
}

/// Persistent CTAs that run at once, virtual ones counted, and what they count in between launches.
template <Config kConfig>
struct Places {
  static constexpr int kCtas = streams(kConfig) ? 5 : 2;
  static constexpr int kAll = kCtas * kConfig.virtual_ctas;
  static constexpr int kWarps = virtual_cta_threads(kConfig) / 32;
  static std::vector<unsigned> counters() { return std::vector<unsigned>(std::size_t{kAll} * kWarps, 0); }
};

/// @param counters of the launches before
template <Config kConfig, Problem kProblem>
void launch_case(FeatureCase& problem, const FeatureShape& shape, std::uint64_t seed, std::vector<unsigned>& counters) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  constexpr int kCtas = Places<kConfig>::kCtas;
  constexpr int kWarps = Places<kConfig>::kWarps;
  constexpr int kPlaces = Places<kConfig>::kAll;
  problem.params().semaphores = counters.data();
  std::vector<float> workspace;
  if constexpr (streams(kConfig)) {
    workspace.assign(stream_workspace_bytes(kPlaces, kWarps, padded_dim(kProblem.head_dim)) / sizeof(float),
                     std::numeric_limits<float>::quiet_NaN());
    problem.params().workspace = workspace.data();
  }
  const TensorMaps maps = maps_of<kConfig, kProblem>(problem.params());
  const attention::Grid3 grid = launch_grid(kConfig, shape.len_q, shape.heads, shape.batch, kCtas);
  emulator::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.cluster = static_cast<unsigned>(kConfig.cluster);
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem).total);
  launch.seed = seed;
  emulator::run(
      launch, [&](char* shared) { forward<kConstant<kConfig>, kConstant<kProblem>>(problem.params(), maps, shared); });
  EXPECT_THAT(counters, ::testing::Each(0U)) << "the next launch counts from zero";
}
template <Config kConfig, Problem kProblem>
void launch_case(FeatureCase& problem, const FeatureShape& shape, std::uint64_t seed) {
  std::vector<unsigned> counters = Places<kConfig>::counters();
  launch_case<kConfig, kProblem>(problem, shape, seed, counters);
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

}  // namespace heed::sm90_persistent

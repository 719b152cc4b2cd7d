// fwd_sm90_split with features on the emulated GPU.
#include <cmath>
#include <limits>

#include "device.hpp"
#include "features_case.hpp"
#include "kernels/sm90/split/forward.cuh"
#include "kernels/sm90/split/legality.hpp"
#include "testing.hpp"

namespace heed::sm90_split {
namespace {

using emulator::FeatureCase;
using emulator::FeatureShape;
using emulator::kConstant;

constexpr float kInfinite = std::numeric_limits<float>::infinity();

// As the launcher encodes it: lib/launch/tensor_map.cpp.
TensorMap map_of(const void* tensor, const TensorStrides& s, int head_dim, int rows, int heads, int batch,
                 int box_rows) {
  const emulator::EmulatedMap m{static_cast<const std::byte*>(tensor),
                                {head_dim, rows, heads, batch},
                                {1, s.row, s.head, s.batch},
                                box_rows,
                                tile::kBoxColumns};
  TensorMap map{};
  std::memcpy(map.opaque, &m, sizeof(m));
  return map;
}

template <Config kConfig, Problem kProblem>
void launch(FeatureCase& problem, const FeatureShape& shape, std::uint64_t seed) {
  static_assert(is_legal(kConfig, kProblem, 227 << 10, 228 << 10) == Illegal::no);
  const FeatureParams& p = problem.params();
  const int keys = std::max(1, visible_keys(kProblem.mask, p.len_q - 1, p.right_offset, p.len_k));
  const int d = kProblem.head_dim;
  TensorMaps maps{};
  maps.q = map_of(p.q, p.q_strides, d, p.len_q, p.heads, p.batch, query_box_rows(kConfig));
  maps.k = map_of(p.k, p.k_strides, d, keys, p.heads_kv, p.batch, kConfig.block_n);
  maps.v = map_of(p.v, p.v_strides, d, keys, p.heads_kv, p.batch, iteration_keys(kConfig) / kConfig.v_barriers);
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
  launch<kConfig, kProblem>(problem, shape, seed);
  EXPECT_EQ(problem.difference(), "") << "seed " << seed << ", lengths " << shape.len_q << " x " << shape.len_k;
}

constexpr Problem with_sinks(Problem p) {
  p.features = {.sinks = true};
  return p;
}
constexpr Problem kSinks = with_sinks({.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none});
constexpr Problem kCausalSinks = with_sinks({.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal});

// Of sinks far above the scores nothing is left, of those far below nothing is seen; of splits of one iteration, of
// several, and of such without keys, where the first has the sink alone. Overflowed ones are summed twice.
TEST(EmulatedSplitFeatures, SinksJoinTheFirstSplit) {
  constexpr Config kConfig{};
  FeatureShape shape{
      .heads = 6, .heads_kv = 2, .len_q = 20, .len_k = 70, .sinks = {0.5F, 4, -3, 300, -300, -kInfinite}};
  run_case<kConfig, kSinks>(shape, 1);
  shape.len_k = 700;
  run_case<kConfig, kSinks>(shape, 2);
  run_case<kConfig, kSinks>({.heads = 2, .heads_kv = 2, .len_q = 5, .len_k = 300, .score_scale = 30, .sinks = {50, 0}},
                            3);
  run_case<kConfig, kSinks>({.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 9, .len_k = 130}, 4);  // none
}

// The first rows see no key; columns that a split keeps are multiplied at the end.
TEST(EmulatedSplitFeatures, SinksOfRowsWithoutKeys) {
  constexpr Config kConfig{.n_blocks_per_stage = 2,
                           .qk_in_flight = 1,
                           .pv_start_step = 0,
                           .row_max = RowMax::stale_16,
                           .rowsum = Rowsum::fadd,
                           .pv_split_n = PvSplitN::on};
  run_case<kConfig, kCausalSinks>(
      {.heads = 2, .heads_kv = 2, .len_q = 100, .len_k = 60, .right_offset = -40, .sinks = {1, -2}}, 5);
}

TEST(EmulatedSplitFeatures, SinksWithoutSplits) {
  constexpr Config kConfig{.cluster = 1,
                           .n_blocks_per_stage = 2,
                           .stages = 2,
                           .v_barriers = 1,
                           .pv_start_step = 0,
                           .overflow_check = OverflowCheck::before_merge,
                           .producer = Producer::warp};
  FeatureShape shape{.heads = 4, .heads_kv = 2, .len_q = 70, .len_k = 200, .sinks = {0.5F, 300, -300, -kInfinite}};
  run_case<kConfig, kSinks>(shape, 6);
}

// A sink that is NaN makes its head's rows NaN, and no others.
TEST(EmulatedSplitFeatures, SinkThatIsNan) {
  FeatureShape shape{.heads = 1, .len_q = 8, .len_k = 100, .sinks = {0}};
  FeatureCase problem(kSinks, shape, 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  problem.params().sinks = &nan;
  launch<Config{}, kSinks>(problem, shape, 7);
  EXPECT_NE(problem.difference().find("is nan"), std::string::npos) << problem.difference();
}

}  // namespace
}  // namespace heed::sm90_split

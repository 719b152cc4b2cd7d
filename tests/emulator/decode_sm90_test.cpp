// fwd_decode_sm90 on the emulated GPU: right results, words back at zero, whatever the order of threads and blocks and
// whenever copies land.
#include "attention_case.hpp"
#include "kernels/decode_sm90/forward.cuh"

namespace heed::decode_sm90 {
namespace {

using emulator::AttentionCase;
using emulator::Shape;
using enum attention::Rescale;

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .causal = false};
constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .causal = true};
constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .causal = false};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .causal = true};

template <Config kConfig, Problem kProblem>
void run_case(const Shape& shape, int blocks, std::uint64_t seed, bool with_lse = true) {
  static_assert(is_legal(kConfig, kProblem, 227 * 1024, 228 * 1024) == Illegal::no);
  AttentionCase problem(kProblem, shape, seed);
  ForwardParams& params = problem.params();
  if (!with_lse) params.lse = nullptr;
  const TensorMaps maps = problem.maps(0, kConfig.block_n, kConfig.block_n);
  const int jobs = shape.batch * shape.heads_kv * row_tiles(kConfig, params.group_size, shape.len_q);
  const int tiles = jobs * tiles_of_job(kConfig, kProblem.causal, shape.len_q, shape.causal_offset, shape.len_k);
  emulator::Launch launch;
  launch.grid = {static_cast<unsigned>(least(blocks, tiles)), 1, 1};
  const Words words{jobs, least(blocks, tiles), least(kConfig.block_m, params.group_size * shape.len_q)};
  std::vector<unsigned> counters(static_cast<std::size_t>(words.total(kProblem.head_dim)) + 4, 0);
  params.counters = counters.data() + (16 - reinterpret_cast<std::uintptr_t>(counters.data()) % 16) % 16 / 4;
  launch.threads = static_cast<unsigned>(threads(kConfig));
  launch.shared_bytes = static_cast<std::size_t>(shared_plan(kConfig, kProblem.head_dim).total);
  launch.seed = seed;
  launch.early = seed % 2 == 0;
  emulator::run(launch, [&](char* shared) { Forward<kConfig, kProblem>(params, maps, shared).run(); });
  problem.check("lengths " + std::to_string(shape.len_q) + " x " + std::to_string(shape.len_k) + ", " +
                std::to_string(blocks) + " blocks, seed " + std::to_string(seed));
  for (const unsigned word : counters) ASSERT_EQ(word, 0U) << "a word is not back at zero";
}

// One job a block, several, parts of one, parts of several: the cuts fall anywhere.
TEST(EmulatedDecodeSm90, CutsTheLineOfTilesAnywhere) {
  constexpr Config kConfig{.block_n = 16, .groups = 2, .stages = 4, .rescale = when_grown};
  std::uint64_t seed = 1;
  for (const int blocks : {1, 2, 3, 4, 5, 7, 9, 40}) {
    run_case<kConfig, kHalf128>({.batch = 2, .heads = 8, .heads_kv = 2, .len_q = 1, .len_k = 150}, blocks, seed++);
    run_case<kConfig, kHalf128>({.heads = 3, .heads_kv = 1, .len_q = 2, .len_k = 100, .heads_inner = true}, blocks,
                                seed++, false);
  }
}

TEST(EmulatedDecodeSm90, ManyPartialsMeet) {
  constexpr Config kConfig{.block_m = 16, .block_n = 16, .groups = 4, .stages = 8};
  run_case<kConfig, kHalf64>({.heads = 4, .len_q = 1, .len_k = 700}, 44, 30);
  run_case<kConfig, kHalf64>({.heads = 1, .len_q = 1, .len_k = 700}, 44, 31);
  run_case<kConfig, kHalf64>({.heads = 4, .len_q = 4, .len_k = 700, .score_scale = 20}, 44, 32);
  run_case<kConfig, kHalf64>({.heads = 1, .len_q = 1, .len_k = 1}, 44, 33);
  run_case<kConfig, kHalf64>({.heads = 16, .heads_kv = 16, .len_q = 1, .len_k = 10}, 5, 34);
}

TEST(EmulatedDecodeSm90, CausalMasks) {
  constexpr Config kConfig{.block_m = 8, .block_n = 32, .groups = 4, .stages = 4, .rescale = when_far};
  std::uint64_t seed = 50;
  for (const int blocks : {1, 3, 8}) {
    run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 1, .len_q = 16, .len_k = 5, .causal_offset = -11}, blocks,
                                     seed++);
    run_case<kConfig, kHalf64Causal>({.heads = 4, .heads_kv = 2, .len_q = 7, .len_k = 300}, blocks, seed++);
    run_case<kConfig, kHalf64Causal>({.heads = 2, .heads_kv = 2, .len_q = 3, .len_k = 40, .causal_offset = -20}, blocks,
                                     seed++);  // nobody sees anything
    run_case<kConfig, kBrain128Causal>(
        {.batch = 2, .heads = 3, .heads_kv = 1, .len_q = 13, .len_k = 129, .causal_offset = 116}, blocks, seed++);
  }
}

// Groups of several warps share a stage.
TEST(EmulatedDecodeSm90, TallTilesOfRows) {
  constexpr Config kConfig{.block_m = 64, .block_n = 16, .groups = 2, .stages = 4, .rescale = when_grown};
  run_case<kConfig, kHalf64Causal>({.heads = 8, .heads_kv = 1, .len_q = 16, .len_k = 333, .causal_offset = 317}, 3, 70);
  run_case<kConfig, kHalf64Causal>({.heads = 5, .heads_kv = 1, .len_q = 15, .len_k = 200, .causal_offset = 100}, 7, 71);
  constexpr Config kMiddle{.block_m = 32, .block_n = 32, .groups = 2, .stages = 2, .rescale = when_grown};
  run_case<kMiddle, kBrain128Causal>({.heads = 8, .heads_kv = 1, .len_q = 9, .len_k = 100, .causal_offset = 91}, 4, 72);
}

}  // namespace
}  // namespace heed::decode_sm90

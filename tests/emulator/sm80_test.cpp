// fwd_sm80, which passes its gate on real GPUs, on the emulated one: what it says of other kernels can be believed.
#include "sm80_case.hpp"

namespace heed::sm80 {
namespace {

TEST(EmulatedSm80, Default) {
  constexpr Config kConfig{};
  constexpr Problem kFull{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
  constexpr Problem kCausal{.element = Element::bf16, .head_dim = 64, .mask = MaskKind::causal};
  run_dense_case<kConfig, kFull>({.batch = 1, .heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 200}, 1);
  run_dense_case<kConfig, kCausal>({.len_q = 130, .len_k = 90, .causal_offset = -40, .heads_inner = true}, 2);
}

TEST(EmulatedSm80, SplitKeysAndStages) {
  constexpr Config kConfig{.block_m = 32,
                           .block_n = 32,
                           .warp_rows = 32,
                           .kv_groups = 4,
                           .stages = 3,
                           .q_in_registers = false,
                           .split_wait = true};
  constexpr Problem kCausal{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::causal};
  run_dense_case<kConfig, kCausal>({.len_q = 50, .len_k = 400, .causal_offset = 350}, 3);
}

constexpr Problem kHalf64{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::none};
constexpr Problem kHalf64Causal{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::causal};
constexpr Problem kHalf128{.element = Element::fp16, .head_dim = 128, .mask = MaskKind::none};
constexpr Problem kBrain128Causal{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::causal};
constexpr auto kStaleTile = attention::Rescale::stale_tile;

constexpr Problem kHalf256{.element = Element::fp16, .head_dim = 256, .mask = MaskKind::none};
constexpr Problem kBrain256Causal{.element = Element::bf16, .head_dim = 256, .mask = MaskKind::causal};

// Rows of four swizzled parts; Q stays in shared memory.
TEST(EmulatedSm80, HeadDim256) {
  constexpr Config kConfig{.block_n = 32, .q_in_registers = false, .rescale = attention::Rescale::when_grown};
  run_dense_case<kConfig, kHalf256>({.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 100, .padding_rows = 3}, 21);
  constexpr Config kSplit{
      .block_m = 32, .block_n = 32, .kv_groups = 2, .q_in_registers = false, .rescale = attention::Rescale::when_grown};
  run_dense_case<kSplit, kBrain256Causal>({.len_q = 40, .len_k = 170, .causal_offset = 130, .score_scale = 30}, 22);
}

// An optimistic reference, also where scores of later tiles are far above it: the warp takes the tile again.
TEST(EmulatedSm80, OptimisticReference) {
  constexpr Config kConfig{.block_n = 32, .rescale = kStaleTile};
  run_dense_case<kConfig, kHalf64>({.heads = 2, .heads_kv = 1, .len_q = 70, .len_k = 300, .padding_rows = 3}, 4);
  run_dense_case<kConfig, kHalf64>({.len_q = 40, .len_k = 300, .score_scale = 30}, 5);
  run_dense_case<kConfig, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40, .score_scale = 30}, 6);
  constexpr Config kWide{.block_m = 128,
                         .warp_rows = 32,
                         .stages = 1,
                         .q_in_registers = false,
                         .rescale = kStaleTile,
                         .tile_order = TileOrder::lpt_then_spt};
  run_dense_case<kWide, kHalf128>({.len_q = 150, .len_k = 200, .score_scale = 30}, 7);
  run_dense_case<kWide, kBrain128Causal>({.batch = 2, .heads = 2, .len_q = 400, .len_k = 500, .causal_offset = 100}, 8);
  constexpr Config kSplit{.block_m = 64,
                          .block_n = 32,
                          .warp_rows = 32,
                          .kv_groups = 2,
                          .stages = 3,
                          .split_wait = true,
                          .late_loads = true,
                          .rescale = kStaleTile};
  run_dense_case<kSplit, kBrain128Causal>({.len_q = 70, .len_k = 300, .causal_offset = 230, .score_scale = 300}, 9);
  run_dense_case<kSplit, kHalf64>({.len_q = 40, .len_k = 260, .heads_inner = true}, 10);
}

// Values one tile later: any number of tiles, also none, with warps that see fewer than their group.
TEST(EmulatedSm80, ValuesBesideExponentials) {
  constexpr Config kTwo{.block_n = 32, .overlap = true, .rescale = kStaleTile};
  for (const int len_k : {10, 32, 60, 96, 130})
    run_dense_case<kTwo, kHalf64>({.len_q = 30, .len_k = len_k}, 11 + static_cast<std::uint64_t>(len_k));
  run_dense_case<kTwo, kHalf64>({.len_q = 70, .len_k = 300, .score_scale = 30}, 12);
  constexpr Config kFour{.block_m = 128,
                         .block_n = 32,
                         .warp_rows = 32,
                         .stages = 4,
                         .overlap = true,
                         .late_loads = true,
                         .rescale = kStaleTile,
                         .tile_order = TileOrder::lpt};
  run_dense_case<kFour, kHalf64Causal>({.batch = 2, .heads = 2, .len_q = 300, .len_k = 200, .causal_offset = -90}, 13);
  run_dense_case<kFour, kHalf64Causal>({.len_q = 200, .len_k = 200, .score_scale = 30, .padding_rows = 2}, 14);
  constexpr Config kGroups{.block_m = 64, .block_n = 16, .warp_rows = 32, .kv_groups = 4, .stages = 3, .overlap = true};
  run_dense_case<kGroups, kBrain128Causal>({.len_q = 100, .len_k = 330, .causal_offset = 230}, 15);
  run_dense_case<kGroups, kHalf64>({.len_q = 50, .len_k = 33}, 16);
  constexpr Config kFar{.block_m = 32,
                        .smem_layout = tile::SharedLayout::padded,
                        .q_in_registers = false,
                        .overlap = true,
                        .rescale = attention::Rescale::conditional};
  run_dense_case<kFar, kHalf128>({.len_q = 50, .len_k = 300, .score_scale = 20}, 17);
}

// Warps meet at barriers of stages: in turn and with values one tile later, few tiles and many, two stages and more.
TEST(EmulatedSm80, StageHandshake) {
  constexpr Config kTurn{.block_n = 32, .pipeline_sync = PipelineSync::stage, .rescale = kStaleTile};
  for (const int len_k : {10, 32, 60, 96, 130})
    run_dense_case<kTurn, kHalf64>({.len_q = 70, .len_k = len_k}, 31 + static_cast<std::uint64_t>(len_k));
  run_dense_case<kTurn, kHalf64Causal>({.len_q = 130, .len_k = 90, .causal_offset = -40, .score_scale = 30}, 32);
  constexpr Config kGroups{.block_m = 32,
                           .block_n = 16,
                           .kv_groups = 4,
                           .stages = 3,
                           .q_in_registers = false,
                           .late_loads = true,
                           .pipeline_sync = PipelineSync::stage};
  run_dense_case<kGroups, kBrain128Causal>({.len_q = 50, .len_k = 400, .causal_offset = 350}, 33);
  constexpr Config kBeside{.block_n = 32,
                           .stages = 3,
                           .overlap = true,
                           .late_loads = true,
                           .pipeline_sync = PipelineSync::stage,
                           .rescale = kStaleTile};
  for (const int len_k : {10, 32, 60, 96, 130})
    run_dense_case<kBeside, kHalf64>({.len_q = 30, .len_k = len_k}, 34 + static_cast<std::uint64_t>(len_k));
  run_dense_case<kBeside, kHalf64Causal>({.batch = 2, .heads = 2, .len_q = 300, .len_k = 200, .causal_offset = -90},
                                         35);
  constexpr Config kTwo{.block_n = 16, .overlap = true, .pipeline_sync = PipelineSync::stage};
  run_dense_case<kTwo, kHalf64>({.len_q = 70, .len_k = 300, .score_scale = 30}, 36);
  run_dense_case<kTwo, kHalf64Causal>({.len_q = 200, .len_k = 200, .padding_rows = 2}, 37);
}

TEST(Sm80, EveryRowTileIsTakenOnce) {
  for (const TileOrder order : {TileOrder::ascending, TileOrder::descending, TileOrder::lpt, TileOrder::lpt_then_spt})
    for (int tiles = 1; tiles < 8; ++tiles) {
      unsigned taken = 0;
      for (int i = 0; i < tiles; ++i) taken |= 1U << attention::q_tile_at(order, i, tiles);
      EXPECT_EQ(taken, (1U << tiles) - 1) << static_cast<int>(order) << " of " << tiles;
    }
}

template <Config kConfig, Problem kProblem>
void run_windows() {
  // Rows with all of their window, at the edges of tiles and in between; rows that see nothing; a window to the right.
  run_dense_case<kConfig, kProblem>({.len_q = 200, .len_k = 190, .left_offset = -50}, 1);
  run_dense_case<kConfig, kProblem>(
      {.heads = 4, .heads_kv = 2, .len_q = 150, .len_k = 400, .causal_offset = 70, .left_offset = -64}, 2);
  run_dense_case<kConfig, kProblem>({.len_q = 220, .len_k = 70, .left_offset = -30, .heads_inner = true}, 3);
  run_dense_case<kConfig, kProblem>({.batch = 2, .len_q = 130, .len_k = 130, .left_offset = 0}, 4);
  run_dense_case<kConfig, kProblem>(
      {.len_q = 70, .len_k = 300, .causal_offset = 400, .left_offset = -3, .score_scale = 30}, 5);
}

TEST(EmulatedSm80, Windows) {
  constexpr Problem kWindow{.element = Element::fp16, .head_dim = 64, .mask = MaskKind::window};
  run_windows<Config{}, kWindow>();
  run_windows<Config{.block_n = 32, .kv_groups = 2, .stages = 3}, kWindow>();
  run_windows<Config{.block_m = 32, .block_n = 16, .overlap = true, .rescale = kStaleTile}, kWindow>();
  run_windows<Config{.block_n = 32, .pipeline_sync = PipelineSync::stage, .rescale = kStaleTile}, kWindow>();
  constexpr Problem kBrain{.element = Element::bf16, .head_dim = 128, .mask = MaskKind::window};
  run_windows<Config{.block_n = 32, .warp_rows = 32, .rescale = attention::Rescale::conditional}, kBrain>();
}

}  // namespace
}  // namespace heed::sm80

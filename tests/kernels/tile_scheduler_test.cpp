// The tile scheduler: every Q tile once, in the order that a family asks for, and CTAs that find theirs in the grid.
#include "kernels/attention/tile_scheduler.hpp"

#include <set>
#include <tuple>

#include "kernels/sm80/forward/config.hpp"
#include "kernels/sm90/persistent/kv_tiles.hpp"
#include "kernels/sm90/split/config.hpp"
#include "testing.hpp"

namespace heed {
namespace {

using attention::Grid3;
using attention::GridAxes;
using attention::TileOrder;

TEST(TileScheduler, IndexAndQTileAreInverse) {
  for (const TileOrder order : {TileOrder::ascending, TileOrder::descending, TileOrder::lpt, TileOrder::lpt_then_spt})
    for (int q_tiles = 1; q_tiles < 40; ++q_tiles)
      for (int index = 0; index < q_tiles; ++index) {
        const int tile = attention::q_tile_at(order, index, q_tiles);
        ASSERT_TRUE(tile >= 0 && tile < q_tiles);
        ASSERT_EQ(attention::index_of_q_tile(order, tile, q_tiles), index) << static_cast<int>(order);
      }
}

TEST(TileScheduler, LongestFirstThenShortestFirst) {
  std::vector<int> tiles;
  for (int index = 0; index < 5; ++index) tiles.push_back(attention::q_tile_at(TileOrder::lpt_then_spt, index, 5));
  EXPECT_EQ(tiles, (std::vector<int>{4, 3, 2, 0, 1}));
}

// fwd_sm90_split has an expression of its own for it.
TEST(TileScheduler, SplitKernelsTakeTheSameOrder) {
  for (const TileOrder order : {TileOrder::ascending, TileOrder::descending, TileOrder::lpt_then_spt})
    for (int q_tiles = 1; q_tiles < 40; ++q_tiles)
      for (int index = 0; index < q_tiles; ++index)
        ASSERT_EQ(sm90_split::q_tile_at({.tile_order = order}, index, q_tiles),
                  attention::q_tile_at(order, index, q_tiles));
}

template <GridAxes kAxes, int kCluster>
void every_cta_finds_its_q_tile() {
  constexpr int kTiles = 5;
  constexpr int kHeads = 3;
  constexpr int kBatch = 2;
  const Grid3 grid = attention::grid_of(kAxes, kTiles, kHeads, kBatch, kCluster);
  std::multiset<std::tuple<int, int, int>> seen;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        const attention::GridPlace at = attention::place_in_grid<kAxes, kCluster>({x, y, z}, grid);
        ASSERT_EQ(at.q_tiles, kTiles);
        ASSERT_TRUE(at.index < kTiles && at.head < kHeads && at.batch < kBatch);
        seen.insert({at.index, at.head, at.batch});
      }
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kCluster * kTiles * kHeads * kBatch));
  for (const auto& place : seen) ASSERT_EQ(seen.count(place), static_cast<std::size_t>(kCluster));
}

TEST(TileScheduler, EveryCtaFindsItsQTile) {
  every_cta_finds_its_q_tile<GridAxes::tiles_heads_batch, 1>();
  every_cta_finds_its_q_tile<GridAxes::tiles_heads_batch, 2>();
  every_cta_finds_its_q_tile<GridAxes::heads_tiles_batch, 1>();
  every_cta_finds_its_q_tile<GridAxes::heads_tiles_batch, 4>();
  every_cta_finds_its_q_tile<GridAxes::heads_batch_tiles, 1>();
}

// Grids as launches have them: rows of 130 make three tiles of 64.
TEST(TileScheduler, GridsOfFamilies) {
  EXPECT_EQ(sm80::launch_grid({.block_m = 64, .tile_order = TileOrder::descending}, 130, 5, 2), (Grid3{3, 5, 2}));
  EXPECT_EQ(sm80::launch_grid({.block_m = 64, .tile_order = TileOrder::lpt}, 130, 5, 2), (Grid3{5, 2, 3}));
  EXPECT_EQ(sm90_split::launch_grid({.cluster = 2}, 130, 5, 2), (Grid3{6, 5, 2}));
  EXPECT_EQ(sm90_split::launch_grid({.cluster = 2, .tile_order = TileOrder::lpt_then_spt}, 130, 5, 2),
            (Grid3{10, 3, 2}));
  using sm90_persistent::launch_grid;
  using sm90_persistent::Scheduler;
  EXPECT_EQ(launch_grid({.m_warpgroups = 1}, 130, 5, 2, 132), (Grid3{3, 5, 2}));
  EXPECT_EQ(launch_grid({.m_warpgroups = 1, .cluster = 2, .tile_order = TileOrder::lpt_l2}, 130, 5, 2, 132),
            (Grid3{10, 3, 2}));
  EXPECT_EQ(launch_grid({.m_warpgroups = 1, .scheduler = Scheduler::static_persistent}, 130, 5, 2, 132),
            (Grid3{30, 1, 1}));
  EXPECT_EQ(launch_grid({.m_warpgroups = 1, .scheduler = Scheduler::static_persistent}, 130, 5, 2, 20),
            (Grid3{20, 1, 1}));
  EXPECT_EQ(
      launch_grid({.m_warpgroups = 1, .scheduler = Scheduler::static_persistent, .virtual_ctas = 4}, 130, 5, 2, 20),
      (Grid3{8, 1, 1}))
      << "30 Q tiles for virtual CTAs, four a CTA";
}

}  // namespace
}  // namespace heed

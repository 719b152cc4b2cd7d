/// Tile schedulers: in which order Q tiles are worked on, which of them is a CTA's, and the grid that a launch has for
/// it. Host and device, constexpr: kernels, launch plans and emulated launches all ask here.
///
/// A Q tile is block_m query rows of one head and batch entry. Under a causal mask the last rows of a head see most
/// keys: its last Q tile is its longest.
#pragma once

#include "kernels/attention/mask.hpp"
#include "kernels/contract.hpp"

namespace heed::attention {

/// The order of Q tiles (LPT, SPT: longest, shortest processing time first). Families take some of them.
enum class TileOrder {
  row_major,     ///< head by head: CTAs that run together share K and V; under a causal mask last rows first
  lpt_l2,        ///< lpt over as many heads as have K and V in the L2 together, where CTAs are persistent
  paired,        ///< long rows meet short ones in a CTA, whose consumer warpgroups take rows from the head's start and
                 ///< end in turn
  lpt_then_spt,  ///< the longer half of all heads' Q tiles, longest first, then the others, shortest first: where two
                 ///< CTAs share a multiprocessor, a long one meets a short one
  ascending,     ///< head by head, first rows first
  descending,    ///< head by head, last rows first
  lpt,           ///< the longest of every head first, the shortest last
};

// ------------------------------------------------------------------------------- one head's Q tiles, and their order

HEED_HOST_DEVICE constexpr long long q_tiles_of_head(long long len_q, int block_m) {
  return (len_q + block_m - 1) / block_m;
}

/// Of TileOrder::lpt_then_spt, how many Q tiles of a head come longest first.
HEED_HOST_DEVICE constexpr int longer_half(int q_tiles) {
  return (q_tiles + 1) / 2;
}

/// Which Q tile of a head comes `index`-th of so many. Of the orders by name it takes ascending and lpt_then_spt; all
/// others go from the last Q tile to the first.
HEED_HOST_DEVICE constexpr int q_tile_at(TileOrder order, int index, int q_tiles) {
  if (order == TileOrder::ascending) return index;
  const int longer = longer_half(q_tiles);
  if (order == TileOrder::lpt_then_spt && index >= longer) return index - longer;
  return q_tiles - 1 - index;
}

/// The inverse: as which one Q tile `tile` comes.
HEED_HOST_DEVICE constexpr int index_of_q_tile(TileOrder order, int tile, int q_tiles) {
  if (order == TileOrder::ascending) return tile;
  const int longer = longer_half(q_tiles);
  if (order == TileOrder::lpt_then_spt && tile < q_tiles - longer) return tile + longer;
  return q_tiles - 1 - tile;
}

// ----------------------------------------------------------------------------------------- grids with a CTA a Q tile

/// What the dimensions of a grid count, x, y, z. CTAs start in the order of x, then y, then z: where heads come first,
/// one Q tile of every head starts before the next one of any.
enum class GridAxes { tiles_heads_batch, heads_tiles_batch, heads_batch_tiles };

/// Dimensions of a grid of CTAs, or a CTA's place in one.
struct Grid3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  constexpr bool operator==(const Grid3&) const = default;
};

/// The grid for so many Q tiles a head.
/// @param cluster CTAs along x that share a Q tile
HEED_HOST_DEVICE constexpr Grid3 grid_of(GridAxes axes, long long q_tiles, long long heads, long long batch,
                                         int cluster = 1) {
  const auto tiles = static_cast<unsigned>(q_tiles);
  const auto h = static_cast<unsigned>(heads);
  const auto b = static_cast<unsigned>(batch);
  const auto of_cluster = static_cast<unsigned>(cluster);
  if (axes == GridAxes::tiles_heads_batch) return {tiles * of_cluster, h, b};
  if (axes == GridAxes::heads_tiles_batch) return {h * of_cluster, tiles, b};
  return {h * of_cluster, b, tiles};
}

/// The Q tile of a CTA: `index` counts Q tiles of its head in the order in which they come (q_tile_at).
struct GridPlace {
  int index;
  int q_tiles;  ///< of a head
  int head;
  int batch;
  constexpr bool operator==(const GridPlace&) const = default;
};

/// @param cta blockIdx
/// @param grid gridDim
template <GridAxes kAxes, int kCluster = 1>
HEED_HOST_DEVICE constexpr GridPlace place_in_grid(const Grid3& cta, const Grid3& grid) {
  const int x = static_cast<int>(cta.x / kCluster);
  const int y = static_cast<int>(cta.y);
  const int z = static_cast<int>(cta.z);
  if constexpr (kAxes == GridAxes::tiles_heads_batch)
    return {x, static_cast<int>(grid.x / kCluster), y, z};
  else if constexpr (kAxes == GridAxes::heads_tiles_batch)
    return {y, static_cast<int>(grid.y), x, z};
  else
    return {z, static_cast<int>(grid.z), x, y};
}

// --------------------------------------------------------------------------------------------------- persistent CTAs

/// A Q tile of a launch.
struct QTile {
  int index;  ///< in Q tiles of its head
  int head;
  int batch;
  constexpr bool operator==(const QTile&) const = default;
};

/// Persistent CTAs for so many Q tiles on a device that runs `places` CTAs at once: as many as fit, or, balanced, as
/// few as need no more waves.
///
///   256 Q tiles, 132 places     132: 124 CTAs take two, 8 take one     balanced 128: all take two
HEED_HOST_DEVICE constexpr long long persistent_ctas(bool balanced, long long q_tiles, long long places) {
  if (q_tiles <= places) return q_tiles;
  if (!balanced) return places;
  const long long waves = (q_tiles + places - 1) / places;
  return (q_tiles + waves - 1) / waves;
}

/// Of persistent CTAs under a causal mask, what CTA `cta` takes instead of the `index`-th Q tile, which is its own in a
/// wave that goes backwards: as far from the wave's end as that is from its start.
HEED_HOST_DEVICE constexpr int q_tile_from_the_end(int index, int cta, int ctas, int all) {
  const int end = index - cta + ctas;
  return (end < all ? end : all) - 1 - cta;
}

/// Bytes of K and V that are read again and again while they are in the L2: half of it on Hopper.
inline constexpr long long kResidentBytes = 32LL << 20;

/// Heads whose K and V, of 16 bits an element, stay in the L2 together (TileOrder::lpt_l2).
HEED_HOST_DEVICE constexpr int heads_together(int head_dim, int len_k, int all_heads) {
  const long long bytes = 4LL * (len_k < 1 ? 1 : len_k) * head_dim;
  const long long fit = kResidentBytes / bytes;
  return fit < 1 ? 1 : fit < all_heads ? static_cast<int>(fit) : all_heads;
}

/// The Q tile that comes `index`-th of all heads and batch entries, each head's last one first.
/// @param together of TileOrder::lpt_l2: heads_together; in other orders head comes after head
HEED_HOST_DEVICE constexpr QTile q_tile_of_all(TileOrder order, int index, int q_tiles, int heads, int batch,
                                               int together) {
  int row = 0;
  int all_heads = 0;
  if (order != TileOrder::lpt_l2) {
    all_heads = index / q_tiles;
    row = index - all_heads * q_tiles;
  } else {
    const int section = index / (q_tiles * together);
    const int within = index - section * q_tiles * together;
    const int left = heads * batch - section * together;
    const int width = left < together ? left : together;
    row = within / width;
    all_heads = section * together + within - row * width;
  }
  const int batch_index = batch == 1 ? 0 : all_heads / heads;
  return {q_tiles - 1 - row, all_heads - batch_index * heads, batch_index};
}

}  // namespace heed::attention

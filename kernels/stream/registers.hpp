/// fwd_sm90_stream: the registers a config takes. Shared by the host, nvcc and NVRTC.
#pragma once

#include "kernels/stream/shares.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::stream {

using tile::launch_registers;
using tile::moves_registers;
using tile::registers_allowed;

/// Registers a thread needs at least: output, scores, probabilities, and 28 for addresses and row state (36
/// beside the widest output). Where blocks stay and key groups merge, ptxas keeps more of the merge beside the loop, up
/// to 3/8 of the head dim; little with one box of columns and one tile's scores, twice as much with pairs. A warp that
/// multiplies scores again (Overlap::values) has operands of its own then, more where blocks stay with mirrored rows.
/// What was asked ahead is kept for two rings. Where key groups meet beside several row groups, instructions far from
/// their exponentials (Scaling, Packing, Adding) keep more alive.
HEED_HOST_DEVICE constexpr int registers_needed(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  const int tiles = c.overlap == Overlap::products ? 2 : 1;
  const bool narrow = dim == tile::kBoxColumns && c.overlap == Overlap::nothing;
  const int merge = c.key_groups == 1 || c.schedule == Schedule::one_tile ? 0
                    : narrow                                              ? (pairs(c) > 0 ? 8 : 4)
                                                                          : dim * 3 / 8;
  const int counted = c.upkeep == Upkeep::branches ? 0 : dim > tile::kBoxColumns ? 8 : 4;
  const bool mirrored_stay = c.tile_order == TileOrder::mirrored && c.schedule != Schedule::one_tile;
  const int again = c.overlap != Overlap::values ? 0
                                                 : counted + (mirrored_stay ? 4 : 0) +
                                                       (dim > tile::kBoxColumns ? 16
                                                        : c.tile_keys % 64 == 0 ? 4
                                                                                : 8);
  const bool apart = c.scaling != Scaling::at_use || c.packing == Packing::at_end || c.adding != Adding::at_once;
  const int orders = apart && c.key_groups > 1 && c.row_groups > 1 ? 8 : 0;
  const int ahead = c.arrival != Arrival::ahead ? 0 : c.tile_keys % 64 == 0 ? 2 : 8;
  return dim / 2 + tiles * (c.tile_keys / 2 + c.tile_keys / 4) + merge + again + ahead + orders +
         (dim == 256 ? 36 : 28);
}

/// Registers that its widest product names.
HEED_HOST_DEVICE constexpr int registers_named(const Config& c, int head_dim) {
  const int dim = padded_dim(head_dim);
  return tile::registers_named(dim > c.tile_keys ? dim : c.tile_keys);
}

}  // namespace heed::stream

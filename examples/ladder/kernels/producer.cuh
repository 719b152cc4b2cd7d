/// Steps producer_2 and producer_3: a ninth warp does nothing but copy, by cp.async, into a ring of 2 or 3 stages.
///
///   stage      0        1        0        1           one barrier of all nine warps a tile: tile t has landed, and
///   producer   load 0 | load 1 | load 2 | load 3      everyone is done with tile t - 1, whose stage is free now
///   eight warps       | tile 0 | tile 1 | tile 2
///
/// A copy goes from global to shared memory past the registers, and nobody waits for it but the producer. Predicted
/// (producer_2): 1.1 times as fast. A tile's loads took about 1,000 cycles of latency and issue, of about 10,000 a tile
/// that the bank conflicts of the products take; the loads alone can be hidden.
///
/// Predicted (producer_3): 1.0. A tile's computation is longer than its load already, so a third stage has nothing more
/// to hide, and costs a quarter more shared memory, which one block a multiprocessor does not miss.
///
/// In the founding notes the same step, on an L4, went from 1177 us to 1162 us.
#pragma once

#include "examples/ladder/kernels/wmma_products.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct Producer {
  using Block = MatrixBlock<kStep, kProblem>;
  static constexpr int kDim = Block::kDim;
  static constexpr int kStages = kSteps[kStep].stages;
  static constexpr int kAhead = kStages - 1;  // tiles in flight before the first is used
  static constexpr auto kLayout = tile::SharedLayout::linear;

  /// One lane's part of tile `tile`, as one commit group; past the last tile the group is empty, so that the number of
  /// pending groups is the same in every round.
  __device__ __forceinline__ static void load_tile(const Block& block, int tile, int tiles) {
    if (tile < tiles) {
      const Rows<kProblem>& rows = block.rows;
      const int first_key = tile * Block::kBlockN;
      copy_rows_async<Block::kBlockN, kDim, 32, kLayout>(ptx::shared_address(block.keys(tile % kStages)), rows.k(),
                                                         rows.params.k_strides.row, first_key, rows.keys_end,
                                                         block.lane);
      copy_rows_async<Block::kBlockN, kDim, 32, kLayout>(ptx::shared_address(block.values(tile % kStages)), rows.v(),
                                                         rows.params.v_strides.row, first_key, rows.keys_end,
                                                         block.lane);
    }
    ptx::cp_async_commit_group();
  }

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, Block::kBlockM, blockIdx.y, blockIdx.z);
    Block block(rows, shared);
    const bool is_producer = block.warp == Block::kComputeWarps;
    const int tiles = (rows.keys_end + Block::kBlockN - 1) / Block::kBlockN;

    copy_rows<Block::kBlockM, kDim, threads(kStep)>(shared + Block::kPlan.q, rows.q(), params.q_strides.row,
                                                    rows.first_row, params.len_q);
    if (is_producer) {
      for (int tile = 0; tile < kAhead; ++tile) load_tile(block, tile, tiles);
    } else {
      block.clear_out();
    }
    for (int tile = 0; tile < tiles; ++tile) {
      // kAhead + tile groups were committed; all up to this tile's must be complete.
      if (is_producer) ptx::cp_async_wait_group<kAhead - 1>();
      __syncthreads();  // the tile is there (in round 0: Q too), everyone is done with the tile before and with P
      if (is_producer) {
        load_tile(block, tile + kAhead, tiles);
      } else {
        multiply_keys_by_wmma(block, tile % kStages);
        Block::compute_barrier();  // S is there
        block.softmax(tile * Block::kBlockN);
        Block::compute_barrier();  // P is there, O is rescaled
        multiply_values_by_wmma(block, tile % kStages);
      }
    }
    if (is_producer) {
      ptx::cp_async_wait_group<0>();
    } else {
      block.store_in_two_passes();
    }
  }
};

}  // namespace heed::ladder

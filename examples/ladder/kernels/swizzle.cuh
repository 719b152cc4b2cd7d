/// Step swizzle: chunk c of row r lies at c ^ (r % 8), so that the eight rows a matrix load reads lie in eight
/// different groups of banks (kernels/tile/shared_tile.hpp draws it). Rows of S, P and O are 16 bytes further apart, to
/// the same end.
///
/// WMMA takes a base and a stride and cannot read a swizzled tile. This step therefore uses what WMMA is made of,
/// ldmatrix and mma.m16n8k16, whose fragments are documented, and changes nothing else: S, P and O still go through
/// shared memory, a producer warp still fills two stages.
///
/// Predicted (swizzle): 2.0 times as fast. Each product reads 12 blocks of 16 x 16 a warp and tile: at 32 cycles a
/// block with an 8-way conflict that is 3,000 cycles for eight warps, at 4 cycles without one 400. About 6,000 of
/// 10,000 cycles a tile go, and stores and softmax remain.
#pragma once

#include "examples/ladder/kernels/mma_products.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct Swizzle {
  using Block = MatrixBlock<kStep, kProblem>;
  static constexpr int kDim = Block::kDim;
  static constexpr int kStages = kSteps[kStep].stages;
  static_assert(kStages == 2, "one tile in flight while one is used");

  /// One lane's part of tile `tile`; the commit group is empty past the last tile.
  __device__ __forceinline__ static void load_tile(const Block& block, int tile, int tiles) {
    if (tile < tiles) {
      const Rows<kProblem>& rows = block.rows;
      const int first_key = tile * Block::kBlockN;
      copy_rows_async<Block::kBlockN, kDim, 32, kSwizzled>(ptx::shared_address(block.keys(tile % kStages)), rows.k(),
                                                           rows.params.k_strides.row, first_key, rows.keys_end,
                                                           block.lane);
      copy_rows_async<Block::kBlockN, kDim, 32, kSwizzled>(ptx::shared_address(block.values(tile % kStages)), rows.v(),
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

    copy_rows_async<Block::kBlockM, kDim, threads(kStep), kSwizzled>(
        block.shared_base + Block::kPlan.q, rows.q(), params.q_strides.row, rows.first_row, params.len_q, threadIdx.x);
    ptx::cp_async_commit_group();
    if (is_producer) {
      load_tile(block, 0, tiles);
    } else {
      block.clear_out();
      ptx::cp_async_wait_group<0>();  // this thread's part of Q
    }
    for (int tile = 0; tile < tiles; ++tile) {
      if (is_producer) ptx::cp_async_wait_group<0>();
      __syncthreads();  // the tile is there (in round 0: Q too), everyone is done with the tile before and with P
      if (is_producer) {
        load_tile(block, tile + 1, tiles);
      } else {
        multiply_keys(block, tile % kStages);
        Block::compute_barrier();  // S is there
        block.softmax(tile * Block::kBlockN);
        Block::compute_barrier();  // P is there, O is rescaled
        multiply_values(block, tile % kStages);
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

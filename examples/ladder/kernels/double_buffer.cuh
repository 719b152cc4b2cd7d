/// Step double_buffer: two stages, and every thread copies its own part of the next tile before it computes this one.
///
///   all warps   copy 0 | copy 1, tile 0 | copy 2, tile 1 | ...
///
/// A producer warp issues 32 copies a lane and tile; spread over 256 threads it is four, and no warp waits for another
/// to have issued them. Predicted (double_buffer): 1.05 times as fast: the copies' 32 address computations in a row,
/// about 500 cycles, came late in a tile of about 5,000; the ninth warp's registers are free for nothing yet.
///
/// It teaches that a specialised warp is no gain where issuing a copy costs next to nothing.
#pragma once

#include "examples/ladder/kernels/mma_products.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct DoubleBuffer {
  using Block = MatrixBlock<kStep, kProblem>;
  static constexpr int kDim = Block::kDim;
  static constexpr int kThreads = Block::kComputeThreads;
  static_assert(kSteps[kStep].stages == 2 && threads(kStep) == kThreads, "two buffers, filled by those who compute");

  /// One thread's part of tile `tile`, as one commit group.
  __device__ __forceinline__ static void load_tile(const Block& block, int tile) {
    const Rows<kProblem>& rows = block.rows;
    const int first_key = tile * Block::kBlockN;
    copy_rows_async<Block::kBlockN, kDim, kThreads, kSwizzled>(ptx::shared_address(block.keys(tile % 2)), rows.k(),
                                                               rows.params.k_strides.row, first_key, rows.keys_end,
                                                               threadIdx.x);
    copy_rows_async<Block::kBlockN, kDim, kThreads, kSwizzled>(ptx::shared_address(block.values(tile % 2)), rows.v(),
                                                               rows.params.v_strides.row, first_key, rows.keys_end,
                                                               threadIdx.x);
    ptx::cp_async_commit_group();
  }

  /// Everything but the epilogue: O, not yet divided, in shared memory. Leaves no copy in flight.
  __device__ __forceinline__ static void accumulate(Block& block) {
    const Rows<kProblem>& rows = block.rows;
    const int tiles = (rows.keys_end + Block::kBlockN - 1) / Block::kBlockN;
    copy_rows_async<Block::kBlockM, kDim, kThreads, kSwizzled>(block.shared_base + Block::kPlan.q, rows.q(),
                                                               rows.params.q_strides.row, rows.first_row,
                                                               rows.params.len_q, threadIdx.x);
    ptx::cp_async_commit_group();
    if (tiles > 0) load_tile(block, 0);
    block.clear_out();
    for (int tile = 0; tile < tiles; ++tile) {
      ptx::cp_async_wait_group<0>();
      __syncthreads();  // the tile is there (in round 0: Q too), everyone is done with the tile before and with P
      if (tile + 1 < tiles) load_tile(block, tile + 1);
      multiply_keys(block, tile % 2);
      __syncthreads();  // S is there
      block.softmax(tile * Block::kBlockN);
      __syncthreads();  // P is there, O is rescaled
      multiply_values(block, tile % 2);
    }
    ptx::cp_async_wait_group<0>();  // Q's, where there was no tile
  }

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, Block::kBlockM, blockIdx.y, blockIdx.z);
    Block block(rows, shared);
    accumulate(block);
    block.store_in_two_passes();
  }
};

}  // namespace heed::ladder

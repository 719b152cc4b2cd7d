/// Step persistent: as many blocks as multiprocessors, each looping over tiles of 64 rows.
///
/// With thousands of tiles this saves launching and draining blocks. Predicted (persistent): 0.98 of the speed before
/// at b1h8l512d64: its 64 tiles are fewer than an H200's 132 multiprocessors, so every block runs its loop once,
/// and what is left of the idea is the arithmetic that turns a tile's number into batch, head and row.
///
/// It teaches to count the tiles first.
#pragma once

#include "examples/ladder/kernels/fused_epilogue.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct Persistent {
  using Block = MatrixBlock<kStep, kProblem>;

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const int row_tiles = (params.len_q + Block::kBlockM - 1) / Block::kBlockM;
    const long long tiles = static_cast<long long>(row_tiles) * params.heads * params.batch;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const auto row_tile = static_cast<int>(tile % row_tiles);
      const auto head = static_cast<int>(tile / row_tiles % params.heads);
      const auto batch = static_cast<int>(tile / row_tiles / params.heads);
      const Rows<kProblem> rows(params, row_tile, Block::kBlockM, head, batch);
      Block block(rows, shared);
      DoubleBuffer<kStep, kProblem>::accumulate(block);
      FusedEpilogue<kStep, kProblem>::store(block);
      // Q, K and V may be overwritten now: the barrier in store() comes after their last use. A warp's rows of O are
      // its own, but lanes cleared next are not the lanes that have just read them.
      __syncwarp();
    }
  }
};

}  // namespace heed::ladder

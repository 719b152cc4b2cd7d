/// Step warp_rows: a warp a row; the head dim lies across the lanes, and each score is a sum by shuffles.
///
/// 4,096 rows are now 4,096 warps instead of 128: every scheduler has several to choose from while one waits. Scores of
/// 32 keys are gathered, one a lane, so that the exponential is computed once a score.
///
/// Predicted (warp_rows): 2.5 times as fast. The work grows: about 22 instructions of a warp for each row and key, five
/// shuffles among them, against 390 of a thread, that is 12 of a warp, before. But before, one warp in flight a
/// scheduler issued about every third cycle at best (a chain of dependent sums), and three schedulers of four in the
/// whole chip had none.
///
/// K and then V pass through the same tile of 32 rows: four barriers for 32 keys.
#pragma once

#include "examples/ladder/kernels/warp_row.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct WarpRows {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kThreads = threads(kStep);
  static constexpr int kBlockN = block_n(kStep, kDim);
  static_assert(kBlockN == 32, "a key a lane");
  static_assert(kSteps[kStep].warps == kSteps[kStep].block_m, "a warp a row");

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, kSteps[kStep].block_m, blockIdx.y, blockIdx.z);
    const int lane = threadIdx.x % 32;
    const int row = rows.first_row + static_cast<int>(threadIdx.x) / 32;
    const int end = rows.end_of(row);
    const float scale_log2 = rows.scale_log2();
    const auto* tile = reinterpret_cast<const unsigned*>(shared);
    WarpRow<kProblem> warp_row(rows.q() + min(row, params.len_q - 1) * params.q_strides.row, lane);

    for (int first_key = 0; first_key < rows.keys_end; first_key += kBlockN) {
      __syncthreads();  // everyone is done with V of the tile before
      copy_rows<kBlockN, kDim, kThreads>(shared, rows.k(), params.k_strides.row, first_key, rows.keys_end);
      __syncthreads();
      float score = warp_row.scores(tile, lane, scale_log2);
      if (first_key + lane >= end) score = minus_infinity();
      __syncthreads();  // everyone is done with K
      copy_rows<kBlockN, kDim, kThreads>(shared, rows.v(), params.v_strides.row, first_key, rows.keys_end);
      __syncthreads();
      warp_row.add(tile, lane, warp_row.take(score));
    }
    warp_row.store(rows, row, lane);
  }
};

}  // namespace heed::ladder

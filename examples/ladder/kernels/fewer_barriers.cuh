/// Step fewer_barriers: K and V side by side, 64 keys a tile: two barriers for 64 keys instead of eight.
///
/// Between two barriers a warp now works through two groups of 32 keys, and the copies of K and V overlap each other.
/// Predicted (fewer_barriers): 1.3 times as fast. A tile of 32 keys was about 700 instructions of a warp; each of its
/// four barriers waited for the slowest of four warps and for a load from L2 (about 300 cycles) that nothing in the
/// block covered, only the other blocks of the multiprocessor.
///
/// Step eight_warps: the same kernel with eight rows a block.
///
/// Eight rows share each tile instead of four, so half as many bytes go from L2 to shared memory: 64 MB instead of 128
/// MB at b1h8l512d64, at about 5 TB/s 13 us instead of 26 us, in part hidden. Predicted (eight_warps): 1.2 times
/// as fast.
#pragma once

#include "examples/ladder/kernels/warp_row.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct FewerBarriers {
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kThreads = threads(kStep);
  static constexpr int kBlockN = block_n(kStep, kDim);
  static constexpr SharedPlan kPlan = shared_plan(kStep, kDim);
  static_assert(kBlockN % 32 == 0, "groups of a key a lane");
  static_assert(kSteps[kStep].warps == kSteps[kStep].block_m, "a warp a row");

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, kSteps[kStep].block_m, blockIdx.y, blockIdx.z);
    const int lane = threadIdx.x % 32;
    const int row = rows.first_row + static_cast<int>(threadIdx.x) / 32;
    const int end = rows.end_of(row);
    const float scale_log2 = rows.scale_log2();
    const auto* keys = reinterpret_cast<const unsigned*>(shared);
    const auto* values = reinterpret_cast<const unsigned*>(shared + kPlan.tile_bytes);
    WarpRow<kProblem> warp_row(rows.q() + min(row, params.len_q - 1) * params.q_strides.row, lane);

    for (int first_key = 0; first_key < rows.keys_end; first_key += kBlockN) {
      __syncthreads();  // everyone is done with the tile before
      copy_rows<kBlockN, kDim, kThreads>(shared, rows.k(), params.k_strides.row, first_key, rows.keys_end);
      copy_rows<kBlockN, kDim, kThreads>(shared + kPlan.tile_bytes, rows.v(), params.v_strides.row, first_key,
                                         rows.keys_end);
      __syncthreads();  // the tile is there
      for (int key = 0; key < kBlockN; key += 32) {
        float score = warp_row.scores(keys + key * (kDim / 2), lane, scale_log2);
        if (first_key + key + lane >= end) score = minus_infinity();
        warp_row.add(values + key * (kDim / 2), lane, warp_row.take(score));
      }
    }
    warp_row.store(rows, row, lane);
  }
};

}  // namespace heed::ladder

/// Step wmma_both: P V by the tensor cores too.
///
/// P is rounded to 16 bits. O must be multiplied by a factor of its row whenever the maximum grows, but a WMMA
/// accumulator does not say which row a register belongs to: O lies in shared memory in fp32, is rescaled there by the
/// softmax, loaded as an accumulator, added to, and stored again, every tile.
///
/// Predicted (wmma_both): 1.1 times as fast. About 3,600 issue slots a tile of fused multiply-adds go; what comes is
/// traffic: O back and forth, P as an A operand, and tiles whose rows are 128 bytes apart, so that the eight rows a
/// matrix load reads at once lie in the same banks (an 8-way conflict: about 3,000 cycles for each product and tile).
///
/// It teaches that an opaque fragment costs a round trip through memory for everything done to it.
#pragma once

#include "examples/ladder/kernels/wmma_products.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct WmmaBoth {
  using Block = MatrixBlock<kStep, kProblem>;
  static constexpr int kDim = Block::kDim;

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, Block::kBlockM, blockIdx.y, blockIdx.z);
    Block block(rows, shared);
    block.clear_out();
    copy_rows<Block::kBlockM, kDim, Block::kComputeThreads>(shared + Block::kPlan.q, rows.q(), params.q_strides.row,
                                                            rows.first_row, params.len_q);
    for (int first_key = 0; first_key < rows.keys_end; first_key += Block::kBlockN) {
      __syncthreads();  // everyone is done with the tile before, and with P
      copy_rows<Block::kBlockN, kDim, Block::kComputeThreads>(block.keys(0), rows.k(), params.k_strides.row, first_key,
                                                              rows.keys_end);
      copy_rows<Block::kBlockN, kDim, Block::kComputeThreads>(block.values(0), rows.v(), params.v_strides.row,
                                                              first_key, rows.keys_end);
      __syncthreads();  // Q and the tile are there
      multiply_keys_by_wmma(block, 0);
      __syncthreads();  // S is there
      block.softmax(first_key);
      __syncthreads();  // P is there, O is rescaled
      multiply_values_by_wmma(block, 0);
    }
    block.store_in_two_passes();
  }
};

}  // namespace heed::ladder

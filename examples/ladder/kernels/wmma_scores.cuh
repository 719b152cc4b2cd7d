/// Step wmma_scores: the scores by the tensor cores, P V still by fused multiply-adds.
///
/// Blocks are now 64 rows of one head. WMMA does not say which lane holds which score, so S goes through shared memory:
/// stored by the product, read row by row by the softmax, where P stays in fp32. For P V a warp holds 8 rows, a lane
/// two columns of each: one word of V serves eight rows.
///
/// Predicted (wmma_scores): 0.35 of the speed of the hybrid. Half of the operations are still fused multiply-adds, and
/// 64 blocks on an H200's 132 multiprocessors leave half of them without work; the vendor's library uses them all, and
/// tensor cores for both halves.
///
/// It teaches that one fast product next to a slow one is a slow kernel (Amdahl's law): in the founding notes the step
/// from scalar tiles to WMMA for Q K^T went from 1750 us to 1980 us.
#pragma once

#include "examples/ladder/kernels/wmma_products.cuh"

namespace heed::ladder {

template <int kStep, const Problem& kProblem>
struct WmmaScores {
  using Block = MatrixBlock<kStep, kProblem>;
  static constexpr int kDim = Block::kDim;
  static constexpr int kWords = kDim / 64;  // a lane, of two columns each

  __device__ __forceinline__ static void run(const ForwardParams& params, char* shared) {
    const Rows<kProblem> rows(params, blockIdx.x, Block::kBlockM, blockIdx.y, blockIdx.z);
    Block block(rows, shared);
    float2 out[Block::kWarpRows][kWords];
#pragma unroll
    for (int r = 0; r < Block::kWarpRows; ++r)
#pragma unroll
      for (int w = 0; w < kWords; ++w) out[r][w] = make_float2(0.0F, 0.0F);

    copy_rows<Block::kBlockM, kDim, Block::kComputeThreads>(shared + Block::kPlan.q, rows.q(), params.q_strides.row,
                                                            rows.first_row, params.len_q);
    for (int first_key = 0; first_key < rows.keys_end; first_key += Block::kBlockN) {
      __syncthreads();  // everyone is done with the tile before, and with S
      copy_rows<Block::kBlockN, kDim, Block::kComputeThreads>(block.keys(0), rows.k(), params.k_strides.row, first_key,
                                                              rows.keys_end);
      copy_rows<Block::kBlockN, kDim, Block::kComputeThreads>(block.values(0), rows.v(), params.v_strides.row,
                                                              first_key, rows.keys_end);
      __syncthreads();  // Q and the tile are there
      multiply_keys_by_wmma(block, 0);
      __syncthreads();  // S is there
      softmax(block, out, first_key);
      __syncwarp();  // P of this warp's rows is there
      add_values(block, out);
    }
    store(block, out);
  }

 private:
  /// This warp's rows of S become P, in fp32 where S was; O, in registers, is rescaled.
  __device__ __forceinline__ static void softmax(Block& block, float2 (&out)[Block::kWarpRows][kWords], int first_key) {
    const float scale_log2 = block.rows.scale_log2();
#pragma unroll
    for (int r = 0; r < Block::kWarpRows; ++r) {
      const int end = block.rows.end_of(block.row_of(r));
      float* s = block.scores_row(r);
      float value[Block::kBlockN / 32];
      float maximum = minus_infinity();
#pragma unroll
      for (int i = 0; i < Block::kBlockN / 32; ++i) {
        const int key = block.lane + 32 * i;
        value[i] = first_key + key < end ? s[key] * scale_log2 : minus_infinity();
        maximum = fmaxf(maximum, value[i]);
      }
      const float factor = block.state[r].raise(warp_max(maximum));
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < Block::kBlockN / 32; ++i) {
        const float weight = block.state[r].weight(value[i]);
        s[block.lane + 32 * i] = weight;
        sum += weight;
      }
      block.state[r].sum += warp_sum(sum);
#pragma unroll
      for (int w = 0; w < kWords; ++w) out[r][w] = make_float2(out[r][w].x * factor, out[r][w].y * factor);
    }
  }

  __device__ __forceinline__ static void add_values(const Block& block, float2 (&out)[Block::kWarpRows][kWords]) {
    const auto* values = reinterpret_cast<const unsigned*>(block.values(0));
#pragma unroll 4
    for (int key = 0; key < Block::kBlockN; ++key) {
      float2 v[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) v[w] = unpack<kProblem.element>(values[key * (kDim / 2) + block.lane + 32 * w]);
#pragma unroll
      for (int r = 0; r < Block::kWarpRows; ++r) {
        const float p = block.scores_row(r)[key];
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          out[r][w] = make_float2(fmaf(p, v[w].x, out[r][w].x), fmaf(p, v[w].y, out[r][w].y));
      }
    }
  }

  __device__ __forceinline__ static void store(const Block& block, const float2 (&out)[Block::kWarpRows][kWords]) {
#pragma unroll
    for (int r = 0; r < Block::kWarpRows; ++r) {
      const int row = block.row_of(r);
      if (row >= block.rows.params.len_q) continue;
      const float inverse = block.state[r].inverse();
      auto* o = reinterpret_cast<unsigned*>(block.rows.out_row(row));
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        o[block.lane + 32 * w] = ptx::cvt_rn_x2<kProblem.element>(out[r][w].x * inverse, out[r][w].y * inverse);
      if (block.lane == 0) store_lse(block.rows, row, block.state[r]);
    }
  }
};

}  // namespace heed::ladder

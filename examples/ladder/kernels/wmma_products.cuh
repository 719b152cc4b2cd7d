/// Both products by WMMA, from and to shared memory. Tiles lie row after row, without padding.
#pragma once

#include "examples/ladder/kernels/matrix_block.cuh"
#include "kernels/ptx/wmma.cuh"

namespace heed::ladder {

/// S = Q K^T: 16 rows and half of the tile's keys a warp.
template <int kStep, const Problem& kProblem>
__device__ __forceinline__ void multiply_keys_by_wmma(const MatrixBlock<kStep, kProblem>& block, int stage) {
  using Block = MatrixBlock<kStep, kProblem>;
  constexpr Element kElement = kProblem.element;
  constexpr int kDim = Block::kDim;
  constexpr int kFragments = Block::kBlockN / 32;
  const int first_row = block.warp / 2 * 16;
  const int first_key = block.warp % 2 * (Block::kBlockN / 2);
  const unsigned q = block.shared_base + Block::kPlan.q + first_row * kDim * 2;
  const unsigned k = ptx::shared_address(block.keys(stage)) + first_key * kDim * 2;
  float scores[kFragments][8] = {};
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    unsigned a[ptx::kWmmaInputRegisters<kElement>];
    ptx::wmma_load_a_row<kElement>(a, q + d * 2, kDim);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      unsigned b[ptx::kWmmaInputRegisters<kElement>];
      ptx::wmma_load_b_col<kElement>(b, k + (16 * n * kDim + d) * 2, kDim);
      ptx::wmma_row_col<kElement>(scores[n], a, b);
    }
  }
  const unsigned s = block.shared_base + Block::kPlan.scores + (first_row * Block::kPlan.scores_pitch + first_key) * 4;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) ptx::wmma_store_d(s + 16 * n * 4, scores[n], Block::kPlan.scores_pitch);
}

/// O += P V: 16 rows and half of the head dim a warp. O comes from shared memory and goes back.
template <int kStep, const Problem& kProblem>
__device__ __forceinline__ void multiply_values_by_wmma(const MatrixBlock<kStep, kProblem>& block, int stage) {
  using Block = MatrixBlock<kStep, kProblem>;
  constexpr Element kElement = kProblem.element;
  constexpr int kDim = Block::kDim;
  constexpr int kFragments = kDim / 32;
  constexpr int kWeightsPitch = 2 * Block::kPlan.scores_pitch;  // P lies over S: 16-bit elements in rows of fp32
  const int first_row = block.warp / 2 * 16;
  const int first_column = block.warp % 2 * (kDim / 2);
  const unsigned p = block.shared_base + Block::kPlan.scores + first_row * kWeightsPitch * 2;
  const unsigned v = ptx::shared_address(block.values(stage)) + first_column * 2;
  const unsigned o = block.shared_base + Block::kPlan.out + (first_row * Block::kPlan.out_pitch + first_column) * 4;
  float out[kFragments][8];
#pragma unroll
  for (int n = 0; n < kFragments; ++n) ptx::wmma_load_c(out[n], o + 16 * n * 4, Block::kPlan.out_pitch);
#pragma unroll
  for (int key = 0; key < Block::kBlockN; key += 16) {
    unsigned a[ptx::kWmmaInputRegisters<kElement>];
    ptx::wmma_load_a_row<kElement>(a, p + key * 2, kWeightsPitch);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      unsigned b[ptx::kWmmaInputRegisters<kElement>];
      ptx::wmma_load_b_row<kElement>(b, v + (key * kDim + 16 * n) * 2, kDim);
      ptx::wmma_row_row<kElement>(out[n], a, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kFragments; ++n) ptx::wmma_store_d(o + 16 * n * 4, out[n], Block::kPlan.out_pitch);
}

}  // namespace heed::ladder

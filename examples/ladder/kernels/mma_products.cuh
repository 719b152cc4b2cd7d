/// Both products by mma.m16n8k16 with operands by ldmatrix from swizzled tiles; S, P and O in shared memory as before.
#pragma once

#include "examples/ladder/kernels/matrix_block.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/tile/fragment.hpp"

namespace heed::ladder {

inline constexpr auto kSwizzled = tile::SharedLayout::swizzled;

/// S = Q K^T: 16 rows and half of the tile's keys a warp.
template <int kStep, const Problem& kProblem>
__device__ __forceinline__ void multiply_keys(const MatrixBlock<kStep, kProblem>& block, int stage) {
  using Block = MatrixBlock<kStep, kProblem>;
  constexpr int kDim = Block::kDim;
  constexpr int kTiles = Block::kBlockN / 16;  // of 8 keys
  const int first_row = block.warp / 2 * 16;
  const int first_key = block.warp % 2 * (Block::kBlockN / 2);
  const tile::Coordinate q_at = tile::ldmatrix_a_address(block.lane);
  const tile::Coordinate k_at = tile::ldmatrix_k_address(block.lane);
  const unsigned q = block.shared_base + Block::kPlan.q;
  const unsigned k = ptx::shared_address(block.keys(stage));
  float scores[kTiles][4] = {};
#pragma unroll
  for (int d = 0; d < kDim / 8; d += 2) {
    unsigned a[4];
    ptx::ldmatrix_x4(a, q + tile::chunk_offset(kSwizzled, kDim, first_row + q_at.row, d + q_at.column / 8));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      unsigned b[4];
      ptx::ldmatrix_x4(b, k + tile::chunk_offset(kSwizzled, kDim, first_key + 8 * n + k_at.row, d + k_at.column / 8));
      ptx::mma_m16n8k16<kProblem.element>(scores[n], a, b[0], b[1]);
      ptx::mma_m16n8k16<kProblem.element>(scores[n + 1], a, b[2], b[3]);
    }
  }
  auto* s = reinterpret_cast<float*>(block.shared + Block::kPlan.scores) + first_key;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const tile::Coordinate at = tile::accumulator_element(block.lane, 2 * h);
      *reinterpret_cast<float2*>(s + (first_row + at.row) * Block::kPlan.scores_pitch + 8 * n + at.column) =
          make_float2(scores[n][2 * h], scores[n][2 * h + 1]);
    }
}

/// O += P V: 16 rows and half of the head dim a warp.
template <int kStep, const Problem& kProblem>
__device__ __forceinline__ void multiply_values(const MatrixBlock<kStep, kProblem>& block, int stage) {
  using Block = MatrixBlock<kStep, kProblem>;
  constexpr int kDim = Block::kDim;
  constexpr int kTiles = kDim / 16;  // of 8 columns
  const int first_row = block.warp / 2 * 16;
  const int first_column = block.warp % 2 * (kDim / 2);
  const tile::Coordinate p_at = tile::ldmatrix_a_address(block.lane);
  const tile::Coordinate v_at = tile::ldmatrix_v_address(block.lane);
  const unsigned p = block.shared_base + Block::kPlan.scores + (first_row + p_at.row) * Block::kPlan.scores_pitch * 4 +
                     p_at.column * 2;
  const unsigned v = ptx::shared_address(block.values(stage));
  auto* o = reinterpret_cast<float*>(block.shared + Block::kPlan.out) + first_column;
  float out[kTiles][4];
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const tile::Coordinate at = tile::accumulator_element(block.lane, 2 * h);
      const float2 pair =
          *reinterpret_cast<const float2*>(o + (first_row + at.row) * Block::kPlan.out_pitch + 8 * n + at.column);
      out[n][2 * h] = pair.x;
      out[n][2 * h + 1] = pair.y;
    }
#pragma unroll
  for (int key = 0; key < Block::kBlockN; key += 16) {
    unsigned a[4];
    ptx::ldmatrix_x4(a, p + key * 2);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      unsigned b[4];
      ptx::ldmatrix_x4_trans(
          b, v + tile::chunk_offset(kSwizzled, kDim, key + v_at.row, first_column / 8 + n + v_at.column / 8));
      ptx::mma_m16n8k16<kProblem.element>(out[n], a, b[0], b[1]);
      ptx::mma_m16n8k16<kProblem.element>(out[n + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const tile::Coordinate at = tile::accumulator_element(block.lane, 2 * h);
      *reinterpret_cast<float2*>(o + (first_row + at.row) * Block::kPlan.out_pitch + 8 * n + at.column) =
          make_float2(out[n][2 * h], out[n][2 * h + 1]);
    }
}

}  // namespace heed::ladder

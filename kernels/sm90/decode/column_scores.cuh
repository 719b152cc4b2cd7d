/// Scores of warps that take every tile together (columns.cuh): each has those of some keys, as S^T = K Q^T.
#pragma once

#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/block.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ColumnScores {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using KnownJob = typename Block::KnownJob;
  using Changes = typename Block::Changes;

  static constexpr int kDim = Block::kDim;
  static constexpr Element kOperand = Block::kOperand;
  static constexpr int kRows = row_groups(kConfig);                         // groups of eight rows
  static constexpr int kKeys = kConfig.block_n / (16 * kConfig.kv_groups);  // fragments of 16 keys of a warp's scores
  static constexpr int kChains = kKeys * kRows == 1 ? 2 : 1;  // accumulators a score, so that none waits long
  using Scores = float[kKeys][kRows][4];  // of keys T / 4 and T / 4 + 8 of a fragment, rows as in Result

  /// The B operand Q^T, straight from global memory; rows beyond the real ones, and columns beyond the head dim, are
  /// zeros.
  __device__ __forceinline__ static void load_queries(const Block& block, unsigned (&query)[kDim / 16][kRows][2],
                                                      const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int row = 8 * n + block.lane / 4;
      const bool inside = row < job.rows;
      const unsigned short* from = block.query_row(job, inside ? row : 0) + 2 * (block.lane % 4);
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          query[k][n][c] = inside && 16 * k + 8 * c < Block::kHeadDim
                               ? *reinterpret_cast<const unsigned*>(from + 16 * k + 8 * c)
                               : 0U;
    }
  }

  __device__ __forceinline__ static void multiply_keys(const Block& block, Scores& scores,
                                                       const unsigned (&query)[kDim / 16][kRows][2], unsigned keys) {
    float chains[kChains][kKeys][kRows][4];
#pragma unroll
    for (int h = 0; h < kChains; ++h)
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
#pragma unroll
        for (int n = 0; n < kRows; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) chains[h][j][n][e] = 0.0F;
    if constexpr (Block::kQuantised) {
      multiply_quantised_keys(block, chains, query, keys);
    } else {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          unsigned a[4];
          ptx::ldmatrix_x4(a, Block::block_address(keys, 16 * (block.group * kKeys + j), 2 * k,
                                                   tile::ldmatrix_a_address(block.lane)));
#pragma unroll
          for (int n = 0; n < kRows; ++n)
            ptx::mma_m16n8k16<kOperand>(chains[k % kChains][j][n], a, query[k][n][0], query[k][n][1]);
        }
    }
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[j][n][e] = kChains == 1 ? chains[0][j][n][e] : chains[0][j][n][e] + chains[kChains - 1][j][n][e];
  }

  /// Two steps of 16 of the head dim at a time: registers 0 and 1 hold eight keys each of the first.
  __device__ __forceinline__ static void multiply_quantised_keys(const Block& block,
                                                                 float (&chains)[kChains][kKeys][kRows][4],
                                                                 const unsigned (&query)[kDim / 16][kRows][2],
                                                                 unsigned keys) {
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2)
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        unsigned bytes[4];
        ptx::ldmatrix_x4(
            bytes, Block::block_address(keys, 16 * (block.group * kKeys + j), k, tile::ldmatrix_a_address(block.lane)));
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          unsigned a[4];
          tile::widen<k_element(kProblem)>(a[0], a[2], bytes[2 * s]);
          tile::widen<k_element(kProblem)>(a[1], a[3], bytes[2 * s + 1]);
#pragma unroll
          for (int n = 0; n < kRows; ++n)
            ptx::mma_m16n8k16<kOperand>(chains[s % kChains][j][n], a, query[k + s][n][0], query[k + s][n][1]);
        }
      }
  }

  __device__ __forceinline__ static void change_scores(const Block& block, Scores& scores,
                                                       const Changes (&changes)[kRows][2],
                                                       const int (&row_end)[kRows][2], int first_key,
                                                       const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        changes[n][r].template change<2 * kKeys>(
            block.params_of(job), first_key + 16 * block.group * kKeys + block.lane / 4, row_end[n][r],
            [&](int i) -> float& { return scores[i / 2][n][i % 2 * 2 + r]; }, [](int i) { return 8 * i; });
  }

  /// Sets scores of hidden keys to -inf.
  __device__ __forceinline__ static void hide_keys(const Block& block, Scores& scores, int first_key,
                                                   const int (&row_end)[kRows][2]) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first_key + 16 * (block.group * kKeys + j) + block.lane / 4 + 8 * (e / 2) >= row_end[n][e % 2])
            scores[j][n][e] = -attention::kInfinity;
  }

  /// The same of keys in front of those that a row sees.
  __device__ __forceinline__ static void hide_first_keys(const Block& block, Scores& scores, int first_key,
                                                         const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int begin =
            block.first_key_of(job, job.first + 8 * n + 2 * (block.lane % 4) + r) - first_key - block.lane / 4;
#pragma unroll
        for (int j = 0; j < kKeys; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            if (16 * (block.group * kKeys + j) + 8 * h < begin) scores[j][n][2 * h + r] = -attention::kInfinity;
      }
  }
};

}  // namespace heed::sm90_decode

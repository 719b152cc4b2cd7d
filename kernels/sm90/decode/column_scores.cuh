/// Scores of warps that take every tile together (columns.cuh): each has those of some keys, as S^T = K Q^T.
#pragma once

#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/column_parts.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ColumnScores : ColumnParts<kConfig, kProblem> {
  using Base = ColumnParts<kConfig, kProblem>;
  using Base::block_address, Base::first_key_of, Base::group, Base::lane, Base::params_of, Base::kBlockN, Base::kDim,
      Base::kGroups, Base::kOperand, Base::kQuantised, Base::kRows;
  using typename Base::Changes, typename Base::KnownJob;

  static constexpr int kKeys = kBlockN / (16 * kGroups);      // fragments of 16 keys of a warp's scores
  static constexpr int kChains = kKeys * kRows == 1 ? 2 : 1;  // accumulators a score, so that none waits long
  using Scores = float[kKeys][kRows][4];  // of keys T / 4 and T / 4 + 8 of a fragment, rows as in Result

  __device__ __forceinline__ ColumnScores(const Params<kProblem>& p, const TensorMaps& m, char* dynamic_shared)
      : Base(p, m, dynamic_shared) {}

  __device__ __forceinline__ void multiply_keys(Scores& scores, const unsigned (&query)[kDim / 16][kRows][2],
                                                unsigned keys) const {
    float chains[kChains][kKeys][kRows][4];
#pragma unroll
    for (int h = 0; h < kChains; ++h)
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
#pragma unroll
        for (int n = 0; n < kRows; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) chains[h][j][n][e] = 0.0F;
    if constexpr (kQuantised) {
      multiply_quantised_keys(chains, query, keys);
    } else {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          unsigned a[4];
          ptx::ldmatrix_x4(a, block_address(keys, 16 * (group * kKeys + j), 2 * k, tile::ldmatrix_a_address(lane)));
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
  __device__ __forceinline__ void multiply_quantised_keys(float (&chains)[kChains][kKeys][kRows][4],
                                                          const unsigned (&query)[kDim / 16][kRows][2],
                                                          unsigned keys) const {
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2)
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        unsigned bytes[4];
        ptx::ldmatrix_x4(bytes, block_address(keys, 16 * (group * kKeys + j), k, tile::ldmatrix_a_address(lane)));
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

  __device__ __forceinline__ void change_scores(Scores& scores, const Changes (&changes)[kRows][2],
                                                const int (&row_end)[kRows][2], int first_key,
                                                const KnownJob& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        changes[n][r].template change<2 * kKeys>(
            params_of(job), first_key + 16 * group * kKeys + lane / 4, row_end[n][r],
            [&](int i) -> float& { return scores[i / 2][n][i % 2 * 2 + r]; }, [](int i) { return 8 * i; });
  }

  /// Sets scores of hidden keys to -inf.
  __device__ __forceinline__ void hide_keys(Scores& scores, int first_key, const int (&row_end)[kRows][2]) const {
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first_key + 16 * (group * kKeys + j) + lane / 4 + 8 * (e / 2) >= row_end[n][e % 2])
            scores[j][n][e] = -attention::kInfinity;
  }

  /// The same of keys in front of those that a row sees.
  __device__ __forceinline__ void hide_first_keys(Scores& scores, int first_key, const KnownJob& job) const {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int begin = first_key_of(job, job.first + 8 * n + 2 * (lane % 4) + r) - first_key - lane / 4;
#pragma unroll
        for (int j = 0; j < kKeys; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            if (16 * (group * kKeys + j) + 8 * h < begin) scores[j][n][2 * h + r] = -attention::kInfinity;
      }
  }
};

}  // namespace heed::sm90_decode

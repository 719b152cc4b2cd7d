/// A warp's output of a job by columns (config.hpp: GroupSplit::columns), and how it is written once it is whole.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sm90/decode/block.cuh"
#include "kernels/sm90/decode/quantised.cuh"

namespace heed::sm90_decode {

template <const Config& kConfig, const Problem& kProblem>
struct ColumnResult {
  using Block = sm90_decode::Block<kConfig, kProblem>;
  using KnownJob = typename Block::KnownJob;

  static constexpr int kDim = Block::kDim;
  static constexpr int kHeadDim = Block::kHeadDim;
  static constexpr bool kQuantised = Block::kQuantised;
  static constexpr int kRows = row_groups(kConfig);                 // groups of eight rows
  static constexpr int kColumns = column_fragments(kConfig, kDim);  // of 16 columns of a warp's output

  /// What a warp holds of a segment: of eight rows a group, lane T has rows 2 (T % 4) and the next, of columns T / 4
  /// and T / 4 + 8 of each fragment; of V in 8 bits columns 2 (T / 4) and the next.
  struct Result {
    float out[kRows][kColumns][4];
    float sum[kRows][4];  ///< the first two count
    float row_max[kRows][2];
  };

  /// What the end of a segment needs to know, worked out while its first tile is on its way.
  struct Finish {
    int parts;                   ///< of the job
    int slot;                    ///< where the block was counted in: 1 as the first of the job, else 0
    int rows;                    ///< real ones
    unsigned* mine;              ///< this lane's words, of this block's part
    unsigned* others;            ///< of the second block's
    unsigned short* out[kRows];  ///< two columns of a row, where V has 8 bits four
    float value_factors[kQuantised ? kColumns : 1][2];  ///< of the lane's columns of a Result
  };

  __device__ __forceinline__ static void reset(Result& result) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) result.out[n][i][e] = 0.0F;
#pragma unroll
      for (int e = 0; e < 4; ++e) result.sum[n][e] = 0.0F;
#pragma unroll
      for (int r = 0; r < 2; ++r) result.row_max[n][r] = -attention::kInfinity;
    }
  }

  /// V's factors. Before parts meet: registers are fewest while they do.
  __device__ __forceinline__ static void scale_values(Result& result, const Finish& finish) {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) result.out[n][i][e] *= finish.value_factors[i][e / 2];
  }

  /// Adds the sinks of rows that have seen all of their keys.
  __device__ __forceinline__ static void add_sinks(const Block& block, Result& result, const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * (block.lane % 4) + r;
        const PackedRow at = packed_row(job.first + (row < job.rows ? row : 0), block.params.group_size);
        const float factor = attention::add_sink(block.params, job.kv_head * block.params.group_size + at.head,
                                                 result.row_max[n][r], result.sum[n][r]);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          result.out[n][i][r] *= factor;
          result.out[n][i][2 + r] *= factor;
        }
      }
  }

  /// Writes the output. A sum of zero is that of no keys; NaN stays NaN. Of each 8 x 8 elements, lanes exchange what
  /// makes pairs of columns of one row: lane T then has row T / 4, columns 2 (T % 4) and the next.
  __device__ __forceinline__ static void store(const Block& block, const Result& result, const Finish& finish) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      if (8 * n >= finish.rows) break;
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = result.sum[n][r] == 0.0F ? 0.0F : ptx::rcp_approx_ftz(result.sum[n][r]);
      const bool is_real = 8 * n + block.lane / 4 < finish.rows;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if constexpr (kQuantised) {
          if (16 * (block.group * kColumns + i) < kHeadDim)
            store_columns<kProblem.element>(finish.out[n] + 16 * i, result.out[n][i], inverse, is_real);
        } else {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const unsigned pair = ptx::movmatrix_trans(ptx::cvt_rn_x2<kProblem.element>(
                result.out[n][i][2 * h] * inverse[0], result.out[n][i][2 * h + 1] * inverse[1]));
            const bool is_column = kHeadDim == kDim || 16 * (block.group * kColumns + i) + 8 * h < kHeadDim;
            if (is_real && is_column) ptx::st_global(finish.out[n] + 16 * i + 8 * h, pair);
          }
        }
      }
    }
  }

  /// Log-sum-exps, of rows 2 (T % 4) and the next of each group. For the first four lanes.
  __device__ __forceinline__ static void store_lse(const Block& block, const Result& result, const KnownJob& job) {
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * block.lane + r;
        if (row >= job.rows) continue;
        const PackedRow at = packed_row(job.first + row, block.params.group_size);
        if constexpr (has_features(kProblem.features)) {
          const auto& p = block.params_of(job);
          p.lse[attention::lse_offset(p, job.batch, job.kv_head * p.group_size + at.head, at.query)] =
              attention::log_sum_exp(result.sum[n][r] != 0.0F, result.row_max[n][r], result.sum[n][r]);
        } else {
          const long long head =
              static_cast<long long>(job.batch) * block.params.heads + job.kv_head * block.params.group_size + at.head;
          block.params.lse[head * block.params.len_q + at.query] =
              attention::log_sum_exp(result.sum[n][r] != 0.0F, result.row_max[n][r], result.sum[n][r]);
        }
      }
  }
};

}  // namespace heed::sm90_decode

/// How fwd_sm90_split writes rows: those of a split's slice of the head dim, from accumulators to the output, and their
/// log-sum-exps.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/split/shared_plan.hpp"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_split {

/// Which rows a warp of a consumer warpgroup holds.
struct WarpRows {
  unsigned shared;  ///< start of the block's dynamic shared memory
  int split_idx;
  int m_warpgroup;
  int warp;  ///< within the consumer warpgroup
  int lane;
  int row;  ///< of the lane's first row; its second is 8 further on
  int head;
  int batch;
};

/// Where a lane writes. Known before the first key has arrived, and worked out there: at the end of a launch, a
/// parameter that nobody has read yet and the chain of products to an address cost 250 clocks.
struct RowTarget {
  unsigned short* o;  ///< the lane's first element; unused with EpilogueStore::tma
  float* lse;         ///< of the lane's first row; null where the lane writes none
};

/// The columns that a part keeps, and how they are written.
template <const Config& kConfig, const Problem& kProblem>
struct KeptRows {
  // ---- compile-time facts
  static constexpr int kSliceColumns = padded_dim(kProblem.head_dim) / num_splits(kConfig);
  static constexpr int kTiles = kSliceColumns / 8;
  static constexpr int kSliceRegisters = kSliceColumns / 2;
  static constexpr int kBoxRowBytes = 2 * kStoredColumns;
  static constexpr bool kStoresBoxes = kConfig.epilogue == EpilogueStore::tma;
  // Rows that are written in pieces are transposed before the other parts' share has arrived: what a lane keeps and
  // receives are then runs of 8 columns, of both its rows by turns, 64 bytes of a row in the four lanes of a quad. Runs
  // of two rows would be 32 bytes of each: half as much of every line that a store touches.
  static constexpr bool kRuns = kStoresBoxes || (kConfig.epilogue == EpilogueStore::st_b128 && kTiles % 4 == 0);
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);

  // ---- state
  const Params<kProblem>& params;
  WarpRows at;
  RowTarget target;
  const TensorMap& output;

  __device__ __forceinline__ static RowTarget target_of(const Params<kProblem>& params, const WarpRows& at) {
    const int quarter = at.lane % 4;
    // The lane's run, or its pair of columns; where runs are of two rows by turns, of one of them.
    const bool two_rows = kConfig.epilogue == EpilogueStore::st_b128 && !kRuns;
    const int column = kRuns ? 8 * quarter : two_rows ? 8 * (quarter % 2) : 2 * quarter;
    RowTarget target{};
    target.o = static_cast<unsigned short*>(params.o) + at.batch * params.o_strides.batch +
               at.head * params.o_strides.head + (at.row + (two_rows ? 8 * (quarter / 2) : 0)) * params.o_strides.row +
               at.split_idx * kSliceColumns + column;
    target.lse = nullptr;
    if (params.lse != nullptr && at.split_idx == 0 && quarter == 0) {
      if constexpr (has_features(kProblem.features))
        target.lse = params.lse + attention::lse_offset(params, at.batch, at.head, at.row);
      else
        target.lse = params.lse + (static_cast<long long>(at.batch) * params.heads + at.head) * params.len_q + at.row;
    }
    return target;
  }

  /// Keeps the compiler from working it out where it is used.
  __device__ __forceinline__ static void make_opaque(RowTarget& target) {
    if constexpr (!kStoresBoxes) opaque(target.o);
    opaque(target.lse);
  }

  /// The boxes of a warp's rows in shared memory. Pieces of 16 bytes lie at their index xor that of their pair of rows,
  /// modulo 4: the swizzle of boxes of 64 bytes a row.
  __device__ __forceinline__ static unsigned warp_rows(const WarpRows& at) {
    const int group = at.split_idx % kConfig.kv_groups * kConfig.m_warpgroups + at.m_warpgroup;
    return at.shared + kPlan.rows + (group * 4 + at.warp) * (kSliceColumns / kStoredColumns) * kStoredBytes;
  }

  /// Accumulator registers become runs: 8 (2 g + h) to 8 (2 g + h) + 7 are columns of row h in the lane's one of the
  /// tiles 4 g to 4 g + 3.
  __device__ __forceinline__ void transpose(float (&kept)[kSliceRegisters]) const {
    const int quarter = at.lane % 4;
#pragma unroll
    for (int g = 0; g < kTiles / 4; ++g) {
      unsigned x[4][4];  // of row h and column i of a pair: 2 h + i
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int run = 0; run < 4; ++run) x[i][run] = __float_as_uint(kept[4 * (4 * g + run) + i]);
        tile::transpose_quad(x[i], quarter);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 8; ++j) kept[8 * (2 * g + h) + j] = __uint_as_float(x[2 * h + j % 2][j / 2]);
    }
  }

  /// Writes the kept runs.
  __device__ __forceinline__ void write_runs(const float (&kept)[kSliceRegisters]) const {
#pragma unroll
    for (int g = 0; g < kTiles / 4; ++g)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* x = kept + 8 * (2 * g + h);
        const unsigned words[4] = {
            ptx::cvt_rn_x2<kProblem.element>(x[0], x[1]), ptx::cvt_rn_x2<kProblem.element>(x[2], x[3]),
            ptx::cvt_rn_x2<kProblem.element>(x[4], x[5]), ptx::cvt_rn_x2<kProblem.element>(x[6], x[7])};
        write_run(words, g, h);
      }
    if constexpr (kStoresBoxes) copy_boxes();
  }

  /// Writes the lane's run of row h and of the tiles 4 g to 4 g + 3.
  __device__ __forceinline__ void write_run(const unsigned (&words)[4], int g, int h) const {
    constexpr bool kPadded = padded_dim(kProblem.head_dim) != kProblem.head_dim;
    if constexpr (kStoresBoxes) {
      const unsigned row = warp_rows(at) + g * kStoredBytes + (at.lane / 4 + 8 * h) * kBoxRowBytes;
      ptx::st_shared_v4(row + (at.lane % 4 ^ at.lane / 8) * 16, words[0], words[1], words[2], words[3]);
      return;
    }
    const int column = at.split_idx * kSliceColumns + 32 * g + 8 * (at.lane % 4);
    if (at.row + 8 * h < params.len_q && (!kPadded || column < kProblem.head_dim))
      ptx::st_global_v4(target.o + 8 * h * params.o_strides.row + 32 * g, words);
  }

  /// With EpilogueStore::tma, once the warp's rows lie in shared memory: one lane starts their loads, which leave out
  /// what is outside of the tensor.
  __device__ __forceinline__ void copy_boxes() const {
    ptx::fence_proxy_async();
    __syncwarp();
    if (at.lane != 0) return;
    // Rows of overflowed parts are written again, and nothing orders two loads to one place.
    if constexpr (kConfig.overflow_check == OverflowCheck::after_store) ptx::cp_async_bulk_wait_group<0>();
#pragma unroll
    for (int g = 0; g < kSliceColumns / kStoredColumns; ++g)
      ptx::cp_async_bulk_tensor_4d_store(output, warp_rows(at) + g * kStoredBytes,
                                         at.split_idx * kSliceColumns + g * kStoredColumns, at.row, at.head, at.batch);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read<0>();
  }

  /// Without a branch: ptxas would make one end of the two programs, and then keep the registers of both.
  __device__ __forceinline__ void write_log_sums(const float (&log2_sum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      ptx::st_global_if(target.lse != nullptr && at.row + 8 * h < params.len_q, target.lse + 8 * h,
                        log2_sum[h] * attention::kLn2);
  }

  /// Writes the kept columns.
  __device__ __forceinline__ void write_rows(const float (&kept)[kSliceRegisters]) const {
    constexpr bool kPadded = padded_dim(kProblem.head_dim) != kProblem.head_dim;
    const int first_column = at.split_idx * kSliceColumns;
    const int quarter = at.lane % 4;
    unsigned packed[kTiles][2];  // of tile t and row h
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        packed[t][h] = ptx::cvt_rn_x2<kProblem.element>(kept[4 * t + 2 * h], kept[4 * t + 2 * h + 1]);
    if constexpr (kConfig.epilogue == EpilogueStore::st_b32) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (at.row + 8 * h < params.len_q)
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
            if (!kPadded || first_column + 8 * t < kProblem.head_dim)
              ptx::st_global(target.o + 8 * h * params.o_strides.row + 8 * t, packed[t][h]);
    } else if constexpr (kRuns) {
#pragma unroll
      for (int g = 0; g < kTiles / 4; ++g)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          unsigned x[4] = {packed[4 * g][h], packed[4 * g + 1][h], packed[4 * g + 2][h], packed[4 * g + 3][h]};
          tile::transpose_quad(x, quarter);
          write_run(x, g, h);
        }
    } else {
      // Two tiles and two rows are four runs of 8 columns, each spread over the four lanes of a quad: transposed, every
      // lane writes one run.
      const bool inside = at.row + 8 * (quarter / 2) < params.len_q;
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        unsigned x[4] = {packed[t][0], packed[t + 1][0], packed[t][1], packed[t + 1][1]};
        tile::transpose_quad(x, quarter);
        if (inside && (!kPadded || first_column + 8 * (t + quarter % 2) < kProblem.head_dim))
          ptx::st_global_v4(target.o + 8 * t, x);
      }
    }
    if constexpr (kStoresBoxes) copy_boxes();
  }
};

}  // namespace heed::sm90_split

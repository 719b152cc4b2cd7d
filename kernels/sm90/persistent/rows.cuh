/// How fwd_sm90_persistent writes rows: those of a slice, normalised, from accumulators to the output and their
/// log-sum-exps.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/smem_layout.cuh"
#include "kernels/tile/quad.cuh"

namespace heed::sm90_persistent {

/// What a warp knows of its rows at the end.
struct Rows {
  int kv_group;  ///< or the block's rank in its cluster
  int m_warpgroup;
  int warp;  ///< within the consumer warpgroup
  int lane;
  int row;  ///< of the lane's first row; its second is 8 further on
  int head;
  int batch;
};

/// Output parameters, read before the first copy arrives: at the end of a short kernel a parameter that no one has read
/// yet costs 200 clocks.
template <const Problem& kProblem>
struct Target {
  unsigned short* o;
  float* lse;
  TensorStrides strides;
  int len_q;
  int heads;
  const TensorMap* map;            ///< of the output, with EpilogueStore::tma
  const Params<kProblem>* params;  ///< of problems with features, which say where log-sum-exps lie
};

/// Of a part: which slice of a consumer warpgroup's output it keeps, and how that is written. A lane has two rows, 8
/// apart:
///
///                   head dim 64, 2 parts                          4 KV groups
///                    all columns                        columns 0 to 31   32 to 63
///     first row    [ slice 0          ]               [ slice 0        ][ slice 2 ]
///     second row   [ slice 1          ]               [ slice 1        ][ slice 3 ]
template <const Config& kConfig, const Problem& kProblem>
struct Slices {
  static constexpr int kGroups = num_splits(kConfig);
  static constexpr bool kInCluster = kConfig.cluster > 1;
  static constexpr bool kWhole = has_whole_q_tiles(kProblem);
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kRowSlices = row_slices(kConfig);
  static constexpr int kHalves = 2 / kRowSlices;  // rows of a lane in a slice
  static constexpr int kSliceColumns = kDim / column_slices(kConfig);
  static constexpr int kSliceRegisters = kDim / 2 / kGroups;
  static constexpr int kTiles = kSliceColumns / 8;
  // Two values a word between blocks, whose way is longer than a rounding.
  static constexpr int kPieces = kSliceRegisters / (kInCluster ? 8 : 4);
  static constexpr int kPieceBytes = 16 * kWarpgroupThreads;
  static constexpr int kSliceBytes = kPieces * kPieceBytes;
  static constexpr bool kEvictFirst = o_evict_first(kConfig.evict_first);
  static constexpr SharedPlan kPlan = SmemLayout<kConfig, kProblem>::kPlan;
  static_assert(kTiles % 4 == 0, "four lanes write 64 bytes of a row");

  Target<kProblem> target;
  SmemLayout<kConfig, kProblem> layout;
  Rows at;

  /// Where this thread's first line goes, for write_lines: beside the first loads, when nothing else is to be done.
  __device__ __forceinline__ void keep_address() const {
    const int first_row = at.row + 8 * first_half() - at.lane / 4 + at.lane / 8;
    const unsigned short* line = target.o + at.batch * target.strides.batch + at.head * target.strides.head +
                                 at.kv_group / kRowSlices * kSliceColumns + first_row * target.strides.row +
                                 8 * (at.lane % 8);
    const unsigned long long address = reinterpret_cast<unsigned long long>(line);
    const long long next = 4 * target.strides.row;
    ptx::st_shared_v4(kept_address(), static_cast<unsigned>(address), static_cast<unsigned>(address >> 32),
                      static_cast<unsigned>(next), static_cast<unsigned>(next >> 32));
  }

  __device__ __forceinline__ void write(const float (&kept)[kSliceRegisters]) const {
    const int first_row = at.row + 8 * first_half();
    const int first_column = at.kv_group / kRowSlices * kSliceColumns;
    unsigned short* rows = target.o + at.batch * target.strides.batch + at.head * target.strides.head + first_column;
    const long long row_stride = target.strides.row;
    constexpr bool kPadded = kDim != kProblem.head_dim;
    const int quarter = at.lane % 4;
    unsigned packed[kTiles][kHalves];  // of tile t and row h
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const float* x = kept + 2 * (kHalves * t + h);
        packed[t][h] = ptx::cvt_rn_x2<kProblem.element>(x[0], x[1]);
      }
    if constexpr (kConfig.epilogue == EpilogueStore::tma) {
      store_tma(packed);
      return;
    } else if constexpr (stores_from_smem(kConfig)) {
      store_smem_b128(packed, rows);
      return;
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bool inside = kWhole || first_row + 8 * h < target.len_q;
      unsigned short* to = rows + (first_row + 8 * h) * row_stride;
      if constexpr (kConfig.epilogue == EpilogueStore::st_b32) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          if (inside && (!kPadded || first_column + 8 * t < kProblem.head_dim)) {
            if constexpr (kEvictFirst)
              ptx::st_global_cs(to + 8 * t + 2 * quarter, packed[t][h]);
            else
              *reinterpret_cast<unsigned*>(to + 8 * t + 2 * quarter) = packed[t][h];
          }
      } else {
        // Four tiles of a row are four runs of 8 columns, each spread over the four lanes of a quad: transposed, every
        // lane has one run, and the quad 64 bytes in a row.
#pragma unroll
        for (int t = 0; t < kTiles; t += 4) {
          unsigned x[4] = {packed[t][h], packed[t + 1][h], packed[t + 2][h], packed[t + 3][h]};
          tile::transpose_quad(x, quarter);
          if (inside && (!kPadded || first_column + 8 * (t + quarter) < kProblem.head_dim))
            store_b128(to + 8 * (t + quarter), x);
        }
      }
    }
  }

  /// After the rows: a launch waits for those, and few callers want these.
  __device__ __forceinline__ void write_log_sums(const float (&log2_sum)[kHalves]) const {
    if (target.lse == nullptr || at.kv_group >= kRowSlices || at.lane % 4 != 0) return;
    const int first_row = at.row + 8 * first_half();
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
      if (kWhole || first_row + 8 * h < target.len_q) *log_sum_of(first_row + 8 * h) = log2_sum[h] * attention::kLn2;
  }

  /// Of the lane's rows, the first that its slice holds; row: of the lane's first.
  __device__ __forceinline__ int first_half() const { return kRowSlices == 1 ? 0 : at.kv_group % 2; }

  /// Where a thread of two parts sends its slice, or finds the other's: its first piece. Of blocks that is one place,
  /// in the receiver's shared memory. From the thread's index and not what its warp knows of itself, which would be a
  /// chain of uniform instructions.
  __device__ __forceinline__ unsigned passed_by(bool other) const {
    unsigned thread = threadIdx.x;
    opaque(thread);
    const unsigned group = thread / kWarpgroupThreads;
    const unsigned m_warpgroup = group % kConfig.m_warpgroups;
    if constexpr (kInCluster)
      return layout.shared + kPlan.exchange + m_warpgroup * kPlan.exchange_bytes + thread % kWarpgroupThreads * 16;
    const unsigned kv_group = group / kConfig.m_warpgroups ^ (other ? 1 : 0);
    return layout.shared + kPlan.exchange + m_warpgroup * kPlan.exchange_bytes + kv_group * kPlan.sender_bytes +
           thread % kWarpgroupThreads * 16;
  }
  /// From there to the row maximum and the sum of its row: eight bytes for the four lanes of a row.
  __device__ __forceinline__ unsigned to_state() const {
    const unsigned thread = at.warp * 32 + at.lane;
    return kSliceBytes + thread / 4 * 8 - thread * 16;
  }

  __device__ __forceinline__ unsigned sent_by(int sender) const {
    return layout.shared + kPlan.exchange + at.m_warpgroup * kPlan.exchange_bytes + sender * kPlan.sender_bytes;
  }
  __device__ __forceinline__ unsigned slice(int receiver, int sender) const {
    return sent_by(sender) + (receiver - (receiver > sender ? 1 : 0)) * kSliceBytes + (at.warp * 32 + at.lane) * 16;
  }
  __device__ __forceinline__ unsigned state(int sender) const {
    return sent_by(sender) + (kGroups - 1) * kSliceBytes + (at.warp * 16 + at.lane / 4) * 8;
  }

 private:
  __device__ __forceinline__ float* log_sum_of(int row) const {
    if constexpr (has_features(kProblem.features))
      return target.lse + attention::lse_offset(*target.params, at.batch, at.head, row);
    else
      return target.lse + (static_cast<unsigned long long>(static_cast<unsigned>(at.batch * target.heads + at.head)) *
                               static_cast<unsigned>(target.len_q) +
                           static_cast<unsigned>(row));
  }
  __device__ __forceinline__ unsigned kept_address() const { return layout.shared + kPlan.lines + threadIdx.x * 16; }

  __device__ __forceinline__ static void store_b128(unsigned short* to, const unsigned (&x)[4]) {
    if constexpr (kEvictFirst)
      ptx::st_global_cs_v4(to, x);
    else
      ptx::st_global_v4(to, x);
  }

  /// Accumulators as 8 x 8 matrices to shared memory, piece i of 16 bytes of row r at i ^ (r % 8).
  /// @param to where the lane's row begins, in its first piece
  template <int kBoxBytes>
  __device__ __forceinline__ static void store_matrices(const unsigned (&packed)[kTiles][kHalves], unsigned to) {
    constexpr int kTilesAtOnce = 4 / kHalves;  // matrices of a tile: one for each 8 rows
#pragma unroll
    for (int t = 0; t < kTiles; t += kTilesAtOnce) {
      unsigned x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = packed[t + i / kHalves][i % kHalves];
      ptx::st_matrix_x4((to ^ t % 8 * 16) + t / 8 * kBoxBytes, x[0], x[1], x[2], x[3]);
    }
  }

  /// Writes a warp's rows by bulk loads of its own, which leave rows past the last and columns past the head dim out:
  /// accumulators as matrices to shared memory, in the 128-byte swizzle of boxes.
  __device__ __forceinline__ void store_tma(const unsigned (&packed)[kTiles][kHalves]) const {
    constexpr int kBoxes = kSliceColumns / tile::kBoxColumns;
    constexpr int kWarpRows = box_rows(kConfig);
    constexpr bool kInQueries = o_overwrites_q(kConfig);
    constexpr int kBoxBytes = (kInQueries ? kWarpgroupRows : kWarpRows) * tile::kBoxRowBytes;
    const int first_box = at.kv_group / kRowSlices * kBoxes;
    const unsigned smem = kInQueries ? layout.shared + kPlan.q +
                                           (at.m_warpgroup * (kDim / tile::kBoxColumns) + first_box) * kBoxBytes +
                                           (at.warp * 16 + 8 * first_half()) * tile::kBoxRowBytes
                                     : layout.shared + kPlan.rows + (at.m_warpgroup * 4 + at.warp) * kBoxes * kBoxBytes;
    const int own = at.lane % kWarpRows;
    const unsigned to = smem + own * tile::kBoxRowBytes + (at.lane / kWarpRows ^ own % 8) * 16;
    if constexpr (!kInQueries) {
      if (at.lane == 0) ptx::cp_async_bulk_wait_group_read<0>();  // rows of the Q tile before
      __syncwarp();
    }
    store_matrices<kBoxBytes>(packed, to);
    ptx::fence_proxy_async();
    __syncwarp();
    if (at.lane == 0) {
      const int first_row = at.row + 8 * first_half();
#pragma unroll
      for (int b = 0; b < kBoxes; ++b) {
        const int column = (first_box + b) * tile::kBoxColumns;
        if constexpr (kEvictFirst)
          ptx::cp_async_bulk_tensor_4d_store_evict_first(*target.map, smem + b * kBoxBytes, column, first_row, at.head,
                                                         at.batch);
        else
          ptx::cp_async_bulk_tensor_4d_store(*target.map, smem + b * kBoxBytes, column, first_row, at.head, at.batch);
      }
      ptx::cp_async_bulk_commit_group();
    }
  }

  /// Writes a warp's rows as lines of 128 bytes: accumulators as matrices to shared memory, lines from there, each time
  /// without bank conflicts.
  /// @param rows the head's first row, from the first column of this KV group's slice
  __device__ __forceinline__ void store_smem_b128(const unsigned (&packed)[kTiles][kHalves],
                                                  unsigned short* rows) const {
    constexpr int kBoxes = kSliceColumns / tile::kBoxColumns;
    constexpr int kWarpRows = 8 * kHalves;
    // Four rows are as many bytes as a warp has of a piece of a slice, which nobody else reads.
    constexpr int kFourRows = 4 * tile::kBoxRowBytes;
    constexpr int kNextFour = kGroups == 1 ? kFourRows : kPieceBytes;
    constexpr int kBoxBytes = kWarpRows / 4 * kNextFour;
    const unsigned smem =
        kGroups == 1 ? layout.shared + kPlan.rows + (at.m_warpgroup * 4 + at.warp) * kBoxes * kBoxBytes
        : kGroups == 2
            ? passed_by(true) - at.lane * 16
            : slice(at.kv_group, at.kv_group == 0 ? 1 : 0) + at.warp * kFourRows - (at.warp * 32 + at.lane) * 16;
    const int own = at.lane % kWarpRows;
    const unsigned to =
        smem + own / 4 * kNextFour + own % 4 * tile::kBoxRowBytes + (at.lane / kWarpRows ^ own % 8) * 16;
    if constexpr (kGroups > 1) __syncwarp();
    store_matrices<kBoxBytes>(packed, to);
    const int piece = at.lane % 8;
    const int first_row = at.row + 8 * first_half() - at.lane / 4 + at.lane / 8;
    const int first_column = at.kv_group / kRowSlices * kSliceColumns + 8 * piece;
    unsigned short* line;
    long long next;  // elements, to the line that is four rows further on
    if constexpr (kConfig.epilogue == EpilogueStore::smem_b128_preaddressed) {
      unsigned x[4];
      ptx::ld_shared_v4(x, kept_address());
      line = reinterpret_cast<unsigned short*>(static_cast<unsigned long long>(x[1]) << 32 | x[0]);
      next = static_cast<long long>(static_cast<unsigned long long>(x[3]) << 32 | x[2]);
    } else {
      line = rows + first_row * target.strides.row + 8 * piece;
      next = 4 * target.strides.row;
    }
    const unsigned from = smem + at.lane / 8 * tile::kBoxRowBytes + (piece ^ at.lane / 8) * 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows; i += 4) {
      const bool inside = kWhole || first_row + i < target.len_q;
#pragma unroll
      for (int b = 0; b < kBoxes; ++b) {
        unsigned x[4];
        ptx::ld_shared_v4(x, (from ^ i % 8 * 16) + i / 4 * kNextFour + b * kBoxBytes);
        if (inside && (kDim == kProblem.head_dim || first_column + b * tile::kBoxColumns < kProblem.head_dim))
          store_b128(line + b * tile::kBoxColumns, x);
      }
      line += next;
    }
    if constexpr (kConfig.scheduler != Scheduler::single_tile && kGroups == 1) __syncwarp();
  }
};

}  // namespace heed::sm90_persistent

/// The end of a row tile in fwd_sm90_stream: key groups become one, and rows are written.
///
/// Every key group ends with a partial output (64, head dim) of a row group, and the reference and sum of each row.
/// Group i keeps the columns of slice i and passes every other slice on through shared memory:
///
///                 slice 0    slice 1            head dim 64, 2 key groups: slices of 32 columns
///     group 0   [ keeps  ] [ passes on ]
///     group 1   [ passes on ] [ keeps  ]
///
/// Row group's part of the exchange: slices in the order (receiver, sender without the receiver), each in the order of
/// the senders' registers, 16 bytes a thread and piece; then (key group, 64 rows) times reference and sum.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/stream/config.hpp"
#include "kernels/tile/quad.cuh"

namespace heed::stream {

/// What a warp knows of its rows at the end.
struct Rows {
  int key_group;
  int row_group;
  int warp;  ///< within the row group
  int lane;
  int row;  ///< of the lane's first row; its second is 8 further on
  int head;
  int batch;
};

/// Output parameters, read before the first copy arrives: at the end of a short kernel a parameter that no one has read
/// yet costs 200 clocks.
struct Target {
  unsigned short* o;
  float* lse;
  TensorStrides strides;
  int len_q;
  int heads;
};

template <Config kConfig, Problem kProblem>
struct Epilogue {
  static constexpr int kGroups = kConfig.key_groups;
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kSliceColumns = kDim / kGroups;
  static constexpr int kSliceRegisters = kSliceColumns / 2;
  static constexpr int kTiles = kSliceColumns / 8;
  static constexpr int kPieces = kSliceRegisters / 4;
  static constexpr int kPieceBytes = 16 * kGroupThreads;
  static constexpr int kSliceBytes = kPieces * kPieceBytes;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);

  Target target;
  unsigned shared;
  Rows at;

  /// @param out (64, head dim), unnormalised; accumulator fragments
  /// @param reference in log2 units, -inf without keys
  /// @param sum of each row, over the whole row
  __device__ __forceinline__ void run(const float (&out)[kDim / 2], const float (&reference)[2],
                                      const float (&sum)[2]) const {
    float kept[kSliceRegisters];
    float log2_sum[2];
    if constexpr (kGroups == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        log2_sum[h] = reference[h] + ptx::lg2_approx_ftz(sum[h]);
        const float inverse = sum[h] > 0.0F ? ptx::rcp_approx_ftz(sum[h]) : 0.0F;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          kept[4 * t + 2 * h] = out[4 * t + 2 * h] * inverse;
          kept[4 * t + 2 * h + 1] = out[4 * t + 2 * h + 1] * inverse;
        }
      }
    } else {
      merge(out, reference, sum, kept, log2_sum);
    }
    write(kept, log2_sum);
  }

 private:
  __device__ __forceinline__ unsigned exchange() const {
    return shared + kPlan.exchange + at.row_group * kPlan.exchange_bytes;
  }
  __device__ __forceinline__ unsigned slice(int receiver, int sender) const {
    return exchange() + (receiver * (kGroups - 1) + sender - (sender > receiver ? 1 : 0)) * kSliceBytes +
           (at.warp * 32 + at.lane) * 16;
  }
  __device__ __forceinline__ unsigned state(int group) const {
    return exchange() + kGroups * (kGroups - 1) * kSliceBytes + (group * kGroupRows + at.warp * 16 + at.lane / 4) * 8;
  }

  __device__ __forceinline__ void merge(const float (&out)[kDim / 2], const float (&reference)[2],
                                        const float (&sum)[2], float (&kept)[kSliceRegisters],
                                        float (&log2_sum)[2]) const {
    const int barrier = 2 + at.row_group;
    // Of a row tile before, everyone has read what was sent.
    if (kConfig.schedule != Schedule::one_tile) ptx::bar_sync(barrier, kGroupThreads * kGroups);
#pragma unroll
    for (int to = 0; to < kGroups; ++to) {
      if (to == at.key_group) {
#pragma unroll
        for (int i = 0; i < kSliceRegisters; ++i) kept[i] = out[to * kSliceRegisters + i];
      } else {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          const float* from = out + to * kSliceRegisters + 4 * p;
          ptx::st_shared_v4(slice(to, at.key_group) + p * kPieceBytes, __float_as_uint(from[0]),
                            __float_as_uint(from[1]), __float_as_uint(from[2]), __float_as_uint(from[3]));
        }
      }
    }
    if (at.lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) ptx::st_shared_v2(state(at.key_group) + 64 * h, reference[h], sum[h]);
    ptx::bar_sync(barrier, kGroupThreads * kGroups);
    float weight[kGroups][2];
    float most[2] = {-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)};
    float total[2] = {0.0F, 0.0F};
    float sums[kGroups][2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float both[2];
        ptx::ld_shared_v2(both, state(g) + 64 * h);
        weight[g][h] = both[0];
        sums[g][h] = both[1];
        most[h] = fmaxf(most[h], both[0]);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        weight[g][h] = ptx::ex2_approx_ftz(weight[g][h] - attention::finite_reference(most[h]));
        total[h] = fmaf(weight[g][h], sums[g][h], total[h]);
      }
      log2_sum[h] = most[h] + ptx::lg2_approx_ftz(total[h]);
      const float inverse = total[h] > 0.0F ? ptx::rcp_approx_ftz(total[h]) : 0.0F;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) weight[g][h] *= inverse;
    }
#pragma unroll
    for (int me = 0; me < kGroups; ++me) {
      if (me != at.key_group) continue;
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= weight[me][i / 2 % 2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g == me) continue;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          unsigned words[4];
          ptx::ld_shared_v4(words, slice(me, g) + p * kPieceBytes);
#pragma unroll
          for (int w = 0; w < 4; ++w)
            kept[4 * p + w] = fmaf(__uint_as_float(words[w]), weight[g][w / 2], kept[4 * p + w]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(const float (&kept)[kSliceRegisters], const float (&log2_sum)[2]) const {
    if (target.lse != nullptr && at.key_group == 0 && at.lane % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (at.row + 8 * h < target.len_q)
          target.lse[static_cast<unsigned long long>(static_cast<unsigned>(at.batch * target.heads + at.head)) *
                         static_cast<unsigned>(target.len_q) +
                     static_cast<unsigned>(at.row + 8 * h)] = log2_sum[h] * 0.693147181F;
    }
    const int first_column = at.key_group * kSliceColumns;
    unsigned short* rows = target.o + at.batch * target.strides.batch + at.head * target.strides.head + first_column;
    const long long row_stride = target.strides.row;
    constexpr bool kEvictFirst = kConfig.evict_first == EvictFirst::all;
    constexpr bool kPadded = kDim != kProblem.head_dim;
    const int quarter = at.lane % 4;
    unsigned packed[kTiles][2];  // of tile t and row h
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        packed[t][h] = ptx::cvt_rn_x2<kProblem.element>(kept[4 * t + 2 * h], kept[4 * t + 2 * h + 1]);
    if constexpr (kConfig.store == Store::pairs) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (at.row + 8 * h < target.len_q)
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
            if (!kPadded || first_column + 8 * t < kProblem.head_dim) {
              unsigned short* to = rows + (at.row + 8 * h) * row_stride + 8 * t + 2 * quarter;
              if constexpr (kEvictFirst)
                ptx::st_global_cs(to, packed[t][h]);
              else
                *reinterpret_cast<unsigned*>(to) = packed[t][h];
            }
    } else if constexpr (writes_rows(kConfig, kProblem.head_dim)) {
      write_lines(packed, rows);
    } else if constexpr (kTiles % 4 == 0) {
      // Four tiles of a row are four runs of 8 columns, each spread over the four lanes of a quad: transposed, every
      // lane has one run, and the quad 64 bytes in a row.
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int t = 0; t < kTiles; t += 4) {
          unsigned x[4] = {packed[t][h], packed[t + 1][h], packed[t + 2][h], packed[t + 3][h]};
          tile::transpose_quad(x, quarter);
          if (at.row + 8 * h < target.len_q && (!kPadded || first_column + 8 * (t + quarter) < kProblem.head_dim))
            write_piece(rows + (at.row + 8 * h) * row_stride + 8 * (t + quarter), x);
        }
    } else {
      // Of two tiles and two rows: 32 bytes in a row.
      unsigned short* mine = rows + (at.row + 8 * (quarter / 2)) * row_stride + 8 * (quarter % 2);
      const bool inside = at.row + 8 * (quarter / 2) < target.len_q;
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        unsigned x[4] = {packed[t][0], packed[t + 1][0], packed[t][1], packed[t + 1][1]};
        tile::transpose_quad(x, quarter);
        if (inside && (!kPadded || first_column + 8 * (t + quarter % 2) < kProblem.head_dim))
          write_piece(mine + 8 * t, x);
      }
    }
  }

  __device__ __forceinline__ static void write_piece(unsigned short* to, const unsigned (&x)[4]) {
    if constexpr (kConfig.evict_first == EvictFirst::all)
      ptx::st_global_cs_v4(to, x);
    else
      ptx::st_global_v4(to, x);
  }

  /// Writes a warp's 16 rows as lines of 128 bytes. Written by words and read by 16 bytes, each time without bank
  /// conflicts: piece i of 16 bytes of row r lies at i ^ (r % 8).
  /// @param rows the head's first row, from the first column of this key group's slice
  __device__ __forceinline__ void write_lines(const unsigned (&packed)[kTiles][2], unsigned short* rows) const {
    constexpr int kBoxes = kSliceColumns / tile::kBoxColumns;
    constexpr int kWarpRows = 16;
    constexpr int kBoxBytes = kWarpRows * tile::kBoxRowBytes;
    const unsigned place =
        shared + kPlan.rows + ((at.key_group * kConfig.row_groups + at.row_group) * 4 + at.warp) * kBoxes * kBoxBytes;
    // In the place of its queries: the row group's other warps have read them. Key groups have met in merge().
    if (kConfig.schedule == Schedule::one_tile && kGroups == 1) ptx::bar_sync(2 + at.row_group, kGroupThreads);
    const int mine = at.lane / 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        ptx::st_shared(
            place + t / 8 * kBoxBytes + (mine + 8 * h) * tile::kBoxRowBytes + (t % 8 ^ mine) * 16 + at.lane % 4 * 4,
            packed[t][h]);
    __syncwarp();
    const int piece = at.lane % 8;
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
#pragma unroll
      for (int i = 0; i < kWarpRows; i += 4) {
        const int r = i + at.lane / 8;
        const int row = at.row - mine + r;
        const int column = b * tile::kBoxColumns + 8 * piece;
        unsigned x[4];
        ptx::ld_shared_v4(x, place + b * kBoxBytes + r * tile::kBoxRowBytes + (piece ^ r % 8) * 16);
        if (row < target.len_q && at.key_group * kSliceColumns + column < kProblem.head_dim)
          write_piece(rows + row * target.strides.row + column, x);
      }
    __syncwarp();
  }
};

}  // namespace heed::stream

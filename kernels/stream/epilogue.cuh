/// The end of a row tile in fwd_sm90_stream: parts become one, and rows are written.
///
/// Every part, a key group or a block of a cluster, ends with a partial output (64, head dim) of a row group, and the
/// reference and sum of each row. Part i keeps slice i and passes every other slice on through shared memory. A lane
/// has two rows, 8 apart:
///
///                   head dim 64, 2 parts                          4 key groups
///                    all columns                        columns 0 to 31   32 to 63
///     first row    [ slice 0          ]               [ slice 0        ][ slice 2 ]
///     second row   [ slice 1          ]               [ slice 1        ][ slice 3 ]
///
/// What a sender sends: the slices of the others, each in the order of its registers, 16 bytes a thread and piece; then
/// two floats a row: reference and sum, or between blocks the log2-sum-exp and nothing.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/stream/config.hpp"
#include "kernels/tile/quad.cuh"

namespace heed::stream {

/// What a warp knows of its rows at the end.
struct Rows {
  int key_group;  ///< or the block's rank in its cluster
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
  const TensorMap* map;  ///< of the output, with Store::boxes
};

template <Config kConfig, Problem kProblem>
struct Epilogue {
  static constexpr int kGroups = parts(kConfig);
  static constexpr bool kInCluster = kConfig.cluster > 1;
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kRowSlices = row_slices(kConfig);
  static constexpr int kHalves = 2 / kRowSlices;  // rows of a lane in a slice
  static constexpr int kSliceColumns = kDim / column_slices(kConfig);
  static constexpr int kSliceRegisters = kDim / 2 / kGroups;
  static constexpr int kTiles = kSliceColumns / 8;
  // Two values a word between blocks, whose way is longer than a rounding.
  static constexpr int kPieces = kSliceRegisters / (kInCluster ? 8 : 4);
  static constexpr int kPieceBytes = 16 * kGroupThreads;
  static constexpr int kSliceBytes = kPieces * kPieceBytes;
  static constexpr bool kEvictFirst =
      kConfig.evict_first == EvictFirst::passing || kConfig.evict_first == EvictFirst::all;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static_assert(kTiles % 4 == 0, "four lanes write 64 bytes of a row");

  Target target;
  unsigned shared;
  Rows at;

  /// @param out (64, head dim), unnormalised; accumulator fragments
  /// @param reference in log2 units, -inf without keys
  /// @param sum of each row, over the whole row
  __device__ __forceinline__ void run(const float (&out)[kDim / 2], const float (&reference)[2],
                                      const float (&sum)[2]) const {
    float kept[kSliceRegisters];  // register 2 (kHalves t + h) + i: of tile t, row h and column i
    float log2_sum[kHalves];
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
    } else if constexpr (kInCluster) {
      merge_blocks(out, reference, sum, kept, log2_sum);
    } else if constexpr (kGroups == 2) {
      merge_two(out, reference, sum, kept, log2_sum);
    } else {
      merge(out, reference, sum, kept, log2_sum);
    }
    write(kept);
    write_log_sums(log2_sum);
  }

  /// Where this thread's first line goes, for write_lines: beside the first copies, when nothing else is to be done.
  __device__ __forceinline__ void keep_line() const {
    const int first_row = at.row + 8 * first_half() - at.lane / 4 + at.lane / 8;
    const unsigned short* line = target.o + at.batch * target.strides.batch + at.head * target.strides.head +
                                 at.key_group / kRowSlices * kSliceColumns + first_row * target.strides.row +
                                 8 * (at.lane % 8);
    const unsigned long long address = reinterpret_cast<unsigned long long>(line);
    const long long next = 4 * target.strides.row;
    ptx::st_shared_v4(kept_line(), static_cast<unsigned>(address), static_cast<unsigned>(address >> 32),
                      static_cast<unsigned>(next), static_cast<unsigned>(next >> 32));
  }

 private:
  __device__ __forceinline__ unsigned kept_line() const { return shared + kPlan.lines + threadIdx.x * 16; }

  /// Where register i of a slice lies in the output.
  __device__ __forceinline__ static constexpr int place_of(int slice, int i) {
    return kRowSlices == 1 ? i : (slice / 2 * kTiles + i / 2) * 4 + slice % 2 * 2 + i % 2;
  }
  /// Of the lane's rows, the first that its slice holds; row: of the lane's first.
  __device__ __forceinline__ int first_half() const { return kRowSlices == 1 ? 0 : at.key_group % 2; }

  __device__ __forceinline__ unsigned sent_by(int sender) const {
    return shared + kPlan.exchange + at.row_group * kPlan.exchange_bytes + sender * kPlan.sender_bytes;
  }
  __device__ __forceinline__ unsigned slice(int receiver, int sender) const {
    return sent_by(sender) + (receiver - (receiver > sender ? 1 : 0)) * kSliceBytes + (at.warp * 32 + at.lane) * 16;
  }
  __device__ __forceinline__ unsigned state(int sender) const {
    return sent_by(sender) + (kGroups - 1) * kSliceBytes + (at.warp * 16 + at.lane / 4) * 8;
  }

  /// Where a thread of two parts sends its slice, or finds the other's: its first piece. Of blocks that is one place,
  /// in the receiver's shared memory. From the thread's index and not what its warp knows of itself, which would be a
  /// chain of uniform instructions.
  __device__ __forceinline__ unsigned passed_by(bool other) const {
    unsigned thread = threadIdx.x;
    ptx::settle(thread);
    const unsigned group = thread / kGroupThreads;
    const unsigned row_group = group % kConfig.row_groups;
    if constexpr (kInCluster)
      return shared + kPlan.exchange + row_group * kPlan.exchange_bytes + thread % kGroupThreads * 16;
    const unsigned key_group = group / kConfig.row_groups ^ (other ? 1 : 0);
    return shared + kPlan.exchange + row_group * kPlan.exchange_bytes + key_group * kPlan.sender_bytes +
           thread % kGroupThreads * 16;
  }
  /// From there to the reference and the sum of its row: eight bytes for the four lanes of a row.
  __device__ __forceinline__ unsigned to_state() const {
    const unsigned thread = at.warp * 32 + at.lane;
    return kSliceBytes + thread / 4 * 8 - thread * 16;
  }

  /// Two key groups: each keeps one of a lane's two rows and passes the other on.
  __device__ __forceinline__ void merge_two(const float (&out)[kDim / 2], const float (&reference)[2],
                                            const float (&sum)[2], float (&kept)[kSliceRegisters],
                                            float (&log2_sum)[kHalves]) const {
    const int barrier = 2 + at.row_group;
    const bool second = at.key_group != 0;
    if (sends_in_stages(kConfig, kProblem.head_dim))
      ptx::bar_sync(3 + at.key_group, kGroupThreads);
    else if (kConfig.schedule != Schedule::one_tile)
      ptx::bar_sync(barrier, kGroupThreads * kGroups);
    const unsigned to = passed_by(false);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float first = out[place_of(0, 4 * p + w)];
        const float other = out[place_of(1, 4 * p + w)];
        words[w] = __float_as_uint(second ? first : other);
        kept[4 * p + w] = second ? other : first;
      }
      ptx::st_shared_v4(to + p * kPieceBytes, words[0], words[1], words[2], words[3]);
    }
    if (at.lane % 4 == 0)
      ptx::st_shared_v2(to + to_state(), second ? reference[0] : reference[1], second ? sum[0] : sum[1]);
    const unsigned from = passed_by(true);
    ptx::bar_sync(barrier, kGroupThreads * kGroups);
    float its[2];
    ptx::ld_shared_v2(its, from + to_state());
    const float own_reference = second ? reference[1] : reference[0];
    const float most = fmaxf(own_reference, its[0]);
    const float subtracted = attention::finite_reference(most);
    float mine = ptx::ex2_approx_ftz(own_reference - subtracted);
    float weight = ptx::ex2_approx_ftz(its[0] - subtracted);
    const float total = fmaf(mine, second ? sum[1] : sum[0], weight * its[1]);
    log2_sum[0] = most + ptx::lg2_approx_ftz(total);
    const float inverse = total > 0.0F ? ptx::rcp_approx_ftz(total) : 0.0F;
    mine *= inverse;
    weight *= inverse;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
      ptx::ld_shared_v4(words, from + p * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) kept[4 * p + w] = fmaf(__uint_as_float(words[w]), weight, kept[4 * p + w] * mine);
    }
  }

  /// Two blocks of a cluster, likewise: normalised rows of 16 bits a value travel through distributed shared memory,
  /// with their log2-sum-exp, and are counted in bytes where they arrive. One row tile a block.
  __device__ __forceinline__ void merge_blocks(const float (&out)[kDim / 2], const float (&reference)[2],
                                               const float (&sum)[2], float (&kept)[kSliceRegisters],
                                               float (&log2_sum)[kHalves]) const {
    const bool second = at.key_group != 0;
    const unsigned other = 1 - at.key_group;
    const unsigned inbox = shared + kPlan.barriers + 8 * (barrier_plan(kConfig).inbox + at.row_group);
    const unsigned its_inbox = ptx::mapa(inbox, other);
    const unsigned from = passed_by(true);
    const unsigned to = ptx::mapa(from, other);
    float inverse[2];
    float both[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = sum[h] > 0.0F ? ptx::rcp_approx_ftz(sum[h]) : 0.0F;
      both[h] = reference[h] + ptx::lg2_approx_ftz(sum[h]);
    }
    const float of_sent = second ? inverse[0] : inverse[1];
    ptx::st_async_v2_if(at.lane % 4 == 0, to + to_state(), second ? both[0] : both[1], 0.0F, its_inbox);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float sent[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at_register = 8 * p + 2 * w + i;
          const float first = out[place_of(0, at_register)];
          const float last = out[place_of(1, at_register)];
          sent[i] = (second ? first : last) * of_sent;
          kept[at_register] = second ? last : first;
        }
        words[w] = ptx::cvt_rn_x2<kProblem.element>(sent[0], sent[1]);
      }
      ptx::st_async_v4(to + p * kPieceBytes, words, its_inbox);
    }
    const float own = second ? both[1] : both[0];
    const float of_own = second ? inverse[1] : inverse[0];
    ptx::mbarrier_wait(inbox, 0);
    float its[2];
    ptx::ld_shared_v2(its, from + to_state());
    const float most = fmaxf(own, its[0]);
    const float subtracted = attention::finite_reference(most);
    float mine = ptx::ex2_approx_ftz(own - subtracted);
    float weight = ptx::ex2_approx_ftz(its[0] - subtracted);
    const float total = mine + weight;
    log2_sum[0] = most + ptx::lg2_approx_ftz(total);
    const float share = total > 0.0F ? ptx::rcp_approx_ftz(total) : 0.0F;
    mine *= share * of_own;
    weight *= share;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
      ptx::ld_shared_v4(words, from + p * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float* x = kept + 8 * p + 2 * w;
        x[0] = fmaf(ptx::unpack_low<kProblem.element>(words[w]), weight, x[0] * mine);
        x[1] = fmaf(ptx::unpack_high<kProblem.element>(words[w]), weight, x[1] * mine);
      }
    }
  }

  __device__ __forceinline__ void merge(const float (&out)[kDim / 2], const float (&reference)[2],
                                        const float (&sum)[2], float (&kept)[kSliceRegisters],
                                        float (&log2_sum)[kHalves]) const {
    const int barrier = 2 + at.row_group;
    // Of a row tile before, everyone has read what was sent; or every warp of this group its values.
    if (sends_in_stages(kConfig, kProblem.head_dim))
      ptx::bar_sync(3 + at.key_group, kGroupThreads);
    else if (kConfig.schedule != Schedule::one_tile)
      ptx::bar_sync(barrier, kGroupThreads * kGroups);
#pragma unroll
    for (int to = 0; to < kGroups; ++to) {
      if (to == at.key_group) {
#pragma unroll
        for (int i = 0; i < kSliceRegisters; ++i) kept[i] = out[place_of(to, i)];
      } else {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          unsigned words[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) words[w] = __float_as_uint(out[place_of(to, 4 * p + w)]);
          ptx::st_shared_v4(slice(to, at.key_group) + p * kPieceBytes, words[0], words[1], words[2], words[3]);
        }
      }
    }
    if (at.lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) ptx::st_shared_v2(state(at.key_group) + 64 * h, reference[h], sum[h]);
    ptx::bar_sync(barrier, kGroupThreads * kGroups);
    float weight[kGroups];
    float sums[kGroups];
    float most = -__int_as_float(0x7f800000);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float both[2];
      ptx::ld_shared_v2(both, state(g) + 64 * first_half());
      weight[g] = both[0];
      sums[g] = both[1];
      most = fmaxf(most, both[0]);
    }
    float total = 0.0F;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      weight[g] = ptx::ex2_approx_ftz(weight[g] - attention::finite_reference(most));
      total = fmaf(weight[g], sums[g], total);
    }
    log2_sum[0] = most + ptx::lg2_approx_ftz(total);
    const float inverse = total > 0.0F ? ptx::rcp_approx_ftz(total) : 0.0F;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) weight[g] *= inverse;
#pragma unroll
    for (int me = 0; me < kGroups; ++me) {
      if (me != at.key_group) continue;
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= weight[me];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g == me) continue;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          unsigned words[4];
          ptx::ld_shared_v4(words, slice(me, g) + p * kPieceBytes);
#pragma unroll
          for (int w = 0; w < 4; ++w) kept[4 * p + w] = fmaf(__uint_as_float(words[w]), weight[g], kept[4 * p + w]);
        }
      }
    }
  }

  /// After the rows: a launch waits for those, and few callers want these.
  __device__ __forceinline__ void write_log_sums(const float (&log2_sum)[kHalves]) const {
    if (target.lse == nullptr || at.key_group >= kRowSlices || at.lane % 4 != 0) return;
    const int first_row = at.row + 8 * first_half();
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
      if (first_row + 8 * h < target.len_q)
        target.lse[static_cast<unsigned long long>(static_cast<unsigned>(at.batch * target.heads + at.head)) *
                       static_cast<unsigned>(target.len_q) +
                   static_cast<unsigned>(first_row + 8 * h)] = log2_sum[h] * 0.693147181F;
  }

  __device__ __forceinline__ void write(const float (&kept)[kSliceRegisters]) const {
    const int first_row = at.row + 8 * first_half();
    const int first_column = at.key_group / kRowSlices * kSliceColumns;
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
    if constexpr (kConfig.store == Store::boxes) {
      write_boxes(packed);
      return;
    } else if constexpr (writes_lines(kConfig)) {
      write_lines(packed, rows);
      return;
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bool inside = first_row + 8 * h < target.len_q;
      unsigned short* to = rows + (first_row + 8 * h) * row_stride;
      if constexpr (kConfig.store == Store::pairs) {
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
            write_piece(to + 8 * (t + quarter), x);
        }
      }
    }
  }

  __device__ __forceinline__ static void write_piece(unsigned short* to, const unsigned (&x)[4]) {
    if constexpr (kEvictFirst)
      ptx::st_global_cs_v4(to, x);
    else
      ptx::st_global_v4(to, x);
  }

  /// Writes a warp's rows by bulk copies of its own, which leave rows past the last and columns past the head dim out:
  /// accumulators as matrices to shared memory, in the 128-byte swizzle, where piece i of 16 bytes of row r lies at
  /// i ^ (r % 8).
  __device__ __forceinline__ void write_boxes(const unsigned (&packed)[kTiles][kHalves]) const {
    constexpr int kBoxes = kSliceColumns / tile::kBoxColumns;
    constexpr int kWarpRows = box_rows(kConfig);
    constexpr int kTilesAtOnce = 4 / kHalves;  // matrices of a tile: one for each 8 rows
    constexpr bool kInQueries = boxes_replace_queries(kConfig);
    constexpr int kBoxBytes = (kInQueries ? kGroupRows : kWarpRows) * tile::kBoxRowBytes;
    const int first_box = at.key_group / kRowSlices * kBoxes;
    const unsigned place = kInQueries ? shared + kPlan.q +
                                            (at.row_group * (kDim / tile::kBoxColumns) + first_box) * kBoxBytes +
                                            (at.warp * 16 + 8 * first_half()) * tile::kBoxRowBytes
                                      : shared + kPlan.rows + (at.row_group * 4 + at.warp) * kBoxes * kBoxBytes;
    const int own = at.lane % kWarpRows;
    const unsigned to = place + own * tile::kBoxRowBytes + (at.lane / kWarpRows ^ own % 8) * 16;
    if constexpr (!kInQueries) {
      if (at.lane == 0) ptx::cp_async_bulk_wait_group_read<0>();  // rows of the row tile before
      __syncwarp();
    }
#pragma unroll
    for (int t = 0; t < kTiles; t += kTilesAtOnce) {
      unsigned x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = packed[t + i / kHalves][i % kHalves];
      ptx::st_matrix_x4((to ^ t % 8 * 16) + t / 8 * kBoxBytes, x[0], x[1], x[2], x[3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (at.lane == 0) {
      const int first_row = at.row + 8 * first_half();
#pragma unroll
      for (int b = 0; b < kBoxes; ++b) {
        const int column = (first_box + b) * tile::kBoxColumns;
        if constexpr (kEvictFirst)
          ptx::cp_async_bulk_tensor_4d_store_evict_first(*target.map, place + b * kBoxBytes, column, first_row, at.head,
                                                         at.batch);
        else
          ptx::cp_async_bulk_tensor_4d_store(*target.map, place + b * kBoxBytes, column, first_row, at.head, at.batch);
      }
      ptx::cp_async_bulk_commit_group();
    }
  }

  /// Writes a warp's rows as lines of 128 bytes: accumulators as matrices to shared memory, lines from there, each time
  /// without bank conflicts: piece i of 16 bytes of row r lies at i ^ (r % 8).
  /// @param rows the head's first row, from the first column of this key group's slice
  __device__ __forceinline__ void write_lines(const unsigned (&packed)[kTiles][kHalves], unsigned short* rows) const {
    constexpr int kBoxes = kSliceColumns / tile::kBoxColumns;
    constexpr int kWarpRows = 8 * kHalves;
    constexpr int kTilesAtOnce = 4 / kHalves;  // matrices of a tile: one for each 8 rows
    // Four rows are as many bytes as a warp has of a piece of a slice, which nobody else reads.
    constexpr int kFourRows = 4 * tile::kBoxRowBytes;
    constexpr int kNextFour = kGroups == 1 ? kFourRows : kPieceBytes;
    constexpr int kBoxBytes = kWarpRows / 4 * kNextFour;
    const unsigned place = kGroups == 1   ? shared + kPlan.rows + (at.row_group * 4 + at.warp) * kBoxes * kBoxBytes
                           : kGroups == 2 ? passed_by(true) - at.lane * 16
                                          : slice(at.key_group, at.key_group == 0 ? 1 : 0) + at.warp * kFourRows -
                                                (at.warp * 32 + at.lane) * 16;
    const int own = at.lane % kWarpRows;
    const unsigned to =
        place + own / 4 * kNextFour + own % 4 * tile::kBoxRowBytes + (at.lane / kWarpRows ^ own % 8) * 16;
    if constexpr (kGroups > 1) __syncwarp();
#pragma unroll
    for (int t = 0; t < kTiles; t += kTilesAtOnce) {
      unsigned x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = packed[t + i / kHalves][i % kHalves];
      ptx::st_matrix_x4((to ^ t % 8 * 16) + t / 8 * kBoxBytes, x[0], x[1], x[2], x[3]);
    }
    const int piece = at.lane % 8;
    const int first_row = at.row + 8 * first_half() - at.lane / 4 + at.lane / 8;
    const int first_column = at.key_group / kRowSlices * kSliceColumns + 8 * piece;
    unsigned short* line;
    long long next;  // elements, to the line that is four rows further on
    if constexpr (kConfig.store == Store::aimed_rows) {
      unsigned x[4];
      ptx::ld_shared_v4(x, kept_line());
      line = reinterpret_cast<unsigned short*>(static_cast<unsigned long long>(x[1]) << 32 | x[0]);
      next = static_cast<long long>(static_cast<unsigned long long>(x[3]) << 32 | x[2]);
    } else {
      line = rows + first_row * target.strides.row + 8 * piece;
      next = 4 * target.strides.row;
    }
    const unsigned from = place + at.lane / 8 * tile::kBoxRowBytes + (piece ^ at.lane / 8) * 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows; i += 4) {
      const bool inside = first_row + i < target.len_q;
#pragma unroll
      for (int b = 0; b < kBoxes; ++b) {
        unsigned x[4];
        ptx::ld_shared_v4(x, (from ^ i % 8 * 16) + i / 4 * kNextFour + b * kBoxBytes);
        if (inside && (kDim == kProblem.head_dim || first_column + b * tile::kBoxColumns < kProblem.head_dim))
          write_piece(line + b * tile::kBoxColumns, x);
      }
      line += next;
    }
    if constexpr (kConfig.schedule != Schedule::one_tile && kGroups == 1) __syncwarp();
  }
};

}  // namespace heed::stream

/// The end of a launch of fwd_sm90: the parts of a row tile become one, and its rows are written.
///
/// Every part ends with a partial output (64, head dim) and the log2-sum-exp of each row. Part i keeps the columns of
/// slice i and sends every other slice, normalised, with its log2-sum-exps to the part that keeps it:
///
///                 slice 0    slice 1           head dim 64, 2 parts: slices of 32 columns
///     part 0    [ keeps  ] [ sends -> part 1 ]
///     part 1    [ sends -> part 0 ] [ keeps  ]
///
/// An inbox holds (parts - 1) slices, each in the order of the senders' registers (16 bytes a thread and piece, the
/// four lanes of two rows 16 bytes apart from the next four: where they are read by words, no bank is asked twice),
/// then (parts - 1) times 64 log2-sum-exps. The sender `distance` parts before the receiver, counted round, takes place
/// distance - 1, so partial sums always add up in the same order.
///
/// Blocks of a cluster store into each other's shared memory (st.async, counted in bytes). The parts of a single block
/// store into their own and count threads: outside a cluster st.async is an illegal instruction on an H200.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/config.hpp"

namespace heed::sm90 {

/// The log2-sum-exp of a row whose part was misled and is computed again: no row that was summed has it.
__device__ __forceinline__ float misled_log_sum() {
  return __int_as_float(0x7f800000);
}

/// Which rows a warp of a row group holds.
struct Place {
  unsigned shared;  ///< start of the block's dynamic shared memory
  int part;
  int row_group;
  int warp;  ///< within the row group
  int lane;
  int row;  ///< of the lane's first row; its second is 8 further on
  int head;
  int batch;
};

/// Where a lane writes and, of two parts, sends and receives. Known before the first key has arrived, and worked out
/// there: at the end of a launch, a parameter that nobody has read yet and the chain of products to an address cost 250
/// clocks.
struct Target {
  unsigned short* o;  ///< the lane's first element
  float* lse;         ///< of the lane's first row, or of its run's; null where the lane writes none
  // Of two parts:
  unsigned to_piece;    ///< the lane's first piece in the other part's inbox, in the cluster's shared memory
  unsigned to_lse;      ///< its row's log2-sum-exp there
  unsigned to_barrier;  ///< the other inbox's
  unsigned piece;       ///< the lane's first piece in the own inbox
  unsigned lse_sent;    ///< its row's log2-sum-exp there
};

template <Config kConfig, Problem kProblem>
struct Merge {
  static constexpr int kParts = parts(kConfig);
  static constexpr int kSliceColumns = padded_dim(kProblem.head_dim) / kParts;
  static constexpr int kTiles = kSliceColumns / 8;
  static constexpr int kSliceRegisters = kSliceColumns / 2;
  static constexpr int kOutRegisters = out_columns(kConfig, kProblem.head_dim) / 2;
  static constexpr bool kHalf = kConfig.exchange == Exchange::half;
  static constexpr int kPieces = kHalf ? kTiles / 2 : kTiles;  // of 16 bytes a thread
  static constexpr int kPieceBytes = piece_bytes();
  // Rows that are written in pieces are transposed before the other parts' share has arrived: what a lane keeps and
  // receives are then runs of 8 columns of one row, 8 floats for each pair of tiles.
  static constexpr bool kRuns = kConfig.store == Store::pieces && kParts > 1;
  static constexpr bool kRemote = kConfig.cluster > 1;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  static_assert(kPieces * kPieceBytes == kPlan.slice_bytes || kParts == 1, "a slice is what the threads send");

  const ForwardParams& params;
  Place at;
  Target target;

  __device__ __forceinline__ static Target target_of(const ForwardParams& params, const Place& at) {
    const int quarter = at.lane % 4;
    const bool pieces = kConfig.store == Store::pieces;
    Target target{};
    target.o = static_cast<unsigned short*>(params.o) + at.batch * params.o_strides.batch +
               at.head * params.o_strides.head + (at.row + (pieces ? 8 * (quarter / 2) : 0)) * params.o_strides.row +
               at.part * kSliceColumns + (pieces ? 8 * (quarter % 2) : 2 * quarter);
    target.lse = nullptr;
    if (params.lse != nullptr && at.part == 0 && (kRuns ? quarter % 2 == 0 : quarter == 0))
      target.lse = params.lse + (static_cast<long long>(at.batch) * params.heads + at.head) * params.len_q + at.row +
                   (kRuns ? quarter / 2 * 8 : 0);
    if constexpr (kParts == 2) {
      const int other = 1 - at.part;
      const unsigned rank = other / kConfig.key_groups;
      target.to_piece = in_block(inbox(at, other) + piece_offset(at, 0, 0), rank);
      target.to_lse = in_block(inbox(at, other) + lse_offset(at, 0), rank);
      target.to_barrier = in_block(inbox_barrier(at, other), rank);
      target.piece = inbox(at, at.part) + (kRuns ? run_offset(at) : piece_offset(at, 0, 0));
      target.lse_sent = inbox(at, at.part) + lse_offset(at, 0) + (kRuns ? quarter / 2 * 4 : 0);
    }
    return target;
  }

  /// Keeps the compiler from working it out where it is used.
  __device__ __forceinline__ static void settle(Target& target) {
    ptx::settle(target.o);
    ptx::settle(target.lse);
    if constexpr (kParts == 2) {
      ptx::settle(target.to_piece);
      ptx::settle(target.to_lse);
      ptx::settle(target.to_barrier);
      ptx::settle(target.piece);
      ptx::settle(target.lse_sent);
    }
  }

  /// What lies at `address` in block `rank` of the cluster, if there is one.
  __device__ __forceinline__ static unsigned in_block(unsigned address, unsigned rank) {
    return kRemote ? ptx::mapa(address, rank) : address;
  }

  /// Inbox and barrier of part `of`'s row group, as this block's addresses.
  __device__ __forceinline__ static unsigned inbox(const Place& at, int of) {
    return at.shared + kPlan.inbox + (of % kConfig.key_groups * kConfig.row_groups + at.row_group) * kPlan.inbox_bytes;
  }
  __device__ __forceinline__ static unsigned inbox_barrier(const Place& at, int of) {
    return at.shared + kPlan.barriers +
           8 * (kBarriers.inbox + of % kConfig.key_groups * kConfig.row_groups + at.row_group);
  }
  __device__ __forceinline__ static unsigned piece_offset(const Place& at, int place, int piece) {
    return place * kPlan.slice_bytes + piece * kPieceBytes + (at.warp * 8 + at.lane / 4) * kQuadBytes +
           at.lane % 4 * 16;
  }
  __device__ __forceinline__ static unsigned lse_offset(const Place& at, int place) {
    return (kParts - 1) * kPlan.slice_bytes + place * kGroupRows * 4 + (at.warp * 8 + at.lane / 4) * 8;
  }
  /// From the start of an inbox to the first of the words that a lane receives of its run.
  __device__ __forceinline__ static unsigned run_offset(const Place& at) {
    const int quarter = at.lane % 4;
    // Words of a 16-bit piece: tile 0 row 0, tile 0 row 1, tile 1 row 0, tile 1 row 1; of an fp32 piece two of each
    // row.
    const unsigned within =
        kHalf ? 4 * (2 * (quarter % 2) + quarter / 2) : quarter % 2 * kPieceBytes + 8 * (quarter / 2);
    return (at.warp * 8 + at.lane / 4) * kQuadBytes + within;
  }

  /// @param out (64, head dim), unnormalised; accumulator fragments
  /// @param log2_sum of each row: reference + log2(sum), or -inf
  /// @param inverse of each row's sum, or 0
  /// @param second_time the parts were merged before
  /// @return whether a part was misled by one of this thread's rows
  __device__ __forceinline__ bool run(const float (&out)[kOutRegisters], const float (&log2_sum)[2],
                                      const float (&inverse)[2], bool second_time) const {
    bool misled = log2_sum[0] == misled_log_sum() || log2_sum[1] == misled_log_sum();
    float kept[kSliceRegisters];
    if constexpr (kParts == 1) {
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] = out[i] * inverse[i / 2 % 2];
      write_rows(kept);
      write_log_sums(log2_sum);
    } else {
#pragma unroll
      for (int slice = 0; slice < kParts; ++slice) {
        if (slice == at.part) {
#pragma unroll
          for (int i = 0; i < kSliceRegisters; ++i) kept[i] = out[slice * kSliceRegisters + i] * inverse[i / 2 % 2];
        } else {
          send(out, slice, log2_sum, inverse);
        }
      }
      if constexpr (kRuns) {
        transpose(kept);
        float log2_total = at.lane % 4 >= 2 ? log2_sum[1] : log2_sum[0];
        misled = receive_runs(kept, log2_total, second_time) || misled;
        write_runs(kept);
        ptx::st_global_if(target.lse != nullptr && at.row + at.lane % 4 / 2 * 8 < params.len_q, target.lse,
                          log2_total * 0.693147181F);
        return misled;
      }
      float most[2];
      float sum[2];
      misled = receive(kept, log2_sum, most, sum, second_time) || misled;
      write_rows(kept);
      // After the rows: a launch waits for those, and few callers want these.
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[h] = sum[h] < 1e30F ? most[h] + ptx::lg2_approx_ftz(sum[h]) : log2_sum[h];
      write_log_sums(sum);
    }
    return misled;
  }

  __device__ __forceinline__ void send(const float (&out)[kOutRegisters], int slice, const float (&log2_sum)[2],
                                       const float (&inverse)[2]) const {
    unsigned to_piece = target.to_piece;
    unsigned to_lse = target.to_lse;
    unsigned barrier = target.to_barrier;
    if constexpr (kParts != 2) {
      const unsigned rank = slice / kConfig.key_groups;
      const int place = (slice - at.part + kParts) % kParts - 1;
      to_piece = in_block(inbox(at, slice) + piece_offset(at, place, 0), rank);
      to_lse = in_block(inbox(at, slice) + lse_offset(at, place), rank);
      barrier = in_block(inbox_barrier(at, slice), rank);
    }
    if (at.lane % 4 == 0) {
      if constexpr (kRemote)
        ptx::st_async_v2(to_lse, log2_sum[0], log2_sum[1], barrier);
      else
        ptx::st_shared_v2(to_lse, log2_sum[0], log2_sum[1]);
    }
    // Register 4 t + i is row i / 2 of tile t; 16-bit pieces hold two tiles.
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int half = w % 2;
        if constexpr (kHalf) {
          const int from = slice * kSliceRegisters + 8 * piece + 2 * w;
          words[w] = ptx::cvt_rn_x2<kProblem.element>(out[from] * inverse[half], out[from + 1] * inverse[half]);
        } else {
          words[w] = __float_as_uint(out[slice * kSliceRegisters + 4 * piece + w] * inverse[w / 2]);
        }
      }
      if constexpr (kRemote)
        ptx::st_async_v4(to_piece + piece * kPieceBytes, words, barrier);
      else
        ptx::st_shared_v4(to_piece + piece * kPieceBytes, words[0], words[1], words[2], words[3]);
    }
    if constexpr (!kRemote) ptx::mbarrier_arrive(barrier);
  }

  /// Weighs the kept slice with what the other parts sent. The log2-sum-exp over all keys is most + log2(sum), or this
  /// part's own where sum is infinite.
  /// @return whether another part was misled
  __device__ __forceinline__ bool receive(float (&kept)[kSliceRegisters], const float (&log2_sum)[2], float (&most)[2],
                                          float (&sum)[2], bool second_time) const {
    const unsigned first_piece = kParts == 2 ? target.piece : inbox(at, at.part) + piece_offset(at, 0, 0);
    const unsigned first_lse = kParts == 2 ? target.lse_sent : inbox(at, at.part) + lse_offset(at, 0);
    ptx::mbarrier_wait(inbox_barrier(at, at.part), second_time);
    float others[kParts - 1][2];
#pragma unroll
    for (int place = 0; place < kParts - 1; ++place)
      ptx::ld_shared_v2(others[place], first_lse + place * kGroupRows * 4);
    bool misled = false;
#pragma unroll
    for (int place = 0; place < kParts - 1; ++place)
      misled = misled || others[place][0] == misled_log_sum() || others[place][1] == misled_log_sum();
    float mine[2];
    if constexpr (kParts == 2) {
      // Of two the other's share is 1 / (1 + 2^(mine - its)), and the sum of both is 1: two special functions less in a
      // row. Clamped, so that two parts without keys give 0 and no NaN.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = others[0][h];
        sum[h] = 1.0F + ptx::ex2_approx_ftz(fmaxf(log2_sum[h], -1e30F) - most[h]);
        others[0][h] = ptx::rcp_approx_ftz(sum[h]);
        mine[h] = 1.0F - others[0][h];
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = log2_sum[h];
#pragma unroll
        for (int place = 0; place < kParts - 1; ++place) most[h] = fmaxf(most[h], others[place][h]);
        const float reference = attention::finite_reference(most[h]);
        mine[h] = ptx::ex2_approx_ftz(log2_sum[h] - reference);
        sum[h] = mine[h];
#pragma unroll
        for (int place = 0; place < kParts - 1; ++place) {
          others[place][h] = ptx::ex2_approx_ftz(others[place][h] - reference);
          sum[h] += others[place][h];
        }
        const float inverse = sum[h] > 0.0F ? ptx::rcp_approx_ftz(sum[h]) : 0.0F;
        mine[h] *= inverse;
#pragma unroll
        for (int place = 0; place < kParts - 1; ++place) others[place][h] *= inverse;
      }
    }
#pragma unroll
    for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= mine[i / 2 % 2];
#pragma unroll
    for (int place = 0; place < kParts - 1; ++place)
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        unsigned words[4];
        ptx::ld_shared_v4(words, first_piece + place * kPlan.slice_bytes + piece * kPieceBytes);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (kHalf) {
            float* x = kept + 8 * piece + 2 * w;
            x[0] = fmaf(ptx::unpack_low<kProblem.element>(words[w]), others[place][w % 2], x[0]);
            x[1] = fmaf(ptx::unpack_high<kProblem.element>(words[w]), others[place][w % 2], x[1]);
          } else {
            kept[4 * piece + w] = fmaf(__uint_as_float(words[w]), others[place][w / 2], kept[4 * piece + w]);
          }
        }
      }
    return misled;
  }

  /// Accumulator registers become runs: those of tiles t and t + 1 in 8 (t / 2), .. the 8 columns of one row.
  __device__ __forceinline__ void transpose(float (&kept)[kSliceRegisters]) const {
    const int quarter = at.lane % 4;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      unsigned x[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int run = 0; run < 4; ++run) x[i][run] = __float_as_uint(kept[4 * (t + run % 2) + 2 * (run / 2) + i]);
        transpose_quad(x[i], quarter);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) kept[4 * t + j] = __uint_as_float(x[j % 2][j / 2]);
    }
  }

  /// receive() for runs, of the lane's one row: what the other parts sent of it is weighed and added.
  /// @param log2_sum of the row; becomes that over all keys
  __device__ __forceinline__ bool receive_runs(float (&kept)[kSliceRegisters], float& log2_sum,
                                               bool second_time) const {
    const unsigned first = kParts == 2 ? target.piece : inbox(at, at.part) + run_offset(at);
    const unsigned first_lse =
        kParts == 2 ? target.lse_sent : inbox(at, at.part) + lse_offset(at, 0) + at.lane % 4 / 2 * 4;
    ptx::mbarrier_wait(inbox_barrier(at, at.part), second_time);
    float others[kParts];  // one more than there are
    bool misled = false;
#pragma unroll
    for (int place = 0; place < kParts - 1; ++place) {
      others[place] = __uint_as_float(ptx::ld_shared(first_lse + place * kGroupRows * 4));
      misled = misled || others[place] == misled_log_sum();
    }
    if constexpr (kParts == 2) {
      // Of two the other's share is 1 / (1 + 2^(mine - its)), and the sum of both is 1: two special functions less in a
      // row. Clamped, so that two parts without keys give 0 and no NaN.
      const float most = others[0];
      const float sum = 1.0F + ptx::ex2_approx_ftz(fmaxf(log2_sum, -1e30F) - most);
      const float its = ptx::rcp_approx_ftz(sum);
      // In the shadow of the special functions: the difference, so that one multiplication is left.
      add_words(first, [&](float& x, float sent) { x = fmaf(sent - x, its, x); }, kept);
      log2_sum = sum < 1e30F ? most + ptx::lg2_approx_ftz(sum) : log2_sum;
    } else {
      float most = log2_sum;
#pragma unroll
      for (int place = 0; place < kParts - 1; ++place) most = fmaxf(most, others[place]);
      const float reference = attention::finite_reference(most);
      const float mine = ptx::ex2_approx_ftz(log2_sum - reference);
      float sum = mine;
#pragma unroll
      for (int place = 0; place < kParts - 1; ++place)
        sum += others[place] = ptx::ex2_approx_ftz(others[place] - reference);
      const float inverse = sum > 0.0F ? ptx::rcp_approx_ftz(sum) : 0.0F;
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= mine * inverse;
#pragma unroll
      for (int place = 0; place < kParts - 1; ++place) {
        const float its = others[place] * inverse;
        add_words(first + place * kPlan.slice_bytes, [&](float& x, float sent) { x = fmaf(sent, its, x); }, kept);
      }
      log2_sum = sum < 1e30F ? most + ptx::lg2_approx_ftz(sum) : log2_sum;
    }
    return misled;
  }

  /// Adds one sender's share of a run, from four lanes.
  template <typename Add>
  __device__ __forceinline__ static void add_words(unsigned first, const Add& add, float (&kept)[kSliceRegisters]) {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2)
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // of the lane that holds columns 2 j and 2 j + 1
        const unsigned from = first + (kHalf ? t / 2 : t) * kPieceBytes + 16 * j;
        float* x = kept + 4 * t + 2 * j;
        float two[2];
        if constexpr (kHalf) {
          const unsigned word = ptx::ld_shared(from);
          two[0] = ptx::unpack_low<kProblem.element>(word);
          two[1] = ptx::unpack_high<kProblem.element>(word);
        } else {
          ptx::ld_shared_v2(two, from);
        }
        add(x[0], two[0]);
        add(x[1], two[1]);
      }
  }

  /// Writes the kept runs.
  __device__ __forceinline__ void write_runs(const float (&kept)[kSliceRegisters]) const {
    constexpr bool kPadded = padded_dim(kProblem.head_dim) != kProblem.head_dim;
    const int quarter = at.lane % 4;
    const bool inside = at.row + 8 * (quarter / 2) < params.len_q;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      unsigned x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = ptx::cvt_rn_x2<kProblem.element>(kept[4 * t + 2 * j], kept[4 * t + 2 * j + 1]);
      if (inside && (!kPadded || at.part * kSliceColumns + 8 * (t + quarter % 2) < kProblem.head_dim))
        ptx::st_global_v4(target.o + 8 * t, x);
    }
  }

  /// Without a branch: ptxas would make one end of the two programs, and then keep the registers of both.
  __device__ __forceinline__ void write_log_sums(const float (&log2_sum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      ptx::st_global_if(target.lse != nullptr && at.row + 8 * h < params.len_q, target.lse + 8 * h,
                        log2_sum[h] * 0.693147181F);
  }

  /// Writes the kept columns.
  __device__ __forceinline__ void write_rows(const float (&kept)[kSliceRegisters]) const {
    constexpr bool kPadded = padded_dim(kProblem.head_dim) != kProblem.head_dim;
    const int first_column = at.part * kSliceColumns;
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
        if (at.row + 8 * h < params.len_q)
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
            if (!kPadded || first_column + 8 * t < kProblem.head_dim)
              ptx::st_global(target.o + 8 * h * params.o_strides.row + 8 * t, packed[t][h]);
    } else {
      // Two tiles and two rows are four runs of 8 columns, each spread over the four lanes of a quad: transposed, every
      // lane writes one run. Of one part; several transpose before the other parts' share has arrived.
      const bool inside = at.row + 8 * (quarter / 2) < params.len_q;
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        unsigned x[4] = {packed[t][0], packed[t + 1][0], packed[t][1], packed[t + 1][1]};
        transpose_quad(x, quarter);
        if (inside && (!kPadded || first_column + 8 * (t + quarter % 2) < kProblem.head_dim))
          ptx::st_global_v4(target.o + 8 * t, x);
      }
    }
  }

  /// x[i] of lane j of a quad becomes x[j] of lane i.
  __device__ __forceinline__ static void transpose_quad(unsigned (&x)[4], int quarter) {
    const bool odd = quarter & 1;
    const bool upper = quarter & 2;
    const unsigned a = __shfl_xor_sync(0xffffffffU, odd ? x[0] : x[1], 1);
    const unsigned b = __shfl_xor_sync(0xffffffffU, odd ? x[2] : x[3], 1);
    (odd ? x[0] : x[1]) = a;
    (odd ? x[2] : x[3]) = b;
    const unsigned c = __shfl_xor_sync(0xffffffffU, upper ? x[0] : x[2], 2);
    const unsigned d = __shfl_xor_sync(0xffffffffU, upper ? x[1] : x[3], 2);
    (upper ? x[0] : x[2]) = c;
    (upper ? x[1] : x[3]) = d;
  }
};

}  // namespace heed::sm90

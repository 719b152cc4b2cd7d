/// The end of a launch of fwd_sm90_split: the parts of a Q tile become one, and its rows are written.
///
/// Every part ends with a partial output (64, head dim) and the log2-sum-exp of each row. Part i keeps the columns of
/// slice i and sends every other slice, normalised, with its log2-sum-exps to the part that keeps it:
///
///                 slice 0    slice 1           head dim 64, 2 parts: slices of 32 columns
///     part 0    [ keeps  ] [ sends -> part 1 ]
///     part 1    [ sends -> part 0 ] [ keeps  ]
///
/// A mailbox holds (parts - 1) slices, each in the order of the senders' registers (16 bytes a thread and piece, the
/// four lanes of two rows 16 bytes apart from the next four: where they are read by words, no bank is asked twice),
/// then (parts - 1) times 64 log2-sum-exps. The sender `distance` parts before the receiver, counted round, takes place
/// distance - 1, so partial sums always add up in the same order.
///
/// Blocks of a cluster store into each other's shared memory (st.async, counted in bytes). The parts of a single block
/// store into their own and count threads: outside a cluster st.async is an illegal instruction on an H200.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/split/exchange.cuh"

namespace heed::sm90_split {

/// The log2-sum-exp of a row whose part was overflowed and is computed again: no row that was summed has it.
__device__ __forceinline__ float overflow_mark() {
  return attention::kInfinity;
}

/// Of two parts, where a lane sends and receives: worked out before the first key has arrived, as its RowTarget is.
struct Mailboxes {
  unsigned to_piece;    ///< the lane's first piece in the other split's mailbox, in the cluster's shared memory
  unsigned to_lse;      ///< its row's log2-sum-exp there
  unsigned to_barrier;  ///< the other mailbox's
  unsigned piece;       ///< the lane's first piece in the own mailbox
  unsigned lse_sent;    ///< its row's log2-sum-exp there
};

struct Target {
  RowTarget rows;
  Mailboxes mailboxes;
};

template <const Config& kConfig, const Problem& kProblem>
struct Merge {
  using KeptRows = sm90_split::KeptRows<kConfig, kProblem>;
  using Exchange = sm90_split::Exchange<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kNumSplits = Exchange::kNumSplits;
  static constexpr int kOutRegisters = Exchange::kOutRegisters;
  static constexpr int kSliceRegisters = KeptRows::kSliceRegisters;
  static constexpr bool kRuns = KeptRows::kRuns;
  static constexpr bool kRemote = Exchange::kRemote;
  static constexpr MergeDtype kSent = kConfig.merge_dtype;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  // From the barrier of a mailbox to that of its log2-sum-exps.
  static constexpr bool kWeighsFirst = kConfig.lse_first == LseFirst::on;
  static constexpr int kToSums = kWeighsFirst ? 8 * (kBarriers.sums - kBarriers.mailbox) : 0;
  static_assert(Exchange::kPieces * piece_bytes() == kPlan.slice_bytes || kNumSplits == 1,
                "a slice is what the threads send");

  // ---- state
  KeptRows rows;
  Mailboxes mailboxes;

  __device__ __forceinline__ static Target target_of(const Params<kProblem>& params, const WarpRows& at) {
    Target target{};
    target.rows = KeptRows::target_of(params, at);
    if constexpr (kNumSplits == 2) {
      Mailboxes& of = target.mailboxes;
      const int other = 1 - at.split_idx;
      const unsigned rank = other / kConfig.kv_groups;
      of.to_piece = in_block(mailbox(at, other) + piece_offset(at, 0, 0), rank);
      of.to_lse = in_block(mailbox(at, other) + lse_offset(at, 0), rank);
      of.to_barrier = in_block(mailbox_barrier(at, other), rank);
      of.piece = mailbox(at, at.split_idx) + (kRuns ? run_offset(at) : piece_offset(at, 0, 0));
      of.lse_sent = mailbox(at, at.split_idx) + lse_offset(at, 0);
    }
    return target;
  }

  /// Keeps the compiler from working it out where it is used.
  __device__ __forceinline__ static void make_opaque(Target& target) {
    KeptRows::make_opaque(target.rows);
    if constexpr (kNumSplits == 2) {
      Mailboxes& of = target.mailboxes;
      opaque(of.to_piece);
      opaque(of.to_lse);
      opaque(of.to_barrier);
      opaque(of.piece);
      opaque(of.lse_sent);
    }
  }

  /// What lies at `address` in block `rank` of the cluster, if there is one.
  __device__ __forceinline__ static unsigned in_block(unsigned address, unsigned rank) {
    return kRemote ? ptx::mapa(address, rank) : address;
  }

  /// Mailbox and barrier of part `of`'s consumer warpgroup, as this block's addresses.
  __device__ __forceinline__ static unsigned mailbox(const WarpRows& at, int of) {
    return at.shared + kPlan.mailbox +
           (of % kConfig.kv_groups * kConfig.m_warpgroups + at.m_warpgroup) * kPlan.mailbox_bytes;
  }
  __device__ __forceinline__ static unsigned mailbox_barrier(const WarpRows& at, int of) {
    return at.shared + kPlan.barriers +
           8 * (kBarriers.mailbox + of % kConfig.kv_groups * kConfig.m_warpgroups + at.m_warpgroup);
  }
  __device__ __forceinline__ static unsigned piece_offset(const WarpRows& at, int sender, int piece) {
    return sender * kPlan.slice_bytes + piece * piece_bytes() + (at.warp * 8 + at.lane / 4) * kQuadBytes +
           at.lane % 4 * 16;
  }
  __device__ __forceinline__ static unsigned lse_offset(const WarpRows& at, int sender) {
    return (kNumSplits - 1) * kPlan.slice_bytes + sender * row_sums_bytes(kConfig) +
           (at.warp * 8 + at.lane / 4) * (row_sums_bytes(kConfig) / (kWarpgroupRows / 2));
  }
  /// From the start of a mailbox to the first of the words that a lane receives of its first run.
  __device__ __forceinline__ static unsigned run_offset(const WarpRows& at) {
    const int quarter = at.lane % 4;
    // A 16-bit piece holds one row of four tiles; an fp32 piece two columns of both rows of one.
    return (at.warp * 8 + at.lane / 4) * kQuadBytes +
           (kSent != MergeDtype::fp32 ? 4 * quarter : quarter * piece_bytes());
  }

  /// @param acc_o (64, head dim), unnormalised; accumulator fragments
  /// @param log2_sum of each row: row maximum + log2(sum), or -inf
  /// @param inverse of each row's sum, or 0
  /// @param second_time the parts were merged before
  /// @tparam kSentFirst `acc_o` holds the slice that is sent, then the own one, instead of columns in their order
  /// @param finish_kept called when the own slice is wanted, after the other was sent
  /// @return whether a part was overflowed by one of this thread's rows
  template <bool kSentFirst, class FinishKept>
  __device__ __forceinline__ bool run(const float (&acc_o)[kOutRegisters], const float (&log2_sum)[2],
                                      const float (&inverse)[2], bool second_time,
                                      const FinishKept& finish_kept) const {
    const WarpRows& at = rows.at;
    bool overflowed = log2_sum[0] == overflow_mark() || log2_sum[1] == overflow_mark();
    float kept[kSliceRegisters];
    if constexpr (kNumSplits == 1) {
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] = acc_o[i] * inverse[i / 2 % 2];
      rows.write_rows(kept);
      rows.write_log_sums(log2_sum);
    } else {
      if constexpr (kSentFirst) {
        static_assert(kNumSplits == 2);
        send(acc_o, 0, log2_sum, inverse);
        finish_kept();
#pragma unroll
        for (int i = 0; i < kSliceRegisters; ++i) kept[i] = acc_o[kSliceRegisters + i] * inverse[i / 2 % 2];
      }
#pragma unroll
      for (int slice = 0; slice < kNumSplits && !kSentFirst; ++slice) {
        if (slice == at.split_idx) {
#pragma unroll
          for (int i = 0; i < kSliceRegisters; ++i) kept[i] = acc_o[slice * kSliceRegisters + i] * inverse[i / 2 % 2];
        } else {
          send(acc_o, slice, log2_sum, inverse);
        }
      }
      if constexpr (kRuns) rows.transpose(kept);
      float most[2];
      float row_sum[2];
      overflowed = receive(kept, log2_sum, most, row_sum, second_time) || overflowed;
      if constexpr (kRuns)
        rows.write_runs(kept);
      else
        rows.write_rows(kept);
        // After the rows: a launch waits for those, and few callers want these.
#pragma unroll
      for (int h = 0; h < 2; ++h)
        row_sum[h] = row_sum[h] < 1e30F ? attention::log2_sum_exp(most[h], row_sum[h]) : log2_sum[h];
      rows.write_log_sums(row_sum);
    }
    return overflowed;
  }

  __device__ __forceinline__ void send(const float (&acc_o)[kOutRegisters], int slice, const float (&log2_sum)[2],
                                       const float (&inverse)[2]) const {
    const WarpRows& at = rows.at;
    unsigned to_piece = mailboxes.to_piece;
    unsigned to_lse = mailboxes.to_lse;
    unsigned barrier = mailboxes.to_barrier;
    if constexpr (kNumSplits != 2) {
      const unsigned rank = slice / kConfig.kv_groups;
      const int sender = (slice - at.split_idx + kNumSplits) % kNumSplits - 1;
      to_piece = in_block(mailbox(at, slice) + piece_offset(at, sender, 0), rank);
      to_lse = in_block(mailbox(at, slice) + lse_offset(at, sender), rank);
      barrier = in_block(mailbox_barrier(at, slice), rank);
    }
    if constexpr (kSent == MergeDtype::fixed16) {
      const float* part = acc_o + slice * kSliceRegisters;
      const Exponents exponents = exponents_of<kSliceRegisters>(part, inverse);
      if (at.lane % 4 == 0) {
        const unsigned sums[4] = {__float_as_uint(log2_sum[0]), __float_as_uint(log2_sum[1]), exponents[0],
                                  exponents[1]};
        if constexpr (kRemote)
          ptx::st_async_v4(to_lse, sums, barrier + kToSums);
        else
          ptx::st_shared_v4(to_lse, sums[0], sums[1], sums[2], sums[3]);
      }
      if (exponents[0] == kNotFixed) [[unlikely]] {
        Exchange::template send_pieces<MergeDtype::bits16>(acc_o, slice, inverse, to_piece, barrier);
      } else {
        const float factor[2] = {inverse[0] * steps_a_unit(exponents[0]), inverse[1] * steps_a_unit(exponents[1])};
        Exchange::template send_pieces<MergeDtype::fixed16>(acc_o, slice, factor, to_piece, barrier);
      }
    } else {
      if constexpr (kRemote)
        ptx::st_async_v2_if(at.lane % 4 == 0, to_lse, log2_sum[0], log2_sum[1], barrier + kToSums);
      else if (at.lane % 4 == 0)
        ptx::st_shared_v2(to_lse, log2_sum[0], log2_sum[1]);
      Exchange::template send_pieces<kSent>(acc_o, slice, inverse, to_piece, barrier);
    }
    if constexpr (!kRemote) ptx::mbarrier_arrive(barrier);
  }

  /// Weighs the kept slice with what the other parts sent. The log2-sum-exp over all keys is most + log2(sum), or this
  /// split's own where sum is infinite.
  /// @return whether another part was overflowed
  __device__ __forceinline__ bool receive(float (&kept)[kSliceRegisters], const float (&log2_sum)[2], float (&most)[2],
                                          float (&row_sum)[2], bool second_time) const {
    const WarpRows& at = rows.at;
    const unsigned first_piece = kNumSplits == 2
                                     ? mailboxes.piece
                                     : mailbox(at, at.split_idx) + (kRuns ? run_offset(at) : piece_offset(at, 0, 0));
    const unsigned first_lse = kNumSplits == 2 ? mailboxes.lse_sent : mailbox(at, at.split_idx) + lse_offset(at, 0);
    const unsigned arrived = mailbox_barrier(at, at.split_idx);
    ptx::mbarrier_wait(arrived + kToSums, second_time);
    float others[kNumSplits - 1][2];
    Exponents exponents[kNumSplits - 1];
#pragma unroll
    for (int sender = 0; sender < kNumSplits - 1; ++sender) {
      if constexpr (kSent == MergeDtype::fixed16) {
        unsigned sums[4];
        ptx::ld_shared_v4(sums, first_lse + sender * row_sums_bytes(kConfig));
        others[sender][0] = __uint_as_float(sums[0]);
        others[sender][1] = __uint_as_float(sums[1]);
        exponents[sender] = {{sums[2], sums[3]}};
      } else {
        ptx::ld_shared_v2(others[sender], first_lse + sender * row_sums_bytes(kConfig));
      }
    }
    bool overflowed = false;
#pragma unroll
    for (int sender = 0; sender < kNumSplits - 1; ++sender)
      overflowed = overflowed || others[sender][0] == overflow_mark() || others[sender][1] == overflow_mark();
    float mine[2];
    if constexpr (kNumSplits == 2) {
      // Of two the other's share is 1 / (1 + 2^(mine - its)), and the sum of both is 1: two special functions less in a
      // row. Clamped, so that two parts without keys give 0 and no NaN.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = others[0][h];
        row_sum[h] = 1.0F + ptx::ex2_approx_ftz(fmaxf(log2_sum[h], -1e30F) - most[h]);
        others[0][h] = ptx::rcp_approx_ftz(row_sum[h]);
        mine[h] = 1.0F - others[0][h];
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = log2_sum[h];
#pragma unroll
        for (int sender = 0; sender < kNumSplits - 1; ++sender) most[h] = fmaxf(most[h], others[sender][h]);
        const float row_max = attention::finite_row_max(most[h]);
        mine[h] = ptx::ex2_approx_ftz(log2_sum[h] - row_max);
        row_sum[h] = mine[h];
#pragma unroll
        for (int sender = 0; sender < kNumSplits - 1; ++sender) {
          others[sender][h] = ptx::ex2_approx_ftz(others[sender][h] - row_max);
          row_sum[h] += others[sender][h];
        }
        const float inverse = attention::inverse_or_zero(row_sum[h]);
        mine[h] *= inverse;
#pragma unroll
        for (int sender = 0; sender < kNumSplits - 1; ++sender) others[sender][h] *= inverse;
      }
    }
    if constexpr (kWeighsFirst) {
      // A weight is no signalling NaN, which ptxas does not know: it would work weights out behind the wait.
      unsigned slices = arrived;
#pragma unroll
      for (int sender = 0; sender < kNumSplits - 1; ++sender)
        if ((__float_as_uint(others[sender][0]) | __float_as_uint(others[sender][1])) == 0x7F800001U)
          slices = arrived + kToSums;
      ptx::mbarrier_wait(slices, second_time);
    }
    if constexpr (kRuns) {
#pragma unroll
      for (int i = 0; i < kSliceRegisters && kNumSplits > 2; ++i) kept[i] *= mine[i / 8 % 2];
#pragma unroll
      for (int sender = 0; sender < kNumSplits - 1; ++sender)
        Exchange::add(kept, first_piece + sender * kPlan.slice_bytes, others[sender], exponents[sender]);
      return overflowed;
    }
#pragma unroll
    for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= mine[i / 2 % 2];
#pragma unroll
    for (int sender = 0; sender < kNumSplits - 1; ++sender)
      Exchange::add(kept, first_piece + sender * kPlan.slice_bytes, others[sender], exponents[sender]);
    return overflowed;
  }

  /// Before splits are merged a second time: every mailbox has been read, and expects its bytes anew.
  __device__ __forceinline__ static void prepare_again(const WarpRows& at) {
    if constexpr (kRemote) {
      if (at.warp == 0 && ptx::elect_one()) {
        const unsigned barrier = mailbox_barrier(at, at.split_idx);
        ptx::mbarrier_arrive_expect_tx(barrier, kPlan.sent_bytes);
        if (kConfig.lse_first == LseFirst::on) ptx::mbarrier_arrive_expect_tx(barrier + kToSums, kPlan.sums_bytes);
      }
      __syncwarp();
      ptx::barrier_cluster_arrive_release();
      ptx::barrier_cluster_wait_acquire();
    } else if constexpr (kConfig.kv_groups > 1) {
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::consumers>(), consumer_threads(kConfig));
    }
  }
};

}  // namespace heed::sm90_split

/// The end of a Q tile in fwd_sm90_persistent: parts become one, and rows are written.
///
/// Every part, a KV group or a block of a cluster, ends with a partial output (64, head dim) of a consumer warpgroup,
/// and the row maximum and sum of each row. Part i keeps slice i (kernels/sm90/persistent/rows.cuh) and passes every
/// other slice on through shared memory.
///
/// What a sender sends: the slices of the others, each in the order of its registers, 16 bytes a thread and piece; then
/// two floats a row: row maximum and sum, or between blocks the log2-sum-exp and nothing.
#pragma once

#include "kernels/attention/output.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/rows.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct Epilogue {
  using Slices = sm90_persistent::Slices<kConfig, kProblem>;
  static constexpr int kGroups = Slices::kGroups;
  static constexpr int kDim = Slices::kDim;
  static constexpr int kRowSlices = Slices::kRowSlices;
  static constexpr int kTiles = Slices::kTiles;
  static constexpr int kHalves = Slices::kHalves;
  static constexpr int kSliceRegisters = Slices::kSliceRegisters;
  static constexpr int kPieces = Slices::kPieces;
  static constexpr int kPieceBytes = Slices::kPieceBytes;

  Slices slices;

  /// @param acc_o (64, head dim), unnormalised; accumulator fragments
  /// @param row_max in log2 units, -inf without keys
  /// @param row_sum of each row, over the whole row
  __device__ __forceinline__ void run(const float (&acc_o)[kDim / 2], const float (&row_max)[2],
                                      const float (&row_sum)[2]) const {
    float kept[kSliceRegisters];  // register 2 (kHalves t + h) + i: of tile t, row h and column i
    float log2_sum[kHalves];
    if constexpr (kGroups == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        log2_sum[h] = attention::log2_sum_exp(row_max[h], row_sum[h]);
        const float inverse = attention::inverse_or_zero(row_sum[h]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          kept[4 * t + 2 * h] = acc_o[4 * t + 2 * h] * inverse;
          kept[4 * t + 2 * h + 1] = acc_o[4 * t + 2 * h + 1] * inverse;
        }
      }
    } else if constexpr (Slices::kInCluster) {
      merge_blocks(acc_o, row_max, row_sum, kept, log2_sum);
    } else if constexpr (kGroups == 2) {
      merge_two(acc_o, row_max, row_sum, kept, log2_sum);
    } else {
      merge(acc_o, row_max, row_sum, kept, log2_sum);
    }
    if constexpr (kProblem.features.dropout) {
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i)
        kept[i] *= attention::dropout_factor(*slices.target.params, log2_sum[i / 2 % kHalves]);
    }
    if constexpr (changes_output(kProblem.features)) finish(kept);
    slices.write(kept);
    slices.write_log_sums(log2_sum);
  }

 private:
  /// Norms and gates the rows of a slice, each of which a quad holds.
  __device__ __forceinline__ void finish(float (&kept)[kSliceRegisters]) const {
    static_assert(!kProblem.features.out_norm || column_slices(kConfig) == 1, "a quad has all columns of a row");
    const int first_column = slices.at.kv_group / kRowSlices * Slices::kSliceColumns;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = slices.at.row + 8 * (slices.first_half() + h);
      attention::finish_output<kProblem, 4, 2 * kTiles>(
          *slices.target.params, {slices.at.batch, slices.at.head, row, row < slices.target.len_q}, 1.0F,
          [&](int i) -> float& { return kept[2 * (kHalves * (i / 2) + h) + i % 2]; },
          [&](int i) { return first_column + 8 * (i / 2) + 2 * (slices.at.lane % 4) + i % 2; });
    }
  }

  /// Where register i of a slice lies in the output.
  __device__ __forceinline__ static constexpr int place_of(int slice, int i) {
    return kRowSlices == 1 ? i : (slice / 2 * kTiles + i / 2) * 4 + slice % 2 * 2 + i % 2;
  }

  /// What the own part of a row and the other one weigh, normalised, and the log2-sum-exp of both.
  struct Weights {
    float own;
    float its;
    float log2_sum;
  };
  __device__ __forceinline__ static Weights weigh(float own_row_max, float own_sum, float its_row_max, float its_sum) {
    const attention::TwoWeights both = attention::weigh_two(own_row_max, its_row_max);
    const float total = fmaf(both.first, own_sum, both.second * its_sum);
    const float log2_sum = attention::log2_sum_exp(both.row_max, total);
    const float inverse = attention::inverse_or_zero(total);
    return {both.first * inverse, both.second * inverse, log2_sum};
  }

  /// Until what was sent of the Q tile before has been read by all, or the values of this KV group by all its warps.
  __device__ __forceinline__ void wait_for_room(int merge_barrier) const {
    if constexpr (sends_in_stages(kConfig, kProblem.head_dim))
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::sent>(slices.at.kv_group), kWarpgroupThreads);
    else if constexpr (kConfig.scheduler != Scheduler::single_tile)
      ptx::bar_sync(merge_barrier, kWarpgroupThreads * kGroups);
  }

  /// Two KV groups: each keeps one of a lane's two rows and passes the other on.
  __device__ __forceinline__ void merge_two(const float (&acc_o)[kDim / 2], const float (&row_max)[2],
                                            const float (&row_sum)[2], float (&kept)[kSliceRegisters],
                                            float (&log2_sum)[kHalves]) const {
    const int barrier = attention::barrier_id<kConfig, NamedBarrier::merge>(slices.at.m_warpgroup);
    const bool second = slices.at.kv_group != 0;
    wait_for_room(barrier);
    const unsigned to = slices.passed_by(false);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float first = acc_o[place_of(0, 4 * p + w)];
        const float other = acc_o[place_of(1, 4 * p + w)];
        words[w] = __float_as_uint(second ? first : other);
        kept[4 * p + w] = second ? other : first;
      }
      ptx::st_shared_v4(to + p * kPieceBytes, words[0], words[1], words[2], words[3]);
    }
    if (slices.at.lane % 4 == 0)
      ptx::st_shared_v2(to + slices.to_state(), second ? row_max[0] : row_max[1], second ? row_sum[0] : row_sum[1]);
    const unsigned from = slices.passed_by(true);
    ptx::bar_sync(barrier, kWarpgroupThreads * kGroups);
    float its[2];
    ptx::ld_shared_v2(its, from + slices.to_state());
    const Weights of = weigh(second ? row_max[1] : row_max[0], second ? row_sum[1] : row_sum[0], its[0], its[1]);
    log2_sum[0] = of.log2_sum;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
      ptx::ld_shared_v4(words, from + p * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) kept[4 * p + w] = fmaf(__uint_as_float(words[w]), of.its, kept[4 * p + w] * of.own);
    }
  }

  /// Two blocks of a cluster, likewise: normalised rows of 16 bits a value travel through distributed shared memory,
  /// with their log2-sum-exp, and are counted in bytes where they arrive. One Q tile a block.
  __device__ __forceinline__ void merge_blocks(const float (&acc_o)[kDim / 2], const float (&row_max)[2],
                                               const float (&row_sum)[2], float (&kept)[kSliceRegisters],
                                               float (&log2_sum)[kHalves]) const {
    const bool second = slices.at.kv_group != 0;
    const unsigned other = 1 - slices.at.kv_group;
    const unsigned mailbox = slices.layout.mailbox(slices.at.m_warpgroup);
    const unsigned peer_mailbox = ptx::mapa(mailbox, other);
    const unsigned from = slices.passed_by(true);
    const unsigned to = ptx::mapa(from, other);
    float inverse[2];
    float both[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      inverse[h] = attention::inverse_or_zero(row_sum[h]);
      both[h] = attention::log2_sum_exp(row_max[h], row_sum[h]);
    }
    const float of_sent = second ? inverse[0] : inverse[1];
    ptx::st_async_v2_if(slices.at.lane % 4 == 0, to + slices.to_state(), second ? both[0] : both[1], 0.0F,
                        peer_mailbox);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float sent[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at_register = 8 * p + 2 * w + i;
          const float first = acc_o[place_of(0, at_register)];
          const float last = acc_o[place_of(1, at_register)];
          sent[i] = (second ? first : last) * of_sent;
          kept[at_register] = second ? last : first;
        }
        words[w] = ptx::cvt_rn_x2<kProblem.element>(sent[0], sent[1]);
      }
      ptx::st_async_v4(to + p * kPieceBytes, words, peer_mailbox);
    }
    const float own = second ? both[1] : both[0];
    const float of_own = second ? inverse[1] : inverse[0];
    ptx::mbarrier_wait(mailbox, 0);
    float its[2];
    ptx::ld_shared_v2(its, from + slices.to_state());
    const Weights of = weigh(own, 1.0F, its[0], 1.0F);  // log2-sum-exps are row maxima whose sum is one
    log2_sum[0] = of.log2_sum;
    const float of_kept = of.own * of_own;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      unsigned words[4];
      ptx::ld_shared_v4(words, from + p * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float* x = kept + 8 * p + 2 * w;
        x[0] = fmaf(ptx::unpack_low<kProblem.element>(words[w]), of.its, x[0] * of_kept);
        x[1] = fmaf(ptx::unpack_high<kProblem.element>(words[w]), of.its, x[1] * of_kept);
      }
    }
  }

  __device__ __forceinline__ void merge(const float (&acc_o)[kDim / 2], const float (&row_max)[2],
                                        const float (&row_sum)[2], float (&kept)[kSliceRegisters],
                                        float (&log2_sum)[kHalves]) const {
    const int barrier = attention::barrier_id<kConfig, NamedBarrier::merge>(slices.at.m_warpgroup);
    wait_for_room(barrier);
#pragma unroll
    for (int to = 0; to < kGroups; ++to) {
      if (to == slices.at.kv_group) {
#pragma unroll
        for (int i = 0; i < kSliceRegisters; ++i) kept[i] = acc_o[place_of(to, i)];
      } else {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          unsigned words[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) words[w] = __float_as_uint(acc_o[place_of(to, 4 * p + w)]);
          ptx::st_shared_v4(slices.slice(to, slices.at.kv_group) + p * kPieceBytes, words[0], words[1], words[2],
                            words[3]);
        }
      }
    }
    if (slices.at.lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) ptx::st_shared_v2(slices.state(slices.at.kv_group) + 64 * h, row_max[h], row_sum[h]);
    ptx::bar_sync(barrier, kWarpgroupThreads * kGroups);
    float weight[kGroups];
    float sums[kGroups];
    float most = -attention::kInfinity;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float both[2];
      ptx::ld_shared_v2(both, slices.state(g) + 64 * slices.first_half());
      weight[g] = both[0];
      sums[g] = both[1];
      most = fmaxf(most, both[0]);
    }
    float total = 0.0F;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      weight[g] = attention::rescale_factor(weight[g], most);
      total = fmaf(weight[g], sums[g], total);
    }
    log2_sum[0] = attention::log2_sum_exp(most, total);
    const float inverse = attention::inverse_or_zero(total);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) weight[g] *= inverse;
#pragma unroll
    for (int me = 0; me < kGroups; ++me) {
      if (me != slices.at.kv_group) continue;
#pragma unroll
      for (int i = 0; i < kSliceRegisters; ++i) kept[i] *= weight[me];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g == me) continue;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          unsigned words[4];
          ptx::ld_shared_v4(words, slices.slice(me, g) + p * kPieceBytes);
#pragma unroll
          for (int w = 0; w < 4; ++w) kept[4 * p + w] = fmaf(__uint_as_float(words[w]), weight[g], kept[4 * p + w]);
        }
      }
    }
  }
};

}  // namespace heed::sm90_persistent

/// A iteration of fwd_sm90_split: the n-blocks of keys whose scores a consumer warpgroup holds in registers at once,
/// from their products with the queries to those with the values.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/block.cuh"
#include "kernels/sm90/split/merge.cuh"

namespace heed::sm90_split {

/// What a program does about keys that rows do not see.
enum class Masks { none, scores, probabilities };

template <const Config& kConfig, const Problem& kProblem>
struct Iteration : Block<kConfig, kProblem> {
  using Base = Block<kConfig, kProblem>;
  using Base::k_full, Base::v_full, Base::slot_of, Base::parity_of, Base::first_key_of;
  using Base::kBegins, Base::hidden_from_some;
  using Base::kBlockN, Base::kNBlocks, Base::kStages, Base::kValueSteps, Base::kOnes;
  using Base::kv_group, Base::split_idx, Base::iterations, Base::n_blocks, Base::seen_by_all, Base::scale_log2,
      Base::diagonal, Base::row_max, Base::acc_o;
  using Base::mask_scores, Base::raise_row_max, Base::keep_seen, Base::exponentials, Base::round, Base::final_row_sum,
      Base::kMostSum;
  using Base::q_descriptor, Base::k_descriptor, Base::v_descriptor, Base::gemm_qk, Base::gemm_pv, Base::gemm_pv_slice,
      Base::sent;

  // ---- compile-time facts
  static constexpr int kSteps = iteration_steps(kConfig);
  static constexpr int kBlockSteps = kBlockN / kMmaK;
  // With one stage nothing overlaps between iterations: parts of a single one then have programs of their own.
  static constexpr bool kOneIteration = kStages == 1;
  // Parts of one iteration find out with the other parts, at the very end, that they were overflowed.
  static constexpr bool kVotesLast = kOneIteration && kConfig.overflow_check == OverflowCheck::after_store;
  // Of a part that stays, the columns that it keeps are multiplied at the end.
  static constexpr bool kKeepsForLater = kConfig.pv_split_n == PvSplitN::on;
  // Sums by additions are there before the last products are done.
  static constexpr bool kSumsEarly = !kOnes;
  // The blocks of a cluster wait for each other's barriers beside the first scores, if they did not at the start.
  static constexpr bool kJoinsLater = kConfig.cluster > 1 && !Base::kSharesQueries;
  static constexpr KnownParts kKnown = known_parts(kConfig, kProblem);
  // Score registers of a row pair from which the first row maximum is found.
  static constexpr int kRowMaxRegisters = kConfig.row_max == RowMax::stale_16 ? kMmaK / 2 : kBlockN / 2;

  // ---- state
  float next_scores[kConfig.prefetch_next_qk ? kBlockN / 2 : 1];  // of the iteration to come
  float log2_sum[2];                                              // row maximum + log2(sum) of a row; -inf without keys
  float inverse[2];                                               // of a row's sum, or 0
  unsigned probabilities[kKeepsForLater ? kSteps : 1][4];         // of a part that stays

  using Base::Base;

  __device__ __forceinline__ bool has_no_keys() const { return kKnown.some_are_none && iterations == 0; }

  /// One iteration from its scores to its products, everything unrolled, nothing left in flight but, where they are
  /// prefetched, nothing at all: the next scores are waited for too. (ptxas serialises all products of a kernel that
  /// keeps one in flight over a loop's back edge.)
  ///
  /// @tparam kResident the part is this one iteration: its keys and values stay in shared memory to the end; the
  /// cluster is
  ///     waited for
  template <Masks kMasks, bool kFirst, bool kResident>
  __device__ __forceinline__ void iteration(int s, bool second_time) {
    constexpr bool kMasked = kMasks == Masks::scores;
    constexpr bool kKept = kMasks == Masks::probabilities;
    constexpr bool kReady = kConfig.prefetch_next_qk && !kFirst;  // the first scores came with the iteration before
    const int slot = slot_of(s);
    // Keys that stay are waited for with the same parity again; as a constant it leaves no question to the compiler
    // whether the lanes of a warp wait together.
    const unsigned parity = kResident ? 0 : parity_of(s);
    // Worked out before the first wait where they are constants of the block; elsewhere they would cost registers.
    const unsigned long long here[] = {q_descriptor(), k_descriptor(slot), v_descriptor(slot)};
    const auto queries = [&] { return kResident ? here[0] : q_descriptor(); };
    const auto keys = [&] { return kResident ? here[1] : k_descriptor(slot); };
    const auto values = [&] { return kResident ? here[2] : v_descriptor(slot); };
    const int first_key = first_key_of(s);
    const int first_n_block = n_blocks.first + s * kNBlocks;
    const int last_n_block = kKept ? min(diagonal, n_blocks.end - 1) : 0;  // that any row sees and is this split's

    float scores[kNBlocks][kBlockN / 2];
    if constexpr (kReady) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) scores[0][i] = next_scores[i];
    }
    int committed = 0;
    int score_group[kNBlocks];  // how many groups were committed before an n-block's
    const auto issue_qk = [&](int c) {
      ptx::mbarrier_wait(k_full(kv_group, slot, c), parity);
      if (kConfig.pdl_trigger == PdlTrigger::first_qk && kFirst && c == 0) ptx::griddepcontrol_launch_dependents();
      gemm_qk(scores[c], queries(), keys(), c);
      score_group[c] = committed++;
    };
    const auto wait_for_scores = [&](int c) {
      if (c > 0 || !kReady) {
        ptx::wgmma_wait_group(committed - 1 - score_group[c]);
        keep_live(scores[c]);
      }
      // From the first n-block comes the row maximum.
      if constexpr (kKept && kFirst)
        if (c == 0 && diagonal <= n_blocks.first) mask_scores(scores[0], first_key);
      if constexpr (kMasked) {
        const int end = first_key + (c + 1) * kBlockN;
        // N-blocks past the end of a part that stays weigh nothing anyway, but a maximum of all would see them.
        if constexpr (kBegins) {
          if (end > seen_by_all || end - kBlockN < hidden_from_some()) mask_scores(scores[c], first_key + c * kBlockN);
        } else {
          if (end > seen_by_all && (!kResident || kConfig.row_max == RowMax::online || end <= n_blocks.end * kBlockN))
            mask_scores(scores[c], first_key + c * kBlockN);
        }
      }
    };
    // What is subtracted from an n-block's scores; from those of n-blocks past the split's end so much that nothing is
    // left.
    const auto subtracted_from = [&](int c, float(&subtracted)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        subtracted[h] = attention::finite_row_max(row_max[h]);
        if (kMasked && kResident && c > 0 && c >= n_blocks.end - n_blocks.first) subtracted[h] = attention::kInfinity;
        if (kKept && (c > 0 || !kFirst) && first_n_block + c > last_n_block) subtracted[h] = attention::kInfinity;
      }
    };

#pragma unroll
    for (int c = kReady ? 1 : 0; c < kConfig.qk_in_flight; ++c) issue_qk(c);
    // While the first scores are computed: the end has one thing less to wait for.
    if (kResident && kJoinsLater && !second_time) ptx::barrier_cluster_wait_acquire();

    if constexpr (kConfig.row_max == RowMax::online) {
      float maximum[2];
#pragma unroll
      for (int c = 0; c < kNBlocks; ++c) {
        wait_for_scores(c);
        float of_n_block[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) of_n_block[h] = attention::row_maximum<kBlockN / 2>(scores[c], h);
#pragma unroll
        for (int h = 0; h < 2; ++h) maximum[h] = c == 0 ? of_n_block[h] : fmaxf(maximum[h], of_n_block[h]);
      }
      finish_maximum(maximum, scale_log2);
      if constexpr (kFirst) {
        row_max[0] = maximum[0];
        row_max[1] = maximum[1];
      } else {
        raise_row_max(maximum);
      }
    } else {
      wait_for_scores(0);
      if constexpr (kFirst) {
        float maximum[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) maximum[h] = attention::row_maximum<kRowMaxRegisters>(scores[0], h);
        finish_maximum(maximum, scale_log2);
        row_max[0] = fmaxf(row_max[0], maximum[0]);  // -inf the first time, the exact maximum when computed again
        row_max[1] = fmaxf(row_max[1], maximum[1]);
      }
    }

    float e[kSteps][8];
    constexpr bool kLater = kKeepsForLater && kResident;
    unsigned passing[kLater ? 1 : kSteps][4];
    auto& p = [&]() -> auto& {
      if constexpr (kLater)
        return probabilities;
      else
        return passing;
    }();
    float subtracted[2];
    unsigned before[kNBlocks];
#pragma unroll
    for (int c = 0; c < kNBlocks; ++c) before[c] = kKept && first_n_block + c < diagonal ? 0xFFFFFFFFU : 0;
    const auto pack_step = [&](int k) {
      round(p[k], e[k]);
      if constexpr (kKept) keep_seen(p[k], k % kBlockSteps, before[k / kBlockSteps]);
    };
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int c = k / kBlockSteps;
      if (kConfig.row_max != RowMax::online && c > 0 && k % kBlockSteps == 0) wait_for_scores(c);
      if constexpr (kConfig.prefetch_next_qk)
        if (k == (kNBlocks - 1) * kBlockSteps) {
          // Without a next iteration these are products of old keys, which nobody reads: a branch around them costs
          // more.
          const int next_slot = slot_of(s + 1);
          if (s + 1 < iterations) ptx::mbarrier_wait(k_full(kv_group, next_slot, 0), parity_of(s + 1));
          gemm_qk(next_scores, queries(), k_descriptor(next_slot), 0);
          ++committed;
        }
      if (k % kBlockSteps == 0) subtracted_from(c, subtracted);
      exponentials(e[k], scores[c], k % kBlockSteps, subtracted);
      if (!kConfig.late_convert) pack_step(k);
      if (kConfig.late_convert && k > 0) pack_step(k - 1);
      if (kConfig.late_convert && k == kSteps - 1) pack_step(k);
      if (k == late_scores_after_step(kConfig))
#pragma unroll
        for (int late = kConfig.qk_in_flight; late < kNBlocks; ++late) issue_qk(late);
#pragma unroll
      for (int j = 0; j < products(kConfig); ++j) {
        if (pv_commit_after_step(kConfig, j) != k) continue;
        const int step = j * kConfig.pv_ksteps_per_commit;
        if (step % kValueSteps == 0) ptx::mbarrier_wait(v_full(kv_group, slot, step / kValueSteps), parity);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kConfig.pv_ksteps_per_commit; ++i)
          if constexpr (kLater)
            gemm_pv_slice(sent(), p[step + i], values(), 1 - split_idx, Base::value_offset(step + i), step + i > 0);
          else
            gemm_pv(p[step + i], values(), Base::value_offset(step + i), !kFirst || step + i > 0);
        ptx::wgmma_commit_group();
        ++committed;
      }
    }
    if constexpr (kSumsEarly && kResident) finish_sums<true>(second_time);
    ptx::wgmma_wait_group(0);
    if constexpr (kLater)
      keep_live(sent());
    else
      keep_live(acc_o);
    if constexpr (kConfig.prefetch_next_qk) keep_live(next_scores);
  }

  /// What the merge needs to know of each row.
  template <bool kResident>
  __device__ __forceinline__ void finish_sums(bool second_time) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = final_row_sum(h);
      if constexpr (!kOnes) total = tile::quad_sum(total);
      log2_sum[h] = attention::log2_sum_exp(row_max[h], total);
      inverse[h] = attention::inverse_or_zero(total);
      if (kResident && kVotesLast && !second_time && !(total < kMostSum)) log2_sum[h] = overflow_mark();
      if constexpr (kSumsEarly && kResident) {
        opaque(log2_sum[h]);
        opaque(inverse[h]);
      }
    }
  }
};

}  // namespace heed::sm90_split

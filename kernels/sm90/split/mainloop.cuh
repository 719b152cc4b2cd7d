/// The iterations of a split of fwd_sm90_split: each holds the scores of several n-blocks of a consumer warpgroup in
/// registers at once, from their products with the queries to those with the values.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/cleared_values.cuh"
#include "kernels/sm90/split/gemms.cuh"
#include "kernels/sm90/split/mask.cuh"
#include "kernels/sm90/split/merge.cuh"
#include "kernels/sm90/split/softmax.cuh"
#include "kernels/sm90/split/tma_producer.cuh"

namespace heed::sm90_split {

/// Holds nothing: all that it works on is a thread's state.
template <const Config& kConfig, const Problem& kProblem>
struct Mainloop {
  using State = ThreadState<kConfig, kProblem>;
  using CtaTile = sm90_split::CtaTile<kConfig, kProblem>;
  using Smem = SmemLayout<kConfig, kProblem>;
  using Producer = TmaProducer<kConfig, kProblem>;
  using Gemms = sm90_split::Gemms<kConfig, kProblem>;
  using Softmax = sm90_split::Softmax<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kNBlocks = kConfig.n_blocks_per_stage;
  static constexpr int kStages = kConfig.stages;
  static constexpr bool kOnes = Gemms::kOnes;
  static constexpr int kSteps = iteration_steps(kConfig);
  static constexpr int kBlockSteps = kBlockN / kMmaK;
  static constexpr int kKvGroupThreads = kWarpgroupThreads * kConfig.m_warpgroups;
  // With one stage nothing overlaps between iterations: splits of a single one then have programs of their own.
  static constexpr bool kOneIteration = kStages == 1;
  // Splits of one iteration find out with the other splits, at the very end, that they were overflowed.
  static constexpr bool kVotesLast = kOneIteration && kConfig.overflow_check == OverflowCheck::after_store;
  static constexpr bool kKeepsForLater = State::kKeepsForLater;
  // Sums by additions are there before the last products are done.
  static constexpr bool kSumsEarly = !kOnes;
  // The CTAs of a cluster wait for each other's barriers beside the first scores, if they did not at the start.
  static constexpr bool kJoinsLater = kConfig.cluster > 1 && !Producer::kSharesQueries;
  static constexpr KnownParts kKnown = known_parts(kConfig, kProblem);
  // Score registers of a row pair from which the first row maximum is found.
  static constexpr int kRowMaxRegisters = kConfig.row_max == RowMax::stale_16 ? kMmaK / 2 : kBlockN / 2;

  __device__ __forceinline__ static bool has_no_keys(const State& state) {
    return kKnown.some_are_none && state.split.iterations == 0;
  }
  /// Whether any thread of the KV group says so.
  __device__ __forceinline__ static bool any(const State& state, bool overflown) {
    return ptx::barrier_red_or(state.warpgroup.group_barrier(), kKvGroupThreads, overflown);
  }

  __device__ __forceinline__ static void clear(State& state) {
    state.gemms.clear();
    state.softmax.row_sum[0] = state.softmax.row_sum[1] = 0.0F;
  }

  /// Changes the scores of one n-block, before any is hidden.
  __device__ __forceinline__ static void change_scores(const State& state, float (&scores)[kBlockN / 2],
                                                       int first_key) {
    const auto& tile = state.tile;
    if constexpr (CtaTile::kBegins) first_key += tile.origin();
    const attention::ScoreChanges<kProblem> changes(tile.params, tile.batch, tile.head);
    changes.template change_scores<false>(scores, tile.params, state.row(0), first_key + 2 * (state.place.lane % 4));
  }

  /// All iterations of the split, again where its first keys overflowed and it votes by itself.
  template <Masks kMasks, bool kResident>
  __device__ __forceinline__ static void run(State& state, bool second_time) {
    const auto& tile = state.tile;
    auto& split = state.split;
    if (has_no_keys(state)) [[unlikely]] {
      if ((Producer::kQueriesFirst || Producer::kSharesQueries) && kConfig.kv_groups == 1)
        ptx::mbarrier_wait(tile.smem.barrier(Smem::kFirstBarrier), 0);  // they come all the same
      if (Producer::kDependent) ptx::griddepcontrol_launch_dependents();
      return;
    }
#pragma unroll 1
    for (bool again = second_time;; again = true) {
      iteration<kMasks, true, kResident>(state, 0, again);
      if constexpr (!kResident) {
        Producer::release(state, 0);
#pragma unroll 1
        for (int s = 1; s < split.iterations; ++s) {
          // Under a causal mask the last iterations may be another consumer warpgroup's alone; freed in order
          // all the same: an arrival before the slot was filled again would count for the iteration before.
          if (state.first_key_of(s) < split.seen_by_any)
            iteration<kMasks, false, false>(state, s, again);
          else
            ptx::mbarrier_wait(tile.smem.k_full(state.warpgroup.kv_group, split.slot_of(s), 0), split.parity_of(s));
          Producer::release(state, s);
        }
      }
      if (kConfig.pdl_trigger == PdlTrigger::last_pv) ptx::griddepcontrol_launch_dependents();
      if ((kResident && kVotesLast) || kConfig.row_max == RowMax::online || again ||
          !any(state, state.softmax.has_overflown(state.gemms))) [[likely]]
        return;
      find_maximum<kResident>(state);
      clear(state);
      if constexpr (!kResident) {
        split.iterations_done = split.iterations;
        if (state.is_leader() && ptx::elect_one())
          for (int s = 0; s < kStages && s < split.iterations; ++s)
            Producer::load_iteration(state, state.warpgroup.kv_group, state.n_blocks, s, tile.kv_head());
        __syncwarp();
      }
    }
  }

  /// One iteration from its scores to its products, everything unrolled, nothing left in flight but, where they are
  /// prefetched, nothing at all: the next scores are waited for too. (ptxas serialises all products of a kernel that
  /// keeps one in flight over a loop's back edge.)
  ///
  /// @tparam kResident the split is this one iteration: its keys and values stay in shared memory to the end; the
  ///     cluster is waited for
  template <Masks kMasks, bool kFirst, bool kResident>
  __device__ __forceinline__ static void iteration(State& state, int s, bool second_time) {
    const auto& tile = state.tile;
    const auto& split = state.split;
    const int& kv_group = state.warpgroup.kv_group;
    constexpr bool kMasked = kMasks == Masks::scores;
    constexpr bool kKept = kMasks == Masks::probabilities;
    constexpr bool kReady = kConfig.prefetch_next_qk && !kFirst;  // the first scores came with the iteration before
    const int slot = split.slot_of(s);
    // Keys that stay are waited for with the same parity again; as a constant it leaves no question to the compiler
    // whether the lanes of a warp wait together.
    const unsigned parity = kResident ? 0 : split.parity_of(s);
    // Worked out before the first wait where they are constants of the CTA; elsewhere they would cost registers.
    const unsigned long long here[] = {Gemms::q_descriptor(tile.smem, state.warpgroup),
                                       Gemms::k_descriptor(tile.smem, state.warpgroup, slot),
                                       Gemms::v_descriptor(tile.smem, state.warpgroup, slot)};
    const auto queries = [&] { return kResident ? here[0] : Gemms::q_descriptor(tile.smem, state.warpgroup); };
    const auto keys = [&] { return kResident ? here[1] : Gemms::k_descriptor(tile.smem, state.warpgroup, slot); };
    const auto values = [&] { return kResident ? here[2] : Gemms::v_descriptor(tile.smem, state.warpgroup, slot); };
    const int first_key = state.first_key_of(s);
    const int first_n_block = state.n_blocks.first + s * kNBlocks;
    const int last_n_block =
        kKept ? min(state.mask.diagonal, state.n_blocks.end - 1) : 0;  // that any row sees and is this split's

    float scores[kNBlocks][kBlockN / 2];
    if constexpr (kReady) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) scores[0][i] = state.next_scores[i];
    }
    int committed = 0;
    int score_group[kNBlocks];  // how many groups were committed before an n-block's
    const auto issue_qk = [&](int c) {
      ptx::mbarrier_wait(tile.smem.k_full(kv_group, slot, c), parity);
      if (kConfig.pdl_trigger == PdlTrigger::first_qk && kFirst && c == 0) ptx::griddepcontrol_launch_dependents();
      Gemms::qk(scores[c], queries(), keys(), c);
      score_group[c] = committed++;
    };
    const auto wait_for_scores = [&](int c) {
      if (c > 0 || !kReady) {
        ptx::wgmma_wait_group(committed - 1 - score_group[c]);
        keep_live(scores[c]);
      }
      if constexpr (changes_scores(kProblem.features)) change_scores(state, scores[c], first_key + c * kBlockN);
      // From the first n-block comes the row maximum.
      if constexpr (kKept && kFirst)
        if (c == 0 && state.mask.diagonal <= state.n_blocks.first) state.mask.hide(scores[0], first_key, state);
      if constexpr (kMasked) {
        const int end = first_key + (c + 1) * kBlockN;
        // N-blocks past the end of a split that stays weigh nothing anyway, but a maximum of all would see them; past
        // an entry's keys scores may be NaN.
        if constexpr (CtaTile::kBegins) {
          if (end > split.seen_by_all || end - kBlockN < tile.hidden_from_some(state.warpgroup))
            state.mask.hide(scores[c], first_key + c * kBlockN, state);
        } else {
          if (end > split.seen_by_all && (!kResident || CtaTile::kLengths || kConfig.row_max == RowMax::online ||
                                          end <= state.n_blocks.end * kBlockN))
            state.mask.hide(scores[c], first_key + c * kBlockN, state);
        }
      }
    };
    // What is subtracted from an n-block's scores; from those of n-blocks past the split's end so much that nothing is
    // left.
    const auto subtracted_from = [&](int c, float(&subtracted)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        subtracted[h] = attention::finite_row_max(state.softmax.row_max[h]);
        if (kMasked && kResident && c > 0 && c >= state.n_blocks.end - state.n_blocks.first)
          subtracted[h] = attention::kInfinity;
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
      finish_maximum(maximum, state.softmax.scale_log2);
      if constexpr (kFirst) {
        state.softmax.row_max[0] = maximum[0];
        state.softmax.row_max[1] = maximum[1];
      } else {
        state.softmax.raise_row_max(maximum, state.gemms);
      }
    } else {
      wait_for_scores(0);
      if constexpr (kFirst) {
        float maximum[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) maximum[h] = attention::row_maximum<kRowMaxRegisters>(scores[0], h);
        finish_maximum(maximum, state.softmax.scale_log2);
        state.softmax.row_max[0] =
            fmaxf(state.softmax.row_max[0], maximum[0]);  // -inf the first time, the exact maximum when computed again
        state.softmax.row_max[1] = fmaxf(state.softmax.row_max[1], maximum[1]);
      }
    }

    float e[kSteps][8];
    constexpr bool kLater = kKeepsForLater && kResident;
    unsigned passing[kLater ? 1 : kSteps][4];
    auto& p = [&]() -> auto& {
      if constexpr (kLater)
        return state.probabilities;
      else
        return passing;
    }();
    float subtracted[2];
    unsigned before[kNBlocks];
#pragma unroll
    for (int c = 0; c < kNBlocks; ++c) before[c] = kKept && first_n_block + c < state.mask.diagonal ? 0xFFFFFFFFU : 0;
    const auto pack_step = [&](int k) {
      state.softmax.round(p[k], e[k]);
      if constexpr (kKept) state.mask.keep_seen(p[k], k % kBlockSteps, before[k / kBlockSteps]);
    };
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int c = k / kBlockSteps;
      if (kConfig.row_max != RowMax::online && c > 0 && k % kBlockSteps == 0) wait_for_scores(c);
      if constexpr (kConfig.prefetch_next_qk)
        if (k == (kNBlocks - 1) * kBlockSteps) {
          // Without a next iteration these are products of old keys, which nobody reads: a branch around them costs
          // more.
          const int next_slot = split.slot_of(s + 1);
          if (s + 1 < split.iterations)
            ptx::mbarrier_wait(tile.smem.k_full(kv_group, next_slot, 0), split.parity_of(s + 1));
          Gemms::qk(state.next_scores, queries(), Gemms::k_descriptor(tile.smem, state.warpgroup, next_slot), 0);
          ++committed;
        }
      if (k % kBlockSteps == 0) subtracted_from(c, subtracted);
      state.softmax.exponentials(e[k], scores[c], k % kBlockSteps, subtracted);
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
        if (step % Smem::kValueSteps == 0) {
          ptx::mbarrier_wait(tile.smem.v_full(kv_group, slot, step / Smem::kValueSteps), parity);
          if constexpr (CtaTile::kLengths && kMasked)
            clear_values_past_keys(state, tile.smem.values(kv_group, slot) + Smem::value_offset(step),
                                   first_key + step * kMmaK);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kConfig.pv_ksteps_per_commit; ++i)
          if constexpr (kLater)
            state.gemms.pv_slice(state.gemms.sent(), p[step + i], values(), 1 - split.index,
                                 Smem::value_offset(step + i), step + i > 0);
          else
            state.gemms.pv(p[step + i], values(), Smem::value_offset(step + i), !kFirst || step + i > 0);
        ptx::wgmma_commit_group();
        ++committed;
      }
    }
    if constexpr (kSumsEarly && kResident) finish_sums<true>(state, second_time);
    ptx::wgmma_wait_group(0);
    if constexpr (kLater)
      keep_live(state.gemms.sent());
    else
      keep_live(state.gemms.acc_o);
    if constexpr (kConfig.prefetch_next_qk) keep_live(state.next_scores);
  }

  /// What the merge needs to know of each row.
  template <bool kResident>
  __device__ __forceinline__ static void finish_sums(State& state, bool second_time) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = state.softmax.final_row_sum(h, state.gemms);
      if constexpr (!kOnes) total = tile::quad_sum(total);
      state.log2_sum[h] = attention::log2_sum_exp(state.softmax.row_max[h], total);
      state.inverse[h] = attention::inverse_or_zero(total);
      if (kResident && kVotesLast && !second_time && !(total < Softmax::kMostSum)) state.log2_sum[h] = overflow_mark();
      if constexpr (kProblem.features.sinks)
        if (state.split.index == 0 && state.log2_sum[h] != overflow_mark())
          add_sink(state.tile.params, state.tile.head, state.log2_sum[h], state.inverse[h]);
      if constexpr (kSumsEarly && kResident) {
        opaque(state.log2_sum[h]);
        opaque(state.inverse[h]);
      }
    }
  }

  /// Asks for the columns that this split keeps. Not of one without keys, whose values never came.
  __device__ __forceinline__ static void multiply_kept(State& state) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      state.gemms.pv_slice(state.gemms.kept(), state.probabilities[k],
                           Gemms::v_descriptor(state.tile.smem, state.warpgroup, 0), state.split.index,
                           Smem::value_offset(k), k > 0);
    ptx::wgmma_commit_group();
  }

  /// The exact maximum of all scores of this split as the row maximum: its keys once more, n-block by n-block; from
  /// shared memory, or copied to the first n-block's place. Rare. Every copy of this KV group has been waited for, and
  /// nobody reads shared memory any more.
  template <bool kStay>
  __device__ __forceinline__ static void find_maximum(State& state) {
    const auto& tile = state.tile;
    const Range& n_blocks = state.n_blocks;
    const unsigned long long queries = Gemms::q_descriptor(tile.smem, state.warpgroup);
    const unsigned long long keys = Gemms::k_descriptor(tile.smem, state.warpgroup, 0);
    const unsigned at_barrier = tile.smem.barrier(Smem::kBarriers.again + state.warpgroup.kv_group);
    float maximum[2] = {-attention::kInfinity, -attention::kInfinity};
#pragma unroll 1
    for (int n_block = n_blocks.first; n_block < n_blocks.end; ++n_block) {
      if (!kStay && state.is_leader() && ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(at_barrier, Smem::kBoxes * Smem::kPlan.key_box);
        Producer::load_k(tile, tile.smem.keys(state.warpgroup.kv_group, 0), at_barrier, n_block * kBlockN,
                         tile.kv_head());
      }
      if constexpr (!kStay) {
        __syncwarp();
        ptx::mbarrier_wait(at_barrier, (n_block - n_blocks.first) & 1);
      }
      float scores[kBlockN / 2];
      Gemms::qk(scores, queries, keys, kStay ? n_block - n_blocks.first : 0);
      ptx::wgmma_wait_group(0);
      keep_live(scores);
      if constexpr (changes_scores(kProblem.features)) change_scores(state, scores, n_block * kBlockN);
      state.mask.hide(scores, n_block * kBlockN, state);
      float of_n_block[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) of_n_block[h] = attention::row_maximum<kBlockN / 2>(scores, h);
      maximum[0] = fmaxf(maximum[0], of_n_block[0]);
      maximum[1] = fmaxf(maximum[1], of_n_block[1]);
      // Everyone is done with the n-block.
      if constexpr (!kStay) ptx::bar_sync(state.warpgroup.group_barrier(), kKvGroupThreads);
    }
    finish_maximum(maximum, state.softmax.scale_log2);
    state.softmax.row_max[0] = maximum[0];
    state.softmax.row_max[1] = maximum[1];
  }
};

}  // namespace heed::sm90_split

/// fwd_sm90_split: fused attention for Hopper where a launch is short: few rows, or few keys, or both. wgmma, bulk
/// tensor loads, keys split over a thread-block cluster and merged in the same launch through distributed shared
/// memory.
///
/// One Q tile (64 rows a consumer warpgroup) and its keys, with cluster = 2, kv_groups = 1, n-block = 64, n-blocks =
/// 4:
///
///              keys ->   0     64    128   192   256   320   384   448
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///   64 query rows      |  part 0: block 0      |  part 1: block 1      |    each part: one iteration of 4 n-blocks
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///                       scores of an n-block: one accumulator of 64 x 64; all of an iteration stay in registers
///
///   iteration:  scores 0, 1, .. -> exponentials of step 0 | 1 | 2 | .. (16 keys each)
///                                    probabilities of steps 0 and 1 -> product, while steps 2, 3 are exponentiated
///   merge:    every part keeps head dim / parts columns of the tile and sends the rest to the parts that keep them
///
/// The split of keys is Flash-Decoding's (Dao et al. 2023), the online softmax FlashAttention-2's (Dao, arXiv
/// 2307.08691), asynchronous products beside exponentials FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/iteration.cuh"
#include "kernels/sm90/split/merge.cuh"

namespace heed::sm90_split {

template <const Config& kConfig, const Problem& kProblem>
struct Forward : Iteration<kConfig, kProblem> {
  using Base = Iteration<kConfig, kProblem>;
  using Base::acc_o, Base::kept, Base::row_max, Base::row_sum, Base::log2_sum, Base::inverse, Base::probabilities;
  using Base::barrier, Base::k_full, Base::keys_at, Base::load_k, Base::load_iteration, Base::kv_head_of;
  using Base::group_barrier, Base::open, Base::keep_copying, Base::is_producer, Base::is_leader, Base::release,
      Base::slot_of, Base::parity_of, Base::first_key_of;
  using Base::kBoxes, Base::kBlockN, Base::kStages, Base::kKvGroups, Base::kOnes, Base::kSteps, Base::kKeyGroupThreads,
      Base::kQueriesFirst, Base::kDependent, Base::kOneIteration, Base::kVotesLast, Base::kKeepsForLater,
      Base::kSumsEarly, Base::kKnown, Base::has_no_keys;
  using Base::kOutColumns, Base::kPlan, Base::kBarriers, Base::kFirstBarrier;
  using Base::kSharesQueries, Base::kJoinsLater;
  using Base::params, Base::shared, Base::head, Base::batch, Base::m_warpgroup, Base::kv_group, Base::lane, Base::warp,
      Base::is_consumer, Base::split_idx, Base::n_blocks, Base::iterations, Base::iterations_done, Base::seen_by_all,
      Base::seen_by_any, Base::scale_log2, Base::is_lined_up;
  using Base::q_descriptor, Base::k_descriptor, Base::v_descriptor, Base::gemm_qk, Base::gemm_pv_slice;
  using Base::row, Base::mask_scores, Base::find_diagonal, Base::has_overflown;

  // ---- compile-time facts
  static constexpr bool kMasksProbabilities = kConfig.mask_at == MaskAt::probabilities;

  static_assert(Base::kDim % 64 == 0 && kBlockN % kMmaK == 0, "wgmma takes 16 keys at a time and boxes of 64 columns");

  // ---- state
  Target target;

  using Base::Base;

  /// Whether any thread of the KV group says so.
  __device__ __forceinline__ bool any(bool overflown) const {
    return ptx::barrier_red_or(group_barrier(), kKeyGroupThreads, overflown);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOutColumns / 2; ++i) acc_o[i] = 0.0F;
    row_sum[0] = row_sum[1] = 0.0F;
  }

  /// All iterations of the part, again where its first keys overflowed and it votes by itself.
  template <Masks kMasks, bool kResident>
  __device__ __forceinline__ void run_segments(bool second_time) {
    if (has_no_keys()) [[unlikely]] {
      if ((kQueriesFirst || kSharesQueries) && kKvGroups == 1)
        ptx::mbarrier_wait(barrier(kFirstBarrier), 0);  // they come all the same
      if (kDependent) ptx::griddepcontrol_launch_dependents();
      return;
    }
#pragma unroll 1
    for (bool again = second_time;; again = true) {
      this->template iteration<kMasks, true, kResident>(0, again);
      if constexpr (!kResident) {
        release(0);
#pragma unroll 1
        for (int s = 1; s < iterations; ++s) {
          // Under a causal mask the last iterations may be another consumer warpgroup's alone; freed in order
          // all the same: an arrival before the slot was filled again would count for the iteration before.
          if (first_key_of(s) < seen_by_any)
            this->template iteration<kMasks, false, false>(s, again);
          else
            ptx::mbarrier_wait(k_full(kv_group, slot_of(s), 0), parity_of(s));
          release(s);
        }
      }
      if (kConfig.pdl_trigger == PdlTrigger::last_pv) ptx::griddepcontrol_launch_dependents();
      if ((kResident && kVotesLast) || kConfig.row_max == RowMax::online || again || !any(has_overflown())) [[likely]]
        return;
      find_maximum<kResident>();
      clear();
      if constexpr (!kResident) {
        iterations_done = iterations;
        if (is_leader() && ptx::elect_one())
          for (int s = 0; s < kStages && s < iterations; ++s) load_iteration(kv_group, n_blocks, s, kv_head_of());
        __syncwarp();
      }
    }
  }

  __device__ __forceinline__ void aim() {
    target = Merge<kConfig, kProblem>::target_of(params, smem());
    Merge<kConfig, kProblem>::make_opaque(target);
  }

  /// The exact maximum of all scores of this part as the row maximum: its keys once more, n-block by n-block; from
  /// shared memory, or copied to the first n-block's place. Rare. Every copy of this KV group has been waited for, and
  /// nobody reads shared memory any more.
  template <bool kStay>
  __device__ __forceinline__ void find_maximum() {
    const unsigned long long queries = q_descriptor();
    const unsigned long long keys = k_descriptor(0);
    const unsigned at_barrier = barrier(kBarriers.again + kv_group);
    float maximum[2] = {-attention::kInfinity, -attention::kInfinity};
#pragma unroll 1
    for (int n_block = n_blocks.first; n_block < n_blocks.end; ++n_block) {
      if (!kStay && is_leader() && ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.key_box);
        load_k(keys_at(kv_group, 0), at_barrier, n_block * kBlockN, kv_head_of());
      }
      if constexpr (!kStay) {
        __syncwarp();
        ptx::mbarrier_wait(at_barrier, (n_block - n_blocks.first) & 1);
      }
      float scores[kBlockN / 2];
      gemm_qk(scores, queries, keys, kStay ? n_block - n_blocks.first : 0);
      ptx::wgmma_wait_group(0);
      keep_live(scores);
      mask_scores(scores, n_block * kBlockN);
      float of_n_block[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) of_n_block[h] = attention::row_maximum<kBlockN / 2>(scores, h);
      maximum[0] = fmaxf(maximum[0], of_n_block[0]);
      maximum[1] = fmaxf(maximum[1], of_n_block[1]);
      if constexpr (!kStay) ptx::bar_sync(group_barrier(), kKeyGroupThreads);  // everyone is done with the n-block
    }
    finish_maximum(maximum, scale_log2);
    row_max[0] = maximum[0];
    row_max[1] = maximum[1];
  }

  // ----------------------------------------------------------------------------------------------------------- all

  __device__ __forceinline__ void run() {
    if constexpr (!kQueriesFirst) open();
    if constexpr (kSharesQueries) this->share_queries();
    if constexpr (kOnes) {
      // Every element is one, so the swizzle moves nothing. 16 bytes a thread: 2 KiB.
      const unsigned one = kProblem.element == Element::bf16 ? 0x3F803F80U : 0x3C003C00U;
      if (threads(kConfig) == kWarpgroupThreads || threadIdx.x < kMmaK * tile::kBoxRowBytes / 16)
        ptx::st_shared_v4(shared + kPlan.ones + 16 * threadIdx.x, one);
    }
    if constexpr (kJoinsLater) ptx::barrier_cluster_arrive_relaxed();
    if (is_consumer) aim();
    if (kMasksProbabilities && is_consumer) find_diagonal();
    if constexpr (kOnes) ptx::fence_proxy_async();
    __syncthreads();
    if (!is_consumer) {
      if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
      if (is_producer() && ptx::elect_one()) keep_copying();
    } else {
      if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
      // Blocks here rather than at a barrier, beside the launch before.
      if constexpr (kDependent) ptx::griddepcontrol_wait();
      // Two programs from here on: masks between products cost even where nothing is masked. Where their results met
      // again, ptxas would serialise all products (C7511); with a third it keeps registers for two. Under a causal mask
      // some part of nearly every Q tile is masked and the others would wait for it.
      constexpr bool kCausalIteration = kOneIteration && has_right_bound(kProblem.mask);
      constexpr Masks kUsual = kMasksProbabilities ? Masks::probabilities
                               : kCausalIteration  ? Masks::scores
                                                   : Masks::none;
      bool is_usual = kMasksProbabilities ? is_lined_up
                      : kCausalIteration  ? true
                                          : first_key_of(iterations) <= seen_by_all;
      if constexpr (Base::kBegins && kUsual == Masks::none)
        is_usual = is_usual && this->hidden_from_some() <= first_key_of(0);
      // With known sizes it may be that no part needs the other.
      constexpr bool kAllUsual = kMasksProbabilities ? !kKnown.some_are_askew
                                 : kCausalIteration  ? true
                                                     : !kKnown.some_are_masked;
      constexpr bool kAllFit =
          !kOneIteration || (!kKnown.some_are_longer && (!kKeepsForLater || !kKnown.some_are_none));
      if constexpr (kAllUsual && kAllFit) {
        finish<kUsual, kOneIteration>();
        return;
      }
      // In this order: ptxas puts the second next to what came before (0.03 us at b1h8l512d64 on an H200).
      // Asking for one iteration alone, where none will not do either, makes ptxas' program 1% slower at b1h16l256d128.
      const bool is_one_segment = iterations <= 1 && (!kKeepsForLater || iterations == 1);
      if (!(is_usual && (!kOneIteration || is_one_segment)))
        finish<Masks::scores, false>();
      else
        finish<kUsual, kOneIteration>();
    }
  }

  __device__ __forceinline__ Smem smem() const {
    return {shared, split_idx, m_warpgroup, warp, lane, row(0), head, batch};
  }

  template <Masks kMasks, bool kResident>
  __device__ __forceinline__ void finish() {
    if constexpr (kKvGroups > 1) ptx::mbarrier_wait(barrier(kBarriers.q), 0);
    row_max[0] = row_max[1] = -attention::kInfinity;
    clear();
    if constexpr (!kResident || !kVotesLast) run_segments<kMasks, kResident>(false);
#pragma unroll 1
    for (bool again = false;; again = true) {
      if constexpr (kResident && kVotesLast) run_segments<kMasks, kResident>(again);
      if (!(kSumsEarly && kResident) || has_no_keys()) this->template finish_sums<kResident>(again);
      // The other blocks' barriers exist.
      if (kJoinsLater && !again && (!kResident || has_no_keys())) ptx::barrier_cluster_wait_acquire();
      const Merge<kConfig, kProblem> merge{{params, smem(), target.rows, this->maps.o}, target.mailboxes};
      bool overflowed;
      if constexpr (kKeepsForLater && kResident) {
        multiply_kept();
        overflowed = merge.template run<true>(acc_o, log2_sum, inverse, again, [&] {
          ptx::wgmma_wait_group(0);
          keep_live(kept());
        });
      } else {
        overflowed = merge.template run<false>(acc_o, log2_sum, inverse, again, [] {});
      }
      if constexpr (!kVotesLast) return;
      // All threads of all parts find the same: each has heard of every split's rows that are its own.
      if (again || !any(overflowed)) [[likely]]
        return;
      prepare_again();
      if constexpr (kResident) {
        find_maximum<true>();
        clear();
      }
    }
  }

  /// Asks for the columns that this part keeps. Not of one without keys, whose values never came.
  __device__ __forceinline__ void multiply_kept() {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      gemm_pv_slice(kept(), probabilities[k], v_descriptor(0), split_idx, Base::value_offset(k), k > 0);
    ptx::wgmma_commit_group();
  }

  /// Before parts are merged a second time: every mailbox has been read, and expects its bytes anew.
  __device__ __forceinline__ void prepare_again() const {
    if constexpr (kConfig.cluster > 1) {
      if (warp == 0 && ptx::elect_one()) {
        const unsigned mailbox = Merge<kConfig, kProblem>::mailbox_barrier(smem(), split_idx);
        ptx::mbarrier_arrive_expect_tx(mailbox, kPlan.sent_bytes);
        if (kConfig.lse_first == LseFirst::on)
          ptx::mbarrier_arrive_expect_tx(mailbox + Merge<kConfig, kProblem>::kToSums, kPlan.sums_bytes);
      }
      __syncwarp();
      ptx::barrier_cluster_arrive_release();
      ptx::barrier_cluster_wait_acquire();
    } else if constexpr (kKvGroups > 1) {
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::consumers>(), consumer_threads(kConfig));
    }
  }
};

/// A launch's parameters as a program of this problem knows them: its own, or with what is a constant of the program.
/// The entry calls it, not a function around Forward, behind which ptxas places instructions otherwise: b1h16l256d128
/// would be another program.
template <const Problem& kProblem>
__device__ __forceinline__ decltype(auto) known(const ForwardParams& params) {
  if constexpr (kProblem.sizes.len_q == 0)
    return (params);
  else
    return with_sizes(params, kProblem.sizes);
}

}  // namespace heed::sm90_split

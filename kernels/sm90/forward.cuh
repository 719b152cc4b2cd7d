/// fwd_sm90: fused attention for Hopper where a launch is short: few rows, or few keys, or both. wgmma, bulk tensor
/// copies, keys split over a thread-block cluster and merged in the same launch through distributed shared memory.
///
/// One row tile (64 rows a row group) and its keys, with cluster = 2, key_groups = 1, chunk = 64, chunks = 4:
///
///              keys ->   0     64    128   192   256   320   384   448
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///   64 query rows      |  part 0: block 0      |  part 1: block 1      |    each part: one segment of 4 chunks
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///                       scores of a chunk: one accumulator of 64 x 64; all of a segment stay in registers
///
///   segment:  scores 0, 1, .. -> exponentials of step 0 | 1 | 2 | .. (16 keys each)
///                                    probabilities of steps 0 and 1 -> product, while steps 2, 3 are exponentiated
///   merge:    every part keeps head dim / parts columns of the tile and sends the rest to the parts that keep them
///
/// The split of keys is Flash-Decoding's (Dao et al. 2023), the online softmax FlashAttention-2's (Dao, arXiv
/// 2307.08691), asynchronous products beside exponentials FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/merge.cuh"
#include "kernels/sm90/segment.cuh"

namespace heed::sm90 {

template <const Config& kConfig, const Problem& kProblem>
struct Forward : Segment<kConfig, kProblem> {
  using Base = Segment<kConfig, kProblem>;
  using Base::barrier, Base::key_barrier, Base::keys_at, Base::copy_keys, Base::copy_segment, Base::key_head;
  using Base::kBoxes, Base::kChunk, Base::kStages, Base::kKeyGroups, Base::kOnes, Base::kSteps, Base::kKeyGroupThreads,
      Base::kQueriesFirst, Base::kDependent, Base::kOneSegment, Base::kVotesLast, Base::kKeepsForLater,
      Base::kSumsEarly, Base::kKnown, Base::has_no_keys;
  using Base::kOutColumns, Base::kPlan, Base::kBarriers, Base::kFirstBarrier;
  using Base::kSharesQueries, Base::kJoinsLater;
  using Base::open, Base::keep_copying, Base::is_producer, Base::is_leader, Base::release, Base::slot_of,
      Base::parity_of, Base::first_key_of;
  using Base::out, Base::kept, Base::reference, Base::sum, Base::log2_sum, Base::inverse, Base::probabilities;
  using Base::params, Base::shared, Base::head, Base::batch, Base::row_group, Base::key_group, Base::lane, Base::warp,
      Base::is_consumer, Base::part, Base::chunks, Base::segments, Base::passed_segments, Base::seen_by_all,
      Base::seen_by_any, Base::scale_log2, Base::is_lined_up;
  using Base::query_descriptor, Base::key_descriptor, Base::value_descriptor, Base::multiply_keys, Base::multiply_slice;
  using Base::row, Base::hide_keys, Base::find_diagonal, Base::has_overflown;

  // ---- compile-time facts
  static constexpr bool kMasksProbabilities = kConfig.mask == Mask::probabilities;

  static_assert(Base::kDim % 64 == 0 && kChunk % kStepKeys == 0,
                "wgmma takes 16 keys at a time and boxes of 64 columns");

  // ---- state
  Target target;

  using Base::Base;

  /// Whether any thread of the key group says so.
  __device__ __forceinline__ bool any(bool overflown) const {
    return ptx::barrier_red_or(1 + key_group, kKeyGroupThreads, overflown);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOutColumns / 2; ++i) out[i] = 0.0F;
    sum[0] = sum[1] = 0.0F;
  }

  /// All segments of the part, again where its first keys misled and it votes by itself.
  template <Masks kMasks, bool kStays>
  __device__ __forceinline__ void run_segments(bool second_time) {
    if (has_no_keys()) [[unlikely]] {
      if ((kQueriesFirst || kSharesQueries) && kKeyGroups == 1)
        ptx::mbarrier_wait(barrier(kFirstBarrier), 0);  // they come all the same
      if (kDependent) ptx::griddepcontrol_launch_dependents();
      return;
    }
#pragma unroll 1
    for (bool again = second_time;; again = true) {
      this->template segment<kMasks, true, kStays>(0, again);
      if constexpr (!kStays) {
        release(0);
#pragma unroll 1
        for (int s = 1; s < segments; ++s) {
          // Under a causal mask the last segments may be another row group's alone; freed in its turn all the same: an
          // arrival before the slot was filled again would count for the segment before.
          if (first_key_of(s) < seen_by_any)
            this->template segment<kMasks, false, false>(s, again);
          else
            ptx::mbarrier_wait(key_barrier(key_group, slot_of(s), 0), parity_of(s));
          release(s);
        }
      }
      if (kConfig.trigger == Trigger::last_products) ptx::griddepcontrol_launch_dependents();
      if ((kStays && kVotesLast) || kConfig.reference == Reference::exact || again || !any(has_overflown())) [[likely]]
        return;
      find_maximum<kStays>();
      clear();
      if constexpr (!kStays) {
        passed_segments = segments;
        if (is_leader() && ptx::elect_one())
          for (int s = 0; s < kStages && s < segments; ++s) copy_segment(key_group, chunks, s, key_head());
        __syncwarp();
      }
    }
  }

  __device__ __forceinline__ void aim() {
    target = Merge<kConfig, kProblem>::target_of(params, place());
    Merge<kConfig, kProblem>::settle(target);
  }

  /// The exact maximum of all scores of this part as the reference: its keys once more, chunk by chunk; from shared
  /// memory, or copied to the first chunk's place. Rare. Every copy of this key group has been waited for, and nobody
  /// reads shared memory any more.
  template <bool kStay>
  __device__ __forceinline__ void find_maximum() {
    const unsigned long long queries = query_descriptor();
    const unsigned long long keys = key_descriptor(0);
    const unsigned at_barrier = barrier(kBarriers.again + key_group);
    float maximum[2] = {-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)};
#pragma unroll 1
    for (int chunk = chunks.first; chunk < chunks.end; ++chunk) {
      if (!kStay && is_leader() && ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.key_box);
        copy_keys(keys_at(key_group, 0), at_barrier, chunk * kChunk, key_head());
      }
      if constexpr (!kStay) {
        __syncwarp();
        ptx::mbarrier_wait(at_barrier, (chunk - chunks.first) & 1);
      }
      float scores[kChunk / 2];
      multiply_keys(scores, queries, keys, kStay ? chunk - chunks.first : 0);
      ptx::wgmma_wait_group(0);
      ptx::pin(scores);
      hide_keys(scores, chunk * kChunk);
      float of_chunk[2];
      maximum_of<kChunk / 2>(scores, of_chunk);
      maximum[0] = fmaxf(maximum[0], of_chunk[0]);
      maximum[1] = fmaxf(maximum[1], of_chunk[1]);
      if constexpr (!kStay) ptx::bar_sync(1 + key_group, kKeyGroupThreads);  // everyone is done with the chunk
    }
    finish_maximum(maximum, scale_log2);
    reference[0] = maximum[0];
    reference[1] = maximum[1];
  }

  // ----------------------------------------------------------------------------------------------------------- all

  __device__ __forceinline__ void run() {
    if constexpr (!kQueriesFirst) open();
    if constexpr (kSharesQueries) this->share_queries();
    if constexpr (kOnes) {
      // Every element is one, so the swizzle moves nothing. 16 bytes a thread: 2 KiB.
      const unsigned one = kProblem.element == Element::bf16 ? 0x3F803F80U : 0x3C003C00U;
      if (threads(kConfig) == kGroupThreads || threadIdx.x < kStepKeys * tile::kBoxRowBytes / 16)
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
      // some part of nearly every row tile is masked and the others would wait for it.
      constexpr bool kCausalSegment = kOneSegment && kProblem.causal;
      constexpr Masks kUsual = kMasksProbabilities ? Masks::probabilities
                               : kCausalSegment    ? Masks::scores
                                                   : Masks::none;
      const bool is_usual = kMasksProbabilities ? is_lined_up
                            : kCausalSegment    ? true
                                                : first_key_of(segments) <= seen_by_all;
      // With known sizes it may be that no part needs the other.
      constexpr bool kAllUsual = kMasksProbabilities ? !kKnown.some_are_askew
                                 : kCausalSegment    ? true
                                                     : !kKnown.some_are_masked;
      constexpr bool kAllFit = !kOneSegment || (!kKnown.some_are_longer && (!kKeepsForLater || !kKnown.some_are_none));
      if constexpr (kAllUsual && kAllFit) {
        finish<kUsual, kOneSegment>();
        return;
      }
      // In this order: ptxas puts the second next to what came before (0.03 us at the mission shape on an H200).
      // Asking for one segment alone, where none will not do either, makes ptxas' program 1% slower at b1h16l256d128.
      const bool is_one_segment = segments <= 1 && (!kKeepsForLater || segments == 1);
      if (!(is_usual && (!kOneSegment || is_one_segment)))
        finish<Masks::scores, false>();
      else
        finish<kUsual, kOneSegment>();
    }
  }

  __device__ __forceinline__ Place place() const { return {shared, part, row_group, warp, lane, row(0), head, batch}; }

  template <Masks kMasks, bool kStays>
  __device__ __forceinline__ void finish() {
    if constexpr (kKeyGroups > 1) ptx::mbarrier_wait(barrier(kBarriers.q), 0);
    reference[0] = reference[1] = -__int_as_float(0x7f800000);
    clear();
    if constexpr (!kStays || !kVotesLast) run_segments<kMasks, kStays>(false);
#pragma unroll 1
    for (bool again = false;; again = true) {
      if constexpr (kStays && kVotesLast) run_segments<kMasks, kStays>(again);
      if (!(kSumsEarly && kStays) || has_no_keys()) this->template finish_sums<kStays>(again);
      // The other blocks' barriers exist.
      if (kJoinsLater && !again && (!kStays || has_no_keys())) ptx::barrier_cluster_wait_acquire();
      const Merge<kConfig, kProblem> merge{{params, place(), target.rows, this->maps.o}, target.inboxes};
      bool misled;
      if constexpr (kKeepsForLater && kStays) {
        multiply_kept();
        misled = merge.template run<true>(out, log2_sum, inverse, again, [&] {
          ptx::wgmma_wait_group(0);
          ptx::pin(kept());
        });
      } else {
        misled = merge.template run<false>(out, log2_sum, inverse, again, [] {});
      }
      if constexpr (!kVotesLast) return;
      // All threads of all parts find the same: each has heard of every part's rows that are its own.
      if (again || !any(misled)) [[likely]]
        return;
      prepare_again();
      if constexpr (kStays) {
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
      multiply_slice(kept(), probabilities[k], value_descriptor(0), part, Base::value_offset(k), k > 0);
    ptx::wgmma_commit_group();
  }

  /// Before parts are merged a second time: every inbox has been read, and expects its bytes anew.
  __device__ __forceinline__ void prepare_again() const {
    if constexpr (kConfig.cluster > 1) {
      if (warp == 0 && ptx::elect_one()) {
        const unsigned inbox = Merge<kConfig, kProblem>::inbox_barrier(place(), part);
        ptx::mbarrier_arrive_expect_tx(inbox, kPlan.sent_bytes);
        if (kConfig.weights == Weights::first)
          ptx::mbarrier_arrive_expect_tx(inbox + Merge<kConfig, kProblem>::kToSums, kPlan.sums_bytes);
      }
      __syncwarp();
      ptx::barrier_cluster_arrive_release();
      ptx::barrier_cluster_wait_acquire();
    } else if constexpr (kKeyGroups > 1) {
      ptx::bar_sync(1 + kKeyGroups, consumer_threads(kConfig));
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

}  // namespace heed::sm90

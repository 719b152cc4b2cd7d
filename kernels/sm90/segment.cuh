/// A segment of fwd_sm90: the chunks of keys whose scores a row group holds in registers at once, from their products
/// with the queries to those with the values.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/block.cuh"
#include "kernels/sm90/merge.cuh"

namespace heed::sm90 {

/// What a program does about keys that rows do not see.
enum class Masks { none, scores, probabilities };

template <const Config& kConfig, const Problem& kProblem>
struct Segment : Block<kConfig, kProblem> {
  using Base = Block<kConfig, kProblem>;
  using Base::hide_keys, Base::raise_references, Base::keep_seen, Base::exponentials, Base::round, Base::row_sum,
      Base::kMostSum;
  using Base::kChunk, Base::kChunks, Base::kStages, Base::kValueSteps, Base::kOnes;
  using Base::key_barrier, Base::value_barrier, Base::slot_of, Base::parity_of, Base::first_key_of;
  using Base::key_group, Base::part, Base::segments, Base::chunks, Base::seen_by_all, Base::scale_log2, Base::diagonal,
      Base::reference, Base::out;
  using Base::query_descriptor, Base::key_descriptor, Base::value_descriptor, Base::multiply_keys,
      Base::multiply_values, Base::multiply_slice, Base::sent;

  // ---- compile-time facts
  static constexpr int kSteps = segment_steps(kConfig);
  static constexpr int kChunkSteps = kChunk / kStepKeys;
  // With one stage nothing overlaps between segments: parts of a single one then have programs of their own.
  static constexpr bool kOneSegment = kStages == 1;
  // Parts of one segment find out with the other parts, at the very end, that they were misled.
  static constexpr bool kVotesLast = kOneSegment && kConfig.vote == Vote::after_writing;
  // Of a part that stays, the columns that it keeps are multiplied at the end.
  static constexpr bool kKeepsForLater = kConfig.kept_columns == KeptColumns::while_sending;
  // Sums by additions are there before the last products are done.
  static constexpr bool kSumsEarly = !kOnes;
  // The blocks of a cluster wait for each other's barriers beside the first scores, if they did not at the start.
  static constexpr bool kJoinsLater = kConfig.cluster > 1 && !Base::kSharesQueries;
  static constexpr KnownParts kKnown = known_parts(kConfig, kProblem);
  // Score registers of a row pair from which the first reference is found.
  static constexpr int kReferenceRegisters = kConfig.reference == Reference::first_keys ? kStepKeys / 2 : kChunk / 2;

  // ---- state
  float next_scores[kConfig.prefetch_scores ? kChunk / 2 : 1];  // of the segment to come
  float log2_sum[2];                                            // reference + log2(sum) of a row; -inf without keys
  float inverse[2];                                             // of a row's sum, or 0
  unsigned probabilities[kKeepsForLater ? kSteps : 1][4];       // of a part that stays

  using Base::Base;

  __device__ __forceinline__ bool has_no_keys() const { return kKnown.some_are_none && segments == 0; }

  /// One segment from its scores to its products, everything unrolled, nothing left in flight but, where they are
  /// prefetched, nothing at all: the next scores are waited for too. (ptxas serialises all products of a kernel that
  /// keeps one in flight over a loop's back edge.)
  ///
  /// @tparam kStays the part is this one segment: its keys and values stay in shared memory to the end; the cluster is
  ///     waited for
  template <Masks kMasks, bool kFirst, bool kStays>
  __device__ __forceinline__ void segment(int s, bool second_time) {
    constexpr bool kMasked = kMasks == Masks::scores;
    constexpr bool kKept = kMasks == Masks::probabilities;
    constexpr bool kReady = kConfig.prefetch_scores && !kFirst;  // the first scores came with the segment before
    const int slot = slot_of(s);
    // Keys that stay are waited for with the same parity again; as a constant it leaves no question to the compiler
    // whether the lanes of a warp wait together.
    const unsigned parity = kStays ? 0 : parity_of(s);
    // Worked out before the first wait where they are constants of the block; elsewhere they would cost registers.
    const unsigned long long here[] = {query_descriptor(), key_descriptor(slot), value_descriptor(slot)};
    const auto queries = [&] { return kStays ? here[0] : query_descriptor(); };
    const auto keys = [&] { return kStays ? here[1] : key_descriptor(slot); };
    const auto values = [&] { return kStays ? here[2] : value_descriptor(slot); };
    const int first_key = first_key_of(s);
    const int first_chunk = chunks.first + s * kChunks;
    const int last_chunk = kKept ? min(diagonal, chunks.end - 1) : 0;  // that any row sees and is this part's

    float scores[kChunks][kChunk / 2];
    if constexpr (kReady) {
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) scores[0][i] = next_scores[i];
    }
    int committed = 0;
    int score_group[kChunks];  // how many groups were committed before a chunk's
    const auto ask_for_scores = [&](int c) {
      ptx::mbarrier_wait(key_barrier(key_group, slot, c), parity);
      if (kConfig.trigger == Trigger::first_scores && kFirst && c == 0) ptx::griddepcontrol_launch_dependents();
      multiply_keys(scores[c], queries(), keys(), c);
      score_group[c] = committed++;
    };
    const auto wait_for_scores = [&](int c) {
      if (c > 0 || !kReady) {
        ptx::wgmma_wait_group(committed - 1 - score_group[c]);
        ptx::pin(scores[c]);
      }
      // From the first chunk comes the reference.
      if constexpr (kKept && kFirst)
        if (c == 0 && diagonal <= chunks.first) hide_keys(scores[0], first_key);
      if constexpr (kMasked) {
        const int end = first_key + (c + 1) * kChunk;
        // Chunks past the end of a part that stays weigh nothing anyway, but a maximum of all would see them.
        if (end > seen_by_all && (!kStays || kConfig.reference == Reference::exact || end <= chunks.end * kChunk))
          hide_keys(scores[c], first_key + c * kChunk);
      }
    };
    // What is subtracted from a chunk's scores; from those of chunks past the part's end so much that nothing is left.
    const auto subtracted_from = [&](int c, float(&subtracted)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        subtracted[h] = attention::finite_reference(reference[h]);
        if (kMasked && kStays && c > 0 && c >= chunks.end - chunks.first) subtracted[h] = __int_as_float(0x7f800000);
        if (kKept && (c > 0 || !kFirst) && first_chunk + c > last_chunk) subtracted[h] = __int_as_float(0x7f800000);
      }
    };

#pragma unroll
    for (int c = kReady ? 1 : 0; c < kConfig.score_lead; ++c) ask_for_scores(c);
    // While the first scores are computed: the end has one thing less to wait for.
    if (kStays && kJoinsLater && !second_time) ptx::barrier_cluster_wait_acquire();

    if constexpr (kConfig.reference == Reference::exact) {
      float maximum[2];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        wait_for_scores(c);
        float of_chunk[2];
        maximum_of<kChunk / 2>(scores[c], of_chunk);
#pragma unroll
        for (int h = 0; h < 2; ++h) maximum[h] = c == 0 ? of_chunk[h] : fmaxf(maximum[h], of_chunk[h]);
      }
      finish_maximum(maximum, scale_log2);
      if constexpr (kFirst) {
        reference[0] = maximum[0];
        reference[1] = maximum[1];
      } else {
        raise_references(maximum);
      }
    } else {
      wait_for_scores(0);
      if constexpr (kFirst) {
        float maximum[2];
        maximum_of<kReferenceRegisters>(scores[0], maximum);
        finish_maximum(maximum, scale_log2);
        reference[0] = fmaxf(reference[0], maximum[0]);  // -inf the first time, the exact maximum when computed again
        reference[1] = fmaxf(reference[1], maximum[1]);
      }
    }

    float e[kSteps][8];
    constexpr bool kLater = kKeepsForLater && kStays;
    unsigned passing[kLater ? 1 : kSteps][4];
    auto& p = [&]() -> auto& {
      if constexpr (kLater)
        return probabilities;
      else
        return passing;
    }();
    float subtracted[2];
    unsigned before[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) before[c] = kKept && first_chunk + c < diagonal ? 0xFFFFFFFFU : 0;
    const auto pack_step = [&](int k) {
      round(p[k], e[k]);
      if constexpr (kKept) keep_seen(p[k], k % kChunkSteps, before[k / kChunkSteps]);
    };
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int c = k / kChunkSteps;
      if (kConfig.reference != Reference::exact && c > 0 && k % kChunkSteps == 0) wait_for_scores(c);
      if constexpr (kConfig.prefetch_scores)
        if (k == (kChunks - 1) * kChunkSteps) {
          // Without a next segment these are products of old keys, which nobody reads: a branch around them costs more.
          const int next_slot = slot_of(s + 1);
          if (s + 1 < segments) ptx::mbarrier_wait(key_barrier(key_group, next_slot, 0), parity_of(s + 1));
          multiply_keys(next_scores, queries(), key_descriptor(next_slot), 0);
          ++committed;
        }
      if (k % kChunkSteps == 0) subtracted_from(c, subtracted);
      exponentials(e[k], scores[c], k % kChunkSteps, subtracted);
      if (!kConfig.late_packing) pack_step(k);
      if (kConfig.late_packing && k > 0) pack_step(k - 1);
      if (kConfig.late_packing && k == kSteps - 1) pack_step(k);
      if (k == late_scores_after_step(kConfig))
#pragma unroll
        for (int late = kConfig.score_lead; late < kChunks; ++late) ask_for_scores(late);
#pragma unroll
      for (int j = 0; j < products(kConfig); ++j) {
        if (product_after_step(kConfig, j) != k) continue;
        const int step = j * kConfig.product_steps;
        if (step % kValueSteps == 0) ptx::mbarrier_wait(value_barrier(key_group, slot, step / kValueSteps), parity);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kConfig.product_steps; ++i)
          if constexpr (kLater)
            multiply_slice(sent(), p[step + i], values(), 1 - part, Base::value_offset(step + i), step + i > 0);
          else
            multiply_values(p[step + i], values(), Base::value_offset(step + i), !kFirst || step + i > 0);
        ptx::wgmma_commit_group();
        ++committed;
      }
    }
    if constexpr (kSumsEarly && kStays) finish_sums<true>(second_time);
    ptx::wgmma_wait_group(0);
    if constexpr (kLater)
      ptx::pin(sent());
    else
      ptx::pin(out);
    if constexpr (kConfig.prefetch_scores) ptx::pin(next_scores);
  }

  /// What the merge needs to know of each row.
  template <bool kStays>
  __device__ __forceinline__ void finish_sums(bool second_time) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = row_sum(h);
      if constexpr (!kOnes) {
        total += __shfl_xor_sync(0xffffffffU, total, 1);
        total += __shfl_xor_sync(0xffffffffU, total, 2);
      }
      log2_sum[h] = reference[h] + ptx::lg2_approx_ftz(total);
      inverse[h] = total > 0.0F ? ptx::rcp_approx_ftz(total) : 0.0F;
      if (kStays && kVotesLast && !second_time && !(total < kMostSum)) log2_sum[h] = misled_log_sum();
      if constexpr (kSumsEarly && kStays) {
        ptx::settle(log2_sum[h]);
        ptx::settle(inverse[h]);
      }
    }
  }
};

}  // namespace heed::sm90

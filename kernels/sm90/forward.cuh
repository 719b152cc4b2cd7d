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

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/merge.cuh"
#include "kernels/sm90/softmax.cuh"

namespace heed::sm90 {

/// What a program does about keys that rows do not see.
enum class Masks { none, scores, probabilities };

template <Config kConfig, Problem kProblem>
struct Forward : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::barrier, Base::key_barrier, Base::value_barrier, Base::freed_barrier, Base::keys_at, Base::values_at;
  using Base::copy_queries, Base::copy_keys, Base::key_head, Base::initialise_barriers;
  using Base::kBoxes, Base::kChunk, Base::kChunks, Base::kStages, Base::kValueSteps, Base::kRowGroups, Base::kKeyGroups;
  using Base::kDim, Base::kOutColumns, Base::kOnes, Base::row_group, Base::key_group, Base::out;
  using Base::kMostSum, Base::kSumsRounded, Base::lane, Base::warp, Base::chunks, Base::scale_log2, Base::diagonal,
      Base::is_lined_up, Base::reference, Base::sum, Base::row, Base::hide_keys, Base::raise_references,
      Base::find_diagonal, Base::keep_seen, Base::exponentials, Base::round, Base::row_sum, Base::has_overflown;
  using Base::kPlan, Base::kBarriers, Base::kFirstBarrier;
  using Base::params, Base::maps, Base::shared, Base::block_row, Base::head, Base::batch;
  using Base::query_descriptor, Base::key_descriptor, Base::value_descriptor, Base::multiply_keys,
      Base::multiply_values, Base::multiply_slice, Base::sent, Base::kept;

  // ---- compile-time facts
  static constexpr int kSteps = segment_steps(kConfig);
  static constexpr int kChunkSteps = kChunk / kStepKeys;
  static constexpr int kKeyGroupThreads = kGroupThreads * kRowGroups;
  static constexpr bool kOwnWarp = kConfig.producer != Producer::first_warp;
  // With one stage nothing overlaps between segments: parts of a single one then have programs of their own.
  static constexpr bool kOneSegment = kStages == 1;
  static constexpr int kBlockRows = kRowGroups * kGroupRows;
  static constexpr bool kDependent = kConfig.trigger != Trigger::none;
  static constexpr bool kQueriesFirst = kConfig.opening == Opening::queries_first;
  static constexpr int kQueryBytes = kRowGroups * kBoxes * kGroupRows * tile::kBoxRowBytes;
  // Parts of one segment find out with the other parts, at the very end, that they were misled.
  static constexpr bool kVotesLast = kOneSegment && kConfig.vote == Vote::after_writing;
  // Of a part that stays, the columns that it keeps are multiplied at the end.
  static constexpr bool kKeepsForLater = kConfig.kept_columns == KeptColumns::while_sending;
  // Sums by additions are there before the last products are done.
  static constexpr bool kSumsEarly = !kOnes;
  static constexpr bool kMasksProbabilities = kConfig.mask == Mask::probabilities;
  // Score registers of a row pair from which the first reference is found.
  static constexpr int kReferenceRegisters = kConfig.reference == Reference::first_keys ? kStepKeys / 2 : kChunk / 2;

  static_assert(kDim % 64 == 0 && kChunk % kStepKeys == 0, "wgmma takes 16 keys at a time and boxes of 64 columns");

  // ---- state
  bool is_consumer;  // else of the warp or warpgroup that starts the copies
  int part;
  int keys_end;  // keys any row of the block may see
  int segments;
  int passed_segments = 0;  // of a computation that has to be done again
  int seen_by_all;          // keys of this part before this are seen by every row of the row group
  int seen_by_any;          // keys before this by one at least
  Target target;
  float next_scores[kConfig.prefetch_scores ? kChunk / 2 : 1];  // of the segment to come
  float log2_sum[2];                                            // reference + log2(sum) of a row; -inf without keys
  float inverse[2];                                             // of a row's sum, or 0
  unsigned probabilities[kKeepsForLater ? kSteps : 1][4];       // of a part that stays

  __device__ __forceinline__ Forward(const ForwardParams& p, const TensorMaps& m, char* dynamic_shared)
      : Base(p, found(m), ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    // The same for the warp and known to be, where groups depend on it; elsewhere the first copy would wait for
    // nothing.
    const unsigned warp_index =
        threads(kConfig) == kGroupThreads ? threadIdx.x / 32 : __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
    warp = static_cast<int>(warp_index % 4);
    const int group = static_cast<int>(warp_index / 4);
    is_consumer = !kOwnWarp || group < kRowGroups * kKeyGroups;
    row_group = kRowGroups == 1 ? 0 : group % kRowGroups;  // a constant keeps addresses out of vector registers
    key_group = kKeyGroups == 1 ? 0 : group / kRowGroups;
    if constexpr (kQueriesFirst) open();
    find_rows();
    find_keys(p.len_k);
    seen_by_all =
        min(visible_keys(kProblem.causal, block_row + row_group * kGroupRows, params.causal_offset, params.len_k),
            chunks.end * kChunk);
    seen_by_any =
        visible_keys(kProblem.causal, block_row + (row_group + 1) * kGroupRows - 1, params.causal_offset, params.len_k);
    scale_log2 = params.scale * 1.44269504F;
  }

  /// The maps themselves; where that is to be known early, by way of an address of the thread's own, which the compiler
  /// works out where it is asked for: at the start, beside the load of the lengths, instead of after it.
  __device__ __forceinline__ static const TensorMaps& found(const TensorMaps& m) {
    if constexpr (kConfig.opening != Opening::maps_first) return m;
    const char* address = reinterpret_cast<const char*>(&m) + ptx::zero_of_lane();
    ptx::settle(address);
    return *reinterpret_cast<const TensorMaps*>(address);
  }

  __device__ __forceinline__ void find_rows() {
    constexpr bool kHeadsFirst = heads_first(kConfig);
    const int in_x = blockIdx.x / kConfig.cluster;
    const int row_tiles = kHeadsFirst ? gridDim.y : gridDim.x / kConfig.cluster;
    block_row = row_tile_at(kConfig, kHeadsFirst ? blockIdx.y : in_x, row_tiles) * kBlockRows;
    head = kHeadsFirst ? in_x : blockIdx.y;
    batch = blockIdx.z;
  }

  __device__ __forceinline__ void find_keys(int len_k) {
    keys_end =
        visible_keys(kProblem.causal, min(block_row + kBlockRows, params.len_q) - 1, params.causal_offset, len_k);
    part = (kConfig.cluster > 1 ? blockIdx.x % kConfig.cluster : 0) * kKeyGroups + key_group;
    chunks = chunks_of_part(kConfig, keys_end, part);
    segments = segments_of(kConfig, chunks);
  }

  // ------------------------------------------------------------------------------------------------------- copies

  /// The copies of one segment of a key group: its first keys may have come with the queries.
  __device__ __forceinline__ void copy_segment(int group, Range range, int segment, int kv_head) const {
    Base::copy_segment(group, slot_of(segment), (range.first + segment * kChunks) * kChunk, kv_head,
                       kKeyGroups == 1 && segment + passed_segments == 0);
  }

  /// Segments take the slots in turn; one computed again goes on where the first computation ended.
  __device__ __forceinline__ int slot_of(int segment) const {
    return kStages == 1 ? 0 : (passed_segments + segment) % kStages;
  }
  __device__ __forceinline__ unsigned parity_of(int segment) const {
    return (kStages == 1 ? passed_segments + segment : (passed_segments + segment) / kStages) & 1;
  }

  __device__ __forceinline__ int first_key_of(int segment) const { return (chunks.first + segment * kChunks) * kChunk; }

  /// Range of any key group of this block.
  __device__ __forceinline__ Range range_of(int group) const {
    return chunks_of_part(kConfig, keys_end, part - key_group + group);
  }

  /// The first copies of every key group, by one thread. Q and the first keys come 850 clocks after they were asked for
  /// and everything waits for them, so they are asked for before the other barriers exist.
  __device__ __forceinline__ void start_copies() {
    ptx::prefetch_tensormap(maps.q);
    ptx::prefetch_tensormap(maps.k);
    const unsigned first = barrier(kFirstBarrier);
    ptx::mbarrier_init(first, 1);
    ptx::fence_mbarrier_init();
    if constexpr (kQueriesFirst) {
      if constexpr (kDependent) ptx::griddepcontrol_wait();
      find_rows();
      copy_queries(first);
      // By an index that is the lane's: the length is not read before.
      find_keys(reinterpret_cast<const int*>(&params)[kLenKIndex + ptx::zero_of_lane()]);
    }
    // All coordinates before the first copy: what is worked out between Q and the keys comes on top of both (100
    // clocks).
    unsigned kv_head = key_head();
    unsigned first_key = chunks.first * kChunk;
    ptx::settle(kv_head);
    ptx::settle(first_key);
    if constexpr (kQueriesFirst) {
      const bool has_keys = kKeyGroups == 1 && segments > 0;
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (has_keys ? kBoxes * kPlan.key_box : 0));
      if (has_keys) copy_keys(keys_at(0, 0), first, first_key, kv_head);
    } else {
      if constexpr (kDependent) ptx::griddepcontrol_wait();
      if (kKeyGroups > 1 || segments > 0) {
        ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (kKeyGroups == 1 ? kBoxes * kPlan.key_box : 0));
        copy_queries(first);
        if constexpr (kKeyGroups == 1) copy_keys(keys_at(0, 0), first, first_key, kv_head);
      }
    }
    ptx::prefetch_tensormap(maps.v);
    initialise_barriers();
#pragma unroll
    for (int s = 0; s < kStages; ++s)
#pragma unroll
      for (int g = 0; g < kKeyGroups; ++g)
        if (const Range range = range_of(g); s < segments_of(kConfig, range)) copy_segment(g, range, s, kv_head);
  }

  __device__ __forceinline__ static bool is_producer() {
    return threadIdx.x / 32 == (kOwnWarp ? consumer_threads(kConfig) / 32U : 0U);
  }
  __device__ __forceinline__ void open() {
    if (is_producer()) {
      if (ptx::elect_one()) start_copies();
      __syncwarp();
    }
  }

  /// The producer warp's one thread: refills slots as they are freed.
  __device__ __forceinline__ void keep_copying() const {
    bool more = true;
    for (int s = kStages; more; ++s) {
      more = false;
      for (int g = 0; g < kKeyGroups; ++g) {
        const Range range = range_of(g);
        if (s >= segments_of(kConfig, range)) continue;
        more = true;
        ptx::mbarrier_wait(freed_barrier(g, s % kStages), (s / kStages - 1) & 1);
        copy_segment(g, range, s, key_head());
      }
    }
  }

  /// Whether any thread of the key group says so.
  __device__ __forceinline__ bool any(bool overflown) const {
    return ptx::barrier_red_or(1 + key_group, kKeyGroupThreads, overflown);
  }

  // ------------------------------------------------------------------------------------------------------ segments

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
    if (kStays && kConfig.cluster > 1 && !second_time) ptx::barrier_cluster_wait_acquire();

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

  /// Lets the slot of a finished segment be filled again.
  __device__ __forceinline__ void release(int s) const {
    if (s + kStages >= segments) return;
    if (kOwnWarp && passed_segments == 0) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(freed_barrier(key_group, slot_of(s)));
    } else {
      ptx::bar_sync(1 + key_group, kKeyGroupThreads);
      if (is_leader() && ptx::elect_one()) copy_segment(key_group, chunks, s + kStages, key_head());
      __syncwarp();
    }
  }

  __device__ __forceinline__ bool is_leader() const { return row_group == 0 && warp == 0; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOutColumns / 2; ++i) out[i] = 0.0F;
    sum[0] = sum[1] = 0.0F;
  }

  /// All segments of the part, again where its first keys misled and it votes by itself.
  template <Masks kMasks, bool kStays>
  __device__ __forceinline__ void run_segments(bool second_time) {
    if (segments == 0) [[unlikely]] {
      if (kQueriesFirst && kKeyGroups == 1) ptx::mbarrier_wait(barrier(kFirstBarrier), 0);  // they come all the same
      if (kDependent) ptx::griddepcontrol_launch_dependents();
      return;
    }
#pragma unroll 1
    for (bool again = second_time;; again = true) {
      segment<kMasks, true, kStays>(0, again);
      if constexpr (!kStays) {
        release(0);
#pragma unroll 1
        for (int s = 1; s < segments; ++s) {
          // Under a causal mask the last segments may be another row group's alone; freed in its turn all the same: an
          // arrival before the slot was filled again would count for the segment before.
          if (first_key_of(s) < seen_by_any)
            segment<kMasks, false, false>(s, again);
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
    if constexpr (kOnes) {
      // Every element is one, so the swizzle moves nothing. 16 bytes a thread: 2 KiB.
      const unsigned one = kProblem.element == Element::bf16 ? 0x3F803F80U : 0x3C003C00U;
      if (threads(kConfig) == kGroupThreads || threadIdx.x < kStepKeys * tile::kBoxRowBytes / 16)
        ptx::st_shared_v4(shared + kPlan.ones + 16 * threadIdx.x, one);
    }
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
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
      // In this order: ptxas puts the second next to what came before (0.03 us at the mission shape on an H200).
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
      if (!(kSumsEarly && kStays) || segments == 0) finish_sums<kStays>(again);
      // The other blocks' barriers exist.
      if (kConfig.cluster > 1 && !again && (!kStays || segments == 0)) ptx::barrier_cluster_wait_acquire();
      const Merge<kConfig, kProblem> merge{params, place(), target};
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

}  // namespace heed::sm90

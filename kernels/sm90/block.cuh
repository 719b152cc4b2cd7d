/// What of a launch of fwd_sm90 is a block's: its rows, the keys of its part, their segments, and the copies of them.
#pragma once

#include "kernels/ptx/global.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/softmax.cuh"

namespace heed::sm90 {

template <const Config& kConfig, const Problem& kProblem>
struct Block : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::barrier, Base::key_barrier, Base::freed_barrier, Base::keys_at;
  using Base::copy_queries, Base::copy_keys, Base::key_head, Base::initialise_barriers;
  using Base::kBoxes, Base::kChunk, Base::kChunks, Base::kStages, Base::kRowGroups, Base::kKeyGroups;
  using Base::kPlan, Base::kFirstBarrier, Base::kSharesQueries;
  using Base::lane, Base::warp, Base::row_group, Base::key_group, Base::chunks, Base::scale_log2;
  using Base::params, Base::maps, Base::block_row, Base::head, Base::batch;

  // ---- compile-time facts
  static constexpr int kKeyGroupThreads = kGroupThreads * kRowGroups;
  static constexpr bool kOwnWarp = kConfig.producer != Producer::first_warp;
  static constexpr int kBlockRows = kRowGroups * kGroupRows;
  static constexpr bool kDependent = kConfig.trigger != Trigger::none;
  static constexpr bool kQueriesFirst = kConfig.opening == Opening::queries_first;
  static constexpr int kQueryBytes = kRowGroups * kBoxes * kGroupRows * tile::kBoxRowBytes;

  // ---- state
  bool is_consumer;  // else of the warp or warpgroup that starts the copies
  int part;
  int keys_end;  // keys any row of the block may see
  int segments;
  int passed_segments = 0;  // of a computation that has to be done again
  int seen_by_all;          // keys of this part before this are seen by every row of the row group
  int seen_by_any;          // keys before this by one at least

  __device__ __forceinline__ Block(const ForwardParams& p, const TensorMaps& m, char* dynamic_shared)
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
      if constexpr (kConfig.sizes == Sizes::any)
        find_keys(reinterpret_cast<const int*>(&params)[kLenKIndex + ptx::zero_of_lane()]);
      else
        find_keys(params.len_k);
    }
    // All coordinates before the first copy: what is worked out between Q and the keys comes on top of both (100
    // clocks).
    unsigned kv_head = key_head();
    unsigned first_key = chunks.first * kChunk;
    ptx::settle(kv_head);
    ptx::settle(first_key);
    if constexpr (kDependent && !kQueriesFirst) ptx::griddepcontrol_wait();
    if constexpr (kQueriesFirst || kSharesQueries) {
      // Queries have been asked for, or come later: the other blocks' barriers may not exist yet. A block without keys
      // waits for them, too: in a cluster every block copies some of them for all.
      const bool has_keys = kKeyGroups == 1 && segments > 0;
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (has_keys ? kBoxes * kPlan.key_box : 0));
      if (has_keys) copy_keys(keys_at(0, 0), first, first_key, kv_head);
    } else if (kKeyGroups > 1 || segments > 0) {
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (kKeyGroups == 1 ? kBoxes * kPlan.key_box : 0));
      copy_queries(first);
      if constexpr (kKeyGroups == 1) copy_keys(keys_at(0, 0), first, first_key, kv_head);
    }
    ptx::prefetch_tensormap(maps.v);
    if constexpr (kConfig.store == Store::boxes) ptx::prefetch_tensormap(maps.o);
    initialise_barriers();
    if constexpr (!kSharesQueries) copy_first_segments(kv_head);
  }

  __device__ __forceinline__ void copy_first_segments(int kv_head) const {
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

  /// Once every block of the cluster has its barriers: the queries for all of them, then the copies that come later.
  __device__ __forceinline__ void share_queries() const {
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait_acquire();
    if (is_producer()) {
      if (ptx::elect_one()) {
        copy_queries(barrier(kFirstBarrier));
        copy_first_segments(key_head());
      }
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
};

}  // namespace heed::sm90

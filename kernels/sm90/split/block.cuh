/// What of a launch of fwd_sm90_split is a block's: its rows, the keys of its part, their iterations, and the loads of
/// them.
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/split/softmax.cuh"

namespace heed::sm90_split {

template <const Config& kConfig, const Problem& kProblem>
struct Block : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::barrier, Base::k_full, Base::kv_empty, Base::keys_at;
  using Base::kBegins, Base::origin;
  using Base::kBoxes, Base::kBlockN, Base::kNBlocks, Base::kStages, Base::kMWarpgroups, Base::kKvGroups;
  using Base::kPlan, Base::kFirstBarrier, Base::kSharesQueries;
  using Base::lane, Base::warp, Base::m_warpgroup, Base::kv_group, Base::n_blocks, Base::scale_log2;
  using Base::load_q, Base::load_k, Base::kv_head_of, Base::initialise_barriers;
  using Base::params, Base::maps, Base::block_row, Base::head, Base::batch;

  // ---- compile-time facts
  static constexpr int kKeyGroupThreads = kWarpgroupThreads * kMWarpgroups;
  static constexpr bool kOwnWarp = kConfig.producer != Producer::consumer_warp;
  static constexpr int kBlockRows = kMWarpgroups * kWarpgroupRows;
  static constexpr bool kDependent = kConfig.pdl_trigger != PdlTrigger::none;
  static constexpr bool kQueriesFirst = kConfig.prologue == Prologue::q_first;
  static constexpr int kQueryBytes = kMWarpgroups * kBoxes * kWarpgroupRows * tile::kBoxRowBytes;

  // ---- state
  bool is_consumer;  // else of the warp or warpgroup that starts the loads
  int split_idx;
  int keys_end;  // keys any row of the block may see
  int iterations;
  int iterations_done = 0;  // of a computation that has to be done again
  int seen_by_all;          // keys of this part before this are seen by every row of the consumer warpgroup
  int seen_by_any;          // keys before this by one at least

  __device__ __forceinline__ Block(const ForwardParams& p, const TensorMaps& m, char* dynamic_shared)
      : Base(p, found(m), ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    // The same for the warp and known to be, where groups depend on it; elsewhere the first copy would wait for
    // nothing.
    const unsigned warp_index =
        threads(kConfig) == kWarpgroupThreads ? threadIdx.x / 32 : __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
    warp = static_cast<int>(warp_index % 4);
    const int group = static_cast<int>(warp_index / 4);
    is_consumer = !kOwnWarp || group < kMWarpgroups * kKvGroups;
    m_warpgroup = kMWarpgroups == 1 ? 0 : group % kMWarpgroups;  // a constant keeps addresses out of vector registers
    kv_group = kKvGroups == 1 ? 0 : group / kMWarpgroups;
    if constexpr (kQueriesFirst) open();
    find_rows();
    find_keys(p.len_k);
    seen_by_all =
        min(visible_keys(kProblem.mask, block_row + m_warpgroup * kWarpgroupRows, params.right_offset, params.len_k),
            n_blocks.end * kBlockN);
    seen_by_any = visible_keys(kProblem.mask, block_row + (m_warpgroup + 1) * kWarpgroupRows - 1, params.right_offset,
                               params.len_k);
    if constexpr (kBegins) {
      const int seen_by_first =
          visible_keys(kProblem.mask, block_row + m_warpgroup * kWarpgroupRows, params.right_offset, params.len_k);
      seen_by_all = min(seen_by_first - origin(), n_blocks.end * kBlockN);
      seen_by_any -= origin();
    }
    scale_log2 = params.scale * attention::kLog2e;
  }

  /// The maps themselves; where that is to be known early, by way of an address of the thread's own, which the compiler
  /// works out where it is asked for: at the start, beside the load of the lengths, instead of after it.
  __device__ __forceinline__ static const TensorMaps& found(const TensorMaps& m) {
    if constexpr (kConfig.prologue != Prologue::maps_first) return m;
    const char* address = reinterpret_cast<const char*>(&m) + opaque_zero();
    opaque(address);
    return *reinterpret_cast<const TensorMaps*>(address);
  }

  __device__ __forceinline__ void find_rows() {
    const attention::GridPlace at = attention::place_in_grid<grid_axes(kConfig), kConfig.cluster>(
        {blockIdx.x, blockIdx.y, blockIdx.z}, {gridDim.x, gridDim.y, gridDim.z});
    block_row = q_tile_at(kConfig, at.index, at.q_tiles) * kBlockRows;
    head = at.head;
    batch = at.batch;
  }

  __device__ __forceinline__ void find_keys(int len_k) {
    keys_end = visible_keys(kProblem.mask, min(block_row + kBlockRows, params.len_q) - 1, params.right_offset, len_k);
    if constexpr (kBegins) keys_end -= origin();
    split_idx = (kConfig.cluster > 1 ? blockIdx.x % kConfig.cluster : 0) * kKvGroups + kv_group;
    n_blocks = n_blocks_of_split(kConfig, keys_end, split_idx);
    iterations = iterations_of(kConfig, n_blocks);
  }

  // ------------------------------------------------------------------------------------------------------- loads

  /// The loads of one iteration of a KV group: its first keys may have come with the queries.
  __device__ __forceinline__ void load_iteration(int group, Range range, int iteration, int kv_head) const {
    Base::load_iteration(group, slot_of(iteration), (range.first + iteration * kNBlocks) * kBlockN, kv_head,
                         kKvGroups == 1 && iteration + iterations_done == 0);
  }

  /// Iterations take the slots in turn; one computed again goes on where the first computation ended.
  __device__ __forceinline__ int slot_of(int iteration) const {
    return kStages == 1 ? 0 : (iterations_done + iteration) % kStages;
  }
  __device__ __forceinline__ unsigned parity_of(int iteration) const {
    return (kStages == 1 ? iterations_done + iteration : (iterations_done + iteration) / kStages) & 1;
  }

  __device__ __forceinline__ int first_key_of(int iteration) const {
    return (n_blocks.first + iteration * kNBlocks) * kBlockN;
  }

  /// Keys before this are hidden from some row of the consumer warpgroup.
  __device__ __forceinline__ int hidden_from_some() const {
    const int last_row = block_row + (m_warpgroup + 1) * kWarpgroupRows - 1;
    return hidden_keys(kProblem.mask, last_row, params.left_offset, params.len_k) - origin();
  }

  /// Range of any KV group of this block.
  __device__ __forceinline__ Range range_of(int group) const {
    return n_blocks_of_split(kConfig, keys_end, split_idx - kv_group + group);
  }

  /// The first loads of every KV group, by one thread. Q and the first keys come 850 clocks after they were asked for
  /// and everything waits for them, so they are asked for before the other barriers exist.
  __device__ __forceinline__ void start_copies() {
    sm90::prefetch_first_maps(maps);
    const unsigned first = barrier(kFirstBarrier);
    ptx::mbarrier_init(first, 1);
    ptx::fence_mbarrier_init();
    if constexpr (kQueriesFirst) {
      if constexpr (kDependent) ptx::griddepcontrol_wait();
      find_rows();
      load_q(first);
      // By an index that is the lane's: the length is not read before.
      if constexpr (kProblem.specialization.specialize == Specialize::none)
        find_keys(reinterpret_cast<const int*>(&params)[kLenKIndex + opaque_zero()]);
      else
        find_keys(params.len_k);
    }
    // All coordinates before the first copy: what is worked out between Q and the keys comes on top of both (100
    // clocks).
    unsigned kv_head = kv_head_of();
    unsigned first_key = n_blocks.first * kBlockN;
    opaque(kv_head);
    opaque(first_key);
    if constexpr (kDependent && !kQueriesFirst) ptx::griddepcontrol_wait();
    if constexpr (kQueriesFirst || kSharesQueries) {
      // Queries have been asked for, or come later: the other blocks' barriers may not exist yet. A block without keys
      // waits for them, too: in a cluster every block loads some of them for all.
      const bool has_keys = kKvGroups == 1 && iterations > 0;
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (has_keys ? kBoxes * kPlan.key_box : 0));
      if (has_keys) load_k(keys_at(0, 0), first, first_key, kv_head);
    } else if (kKvGroups > 1 || iterations > 0) {
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (kKvGroups == 1 ? kBoxes * kPlan.key_box : 0));
      load_q(first);
      if constexpr (kKvGroups == 1) load_k(keys_at(0, 0), first, first_key, kv_head);
    }
    sm90::prefetch_later_maps<kConfig.epilogue == EpilogueStore::tma>(maps);
    initialise_barriers();
    if constexpr (!kSharesQueries) copy_first_segments(kv_head);
  }

  __device__ __forceinline__ void copy_first_segments(int kv_head) const {
#pragma unroll
    for (int s = 0; s < kStages; ++s)
#pragma unroll
      for (int g = 0; g < kKvGroups; ++g)
        if (const Range range = range_of(g); s < iterations_of(kConfig, range)) load_iteration(g, range, s, kv_head);
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

  /// Once every block of the cluster has its barriers: the queries for all of them, then the loads that come later.
  __device__ __forceinline__ void share_queries() const {
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait_acquire();
    if (is_producer()) {
      if (ptx::elect_one()) {
        load_q(barrier(kFirstBarrier));
        copy_first_segments(kv_head_of());
      }
      __syncwarp();
    }
  }

  /// The producer warp's one thread: refills slots as they are freed.
  __device__ __forceinline__ void keep_copying() const {
    bool more = true;
    for (int s = kStages; more; ++s) {
      more = false;
      for (int g = 0; g < kKvGroups; ++g) {
        const Range range = range_of(g);
        if (s >= iterations_of(kConfig, range)) continue;
        more = true;
        ptx::mbarrier_wait(kv_empty(g, s % kStages), (s / kStages - 1) & 1);
        load_iteration(g, range, s, kv_head_of());
      }
    }
  }

  __device__ __forceinline__ int group_barrier() const {
    return attention::barrier_id<kConfig, NamedBarrier::kv_group>(kv_group);
  }

  /// Lets the slot of a finished iteration be filled again.
  __device__ __forceinline__ void release(int s) const {
    if (s + kStages >= iterations) return;
    if (kOwnWarp && iterations_done == 0) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(kv_empty(kv_group, slot_of(s)));
    } else {
      ptx::bar_sync(group_barrier(), kKeyGroupThreads);
      if (is_leader() && ptx::elect_one()) load_iteration(kv_group, n_blocks, s + kStages, kv_head_of());
      __syncwarp();
    }
  }

  __device__ __forceinline__ bool is_leader() const { return m_warpgroup == 0 && warp == 0; }
};

}  // namespace heed::sm90_split

/// The bulk tensor loads of fwd_sm90_split, and who starts them when (Producer, Prologue, TmaMulticast).
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/split/thread_state.cuh"
#include "kernels/sm90/tma.cuh"

namespace heed::sm90_split {

/// Holds nothing: what is loaded, and where to, is a thread's state.
template <const Config& kConfig, const Problem& kProblem>
struct TmaProducer {
  using State = ThreadState<kConfig, kProblem>;
  using CtaTile = sm90_split::CtaTile<kConfig, kProblem>;
  using Smem = SmemLayout<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBoxes = Smem::kBoxes;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kNBlocks = kConfig.n_blocks_per_stage;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kMWarpgroups = kConfig.m_warpgroups;
  static constexpr int kKvGroups = kConfig.kv_groups;
  static constexpr bool kOwnProducer = State::kOwnProducer;
  static constexpr bool kSharesQueries = kConfig.tma_multicast == TmaMulticast::q;
  static constexpr bool kQueriesFirst = kConfig.prologue == Prologue::q_first;
  static constexpr bool kDependent = kConfig.pdl_trigger != PdlTrigger::none;
  static constexpr SharedPlan kPlan = Smem::kPlan;
  static constexpr BarrierPlan kBarriers = Smem::kBarriers;
  static constexpr int kQueryBytes = kMWarpgroups * kBoxes * kWarpgroupRows * tile::kBoxRowBytes;

  /// The maps themselves; where that is to be known early, by way of an address of the thread's own, which the compiler
  /// works out where it is asked for: at the start, beside the load of the lengths, instead of after it.
  __device__ __forceinline__ static const TensorMaps& found(const TensorMaps& m) {
    if constexpr (kConfig.prologue != Prologue::maps_first) return m;
    const char* address = reinterpret_cast<const char*>(&m) + opaque_zero();
    opaque(address);
    return *reinterpret_cast<const TensorMaps*>(address);
  }

  // ------------------------------------------------------------------------------------------------- single loads

  /// All but the first: that is initialised before the first copy.
  __device__ __forceinline__ static void initialise_barriers(const Smem& smem) {
    for (int i = Smem::kFirstBarrier + 1; i < kBarriers.freed; ++i) ptx::mbarrier_init(smem.barrier(i), 1);
    for (int i = kBarriers.freed; i < kBarriers.again; ++i) ptx::mbarrier_init(smem.barrier(i), 4 * kMWarpgroups);
    for (int i = kBarriers.again; i < kBarriers.mailbox; ++i) ptx::mbarrier_init(smem.barrier(i), 1);
    // CTAs of a cluster count bytes, splits within a CTA threads.
    constexpr unsigned kArrivals = kConfig.cluster > 1 || kKvGroups == 1 ? 1 : (kKvGroups - 1) * kWarpgroupThreads;
    for (int i = kBarriers.mailbox; i < kBarriers.count; ++i) ptx::mbarrier_init(smem.barrier(i), kArrivals);
    ptx::fence_mbarrier_init();
    if constexpr (kConfig.cluster > 1)
      for (int i = kBarriers.mailbox; i < kBarriers.count; ++i)
        ptx::mbarrier_arrive_expect_tx(smem.barrier(i), i < kBarriers.sums ? kPlan.sent_bytes : kPlan.sums_bytes);
  }

  /// All queries of the tile; where they are shared, this CTA's part of them to all CTAs of the cluster, each of which
  /// expects all bytes.
  __device__ __forceinline__ static void load_q(const CtaTile& tile, unsigned at_barrier) {
    const unsigned to = tile.smem.shared + kPlan.q;
    if constexpr (kSharesQueries) {
      constexpr int kRows = query_box_rows(kConfig);
      const int first_row = static_cast<int>(blockIdx.x % kConfig.cluster) * kRows;
#pragma unroll
      for (int g = 0; g < kMWarpgroups; ++g)
#pragma unroll
        for (int b = 0; b < kBoxes; ++b)
          ptx::cp_async_bulk_tensor_4d_multicast(
              to + ((g * kBoxes + b) * kWarpgroupRows + first_row) * tile::kBoxRowBytes, tile.maps.q, at_barrier,
              b * tile::kBoxColumns, tile.q_row(tile.first_row + g * kWarpgroupRows + first_row), tile.head,
              tile.q_batch(), (1 << kConfig.cluster) - 1);
      return;
    }
#pragma unroll
    for (int g = 0; g < kMWarpgroups; ++g)
      sm90::load_boxes<kBoxes>(to + g * kBoxes * kWarpgroupRows * tile::kBoxRowBytes,
                               kWarpgroupRows * tile::kBoxRowBytes, tile.maps.q, at_barrier,
                               tile.q_row(tile.first_row + g * kWarpgroupRows), tile.head, tile.q_batch());
  }

  /// One n-block.
  __device__ __forceinline__ static void load_k(const CtaTile& tile, unsigned to, unsigned at_barrier, int first_key,
                                                int kv_head) {
    if constexpr (CtaTile::kBegins) first_key += tile.origin();
    sm90::load_boxes<kBoxes>(to, kPlan.key_box, tile.maps.k, at_barrier, tile.k_row(first_key), kv_head,
                             tile.k_batch());
  }

  /// Starts the loads of one iteration of a KV group, in the order in which they are needed. One thread. N-blocks past
  /// the split's end are copied too: they are masked, and what lies past the last key arrives as zeros; past the last
  /// of an entry as anything. The first keys may have come with the queries.
  __device__ __forceinline__ static void load_iteration(const State& state, int group, Range range, int iteration,
                                                        int kv_head) {
    const CtaTile& tile = state.tile;
    const int slot = state.split.slot_of(iteration);
    int first_key = (range.first + iteration * kNBlocks) * kBlockN;
    const bool first_keys_are_copied = kKvGroups == 1 && iteration + state.split.iterations_done == 0;
#pragma unroll
    for (int c = 0; c < kNBlocks; ++c) {
      if (c == 0 && first_keys_are_copied) continue;
      const unsigned at_barrier = tile.smem.k_full(group, slot, c);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.key_box);
      load_k(tile, tile.smem.keys(group, slot) + c * kBoxes * kPlan.key_box, at_barrier, first_key + c * kBlockN,
             kv_head);
    }
    if constexpr (CtaTile::kBegins) first_key += tile.origin();
#pragma unroll
    for (int w = 0; w < kConfig.v_barriers; ++w) {
      const unsigned at_barrier = tile.smem.v_full(group, slot, w);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.value_box);
      sm90::load_boxes<kBoxes>(tile.smem.values(group, slot) + w * kBoxes * kPlan.value_box, kPlan.value_box,
                               tile.maps.v, at_barrier, tile.k_row(first_key + w * Smem::kValueSteps * kMmaK), kv_head,
                               tile.k_batch());
    }
  }

  // ---------------------------------------------------------------------------------------------- their order in time

  __device__ __forceinline__ static bool is_producer() {
    return threadIdx.x / 32 == (kOwnProducer ? consumer_threads(kConfig) / 32U : 0U);
  }
  __device__ __forceinline__ static void open(State& state) {
    if (is_producer()) {
      if (ptx::elect_one()) start(state);
      __syncwarp();
    }
  }

  /// The first loads of every KV group, by one thread. Q and the first keys come 850 clocks after they were asked for
  /// and everything waits for them, so they are asked for before the other barriers exist.
  __device__ __forceinline__ static void start(State& state) {
    CtaTile& tile = state.tile;
    sm90::prefetch_first_maps(tile.maps);
    const unsigned first = tile.smem.barrier(Smem::kFirstBarrier);
    ptx::mbarrier_init(first, 1);
    ptx::fence_mbarrier_init();
    if constexpr (kQueriesFirst) {
      if constexpr (kDependent) ptx::griddepcontrol_wait();
      tile.find();
      load_q(tile, first);
      // By an index that is the lane's: the length is not read before.
      if constexpr (kProblem.specialization.specialize == Specialize::none)
        state.find_keys(reinterpret_cast<const int*>(&tile.params)[kLenKIndex + opaque_zero()]);
      else
        state.find_keys(tile.params.len_k);
    }
    // All coordinates before the first copy: what is worked out between Q and the keys comes on top of both (100
    // clocks).
    unsigned kv_head = tile.kv_head();
    unsigned first_key = state.n_blocks.first * kBlockN;
    opaque(kv_head);
    opaque(first_key);
    if constexpr (kDependent && !kQueriesFirst) ptx::griddepcontrol_wait();
    if constexpr (kQueriesFirst || kSharesQueries) {
      // Queries have been asked for, or come later: the other CTAs' barriers may not exist yet. A CTA without keys
      // waits for them, too: in a cluster every CTA loads some of them for all.
      const bool has_keys = kKvGroups == 1 && state.split.iterations > 0;
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (has_keys ? kBoxes * kPlan.key_box : 0));
      if (has_keys) load_k(tile, tile.smem.keys(0, 0), first, first_key, kv_head);
    } else if (kKvGroups > 1 || state.split.iterations > 0) {
      ptx::mbarrier_arrive_expect_tx(first, kQueryBytes + (kKvGroups == 1 ? kBoxes * kPlan.key_box : 0));
      load_q(tile, first);
      if constexpr (kKvGroups == 1) load_k(tile, tile.smem.keys(0, 0), first, first_key, kv_head);
    }
    sm90::prefetch_later_maps<kConfig.epilogue == EpilogueStore::tma>(tile.maps);
    initialise_barriers(tile.smem);
    if constexpr (!kSharesQueries) load_first_iterations(state, kv_head);
  }

  __device__ __forceinline__ static void load_first_iterations(const State& state, int kv_head) {
#pragma unroll
    for (int s = 0; s < kStages; ++s)
#pragma unroll
      for (int g = 0; g < kKvGroups; ++g)
        if (const Range range = state.range_of(g); s < iterations_of(kConfig, range))
          load_iteration(state, g, range, s, kv_head);
  }

  /// Once every CTA of the cluster has its barriers: the queries for all of them, then the loads that come later.
  __device__ __forceinline__ static void share_queries(const State& state) {
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait_acquire();
    if (is_producer()) {
      if (ptx::elect_one()) {
        load_q(state.tile, state.tile.smem.barrier(Smem::kFirstBarrier));
        load_first_iterations(state, state.tile.kv_head());
      }
      __syncwarp();
    }
  }

  /// The producer warp's one thread: refills slots as they are freed.
  __device__ __forceinline__ static void keep_loading(const State& state) {
    bool more = true;
    for (int s = kStages; more; ++s) {
      more = false;
      for (int g = 0; g < kKvGroups; ++g) {
        const Range range = state.range_of(g);
        if (s >= iterations_of(kConfig, range)) continue;
        more = true;
        ptx::mbarrier_wait(state.tile.smem.kv_empty(g, s % kStages), (s / kStages - 1) & 1);
        load_iteration(state, g, range, s, state.tile.kv_head());
      }
    }
  }

  /// A consumer's: lets the slot of a finished iteration be filled again.
  __device__ __forceinline__ static void release(const State& state, int s) {
    const auto& tile = state.tile;
    const auto& split = state.split;
    const auto& warpgroup = state.warpgroup;
    if (s + kStages >= split.iterations) return;
    if (kOwnProducer && split.iterations_done == 0) {
      __syncwarp();
      if (state.place.lane == 0) ptx::mbarrier_arrive(tile.smem.kv_empty(warpgroup.kv_group, split.slot_of(s)));
    } else {
      ptx::bar_sync(warpgroup.group_barrier(), kWarpgroupThreads * kMWarpgroups);
      if (state.is_leader() && ptx::elect_one())
        load_iteration(state, warpgroup.kv_group, state.n_blocks, s + kStages, tile.kv_head());
      __syncwarp();
    }
  }
};

}  // namespace heed::sm90_split

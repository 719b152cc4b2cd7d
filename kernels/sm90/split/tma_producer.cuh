/// Shared memory of fwd_sm90_split and the bulk tensor loads into it.
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90/split/shared_plan.hpp"
#include "kernels/sm90/tma.cuh"

namespace heed::sm90_split {

/// What a thread has to know of its block to ask for loads.
template <const Config& kConfig, const Problem& kProblem>
struct TmaProducer {
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kNBlocks = kConfig.n_blocks_per_stage;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kValueSteps = iteration_steps(kConfig) / kConfig.v_barriers;  // behind one barrier
  static constexpr int kMWarpgroups = kConfig.m_warpgroups;
  static constexpr int kKvGroups = kConfig.kv_groups;
  static constexpr bool kSharesQueries = kConfig.tma_multicast == TmaMulticast::q;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  // Q comes with the first keys of a single KV group, else on its own.
  static constexpr int kFirstBarrier = kKvGroups == 1 ? kBarriers.keys : kBarriers.q;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);

  const ForwardParams& params;
  const TensorMaps& maps;
  unsigned shared;
  int block_row;  // first of the block
  int head;
  int batch;

  __device__ __forceinline__ unsigned barrier(int index) const { return shared + kPlan.barriers + 8 * index; }
  __device__ __forceinline__ unsigned k_full(int group, int slot, int n_block) const {
    return barrier(kBarriers.keys + (group * kStages + slot) * kNBlocks + n_block);
  }
  __device__ __forceinline__ unsigned v_full(int group, int slot, int wait) const {
    return barrier(kBarriers.values + (group * kStages + slot) * kConfig.v_barriers + wait);
  }
  __device__ __forceinline__ unsigned kv_empty(int group, int slot) const {
    return barrier(kBarriers.freed + group * kStages + slot);
  }
  __device__ __forceinline__ unsigned keys_at(int group, int slot) const {
    return shared + kPlan.ring + (group * kStages + slot) * 2 * kPlan.operand_bytes;
  }
  __device__ __forceinline__ unsigned values_at(int group, int slot) const {
    return keys_at(group, slot) + kPlan.operand_bytes;
  }

  /// Bytes from the first values of an iteration to those of a step.
  __device__ __forceinline__ static constexpr int value_offset(int step) {
    return step / kValueSteps * kBoxes * kPlan.value_box + step % kValueSteps * kMmaK * tile::kBoxRowBytes;
  }

  // Under a mask with a left bound n-blocks begin at the first key that some row of the block sees: keys are counted
  // from there, and no key before it is loaded.

  /// The key that is counted as the block's first.
  __device__ __forceinline__ int origin() const {
    return hidden_keys(kProblem.mask, block_row, params.left_offset, params.len_k);
  }
  // ------------------------------------------------------------------------------------------------------- loads

  /// All but the first: that is initialised before the first copy.
  __device__ __forceinline__ void initialise_barriers() const {
    for (int i = kFirstBarrier + 1; i < kBarriers.freed; ++i) ptx::mbarrier_init(barrier(i), 1);
    for (int i = kBarriers.freed; i < kBarriers.again; ++i) ptx::mbarrier_init(barrier(i), 4 * kMWarpgroups);
    for (int i = kBarriers.again; i < kBarriers.mailbox; ++i) ptx::mbarrier_init(barrier(i), 1);
    // Blocks of a cluster count bytes, parts within a block threads.
    constexpr unsigned kArrivals = kConfig.cluster > 1 || kKvGroups == 1 ? 1 : (kKvGroups - 1) * kWarpgroupThreads;
    for (int i = kBarriers.mailbox; i < kBarriers.count; ++i) ptx::mbarrier_init(barrier(i), kArrivals);
    ptx::fence_mbarrier_init();
    if constexpr (kConfig.cluster > 1)
      for (int i = kBarriers.mailbox; i < kBarriers.count; ++i)
        ptx::mbarrier_arrive_expect_tx(barrier(i), i < kBarriers.sums ? kPlan.sent_bytes : kPlan.sums_bytes);
  }

  /// All queries of the block; where they are shared, this block's part of them to all blocks of the cluster, each of
  /// which expects all bytes.
  __device__ __forceinline__ void load_q(unsigned at_barrier) const {
    if constexpr (kSharesQueries) {
      constexpr int kRows = query_box_rows(kConfig);
      const int first_row = static_cast<int>(blockIdx.x % kConfig.cluster) * kRows;
#pragma unroll
      for (int g = 0; g < kMWarpgroups; ++g)
#pragma unroll
        for (int b = 0; b < kBoxes; ++b)
          ptx::cp_async_bulk_tensor_4d_multicast(
              shared + kPlan.q + ((g * kBoxes + b) * kWarpgroupRows + first_row) * tile::kBoxRowBytes, maps.q,
              at_barrier, b * tile::kBoxColumns, block_row + g * kWarpgroupRows + first_row, head, batch,
              (1 << kConfig.cluster) - 1);
      return;
    }
#pragma unroll
    for (int g = 0; g < kMWarpgroups; ++g)
      sm90::load_boxes<kBoxes>(shared + kPlan.q + g * kBoxes * kWarpgroupRows * tile::kBoxRowBytes,
                               kWarpgroupRows * tile::kBoxRowBytes, maps.q, at_barrier, block_row + g * kWarpgroupRows,
                               head, batch);
  }

  /// One n-block.
  __device__ __forceinline__ void load_k(unsigned to, unsigned at_barrier, int first_key, int kv_head) const {
    if constexpr (kBegins) first_key += origin();
    sm90::load_boxes<kBoxes>(to, kPlan.key_box, maps.k, at_barrier, first_key, kv_head, batch);
  }

  /// Starts the loads of one iteration of a KV group, in the order in which they are needed. One thread. N-blocks past
  /// the split's end are copied too: they are masked, and what lies past the last key arrives as zeros.
  __device__ __forceinline__ void load_iteration(int group, int slot, int first_key, int kv_head,
                                                 bool first_keys_are_copied) const {
#pragma unroll
    for (int c = 0; c < kNBlocks; ++c) {
      if (c == 0 && first_keys_are_copied) continue;
      const unsigned at_barrier = k_full(group, slot, c);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.key_box);
      load_k(keys_at(group, slot) + c * kBoxes * kPlan.key_box, at_barrier, first_key + c * kBlockN, kv_head);
    }
    if constexpr (kBegins) first_key += origin();
#pragma unroll
    for (int w = 0; w < kConfig.v_barriers; ++w) {
      const unsigned at_barrier = v_full(group, slot, w);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.value_box);
      sm90::load_boxes<kBoxes>(values_at(group, slot) + w * kBoxes * kPlan.value_box, kPlan.value_box, maps.v,
                               at_barrier, first_key + w * kValueSteps * kMmaK, kv_head, batch);
    }
  }

  /// A division takes 100 clocks, between the launch and its first copy; a uniform load of the group size as many.
  __device__ __forceinline__ int kv_head_of() const {
    if constexpr (kConfig.gqa == Gqa::off) return head;
    if constexpr (kProblem.specialization.specialize != Specialize::none)
      return static_cast<int>(static_cast<unsigned>(head) / params.group_size);
    const unsigned group_size = reinterpret_cast<const int*>(&params)[kGroupSizeIndex + opaque_zero()];
    return group_size == 1 ? head : static_cast<int>(static_cast<unsigned>(head) / group_size);
  }
};

}  // namespace heed::sm90_split

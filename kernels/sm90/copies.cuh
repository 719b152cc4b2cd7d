/// Shared memory of fwd_sm90 and the bulk tensor copies into it.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90/config.hpp"

namespace heed::sm90 {

/// What a thread has to know of its block to ask for copies.
template <const Config& kConfig, const Problem& kProblem>
struct Copies {
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kChunk = kConfig.chunk;
  static constexpr int kChunks = kConfig.chunks;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kValueSteps = segment_steps(kConfig) / kConfig.value_waits;  // behind one barrier
  static constexpr int kRowGroups = kConfig.row_groups;
  static constexpr int kKeyGroups = kConfig.key_groups;
  static constexpr bool kSharesQueries = kConfig.multicast == Multicast::queries;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  // Q comes with the first keys of a single key group, else on its own.
  static constexpr int kFirstBarrier = kKeyGroups == 1 ? kBarriers.keys : kBarriers.q;

  const ForwardParams& params;
  const TensorMaps& maps;
  unsigned shared;
  int block_row;  // first of the block
  int head;
  int batch;

  __device__ __forceinline__ unsigned barrier(int index) const { return shared + kPlan.barriers + 8 * index; }
  __device__ __forceinline__ unsigned key_barrier(int group, int slot, int chunk) const {
    return barrier(kBarriers.keys + (group * kStages + slot) * kChunks + chunk);
  }
  __device__ __forceinline__ unsigned value_barrier(int group, int slot, int wait) const {
    return barrier(kBarriers.values + (group * kStages + slot) * kConfig.value_waits + wait);
  }
  __device__ __forceinline__ unsigned freed_barrier(int group, int slot) const {
    return barrier(kBarriers.freed + group * kStages + slot);
  }
  __device__ __forceinline__ unsigned keys_at(int group, int slot) const {
    return shared + kPlan.ring + (group * kStages + slot) * 2 * kPlan.operand_bytes;
  }
  __device__ __forceinline__ unsigned values_at(int group, int slot) const {
    return keys_at(group, slot) + kPlan.operand_bytes;
  }

  /// Bytes from the first values of a segment to those of a step.
  __device__ __forceinline__ static constexpr int value_offset(int step) {
    return step / kValueSteps * kBoxes * kPlan.value_box + step % kValueSteps * kStepKeys * tile::kBoxRowBytes;
  }

  // ------------------------------------------------------------------------------------------------------- copies

  /// All but the first: that is initialised before the first copy.
  __device__ __forceinline__ void initialise_barriers() const {
    for (int i = kFirstBarrier + 1; i < kBarriers.freed; ++i) ptx::mbarrier_init(barrier(i), 1);
    for (int i = kBarriers.freed; i < kBarriers.again; ++i) ptx::mbarrier_init(barrier(i), 4 * kRowGroups);
    for (int i = kBarriers.again; i < kBarriers.inbox; ++i) ptx::mbarrier_init(barrier(i), 1);
    // Blocks of a cluster count bytes, parts within a block threads.
    constexpr unsigned kArrivals = kConfig.cluster > 1 || kKeyGroups == 1 ? 1 : (kKeyGroups - 1) * kGroupThreads;
    for (int i = kBarriers.inbox; i < kBarriers.count; ++i) ptx::mbarrier_init(barrier(i), kArrivals);
    ptx::fence_mbarrier_init();
    if constexpr (kConfig.cluster > 1)
      for (int i = kBarriers.inbox; i < kBarriers.count; ++i)
        ptx::mbarrier_arrive_expect_tx(barrier(i), i < kBarriers.sums ? kPlan.sent_bytes : kPlan.sums_bytes);
  }

  /// All queries of the block; where they are shared, this block's part of them to all blocks of the cluster, each of
  /// which expects all bytes.
  __device__ __forceinline__ void copy_queries(unsigned at_barrier) const {
    if constexpr (kSharesQueries) {
      constexpr int kRows = query_box_rows(kConfig);
      const int first_row = static_cast<int>(blockIdx.x % kConfig.cluster) * kRows;
#pragma unroll
      for (int g = 0; g < kRowGroups; ++g)
#pragma unroll
        for (int b = 0; b < kBoxes; ++b)
          ptx::cp_async_bulk_tensor_4d_multicast(
              shared + kPlan.q + ((g * kBoxes + b) * kGroupRows + first_row) * tile::kBoxRowBytes, maps.q, at_barrier,
              b * tile::kBoxColumns, block_row + g * kGroupRows + first_row, head, batch, (1 << kConfig.cluster) - 1);
      return;
    }
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g)
#pragma unroll
      for (int b = 0; b < kBoxes; ++b)
        ptx::cp_async_bulk_tensor_4d(shared + kPlan.q + (g * kBoxes + b) * kGroupRows * tile::kBoxRowBytes, maps.q,
                                     at_barrier, b * tile::kBoxColumns, block_row + g * kGroupRows, head, batch);
  }

  /// One chunk.
  __device__ __forceinline__ void copy_keys(unsigned to, unsigned at_barrier, int first_key, int kv_head) const {
#pragma unroll
    for (int b = 0; b < kBoxes; ++b)
      ptx::cp_async_bulk_tensor_4d(to + b * kPlan.key_box, maps.k, at_barrier, b * tile::kBoxColumns, first_key,
                                   kv_head, batch);
  }

  /// Starts the copies of one segment of a key group, in the order in which they are needed. One thread. Chunks past
  /// the part's end are copied too: they are masked, and what lies past the last key arrives as zeros.
  __device__ __forceinline__ void copy_segment(int group, int slot, int first_key, int kv_head,
                                               bool first_keys_are_copied) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c == 0 && first_keys_are_copied) continue;
      const unsigned at_barrier = key_barrier(group, slot, c);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.key_box);
      copy_keys(keys_at(group, slot) + c * kBoxes * kPlan.key_box, at_barrier, first_key + c * kChunk, kv_head);
    }
#pragma unroll
    for (int w = 0; w < kConfig.value_waits; ++w) {
      const unsigned at_barrier = value_barrier(group, slot, w);
      ptx::mbarrier_arrive_expect_tx(at_barrier, kBoxes * kPlan.value_box);
#pragma unroll
      for (int b = 0; b < kBoxes; ++b)
        ptx::cp_async_bulk_tensor_4d(values_at(group, slot) + (w * kBoxes + b) * kPlan.value_box, maps.v, at_barrier,
                                     b * tile::kBoxColumns, first_key + w * kValueSteps * kStepKeys, kv_head, batch);
    }
  }

  /// A division takes 100 clocks, between the launch and its first copy; a uniform load of the group size as many.
  __device__ __forceinline__ int key_head() const {
    if constexpr (kConfig.key_heads == KeyHeads::own) return head;
    if constexpr (kConfig.sizes != Sizes::any) return static_cast<int>(static_cast<unsigned>(head) / params.group_size);
    const unsigned group_size = reinterpret_cast<const int*>(&params)[kGroupSizeIndex + ptx::zero_of_lane()];
    return group_size == 1 ? head : static_cast<int>(static_cast<unsigned>(head) / group_size);
  }
};

}  // namespace heed::sm90

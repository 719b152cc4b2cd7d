/// The Q tile of a CTA of fwd_sm90_split, and where its operands and barriers lie in shared memory.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/codegen.cuh"
#include "kernels/sm90/rows_in_maps.cuh"
#include "kernels/sm90/split/shared_plan.hpp"

namespace heed::sm90_split {

/// Addresses in a CTA's dynamic shared memory.
template <const Config& kConfig, const Problem& kProblem>
struct SmemLayout {
  // ---- compile-time facts
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem.head_dim);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);
  static constexpr int kBoxes = padded_dim(kProblem.head_dim) / tile::kBoxColumns;
  static constexpr int kNBlocks = kConfig.n_blocks_per_stage;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kValueSteps = iteration_steps(kConfig) / kConfig.v_barriers;  // behind one barrier
  // Q comes with the first keys of a single KV group, else on its own.
  static constexpr int kFirstBarrier = kConfig.kv_groups == 1 ? kBarriers.keys : kBarriers.q;

  unsigned shared;  ///< where it begins

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
  __device__ __forceinline__ unsigned keys(int group, int slot) const {
    return shared + kPlan.ring + (group * kStages + slot) * 2 * kPlan.operand_bytes;
  }
  __device__ __forceinline__ unsigned values(int group, int slot) const {
    return keys(group, slot) + kPlan.operand_bytes;
  }

  /// Bytes from the first values of an iteration to those of a step.
  __device__ __forceinline__ static constexpr int value_offset(int step) {
    return step / kValueSteps * kBoxes * kPlan.value_box + step % kValueSteps * kMmaK * tile::kBoxRowBytes;
  }
};

/// The consumer warpgroup of a thread.
template <const Config& kConfig>
struct Warpgroup {
  int m_warpgroup;  ///< which 64 rows of the tile
  int kv_group;     ///< which split of the CTA's

  /// The named barrier of its KV group.
  __device__ __forceinline__ int group_barrier() const {
    return attention::barrier_id<kConfig, NamedBarrier::kv_group>(kv_group);
  }
  /// The named barrier of its own threads.
  __device__ __forceinline__ int cleared_barrier() const {
    return attention::barrier_id<kConfig, NamedBarrier::cleared>(kv_group * kConfig.m_warpgroups + m_warpgroup);
  }
};

template <const Config& kConfig, const Problem& kProblem>
struct CtaTile {
  // ---- compile-time facts
  static constexpr int kRows = kConfig.m_warpgroups * kWarpgroupRows;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kLengths = kProblem.features.lengths;  // of each entry

  // ---- state
  attention::ParamsOfEntry<kProblem> params;  // of the launch until the tile is found, then as its entry has it
  const TensorMaps& maps;
  SmemLayout<kConfig, kProblem> smem;
  int first_row;
  int head;
  int batch;
  [[no_unique_address]] sm90::RowsInMaps<kLengths> rows_in_maps;  // of the entry

  __device__ __forceinline__ void find() {
    const attention::GridPlace at = attention::place_in_grid<grid_axes(kConfig), kConfig.cluster>(
        {blockIdx.x, blockIdx.y, blockIdx.z}, {gridDim.x, gridDim.y, gridDim.z});
    first_row = q_tile_at(kConfig, at.index, at.q_tiles) * kRows;
    head = at.head;
    batch = at.batch;
    if constexpr (kLengths) {
      sm90::find_rows(rows_in_maps, params, batch);
      params = attention::params_of_entry<kProblem>(params, batch);
    }
  }

  /// Whether an entry with lengths has rows of this tile: a launch has as many tiles as its longest entry.
  __device__ __forceinline__ bool has_rows() const { return !kLengths || first_row < params.len_q; }

  // Coordinates in the tensor maps.

  __device__ __forceinline__ int q_row(int row) const {
    if constexpr (kLengths) return rows_in_maps.first_q + row;
    return row;
  }
  __device__ __forceinline__ int q_batch() const {
    if constexpr (kLengths) return rows_in_maps.q_batch;
    return batch;
  }
  __device__ __forceinline__ int k_row(int key) const {
    if constexpr (kLengths) return rows_in_maps.first_k + key;
    return key;
  }
  __device__ __forceinline__ int k_batch() const {
    if constexpr (kLengths) return rows_in_maps.k_batch;
    return batch;
  }

  /// A division takes 100 clocks, between the launch and its first copy; a uniform load of the group size as many.
  __device__ __forceinline__ int kv_head() const {
    if constexpr (kConfig.gqa == Gqa::off) return head;
    if constexpr (kProblem.specialization.specialize != Specialize::none || kLengths)  // its params are registers
      return static_cast<int>(static_cast<unsigned>(head) / params.group_size);
    const unsigned group_size = reinterpret_cast<const int*>(&params)[kGroupSizeIndex + opaque_zero()];
    return group_size == 1 ? head : static_cast<int>(static_cast<unsigned>(head) / group_size);
  }

  // Under a mask with a left bound n-blocks begin at the first key that some row of the tile sees: keys are counted
  // from there, and no key before it is loaded.

  /// The key that is counted as the tile's first.
  __device__ __forceinline__ int origin() const {
    return hidden_keys(kProblem.mask, first_row, params.left_offset, params.len_k);
  }
  /// Keys before this are hidden from some row of the consumer warpgroup.
  __device__ __forceinline__ int hidden_from_some(const Warpgroup<kConfig>& warpgroup) const {
    const int last_row = first_row + (warpgroup.m_warpgroup + 1) * kWarpgroupRows - 1;
    return hidden_keys(kProblem.mask, last_row, params.left_offset, params.len_k) - origin();
  }
  /// Rows of the entry see no key from here on: what lies there may be NaN.
  __device__ __forceinline__ int seen_by_entry() const {
    const int end = visible_keys(kProblem.mask, params.len_q - 1, params.right_offset, params.len_k);
    return kBegins ? end - origin() : end;
  }
};

}  // namespace heed::sm90_split

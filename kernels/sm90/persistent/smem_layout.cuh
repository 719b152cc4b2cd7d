/// The addresses of fwd_sm90_persistent's shared memory: SharedPlan and BarrierPlan, where a block's begins.
#pragma once

#include "kernels/sm90/persistent/shared_plan.hpp"

namespace heed::sm90_persistent {

/// The part that a KV group of this block is.
template <const Config& kConfig>
__device__ __forceinline__ int split_of(int kv_group) {
  return kConfig.cluster == 1 ? kv_group : static_cast<int>(blockIdx.x % kConfig.cluster);
}

/// Which of a block's virtual CTAs this is; where it is the only one, no register holds that.
template <int kVirtualCtas>
struct VirtualCta {
  int index;
};
template <>
struct VirtualCta<1> {
  static constexpr int index = 0;
};

/// Where things lie in a block's shared memory; with several virtual CTAs in one virtual CTA's.
template <const Config& kConfig, const Problem& kProblem>
struct SmemLayout {
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem);
  static constexpr BarrierPlan kBarriers = barrier_plan(kConfig);

  [[no_unique_address]] VirtualCta<kConfig.virtual_ctas> virtual_cta;
  unsigned shared;  ///< where the virtual CTA's begins

  /// @param block_shared where the block's begins
  __device__ __forceinline__ static SmemLayout of_virtual_cta(unsigned block_shared, int virtual_cta) {
    if constexpr (kConfig.virtual_ctas == 1)
      return {{}, block_shared};
    else
      return {{virtual_cta}, block_shared + virtual_cta * kPlan.virtual_cta_bytes};
  }

  /// From the virtual CTA's start to its barriers, or what lies behind them.
  __device__ __forceinline__ unsigned behind(int offset) const {
    if constexpr (kConfig.virtual_ctas == 1) return shared + offset;
    return shared + offset - virtual_cta.index * (kPlan.virtual_cta_bytes - kPlan.virtual_cta_barriers);
  }
  __device__ __forceinline__ unsigned barrier(int index) const { return behind(kPlan.barriers) + 8 * index; }
  __device__ __forceinline__ unsigned q_full(int stage, int m_warpgroup) const {
    return barrier(kBarriers.queries + stage * kConfig.m_warpgroups + m_warpgroup);
  }
  __device__ __forceinline__ unsigned q_empty(int stage) const { return barrier(kBarriers.q_empty + stage); }
  __device__ __forceinline__ unsigned kv_full(int group, int stage) const {
    return barrier(kBarriers.ring + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned kv_empty(int group, int stage) const {
    return barrier(kBarriers.kv_empty + group * kConfig.stages + stage);
  }
  __device__ __forceinline__ unsigned mailbox(int m_warpgroup) const {
    return barrier(kBarriers.mailbox + m_warpgroup);
  }
  __device__ __forceinline__ unsigned queries(int stage) const {
    return shared + kPlan.q + stage * kPlan.q_stage_bytes;
  }
  __device__ __forceinline__ unsigned keys(int group, int stage) const {
    return shared + kPlan.ring + (2 * group * kConfig.stages + stage) * kPlan.operand;
  }
  __device__ __forceinline__ unsigned values(int group, int stage) const {
    return shared + kPlan.ring + ((2 * group + 1) * kConfig.stages + stage) * kPlan.operand;
  }
  /// A thread's first 16 bytes of what consumer warpgroups 2 `pair` and 2 `pair` + 1 hand over.
  __device__ __forceinline__ unsigned partner_partials(int pair, int group, int thread) const {
    return shared + kPlan.partner_partials + (pair * kConfig.kv_groups + group) * kPlan.partner_partial_bytes +
           thread * 16;
  }
  /// @param warp of the consumers
  __device__ __forceinline__ unsigned biases(int warp) const {
    return shared + kPlan.biases + warp * attention::bias_tile_bytes(kConfig.block_n);
  }
  __device__ __forceinline__ unsigned q_tile(int stage) const {
    return behind(kPlan.q_tiles) + q_tile_bytes(kConfig) * stage;
  }
  /// The word of StreamWords at `offset`.
  __device__ __forceinline__ unsigned stream(int offset) const {
    return behind(kPlan.q_tiles) + q_tile_bytes(kConfig) * kConfig.q_stages + offset;
  }
};

}  // namespace heed::sm90_persistent

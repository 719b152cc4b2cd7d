/// The mbarriers of fwd_sm90_persistent, and how many arrivals end a phase of each.
#pragma once

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90/persistent/smem_layout.cuh"

namespace heed::sm90_persistent {

/// Whether the first loads of a block arrive at barrier i.
HEED_HOST_DEVICE constexpr bool gets_first_loads(const Config& c, int i) {
  const BarrierPlan barriers = barrier_plan(c);
  for (int g = 0; g < c.kv_groups; ++g)
    if (i == barriers.ring + g * c.stages) return true;
  return i >= barriers.queries && i < barriers.queries + c.m_warpgroups;
}

/// Those that first loads arrive at, or all others. One thread.
template <bool kFirst, const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void initialise_barriers(const SmemLayout<kConfig, kProblem>& smem) {
  constexpr BarrierPlan kBarriers = SmemLayout<kConfig, kProblem>::kBarriers;
#pragma unroll
  for (int i = 0; i < kBarriers.count; ++i) {
    const int arrivals = i < kBarriers.q_empty    ? 1
                         : i < kBarriers.ring     ? 4 * kConfig.m_warpgroups * kConfig.kv_groups
                         : i < kBarriers.kv_empty ? 1
                         : i < kBarriers.mailbox  ? 4 * kConfig.m_warpgroups
                                                  : 1;
    // By this one thread: barriers that differ from lane to lane take 100 clocks each.
    if (gets_first_loads(kConfig, i) == kFirst) ptx::mbarrier_init(smem.barrier(i), arrivals);
  }
  ptx::fence_mbarrier_init();
  if constexpr (!kFirst && kConfig.cluster > 1)
#pragma unroll
    for (int g = 0; g < kConfig.m_warpgroups; ++g)
      ptx::mbarrier_arrive_expect_tx(smem.mailbox(g), bytes_sent(kConfig, kProblem.head_dim));
}

}  // namespace heed::sm90_persistent

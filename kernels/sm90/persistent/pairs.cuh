/// Partial results of a pair of consumer warpgroups (ShareCausalTail::on): the even one has run some of the odd one's
/// KV tiles, and hands over what it has of their rows through shared memory.
#pragma once

#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/softmax.cuh"

namespace heed::sm90_persistent {

// Both consumer warpgroups of a pair are at these: partial O has been put, and has been taken.
template <const Config& kConfig>
__device__ __forceinline__ int pair_index(const ConsumerThread<kConfig>& at) {
  return at.kv_group * pairs(kConfig) + at.m_warpgroup / 2;
}
template <const Config& kConfig>
__device__ __forceinline__ int put_barrier(const ConsumerThread<kConfig>& at) {
  return attention::barrier_id<kConfig, NamedBarrier::put>(pair_index(at));
}
template <const Config& kConfig>
__device__ __forceinline__ int taken_barrier(const ConsumerThread<kConfig>& at) {
  return attention::barrier_id<kConfig, NamedBarrier::taken>(pair_index(at));
}
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ unsigned partner_partials(const Gemms<kConfig, kProblem>& gemms) {
  const ConsumerThread<kConfig>& at = gemms.thread;
  return gemms.smem.partner_partials(at.m_warpgroup / 2, at.kv_group, at.warp * 32 + at.lane);
}

/// What this consumer warpgroup has of the other's rows.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void send_partial(const Gemms<kConfig, kProblem>& gemms,
                                             const Softmax<kConfig, kProblem>& softmax) {
  constexpr int kDim = Gemms<kConfig, kProblem>::kDim;
  if constexpr (kConfig.scheduler != Scheduler::single_tile)
    ptx::bar_sync(taken_barrier(gemms.thread), 2 * kWarpgroupThreads);
  const unsigned to = partner_partials(gemms);
  const auto& acc_o = gemms.acc_o;
#pragma unroll
  for (int i = 0; i < kDim / 2; i += 4)
    ptx::st_shared_v4(to + i / 4 * 16 * kWarpgroupThreads, __float_as_uint(acc_o[i]), __float_as_uint(acc_o[i + 1]),
                      __float_as_uint(acc_o[i + 2]), __float_as_uint(acc_o[i + 3]));
  ptx::st_shared_v4(to + kDim / 8 * 16 * kWarpgroupThreads, __float_as_uint(softmax.row_max[0]),
                    __float_as_uint(softmax.row_max[1]), __float_as_uint(softmax.row_sum[0]),
                    __float_as_uint(softmax.row_sum[1]));
  ptx::bar_arrive(put_barrier(gemms.thread), 2 * kWarpgroupThreads);
}

/// Adds what the other consumer warpgroup has of these rows.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void reduce_partial(Gemms<kConfig, kProblem>& gemms, Softmax<kConfig, kProblem>& softmax) {
  constexpr int kDim = Gemms<kConfig, kProblem>::kDim;
  ptx::bar_sync(put_barrier(gemms.thread), 2 * kWarpgroupThreads);
  const unsigned from = partner_partials(gemms);
  unsigned state[4];
  ptx::ld_shared_v4(state, from + kDim / 8 * 16 * kWarpgroupThreads);
  float mine[2];
  float its[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const attention::TwoWeights both = attention::weigh_two(softmax.row_max[h], __uint_as_float(state[h]));
    mine[h] = both.first;
    its[h] = both.second;
    softmax.row_sum[h] = fmaf(softmax.row_sum[h], mine[h], its[h] * __uint_as_float(state[2 + h]));
    softmax.row_max[h] = both.row_max;
  }
  auto& acc_o = gemms.acc_o;
#pragma unroll
  for (int i = 0; i < kDim / 2; i += 4) {
    unsigned x[4];
    ptx::ld_shared_v4(x, from + i / 4 * 16 * kWarpgroupThreads);
#pragma unroll
    for (int j = 0; j < 4; ++j) acc_o[i + j] = fmaf(acc_o[i + j], mine[j / 2], __uint_as_float(x[j]) * its[j / 2]);
  }
  if constexpr (kConfig.scheduler != Scheduler::single_tile)
    ptx::bar_arrive(taken_barrier(gemms.thread), 2 * kWarpgroupThreads);
}

/// At the start what has been handed over counts as taken; at the end someone has to take the last arrival.
template <const Config& kConfig>
__device__ __forceinline__ void begin_pairs(const ConsumerThread<kConfig>& at) {
  if constexpr (kConfig.share_causal_tail == ShareCausalTail::on && kConfig.scheduler != Scheduler::single_tile)
    if (at.m_warpgroup % 2 == 1) ptx::bar_arrive(taken_barrier(at), 2 * kWarpgroupThreads);
}
template <const Config& kConfig>
__device__ __forceinline__ void end_pairs(const ConsumerThread<kConfig>& at) {
  if constexpr (kConfig.share_causal_tail == ShareCausalTail::on && kConfig.scheduler != Scheduler::single_tile)
    if (at.m_warpgroup % 2 == 0) ptx::bar_sync(taken_barrier(at), 2 * kWarpgroupThreads);
}

}  // namespace heed::sm90_persistent

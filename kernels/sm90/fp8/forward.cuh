/// fwd_sm90_fp8: attention with Q, K and V in e4m3 on Hopper, scores and outputs summed in fp32, O in fp16 or bf16.
///
/// A CTA is a warpgroup of which one thread asks for tiles (producer.cuh) and consumer warpgroups (consumer.cuh). All
/// of them first transpose their share of V into the workspace (transposed_values.cuh). After FlashAttention-3 (Shah et
/// al., arXiv 2407.08608).
///
/// Entries of a batch may have lengths of their own, and keys may lie in pages: producer and consumers then work on the
/// launch's parameters as a Q tile's entry has them (of_entry).
///
/// Scale factors: of Q and K they are part of what scores are multiplied with in the exponent, of V of what finished
/// rows are divided by. Factors of K are of whole KV tiles, those of V are of heads or of channels.
#pragma once

#include "kernels/sm90/fp8/consumer.cuh"
#include "kernels/sm90/fp8/producer.cuh"

namespace heed::sm90_fp8 {

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void forward(const ScoreFeatureParams& params, const TensorMaps& maps,
                                        char* dynamic_shared) {
  static_assert(kProblem.inputs.quantised && kProblem.inputs.q == Element::e4m3 && kProblem.inputs.k == Element::e4m3 &&
                    kProblem.inputs.v == Element::e4m3,
                "Q, K and V are e4m3");
  using Smem = Layout<kConfig, kProblem>;
  constexpr BarrierPlan kBarriers = Smem::kBarriers;
  const Smem smem{ptx::shared_address(dynamic_shared)};
  const int warp = ptx::warp_uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    // Each stage is filled by one thread, and freed by every consumer warp.
#pragma unroll
    for (int i = 0; i < kBarriers.count; ++i) {
      const bool is_full = i < kBarriers.q_empty || (i >= kBarriers.k_full && i < kBarriers.k_empty) ||
                           (i >= kBarriers.v_full && i < kBarriers.v_empty);
      ptx::mbarrier_init(smem.barrier(i), is_full ? 1 : 4 * kConfig.m_warpgroups);
    }
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensormap(maps.q);
    ptx::prefetch_tensormap(maps.k);
  }
  ptx::griddepcontrol_wait();
  const PieceCount<entries_differ(kProblem.features)> pieces =
      TransposedValues<kConfig, kProblem>{params}.run(smem.claim());
  if (warp >= consumer_threads(kConfig) / 32) {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (warp == consumer_threads(kConfig) / 32 && ptx::elect_one())
      Producer<kConfig, kProblem>{params, maps, smem, pieces}.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    Consumer<kConfig, kProblem>(params, smem, warp).run(params);
  }
}

}  // namespace heed::sm90_fp8

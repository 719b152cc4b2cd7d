/// fwd_sm90_persistent: fused attention for Hopper where the products and exponentials of a launch take longer than
/// starting it. A producer keeps a ring of KV tiles full; consumer warpgroups run through them, last tile first
/// (kernels/sm90/persistent/mainloop.cuh).
///
/// Under a causal mask consumer warpgroups with rows from both ends of a head may share the tiles of the one with more
/// keys (ShareCausalTail::on): every other tile each, the results added through shared memory.
///
/// Where Q tiles are few and long, two blocks of a cluster may share the keys of each (Config::cluster), and a
/// multiprocessor a block of a long Q tile and one of a short one (TileOrder::lpt_then_spt). Lists of blocks of keys
/// may be divided evenly over all CTAs where one is long (Scheduler::stream_k).
///
/// The online softmax is FlashAttention-2's (Dao, arXiv 2307.08691), registers that move from producer to consumers are
/// FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/consumer.cuh"
#include "kernels/sm90/persistent/registers.hpp"
#include "kernels/sm90/persistent/tma_producer.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void run_block(const Params<kProblem>& params, const TensorMaps& maps,
                                          char* dynamic_shared) {
  using Smem = SmemLayout<kConfig, kProblem>;
  const unsigned shared = ptx::shared_address(dynamic_shared);
  const int warp = ptx::warp_uniform(threadIdx.x / 32);
  constexpr int kConsumerWarps = consumer_threads(kConfig) / 32;
  constexpr int kVirtualCtaWarps = virtual_cta_threads(kConfig) / 32;
  if (warp >= kConsumerWarps) {
    constexpr bool kAtOnce = kConfig.setmaxnreg == Setmaxnreg::early;
    if constexpr (moves_registers(kConfig) && kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if (kConfig.virtual_ctas == 1 ? warp != kConsumerWarps : warp >= kConsumerWarps + kConfig.virtual_ctas) {
      if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
      return;
    }
    // In a register: ptxas would work the address out again for every copy, from a special register each time.
    const auto own = Smem::of_virtual_cta(static_cast<unsigned>(ptx::warp_uniform(shared)), warp - kConsumerWarps);
    if constexpr (streams(kConfig)) {
      if (ptx::elect_one()) sm90::prefetch_first_maps(maps);
      if constexpr (kConfig.pdl_trigger != PdlTrigger::none) ptx::griddepcontrol_wait();  // lists may be its work
      find_part<kConfig, kProblem>(params, own);
    }
    const TmaProducer<kConfig, kProblem> copies{params, maps, own};
    if (ptx::elect_one()) copies.start();
    __syncwarp();
    if constexpr (moves_registers(kConfig) && !kAtOnce) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    ptx::bar_arrive(start_barrier<kConfig>(own.virtual_cta.index), virtual_cta_threads(kConfig) + 32);
    if (ptx::elect_one()) copies.run();
  } else {
    if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
    if constexpr (kConfig.cluster > 1) ptx::barrier_cluster_arrive_relaxed();
    const int virtual_cta = kConfig.virtual_ctas == 1 ? 0 : warp / kVirtualCtaWarps;
    Consumer<kConfig, kProblem>{
        {params, Smem::of_virtual_cta(shared, virtual_cta), warp - virtual_cta * kVirtualCtaWarps}}
        .consume(params, maps.o);
  }
}

/// The whole kernel. `shared`: dynamic shared memory, aligned to 1024.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void forward(const Params<kProblem>& params, const TensorMaps& maps, char* dynamic_shared) {
  if constexpr (kProblem.specialization.specialize == Specialize::none)
    run_block<kConfig, kProblem>(params, maps, dynamic_shared);
  else
    run_block<kConfig, kProblem>(with_sizes(params, kProblem.sizes), maps, dynamic_shared);
}

}  // namespace heed::sm90_persistent

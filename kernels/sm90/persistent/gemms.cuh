/// The products of fwd_sm90_persistent and the iterations in which a consumer warpgroup takes them: which stage of the
/// ring is next, that it has arrived, and that it may be overwritten.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/persistent/tma_producer.cuh"
#include "kernels/tile/matrix_descriptor.hpp"

namespace heed::sm90_persistent {

/// Where a thread is among its virtual CTA's consumers.
template <const Config& kConfig>
struct ConsumerThread {
  int lane;
  int warp;  ///< within the consumer warpgroup
  int m_warpgroup;
  int kv_group;

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ explicit ConsumerThread(int block_warp)
      : lane(threadIdx.x % 32),
        warp(block_warp % 4),
        // Constants keep addresses out of vector registers.
        m_warpgroup(kConfig.m_warpgroups == 1 ? 0 : block_warp / 4 % kConfig.m_warpgroups),
        kv_group(kConfig.kv_groups == 1 ? 0 : block_warp / 4 / kConfig.m_warpgroups) {}
};

/// The accumulators of O, the ring of KV tiles as this consumer warpgroup takes it, and the products of both.
template <const Config& kConfig, const Problem& kProblem>
struct Gemms {
  // ---- compile-time facts
  static constexpr int kDim = padded_dim(kProblem.head_dim);
  static constexpr int kKeys = kConfig.block_n;
  static constexpr int kSteps = kKeys / kMmaK;
  static constexpr bool kAhead = kConfig.barrier_wait == BarrierWait::try_wait_early;
  static constexpr bool kCounted = kConfig.stage_release == StageRelease::predicated;
  using Smem = SmemLayout<kConfig, kProblem>;
  static constexpr SharedPlan kPlan = Smem::kPlan;
  static constexpr bool kInOrder = kConfig.pingpong == Pingpong::on;
  static constexpr bool kTogether = kConfig.share_causal_tail == ShareCausalTail::on;
  static constexpr bool kInTurn = kConfig.stagger_splits == StaggerSplits::on;

  using AccO = float[kDim / 2];       // (64, kDim), accumulator fragments: two rows a lane
  using AccS = float[kKeys / 2];      // (64, tile keys), the same
  using FragP = unsigned[kSteps][4];  // (64, tile keys), as A operands of a step each

  // ---- state
  Smem smem;
  ConsumerThread<kConfig> thread;
  sm90::PipelineState<kConfig.stages> kv_stage;  // the stage of the next products
  unsigned first_keys;  // low words of the descriptors of the KV group's first stage (StageRelease::predicated)
  unsigned first_values;
  unsigned ready = 0;  // the stage at `kv_stage` is known to have arrived (BarrierWait::try_wait_early)
  AccO acc_o;

  /// @param block_warp of this thread, the same in all its lanes
  __device__ __forceinline__ Gemms(const Smem& where, int block_warp) : smem(where), thread(block_warp) {
    if constexpr (kCounted) {
      first_keys = static_cast<unsigned>(tile::matrix_descriptor(smem.keys(thread.kv_group, 0), 16));
      first_values = static_cast<unsigned>(tile::matrix_descriptor(smem.values(thread.kv_group, 0), kPlan.box));
    }
  }

  __device__ __forceinline__ void qk(AccS& into, unsigned long long queries, int stage) const {
    const unsigned long long k = keys(stage);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) qk_step(into, queries, k, i);
  }
  __device__ __forceinline__ static void qk_step(AccS& into, unsigned long long q, unsigned long long k, int i) {
    ptx::wgmma_ss<kProblem.element, kKeys>(
        into, q + tile::descriptor_advance(i / 4 * kWarpgroupRows * tile::kBoxRowBytes + i % 4 * 32),
        k + tile::descriptor_advance(i / 4 * kPlan.box + i % 4 * 32), i != 0);
  }
  __device__ __forceinline__ unsigned long long keys(int stage) const {
    if constexpr (kCounted) return counted(first_keys, stage);
    return tile::matrix_descriptor(smem.keys(thread.kv_group, stage), 16);
  }
  __device__ __forceinline__ unsigned long long values() const {
    if constexpr (kCounted) return counted(first_values, kv_stage.stage);
    return tile::matrix_descriptor(smem.values(thread.kv_group, kv_stage.stage), kPlan.box);
  }
  /// A descriptor's high word is the same for all operands; stages count into its low one.
  __device__ __forceinline__ static unsigned long long counted(unsigned first, int stage) {
    constexpr unsigned long long kHigh = tile::descriptor_layout(0) >> 32 << 32;
    return kHigh | (first + stage * static_cast<unsigned>(tile::descriptor_advance(kPlan.operand)));
  }
  __device__ __forceinline__ void pv_step(const FragP& p, unsigned long long v, int i) {
    ptx::wgmma_rs<kProblem.element, kDim>(acc_o, p[i], v + tile::descriptor_advance(i * kMmaK * tile::kBoxRowBytes),
                                          true);
  }
  __device__ __forceinline__ void pv(const FragP& p) {
    const unsigned long long v = values();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) pv_step(p, v, i);
  }

  /// Both products as one group, in the order that the config asks for.
  /// @param key_stage of the keys
  __device__ __forceinline__ void qk_pv(AccS& into, unsigned long long queries, const FragP& p, int key_stage) {
    constexpr int kBoth = kDim / 16 + kSteps;
    const unsigned long long k = keys(key_stage);
    const unsigned long long v = values();
    ptx::wgmma_fence();
    int of_keys = 0;
    int of_values = 0;
#pragma unroll
    for (int i = 0; i < kBoth; ++i) {
      const bool values_next = of_keys == kDim / 16 ||
                               (of_values < kSteps && (kConfig.gemm_order == GemmOrder::pv_first ||
                                                       (kConfig.gemm_order == GemmOrder::interleaved && i % 2 == 0)));
      if (values_next)
        pv_step(p, v, of_values++);
      else
        qk_step(into, queries, k, of_keys++);
    }
    ptx::wgmma_commit_group();
  }

  /// In front of and behind the products of every iteration, also of those that a consumer warpgroup passes: with
  /// Pingpong::on the consumer warpgroups of a KV group go one after the other, as FlashAttention-3's two warpgroups do
  /// (arXiv 2407.08608, 3.1).
  __device__ __forceinline__ void begin() const {
    if constexpr (kInOrder) ptx::bar_sync(order_barrier(thread.m_warpgroup), 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void end() const {
    if constexpr (kInOrder)
      ptx::bar_arrive(order_barrier((thread.m_warpgroup + 1) % kConfig.m_warpgroups), 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ int order_barrier(int of) const {
    const int first =
        (smem.virtual_cta.index + thread.kv_group) * kConfig.m_warpgroups;  // one virtual CTA, or one KV group
    return attention::barrier_id<kConfig, NamedBarrier::pingpong>(first + of);
  }
  /// The last consumer warpgroup lets the first begin, and the first takes its last arrival at the end.
  __device__ __forceinline__ void begin_pingpong() const {
    if (kInOrder && thread.m_warpgroup == kConfig.m_warpgroups - 1) end();
  }
  __device__ __forceinline__ void end_pingpong() const {
    if (kInOrder && thread.m_warpgroup == 0) begin();
  }

  /// With StaggerSplits::on a KV group waits until the one before it has its first scores, or knows that it has no
  /// keys.
  __device__ __forceinline__ void wait_to_start() const {
    if constexpr (kInTurn)
      if (thread.kv_group > 0)
        ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::stagger>(thread.kv_group - 1),
                      2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void let_next_start() const {
    if constexpr (kInTurn)
      if (thread.kv_group < kConfig.kv_groups - 1)
        ptx::bar_arrive(attention::barrier_id<kConfig, NamedBarrier::stagger>(thread.kv_group), 2 * kWarpgroupThreads);
  }

  __device__ __forceinline__ void wait_for_stage() const {
    ptx::mbarrier_wait(smem.kv_full(thread.kv_group, kv_stage.stage), kv_stage.parity);
  }
  /// The same, where try_wait_next() may have asked already.
  __device__ __forceinline__ void wait_for_next_stage() const {
    if constexpr (kAhead)
      ptx::mbarrier_wait_unless(ready, smem.kv_full(thread.kv_group, kv_stage.stage), kv_stage.parity);
    else
      wait_for_stage();
  }
  /// Asks after the iteration that will be next. There may be none: then no one will look at the answer.
  __device__ __forceinline__ void try_wait_next(const sm90::PipelineState<kConfig.stages>& next) {
    if constexpr (kAhead) ready = ptx::mbarrier_test(smem.kv_full(thread.kv_group, next.stage), next.parity);
  }
  /// What was multiplied last may be overwritten.
  __device__ __forceinline__ void release_stage() {
    release(smem.kv_empty(thread.kv_group, kv_stage.stage));
    kv_stage.advance();
  }
  __device__ __forceinline__ void skip_iteration() {
    wait_for_stage();
    begin();
    end();
    release_stage();
  }
  __device__ __forceinline__ void release(unsigned freed) const {
    if constexpr (kCounted) {
      ptx::mbarrier_arrive_if(thread.lane == 0, freed);
    } else {
      if (thread.lane == 0) ptx::mbarrier_arrive(freed);
    }
  }

  /// Scores of the first tile of a Q tile.
  __device__ __forceinline__ void scores(AccS& s, unsigned long long queries) {
    wait_for_stage();
    begin();
    ptx::wgmma_fence();
    qk(s, queries, kv_stage.stage);
    ptx::wgmma_commit_group();
    end();
    ptx::wgmma_wait_group(0);
    keep_live(s);
    release_stage();
    let_next_start();
  }

  /// The iteration of the next keys, waited for, when that of the values before them is there.
  /// @param skips the next tile is the one after the next: its keys come an iteration later than those values
  __device__ __forceinline__ sm90::PipelineState<kConfig.stages> stage_of_keys(bool skips) const {
    sm90::PipelineState<kConfig.stages> of_keys = kv_stage;
    if (kTogether && skips) {
      of_keys.advance();
      ptx::mbarrier_wait(smem.kv_full(thread.kv_group, of_keys.stage), of_keys.parity);
    }
    return of_keys;
  }

  /// Values of the tile before and scores of the next, waited for.
  /// @param skips as above
  __device__ __forceinline__ void scores_and_values(AccS& s, unsigned long long queries, const FragP& p,
                                                    bool skips = false) {
    wait_for_next_stage();
    const sm90::PipelineState<kConfig.stages> of_keys = stage_of_keys(skips);
    begin();
    qk_pv(s, queries, p, of_keys.stage);
    end();
    ptx::wgmma_wait_group(0);
    keep_live(s);
    keep_live(acc_o);
    release_stage();
    if (kTogether && skips) release_stage();
    try_wait_next(kv_stage);
  }
};

}  // namespace heed::sm90_persistent

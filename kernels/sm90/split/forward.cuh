/// fwd_sm90_split: fused attention for Hopper where a launch is short: few rows, or few keys, or both. wgmma, bulk
/// tensor loads, keys split over a thread-block cluster and merged in the same launch through distributed shared
/// memory.
///
/// One Q tile (64 rows a consumer warpgroup) and its keys, with cluster = 2, kv_groups = 1, n-block = 64, n-blocks =
/// 4:
///
///              keys ->   0     64    128   192   256   320   384   448
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///   64 query rows      |  part 0: block 0      |  part 1: block 1      |    each part: one iteration of 4 n-blocks
///                      +-----+-----+-----+-----+-----+-----+-----+-----+
///                       scores of an n-block: one accumulator of 64 x 64; all of an iteration stay in registers
///
///   iteration:  scores 0, 1, .. -> exponentials of step 0 | 1 | 2 | .. (16 keys each)
///                                    probabilities of steps 0 and 1 -> product, while steps 2, 3 are exponentiated
///   merge:    every part keeps head dim / parts columns of the tile and sends the rest to the parts that keep them
///
/// The split of keys is Flash-Decoding's (Dao et al. 2023), the online softmax FlashAttention-2's (Dao, arXiv
/// 2307.08691), asynchronous products beside exponentials FlashAttention-3's (Shah et al., arXiv 2407.08608).
#pragma once

#include "kernels/codegen.cuh"
#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/split/mainloop.cuh"
#include "kernels/sm90/split/merge.cuh"

namespace heed::sm90_split {

/// A thread's state, whole, and what it does.
template <const Config& kConfig, const Problem& kProblem>
struct Forward {
  using Producer = TmaProducer<kConfig, kProblem>;
  using Mainloop = sm90_split::Mainloop<kConfig, kProblem>;
  using Merge = sm90_split::Merge<kConfig, kProblem>;
  using Smem = SmemLayout<kConfig, kProblem>;
  using CtaTile = sm90_split::CtaTile<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr bool kOneIteration = Mainloop::kOneIteration;
  static constexpr bool kVotesLast = Mainloop::kVotesLast;
  static constexpr bool kKeepsForLater = Mainloop::kKeepsForLater;
  static constexpr KnownParts kKnown = Mainloop::kKnown;
  static constexpr bool kMasksProbabilities = kConfig.mask_at == MaskAt::probabilities;

  // ---- state
  ThreadState<kConfig, kProblem> state;
  Target target;

  __device__ __forceinline__ Forward(const Params<kProblem>& params, const TensorMaps& maps, char* dynamic_shared)
      : state(params, Producer::found(maps), ptx::shared_address(dynamic_shared)) {
    state.find_place();
    if constexpr (Producer::kQueriesFirst) Producer::open(state);
    // Lengths of entries may be the work of the launch before.
    if constexpr (CtaTile::kLengths && Producer::kDependent) ptx::griddepcontrol_wait();
    state.tile.find();
    state.find_keys(state.tile.params.len_k);
    state.find_seen();
    // Scores that have been changed are in units of log2.
    state.softmax.scale_log2 = changes_scores(kProblem.features) ? 1.0F : params.scale * attention::kLog2e;
  }

  __device__ __forceinline__ void aim() {
    target = Merge::target_of(state.tile.params, rows());
    Merge::make_opaque(target);
  }

  __device__ __forceinline__ void run() {
    const auto& tile = state.tile;
    const auto& split = state.split;
    const unsigned shared = tile.smem.shared;
    if constexpr (CtaTile::kLengths)
      if (!tile.has_rows()) return;  // so do all CTAs of its cluster
    if constexpr (!Producer::kQueriesFirst) Producer::open(state);
    if constexpr (Producer::kSharesQueries) Producer::share_queries(state);
    if constexpr (Mainloop::kOnes) {
      // Every element is one, so the swizzle moves nothing. 16 bytes a thread: 2 KiB.
      constexpr unsigned kTwoOnes = ElementTraits<kProblem.element>::two_ones;
      if (threads(kConfig) == kWarpgroupThreads || threadIdx.x < kMmaK * tile::kBoxRowBytes / 16)
        ptx::st_shared_v4(shared + Smem::kPlan.ones + 16 * threadIdx.x, kTwoOnes);
    }
    if constexpr (Mainloop::kJoinsLater) ptx::barrier_cluster_arrive_relaxed();
    if (state.is_consumer) aim();
    if (kMasksProbabilities && state.is_consumer) state.mask.find_diagonal(state);
    if constexpr (Mainloop::kOnes) ptx::fence_proxy_async();
    __syncthreads();
    if (!state.is_consumer) {
      if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_dec<tile::kProducerRegisters>();
      if (Producer::is_producer() && ptx::elect_one()) Producer::keep_loading(state);
    } else {
      if constexpr (moves_registers(kConfig)) ptx::setmaxnreg_inc<registers_allowed(kConfig)>();
      // Blocks here rather than at a barrier, beside the launch before.
      if constexpr (Producer::kDependent) ptx::griddepcontrol_wait();
      // Two programs from here on: masks between products cost even where nothing is masked. Where their results met
      // again, ptxas would serialise all products (C7511); with a third it keeps registers for two. Under a causal mask
      // some part of nearly every Q tile is masked and the others would wait for it; likewise the last part of an entry
      // with a length of its own.
      constexpr bool kMasksIterations = kOneIteration && (has_right_bound(kProblem.mask) || CtaTile::kLengths);
      constexpr Masks kUsual = kMasksProbabilities ? Masks::probabilities
                               : kMasksIterations  ? Masks::scores
                                                   : Masks::none;
      bool is_usual = kMasksProbabilities ? state.mask.is_lined_up
                      : kMasksIterations  ? true
                                          : state.first_key_of(split.iterations) <= split.seen_by_all;
      if constexpr (has_left_bound(kProblem.mask) && kUsual == Masks::none)
        is_usual = is_usual && tile.hidden_from_some(state.warpgroup) <= state.first_key_of(0);
      // With known sizes it may be that no split needs the other.
      constexpr bool kAllUsual = kMasksProbabilities ? !kKnown.some_are_askew
                                 : kMasksIterations  ? true
                                                     : !kKnown.some_are_masked;
      constexpr bool kAllFit =
          !kOneIteration || (!kKnown.some_are_longer && (!kKeepsForLater || !kKnown.some_are_none));
      if constexpr (kAllUsual && kAllFit) {
        finish<kUsual, kOneIteration>();
        return;
      }
      // In this order: ptxas puts the second next to what came before (0.03 us at b1h8l512d64 on an H200).
      // Asking for one iteration alone, where none will not do either, makes ptxas' program 1% slower at b1h16l256d128.
      const bool is_one_segment = split.iterations <= 1 && (!kKeepsForLater || split.iterations == 1);
      if (!(is_usual && (!kOneIteration || is_one_segment)))
        finish<Masks::scores, false>();
      else
        finish<kUsual, kOneIteration>();
    }
  }

  __device__ __forceinline__ WarpRows rows() const {
    return {state.tile.smem.shared, state.split.index, state.warpgroup.m_warpgroup,
            state.place.warp,       state.place.lane,  state.row(0),
            state.tile.head,        state.tile.batch};
  }

  template <Masks kMasks, bool kResident>
  __device__ __forceinline__ void finish() {
    const auto& tile = state.tile;
    if constexpr (kConfig.kv_groups > 1) ptx::mbarrier_wait(tile.smem.barrier(Smem::kBarriers.q), 0);
    state.softmax.row_max[0] = state.softmax.row_max[1] = -attention::kInfinity;
    Mainloop::clear(state);
    if constexpr (!kResident || !kVotesLast) Mainloop::template run<kMasks, kResident>(state, false);
#pragma unroll 1
    for (bool again = false;; again = true) {
      if constexpr (kResident && kVotesLast) Mainloop::template run<kMasks, kResident>(state, again);
      if (!(Mainloop::kSumsEarly && kResident) || Mainloop::has_no_keys(state))
        Mainloop::template finish_sums<kResident>(state, again);
      // The other CTAs' barriers exist.
      if (Mainloop::kJoinsLater && !again && (!kResident || Mainloop::has_no_keys(state)))
        ptx::barrier_cluster_wait_acquire();
      const Merge merge{{tile.params, rows(), target.rows, tile.maps.o}, target.mailboxes};
      auto& gemms = state.gemms;
      bool overflowed;
      if constexpr (kKeepsForLater && kResident) {
        Mainloop::multiply_kept(state);
        overflowed = merge.template run<true>(gemms.acc_o, state.log2_sum, state.inverse, again, [&] {
          ptx::wgmma_wait_group(0);
          keep_live(gemms.kept());
        });
      } else {
        overflowed = merge.template run<false>(gemms.acc_o, state.log2_sum, state.inverse, again, [] {});
      }
      if constexpr (!kVotesLast) return;
      // All threads of all splits find the same: each has heard of every split's rows that are its own.
      if (again || !Mainloop::any(state, overflowed)) [[likely]]
        return;
      Merge::prepare_again(rows());
      if constexpr (kResident) {
        Mainloop::template find_maximum<true>(state);
        Mainloop::clear(state);
      }
    }
  }
};

/// A launch's parameters as a program of this problem knows them: its own, or with what is a constant of the program.
/// The entry calls it, not a function around Forward, behind which ptxas places instructions otherwise: b1h16l256d128
/// would be another program.
template <const Problem& kProblem>
__device__ __forceinline__ decltype(auto) known(const Params<kProblem>& params) {
  if constexpr (kProblem.sizes.len_q == 0)
    return (params);
  else
    return with_sizes(params, kProblem.sizes);
}

}  // namespace heed::sm90_split

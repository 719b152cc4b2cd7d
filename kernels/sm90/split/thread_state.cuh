/// What a thread of fwd_sm90_split holds from the first instruction to the last: one object, whose parts lie in this
/// order, since the compiler's allocation of registers follows it (docs/ledger.md).
#pragma once

#include "kernels/sm90/split/cta_tile.cuh"
#include "kernels/sm90/split/gemms.cuh"
#include "kernels/sm90/split/mask.cuh"
#include "kernels/sm90/split/softmax.cuh"

namespace heed::sm90_split {

/// A thread's place in its consumer warpgroup.
struct Place {
  int lane;
  int warp;
};

/// The iterations of a split.
template <const Config& kConfig>
struct Split {
  static constexpr int kStages = kConfig.stages;

  int index;
  int keys_end;  ///< keys any row of the CTA's tile may see
  int iterations;
  int iterations_done = 0;  ///< of a computation that has to be done again
  int seen_by_all;          ///< keys of the split before this are seen by every row of the consumer warpgroup
  int seen_by_any;          ///< keys before this by one at least

  /// Iterations take the slots in turn; one computed again goes on where the first computation ended.
  __device__ __forceinline__ int slot_of(int iteration) const {
    return kStages == 1 ? 0 : (iterations_done + iteration) % kStages;
  }
  __device__ __forceinline__ unsigned parity_of(int iteration) const {
    return (kStages == 1 ? iterations_done + iteration : (iterations_done + iteration) / kStages) & 1;
  }
};

template <const Config& kConfig, const Problem& kProblem>
struct ThreadState {
  using CtaTile = sm90_split::CtaTile<kConfig, kProblem>;

  // ---- compile-time facts
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr bool kOwnProducer = kConfig.producer != Producer::consumer_warp;
  // Of a split that stays, the columns that it keeps are multiplied at the end.
  static constexpr bool kKeepsForLater = kConfig.pv_split_n == PvSplitN::on;

  // ---- state
  CtaTile tile;
  Warpgroup<kConfig> warpgroup;
  Gemms<kConfig, kProblem> gemms;
  Place place;
  Range n_blocks;  // of the split
  Mask<kConfig, kProblem> mask;
  Softmax<kConfig, kProblem> softmax;
  bool is_consumer;  // else of the warp or warpgroup that starts the loads
  Split<kConfig> split;
  float next_scores[kConfig.prefetch_next_qk ? kBlockN / 2 : 1];  // of the iteration to come
  float log2_sum[2];                                              // row maximum + log2(sum) of a row; -inf without keys
  float inverse[2];                                               // of a row's sum, or 0
  unsigned probabilities[kKeepsForLater ? iteration_steps(kConfig) : 1][4];  // of a split that stays

  /// What is not found yet has no value: zeros in its place would be a constant that other programs are made of.
  __device__ __forceinline__ ThreadState(const Params<kProblem>& params, const TensorMaps& maps, unsigned shared)
      : tile{params, maps, {shared}, 0, 0, 0, {}} {}

  __device__ __forceinline__ void find_place() {
    place.lane = threadIdx.x % 32;
    // The same for the warp and known to be, where groups depend on it; elsewhere the first copy would wait for
    // nothing.
    const unsigned warp_index =
        threads(kConfig) == kWarpgroupThreads ? threadIdx.x / 32 : __shfl_sync(0xffffffffU, threadIdx.x / 32, 0);
    place.warp = static_cast<int>(warp_index % 4);
    const int group = static_cast<int>(warp_index / 4);
    is_consumer = !kOwnProducer || group < kConfig.m_warpgroups * kConfig.kv_groups;
    // A constant keeps addresses out of vector registers.
    warpgroup.m_warpgroup = kConfig.m_warpgroups == 1 ? 0 : group % kConfig.m_warpgroups;
    warpgroup.kv_group = kConfig.kv_groups == 1 ? 0 : group / kConfig.m_warpgroups;
  }

  __device__ __forceinline__ void find_keys(int len_k) {
    split.keys_end = visible_keys(kProblem.mask, min(tile.first_row + CtaTile::kRows, tile.params.len_q) - 1,
                                  tile.params.right_offset, len_k);
    if constexpr (CtaTile::kBegins) split.keys_end -= tile.origin();
    split.index = (kConfig.cluster > 1 ? blockIdx.x % kConfig.cluster : 0) * kConfig.kv_groups + warpgroup.kv_group;
    n_blocks = n_blocks_of_split(kConfig, split.keys_end, split.index);
    split.iterations = iterations_of(kConfig, n_blocks);
  }
  __device__ __forceinline__ void find_seen() {
    const ForwardParams& params = tile.params;
    split.seen_by_all = min(visible_keys(kProblem.mask, tile.first_row + warpgroup.m_warpgroup * kWarpgroupRows,
                                         params.right_offset, params.len_k),
                            n_blocks.end * kBlockN);
    split.seen_by_any = visible_keys(kProblem.mask, tile.first_row + (warpgroup.m_warpgroup + 1) * kWarpgroupRows - 1,
                                     params.right_offset, params.len_k);
    if constexpr (CtaTile::kBegins) {
      const int seen_by_first = visible_keys(kProblem.mask, tile.first_row + warpgroup.m_warpgroup * kWarpgroupRows,
                                             params.right_offset, params.len_k);
      split.seen_by_all = min(seen_by_first - tile.origin(), n_blocks.end * kBlockN);
      split.seen_by_any -= tile.origin();
    }
  }

  /// The lane's first row (half 0) or second of its consumer warpgroup's 64.
  __device__ __forceinline__ int row(int half) const {
    return tile.first_row + warpgroup.m_warpgroup * kWarpgroupRows + place.warp * 16 + place.lane / 4 + 8 * half;
  }
  /// Whether it is of the warp that starts loads for its KV group where no other does.
  __device__ __forceinline__ bool is_leader() const { return warpgroup.m_warpgroup == 0 && place.warp == 0; }

  /// N-blocks of any KV group of this CTA.
  __device__ __forceinline__ Range range_of(int group) const {
    return n_blocks_of_split(kConfig, split.keys_end, split.index - warpgroup.kv_group + group);
  }
  __device__ __forceinline__ int first_key_of(int iteration) const {
    return (n_blocks.first + iteration * kConfig.n_blocks_per_stage) * kBlockN;
  }
};

}  // namespace heed::sm90_split

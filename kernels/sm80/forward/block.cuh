/// A thread of a block of fwd_sm80: which rows and tiles of keys it is there for.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/named_barriers.hpp"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/forward/config.hpp"

namespace heed::sm80 {

template <const Config& kConfig, const Problem& kProblem>
struct Block {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kBytes = bytes_of(kProblem.element);
  static constexpr int kKeyBytes = bytes_of(k_element(kProblem));
  static constexpr int kValueBytes = bytes_of(v_element(kProblem));
  static constexpr int kWidth = row_width(kProblem);         // of rows in shared memory, in 16-bit elements
  static constexpr int kFragments = kConfig.warp_rows / 16;  // 16-row fragments a warp
  static constexpr int kOutTiles = kDim / 8;                 // n-tiles of O
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = threads_per_group(kConfig);
  static constexpr int kStages = kConfig.stages;
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kProblem);
  static constexpr auto kLayout = kConfig.smem_layout;
  static constexpr bool kMeets = kConfig.pipeline_sync == PipelineSync::group;
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  static constexpr bool kHasFull = has_full_blocks(kProblem.features);

  static_assert(kBlockM % kConfig.warp_rows == 0, "warps must share the rows evenly");

  // ---- state
  [[no_unique_address]] attention::ListedBlocks<kProblem> features;  // of scores, and which keys rows see
  attention::ParamsOfEntry<kProblem> params;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int group_thread;  // within the group
  int first_row;     // of the block
  int head;
  int batch;
  int keys_end;     // keys any row of the block may see, counted from the first of them (origin())
  int group_tiles;  // tiles of keys that this group takes

  /// Parameters of a launch; those kept are of the block's entry.
  __device__ __forceinline__ Block(const Params<kProblem>& launch, unsigned shared_address)
      : features(launch, place().batch, place().head),
        params(attention::params_of_entry<kProblem>(launch, place().batch)),
        shared_base(shared_address) {
    const auto& p = params;
    lane = threadIdx.x % 32;
    group = kGroups == 1 ? 0 : threadIdx.x / kGroupThreads;  // a constant keeps addresses short
    group_thread = kGroups == 1 ? threadIdx.x : threadIdx.x % kGroupThreads;
    warp = ptx::warp_uniform(group_thread / 32);
    const attention::GridPlace at = place();
    first_row = attention::q_tile_at(kConfig.tile_order, at.index, at.q_tiles) * kBlockM;
    head = at.head;
    batch = at.batch;
    keys_end = visible_keys(kProblem.mask, min(first_row + kBlockM, p.len_q) - 1, p.right_offset, p.len_k);
    if constexpr (kProblem.features.prefix) {
      features.prefix = prefix_of(p, batch);
      keys_end = max(keys_end, features.prefix);
    }
    if constexpr (kBegins) keys_end -= origin();
    group_tiles = tiles_of_group(keys_end);
    if constexpr (kProblem.features.blocks) {
      features.blocks = key_blocks<kHasFull>(p, batch, head, first_row, keys_end + (kBegins ? origin() : 0));
      if (features.blocks.numbers != nullptr)
        group_tiles = tiles_of_group(features.blocks.count * features.blocks.keys);
    }
  }

  __device__ __forceinline__ static attention::GridPlace place() {
    return attention::place_in_grid<grid_axes(kConfig.tile_order)>({blockIdx.x, blockIdx.y, blockIdx.z},
                                                                   {gridDim.x, gridDim.y, gridDim.z});
  }

  // Under a mask with a left bound tiles begin at the first key that some row of the block sees: keys are counted from
  // there, and keys before it are neither loaded nor masked.

  /// The key that is counted as the block's first.
  __device__ __forceinline__ int origin() const {
    return hidden_keys(kProblem.mask, first_row, params.left_offset, params.len_k);
  }
  /// Tiles with keys below `end` that this group takes.
  __device__ __forceinline__ int tiles_of_group(int end) const {
    const int tiles = (end + kBlockN - 1) / kBlockN;
    return kGroups == 1 ? tiles : tiles > group ? (tiles - group + kGroups - 1) / kGroups : 0;
  }

  __device__ __forceinline__ void group_barrier() const {
    if constexpr (kGroupThreads == 32)
      __syncwarp();
    else if constexpr (kGroups == 1)
      __syncthreads();
    else
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::group>(group), kGroupThreads);
  }

  /// Of a tile of K in shared memory; that of V lies behind it.
  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + kPlan.stages + (group * kStages + stage) * kPlan.stage_bytes;
  }

  __device__ __forceinline__ int first_key(int tile) const { return (group + tile * kGroups) * kBlockN; }
  /// The first key of a tile, counted from the entry's first: of the tiles of listed blocks one after another, or of
  /// those from the origin on where the launch has no lists.
  __device__ __forceinline__ int first_key_of_entry(int tile) const {
    const int at = first_key(tile);
    if constexpr (kProblem.features.blocks) {
      // The head's bias is null where the launch's is, and is kept anyway.
      bool takes_full = false;
      if constexpr (kHasFull) takes_full = features.bias != nullptr;
      if (features.blocks.numbers != nullptr)
        return features.blocks.first_key(at / features.blocks.keys, takes_full) + at % features.blocks.keys;
    }
    return (kBegins ? origin() : 0) + at;
  }
  /// Whether the bias may change scores of a tile.
  __device__ __forceinline__ bool reads_bias(int tile) const {
    if constexpr (kHasFull) return !features.blocks.is_full(first_key(tile) / features.blocks.keys);
    return true;
  }
};

}  // namespace heed::sm80

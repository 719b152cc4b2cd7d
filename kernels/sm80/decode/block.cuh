/// A thread of a block of fwd_sm80_decode: its packed rows, the keys that they see, and its place among the warps.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/attention/named_barriers.hpp"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm80/decode/config.hpp"

namespace heed::sm80_decode {

template <const Config& kConfig, const Problem& kProblem>
struct Block {
  // ---- compile-time facts
  static constexpr int kBlockM = kConfig.block_m;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kDim = kProblem.head_dim;
  static constexpr int kFragments = kConfig.warp_rows / 16;  // 16-row fragments a warp
  static constexpr int kOutTiles = kDim / 8;                 // n-tiles of O
  static constexpr int kGroups = kConfig.kv_groups;
  static constexpr int kGroupThreads = threads_per_group(kConfig);
  static constexpr int kStages = kConfig.stages;
  static constexpr int kThreads = threads(kConfig);
  static constexpr int kChunks = kDim / 8;  // 16-byte chunks a row
  static constexpr SharedPlan kPlan = shared_plan(kConfig, kDim, key_bytes(kProblem));
  static constexpr bool kBegins = has_left_bound(kProblem.mask);
  // Keys in front of the first that a row sees are not cut off such launches (kernels/attention/features.hpp), and
  // may hold NaN: tiles begin at that key.
  static constexpr bool kHasOrigin = kBegins && (kProblem.features.pages || kProblem.features.lengths);
  static constexpr bool kQuantised = is_quantised(kProblem);  // K and V have 8 bits: quantised.cuh
  static constexpr Element kOperand = kQuantised ? Element::fp16 : kProblem.element;  // of both products

  // ---- state
  attention::ParamsOfEntry<kProblem> params;
  char* shared;
  unsigned shared_base;
  int lane;
  int warp;  // within the group
  int group;
  int batch;
  RowTile rows;    // the block's packed rows; of an entry with fewer queries than the launch it may have none
  int keys_end;    // keys any row of the block may see
  int keys_plain;  // keys every row of the block sees

  /// Parameters of a launch; those kept are of the block's entry.
  __device__ __forceinline__ Block(const Params<kProblem>& launch, char* dynamic_shared)
      : params(attention::params_of_entry<kProblem>(launch, static_cast<int>(blockIdx.z))),
        shared(dynamic_shared),
        shared_base(ptx::shared_address(dynamic_shared)) {
    lane = threadIdx.x % 32;
    group = threadIdx.x / kGroupThreads;
    warp = threadIdx.x % kGroupThreads / 32;
    batch = blockIdx.z;
    rows = row_tile(kConfig, blockIdx.y, launch.group_size, launch.len_q);
    if constexpr (kProblem.features.lengths)
      rows.rows = least(rows.rows, launch.group_size * params.len_q - rows.first);
    const auto& p = params;
    if constexpr (kProblem.features.lengths) {
      keys_end = keys_plain = 0;
      if (rows.rows <= 0) return;
    }
    keys_end = keys_some_see(kProblem.mask, rows, p.group_size, p.right_offset, p.len_k);
    keys_plain = keys_all_see(kProblem.mask, rows, p.group_size, p.right_offset, p.len_k);
  }

  /// The key that the first tile begins with.
  __device__ __forceinline__ int origin() const {
    return kHasOrigin ? hidden_keys(kProblem.mask, divide(rows.first, params.group_size), params.left_offset, keys_end)
                      : 0;
  }

  /// Orders shared memory among the warps that share a ring.
  __device__ __forceinline__ void group_barrier() const {
    if constexpr (kGroupThreads == 32)
      __syncwarp();
    else
      ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::group>(group), kGroupThreads);
  }

  __device__ __forceinline__ unsigned stage_address(int stage) const {
    return shared_base + kPlan.stages + (group * kStages + stage) * 2 * kPlan.tile_bytes;
  }
};

}  // namespace heed::sm80_decode

/// Values that no row of a consumer warpgroup sees, which lie in its KV tiles nevertheless (reads_past_keys): zeroed in
/// shared memory before they are multiplied. Their weights are zero, but what lies there may be NaN, and a product with
/// that is NaN. Programs without such features have maps that end with the last key that a row sees.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/softmax.cuh"

namespace heed::sm90_persistent {

template <const Config& kConfig, const Problem& kProblem>
struct ClearedValues : Softmax<kConfig, kProblem> {
  using Base = Softmax<kConfig, kProblem>;
  using Base::kBegins, Base::kKeys, Base::kPlan;
  using Base::origin, Base::params, Base::smem, Base::lane, Base::warp, Base::m_warpgroup, Base::kv_group,
      Base::kv_stage, Base::warpgroup_row;

  using Base::Base;

  /// Zeroes the values of tile n, the first of a consumer warpgroup, behind the last key that a row of the entry sees.
  /// To be called, as all of these, when the next stage to wait for is that of the values. Only a first tile may have
  /// such keys.
  __device__ __forceinline__ void clear_values_past_keys(int n) const {
    if constexpr (reads_past_keys(kProblem.features)) {
      const int kept = max(0, this->keys_of_entry() - (kBegins ? origin() : 0) - n * kKeys);
      if (kept < kKeys) clear_values(kept, kKeys);
    }
  }

  /// The same in front of the first key that a row of the entry sees, in tile n, the last of a consumer warpgroup:
  /// boxes of pages may begin before it.
  __device__ __forceinline__ void clear_values_before_keys(int n) const {
    if constexpr (kBegins && kProblem.features.pages) {
      const int first = hidden_keys(kProblem.mask, 0, params.left_offset, params.len_k);
      const int hidden = min(kKeys, first - origin() - n * kKeys);
      if (hidden > 0) clear_values(0, hidden);
    }
  }

  /// Zeroes rows `first` to `end` - 1 of the values of the next stage, by all of the consumer warpgroup. Rows of a box
  /// of 64 columns are lines of 128 bytes, each a permutation of its own pieces, so that rows in a row are a run of
  /// bytes.
  ///
  /// Other consumer warpgroups that share the stage may multiply these rows at the same time: they have zeroed them
  /// before, and meet zeros that become zeros.
  __device__ __forceinline__ void clear_values(int first, int end) const {
    this->wait_for_stage();
    const unsigned values = smem.values(kv_group, kv_stage.stage);
#pragma unroll 1
    for (int at = first * tile::kBoxRowBytes + (warp * 32 + lane) * 16; at < end * tile::kBoxRowBytes;
         at += 16 * kWarpgroupThreads)
#pragma unroll
      for (int b = 0; b < kPlan.operand / kPlan.box; ++b) ptx::st_shared_v4(values + b * kPlan.box + at, 0);
    ptx::fence_proxy_async();
    const int place = (smem.virtual_cta + kv_group) * kConfig.m_warpgroups + m_warpgroup;
    ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::cleared>(place), kWarpgroupThreads);
  }

  /// Zeroes the values of the tile with first key `key` that no row of the consumer warpgroup sees: a list may have
  /// blocks that other rows' lists do not, so what the mask hides of them may be NaN.
  __device__ __forceinline__ void clear_hidden_values(int key) const {
    const auto& p = params;
    int end = visible_keys(kProblem.mask, min(warpgroup_row + kWarpgroupRows, p.len_q) - 1, p.right_offset, p.len_k);
    if constexpr (kProblem.features.prefix) end = max(end, this->prefix);
    const int from = origin();
    const int kept = max(0, end - from - key);
    if (kept < kKeys) clear_values(kept, kKeys);
    if constexpr (kBegins) {
      const int begin = hidden_keys(kProblem.mask, warpgroup_row, p.left_offset, p.len_k);
      const int hidden = min(kKeys, begin - from - key);
      if (hidden > 0) clear_values(0, hidden);
    }
  }
};

}  // namespace heed::sm90_persistent

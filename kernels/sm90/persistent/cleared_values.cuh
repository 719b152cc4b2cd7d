/// Values that no row of a consumer warpgroup sees, which lie in its KV tiles nevertheless (reads_past_keys): zeroed in
/// shared memory before they are multiplied. Their weights are zero, but what lies there may be NaN, and a product with
/// that is NaN. Programs without such features have maps that end with the last key that a row sees.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/persistent/gemms.cuh"
#include "kernels/sm90/persistent/scores.cuh"

namespace heed::sm90_persistent {

/// Zeroes rows `first` to `end` - 1 of the values of the next stage, by all of the consumer warpgroup. Rows of a box
/// of 64 columns are lines of 128 bytes, each a permutation of its own pieces, so that rows in a row are a run of
/// bytes.
///
/// Other consumer warpgroups that share the stage may multiply these rows at the same time: they have zeroed them
/// before, and meet zeros that become zeros.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void clear_values(const Gemms<kConfig, kProblem>& gemms, int first, int end) {
  constexpr SharedPlan kPlan = Gemms<kConfig, kProblem>::kPlan;
  const ConsumerThread<kConfig>& at = gemms.thread;
  gemms.wait_for_stage();
  const unsigned values = gemms.smem.values(at.kv_group, gemms.kv_stage.stage);
#pragma unroll 1
  for (int byte = first * tile::kBoxRowBytes + (at.warp * 32 + at.lane) * 16; byte < end * tile::kBoxRowBytes;
       byte += 16 * kWarpgroupThreads)
#pragma unroll
    for (int b = 0; b < kPlan.operand / kPlan.box; ++b) ptx::st_shared_v4(values + b * kPlan.box + byte, 0);
  ptx::fence_proxy_async();
  const int place = (gemms.smem.virtual_cta.index + at.kv_group) * kConfig.m_warpgroups + at.m_warpgroup;
  ptx::bar_sync(attention::barrier_id<kConfig, NamedBarrier::cleared>(place), kWarpgroupThreads);
}

/// Zeroes the values of tile n, the first of a consumer warpgroup, behind the last key that a row of the entry sees.
/// To be called, as all of these, when the next stage to wait for is that of the values. Only a first tile may have
/// such keys.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void clear_values_past_keys(const Gemms<kConfig, kProblem>& gemms,
                                                       const Scores<kConfig, kProblem>& scores, int n) {
  if constexpr (reads_past_keys(kProblem.features)) {
    constexpr int kKeys = kConfig.block_n;
    const int kept =
        max(0, scores.keys_of_entry() - (has_left_bound(kProblem.mask) ? scores.origin(gemms) : 0) - n * kKeys);
    if (kept < kKeys) clear_values(gemms, kept, kKeys);
  }
}

/// The same in front of the first key that a row of the entry sees, in tile n, the last of a consumer warpgroup: boxes
/// of pages may begin before it.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void clear_values_before_keys(const Gemms<kConfig, kProblem>& gemms,
                                                         const Scores<kConfig, kProblem>& scores, int n) {
  if constexpr (has_left_bound(kProblem.mask) && kProblem.features.pages) {
    constexpr int kKeys = kConfig.block_n;
    const int first = hidden_keys(kProblem.mask, 0, scores.params.left_offset, scores.params.len_k);
    const int hidden = min(kKeys, first - scores.origin(gemms) - n * kKeys);
    if (hidden > 0) clear_values(gemms, 0, hidden);
  }
}

/// Zeroes the values of the tile with first key `key` that no row of the Q tile sees: a list may have blocks that other
/// rows' lists do not, so what the mask hides of them may be NaN. Consumer warpgroups share the tile, and zero the
/// same.
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void clear_hidden_values(const Gemms<kConfig, kProblem>& gemms,
                                                    const Scores<kConfig, kProblem>& scores, int key) {
  constexpr int kKeys = kConfig.block_n;
  const auto& p = scores.params;
  int row = scores.warpgroup_row;
  if constexpr (kConfig.m_warpgroups > 1) row -= gemms.thread.m_warpgroup * kWarpgroupRows;
  int end = visible_keys(kProblem.mask, min(row + block_rows(kConfig), p.len_q) - 1, p.right_offset, p.len_k);
  if constexpr (kProblem.features.prefix) end = max(end, scores.changes.prefix);
  const int from = scores.origin(gemms);
  const int kept = max(0, end - from - key);
  if (kept < kKeys) clear_values(gemms, kept, kKeys);
  if constexpr (has_left_bound(kProblem.mask)) {
    const int begin = hidden_keys(kProblem.mask, row, p.left_offset, p.len_k);
    const int hidden = min(kKeys, begin - from - key);
    if (hidden > 0) clear_values(gemms, 0, hidden);
  }
}

}  // namespace heed::sm90_persistent

/// Values that no row of an entry sees, which lie behind its last key in an iteration's stage nevertheless: other
/// entries' values, or values of keys that are not in use. They are zeroed in shared memory before they are multiplied:
/// their weights are zero, but what lies there may be NaN, and a product with that is NaN. Without lengths of entries
/// maps end with the last key that a row sees.
#pragma once

#include "kernels/ptx/bulk_tensor.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/sm90/split/thread_state.cuh"

namespace heed::sm90_split {

/// Zeroes those of the values behind one barrier, which has been waited for, by all of the consumer warpgroup. Rows of
/// a box of 64 columns are lines of 128 bytes, each a permutation of its own pieces, so that rows in a row are a run of
/// bytes.
///
/// Other consumer warpgroups of the KV group may multiply these rows at the same time: they have zeroed them before,
/// and meet zeros that become zeros. One whose rows see all keys of the iteration has no need to.
/// @param values where they begin
/// @param first_key of the first row, counted from the tile's origin
template <const Config& kConfig, const Problem& kProblem>
__device__ __forceinline__ void clear_values_past_keys(const ThreadState<kConfig, kProblem>& state, unsigned values,
                                                       int first_key) {
  using Smem = SmemLayout<kConfig, kProblem>;
  constexpr int kKeys = Smem::kValueSteps * kMmaK;
  const int kept = max(0, state.tile.seen_by_entry() - first_key);
  if (kept >= kKeys) return;
#pragma unroll 1
  for (int byte = kept * tile::kBoxRowBytes + (state.place.warp * 32 + state.place.lane) * 16;
       byte < kKeys * tile::kBoxRowBytes; byte += 16 * kWarpgroupThreads)
#pragma unroll
    for (int b = 0; b < Smem::kBoxes; ++b) ptx::st_shared_v4(values + b * Smem::kPlan.value_box + byte, 0);
  ptx::fence_proxy_async();
  ptx::bar_sync(state.warpgroup.cleared_barrier(), kWarpgroupThreads);
}

}  // namespace heed::sm90_split

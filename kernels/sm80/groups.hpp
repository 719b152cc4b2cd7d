/// Groups of warps of a block: what fwd_sm80 and fwd_sm80_decode share of their configs. `Config` is either one.
#pragma once

#include "kernels/attention/named_barriers.hpp"
#include "kernels/contract.hpp"
#include "kernels/tile/registers.hpp"

namespace heed::sm80_groups {

template <class Config>
HEED_HOST_DEVICE constexpr int warps_per_group(const Config& c) {
  return c.block_m / c.warp_rows;
}
template <class Config>
HEED_HOST_DEVICE constexpr int threads_per_group(const Config& c) {
  return 32 * warps_per_group(c);
}
template <class Config>
HEED_HOST_DEVICE constexpr int threads(const Config& c) {
  return threads_per_group(c) * c.kv_groups;
}

/// What named barriers are for.
enum class NamedBarrier { group };  ///< one a group of several warps, which share a ring

template <class Config>
HEED_HOST_DEVICE constexpr attention::NamedBarriers<NamedBarrier, 1> named_barriers(const Config& c) {
  return {{{1, warps_per_group(c) > 1 ? c.kv_groups : 0}}};
}

/// Registers a thread may use so that min_blocks blocks fit.
template <class Config>
HEED_HOST_DEVICE constexpr int registers_allowed(const Config& c) {
  return tile::registers_at_launch(threads(c), c.min_blocks);
}

/// Whether min_blocks blocks of so much shared memory fit a multiprocessor.
/// @param shared_bytes_per_processor what all blocks of a multiprocessor share
template <class Config>
HEED_HOST_DEVICE constexpr bool blocks_fit(const Config& c, int shared_bytes, long long shared_bytes_per_processor) {
  // The runtime keeps 1 KiB of each block's shared memory to itself.
  if (static_cast<long long>(c.min_blocks) * (shared_bytes + 1024) > shared_bytes_per_processor) return false;
  return threads(c) * c.min_blocks <= 1536;  // sm_86 and sm_89; sm_80 and sm_90 allow 2048
}

}  // namespace heed::sm80_groups

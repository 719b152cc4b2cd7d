/// Turns of fwd_sm90_fp8's consumer warpgroups at issuing products (Pingpong), by a named barrier each: a warpgroup
/// waits at its own, at which the one before arrives.
///
/// Turns at exponentials instead, with polynomials for a quarter of them or without, were no faster at 16,384 keys on
/// an H200: 0.94 to 0.98 times the rate at head dim 64, 0.92 to 0.97 at 128, 1.0 at 256.
#pragma once

#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/fp8/config.hpp"

namespace heed::sm90_fp8 {

template <const Config& kConfig>
struct Turns {
  // ---- compile-time facts
  static constexpr bool kTakes = kConfig.pingpong == Pingpong::on && kConfig.m_warpgroups > 1;

  int m_warpgroup;

  /// The first warpgroup's first turn.
  __device__ __forceinline__ void begin() const {
    if (kTakes && m_warpgroup == kConfig.m_warpgroups - 1) let_products();
  }

  __device__ __forceinline__ void wait_for_products() const {
    if constexpr (kTakes) ptx::bar_sync(kFirstTurn + m_warpgroup, 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void let_products() const {
    if constexpr (kTakes)
      ptx::bar_arrive(kFirstTurn + (m_warpgroup + 1 == kConfig.m_warpgroups ? 0 : m_warpgroup + 1),
                      2 * kWarpgroupThreads);
  }
};

}  // namespace heed::sm90_fp8

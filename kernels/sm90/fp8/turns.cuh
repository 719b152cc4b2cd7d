/// Turns of fwd_sm90_fp8's consumer warpgroups, at products or at exponentials (Pingpong), by a named barrier each: a
/// warpgroup waits at its own, at which the one before arrives.
///
/// With turns at the special-function units one warpgroup has them while the other waits for scores, looks for row
/// maxima and rounds probabilities. On an H200 that takes 5% less time at b32h32l512d64 and 6% more at
/// b1h32l16384d64: exponentials are not what long rows wait for.
#pragma once

#include "kernels/ptx/global.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90/fp8/config.hpp"

namespace heed::sm90_fp8 {

template <const Config& kConfig>
struct Turns {
  // ---- compile-time facts
  static constexpr bool kAtProducts = kConfig.pingpong == Pingpong::on && kConfig.m_warpgroups > 1;
  static constexpr bool kAtExponentials = kConfig.pingpong == Pingpong::exponentials && kConfig.m_warpgroups > 1;
  // Of a row's pairs of exponentials, how many are left when the next warpgroup is let at them: the barrier, and what
  // comes in front of its first one, take about as long.
  static constexpr int kHandOver = 3;

  int m_warpgroup;

  /// The first warpgroup's first turn.
  __device__ __forceinline__ void begin() const {
    if ((kAtProducts || kAtExponentials) && m_warpgroup == kConfig.m_warpgroups - 1) let_next();
  }

  __device__ __forceinline__ void wait_for_products() const {
    if constexpr (kAtProducts) wait();
  }
  __device__ __forceinline__ void let_products() const {
    if constexpr (kAtProducts) let_next();
  }

  /// To be called with what exponents are added to, in front of all exponentials.
  __device__ __forceinline__ void wait_for_exponentials(float (&addend)[2]) const {
    if constexpr (kAtExponentials) {
      wait();
      ptx::settle(addend[0]);
      ptx::settle(addend[1]);
    }
  }
  /// To be called with one of the last exponentials: as ptxas orders barriers and exponentials as it likes, the
  /// barrier's number depends on it. None is above 2^8.
  __device__ __forceinline__ void let_exponentials(float exponential) const {
    if constexpr (kAtExponentials) let_next(exponential > 0x1p100F ? 1 : 0);
  }

 private:
  __device__ __forceinline__ void wait() const { ptx::bar_sync(kFirstTurn + m_warpgroup, 2 * kWarpgroupThreads); }
  __device__ __forceinline__ void let_next(int nothing = 0) const {
    const int next = m_warpgroup + 1 == kConfig.m_warpgroups ? 0 : m_warpgroup + 1;
    ptx::bar_arrive(nothing + kFirstTurn + next, 2 * kWarpgroupThreads);
  }
};

}  // namespace heed::sm90_fp8

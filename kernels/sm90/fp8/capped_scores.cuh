/// The softcap (kernels/attention/softcap.cuh) of fwd_sm90_fp8: of products of 8-bit elements, whose rows have scale
/// factors of their own.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/softcap.cuh"

namespace heed::sm90_fp8 {

/// Products become scores in units of log2. Hidden keys' become anything; masks come afterwards.
/// @param scale of each of the lane's two rows, times log2(e)
/// @param softcap of the launch; 0: none
template <int kRegisters>
__device__ __forceinline__ void cap_scores(float (&s)[kRegisters], const float (&scale)[2], float softcap) {
  if (softcap == 0.0F) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) s[i] *= scale[i / 2 % 2];
    return;
  }
  const float cap = softcap * attention::kLog2e;
  const float of_one = ptx::rcp_approx_ftz(cap);
  const float rate[2] = {scale[0] * of_one, scale[1] * of_one};
  float largest[2] = {0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(s[i]));
  using Small = attention::SmallCap<false>;
  const Small small[2] = {Small(rate[0], cap), Small(rate[1], cap)};
  const bool first_is_small = small[0].is_for(largest[0] * rate[0]);
  if (small[1].is_for(largest[1] * rate[1]) && first_is_small) {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) s[i] = small[i / 2 % 2](s[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i)
      s[i] = attention::capped(s[i], 2.0F * attention::kLog2e * rate[i / 2 % 2], cap);
  }
}

}  // namespace heed::sm90_fp8

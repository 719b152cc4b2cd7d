/// kernels/ptx/math.cuh on the host.
#pragma once

#include "device.hpp"
#include "kernels/contract.hpp"
#include "workload/half.hpp"

namespace heed::ptx {

inline float ex2_approx_ftz(float x) {
  return std::exp2(x);
}
inline float lg2_approx_ftz(float x) {
  return std::log2(x);
}
template <Element kElement>
unsigned cvt_rn_x2(float low, float high) {
  const auto convert = [](float f) -> unsigned {
    return kElement == Element::bf16 ? float_to_bf16(f) : float_to_fp16(f);
  };
  return convert(low) | convert(high) << 16;
}

}  // namespace heed::ptx

// Stand-ins for kernels/ptx/math.cuh.
#pragma once

#include "emulator/device/device.hpp"
#include "kernels/contract.hpp"

namespace heed::ptx {

inline float flushed(float x) {
  return std::fabs(x) < 0x1p-126F ? 0.0F : x;
}
inline float ex2_approx_ftz(float x) {
  return flushed(std::exp2(x));
}
inline float ex2_approx_ftz_in_order(float x) {
  return ex2_approx_ftz(x);
}
inline float lg2_approx_ftz(float x) {
  return std::log2(flushed(x));
}
inline unsigned add_rn_f16x2(unsigned x, unsigned y) {
  const auto half = [&](int at) {
    return emulator::load_16(false, reinterpret_cast<const std::byte*>(&x) + at) +
           emulator::load_16(false, reinterpret_cast<const std::byte*>(&y) + at);
  };
  return emulator::round_16(false, half(0)) | static_cast<unsigned>(emulator::round_16(false, half(2))) << 16;
}
inline float rcp_approx_ftz(float x) {
  return flushed(1.0F / flushed(x));
}
inline float rsqrt_approx_ftz(float x) {
  return 1.0F / std::sqrt(flushed(x));
}
template <Element kElement>
unsigned cvt_rn_x2(float low, float high) {
  constexpr bool kBf16 = kElement == Element::bf16;
  return emulator::round_16(kBf16, low) | static_cast<unsigned>(emulator::round_16(kBf16, high)) << 16;
}
template <Element kElement>
unsigned cvt_rn_x2_in_order(float low, float high) {
  return cvt_rn_x2<kElement>(low, high);
}
template <Element kElement>
float unpack_low(unsigned packed) {
  return emulator::load_16(kElement == Element::bf16, reinterpret_cast<const std::byte*>(&packed));
}
template <Element kElement>
float unpack_high(unsigned packed) {
  return emulator::load_16(kElement == Element::bf16, reinterpret_cast<const std::byte*>(&packed) + 2);
}

inline void fma_where_above(float& z, float x, float limit, float y, float other) {
  z = x <= limit ? other : std::fma(x, y, z);
}
template <Element kElement>
void fma_where_above(float& low, float& high, unsigned pair, unsigned limit, float y, float other) {
  fma_where_above(low, unpack_low<kElement>(pair), unpack_low<kElement>(limit), y, other);
  fma_where_above(high, unpack_high<kElement>(pair), unpack_low<kElement>(limit), y, other);
}
inline void keep_where_any(float& x, unsigned bits, float other) {
  if (bits == 0) x = other;
}

}  // namespace heed::ptx
